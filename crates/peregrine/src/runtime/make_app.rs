//! [`MakeApplication`]: the functions, synchronous or `async`, that build the workers'
//! applications.

use peregrine_web::application::Application;
use peregrine_web::{App, BuildError};
use std::future::ready;
use std::pin::Pin;

/// An application that [`Server::serve`](crate::Server::serve) accepts: an [`App`], or one that is
/// already built.
pub trait IntoApplication {
    /// Checks and builds the application.
    ///
    /// # Errors
    /// The application contradicts itself, for example with conflicting routes.
    fn into_application(self) -> Result<Application, BuildError>;
}

impl IntoApplication for App {
    fn into_application(self) -> Result<Application, BuildError> {
        self.build()
    }
}

impl IntoApplication for Application {
    fn into_application(self) -> Result<Application, BuildError> {
        Ok(self)
    }
}

impl<A: IntoApplication> IntoApplication for Result<A, BuildError> {
    fn into_application(self) -> Result<Application, BuildError> {
        self?.into_application()
    }
}

/// A closure or function without arguments that returns an application, and may be `async`.
/// [`Server::serve`](crate::Server::serve) calls it once on each worker's thread.
///
/// The compiler infers `Via`, which distinguishes synchronous from `async` functions.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not create an application",
    label = "this does not return an `App`, or cannot be sent to each worker",
    note = "write `|| App::new()` or `async || App::new()`; it must be `Clone + Send + 'static`"
)]
pub trait MakeApplication<Via>: Clone + Send + 'static {
    /// Builds an application for the calling thread.
    #[doc(hidden)]
    fn make(self) -> Making;
}

/// An application that is being built.
pub(crate) type Making = Pin<Box<dyn Future<Output = Result<Application, BuildError>>>>;

/// Marks synchronous functions in [`MakeApplication`].
#[derive(Debug)]
pub enum AtOnce {}

/// Marks `async` functions in [`MakeApplication`].
#[derive(Debug)]
pub enum InTime {}

impl<A, M> MakeApplication<AtOnce> for M
where
    A: IntoApplication,
    M: Fn() -> A + Clone + Send + 'static,
{
    fn make(self) -> Making {
        let application = self().into_application();
        // Drops the captured values. A captured channel sender, for example, would keep a task
        // alive that ends when the application has dropped its senders.
        drop(self);
        Box::pin(ready(application))
    }
}

impl<A, M> MakeApplication<InTime> for M
where
    A: IntoApplication,
    M: AsyncFn() -> A + Clone + Send + 'static,
{
    fn make(self) -> Making {
        Box::pin(async move {
            let application = self().await.into_application();
            drop(self);
            application
        })
    }
}

/// Builds a worker's application, on the worker's thread.
pub type Make = Box<dyn FnOnce() -> Making + Send>;

/// Erases the type of `make`, so that the server is compiled once, with this crate, and not again
/// for each application.
pub fn makes<Via, M: MakeApplication<Via>>(make: M) -> impl FnMut() -> Make + Send {
    move || {
        let make = make.clone();
        Box::new(move || make.make())
    }
}
