//! What makes the applications of a server's workers, at once or in time.

use peregrine_web::application::Application;
use peregrine_web::{App, BuildError};
use std::future::ready;
use std::pin::Pin;

/// What [`Server::serve`](crate::Server::serve) can serve: an [`App`], or an application that is
/// already built.
pub trait IntoApplication {
    /// Checks and builds the application.
    ///
    /// # Errors
    /// The application contradicts itself.
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

/// What [`Server::serve`](crate::Server::serve) calls once on each worker's thread: a closure or a
/// function without arguments that gives an application, or that does so in time, as an `async` one.
///
/// `Via` tells the two apart. It is never written.
#[diagnostic::on_unimplemented(
    message = "`{Self}` makes no application",
    label = "this gives no `App`, or cannot be sent to each worker",
    note = "write `|| App::new()` or `async || App::new()`; what it captures must be `Clone + Send + 'static`"
)]
pub trait MakeApplication<Via>: Clone + Send + 'static {
    /// An application for the calling thread.
    #[doc(hidden)]
    fn make(self) -> Making;
}

/// An application that is being made.
pub(crate) type Making = Pin<Box<dyn Future<Output = Result<Application, BuildError>>>>;

/// How a plain function makes an application.
#[derive(Debug)]
pub enum AtOnce {}

/// How an `async` function makes an application.
#[derive(Debug)]
pub enum InTime {}

impl<A, M> MakeApplication<AtOnce> for M
where
    A: IntoApplication,
    M: Fn() -> A + Clone + Send + 'static,
{
    fn make(self) -> Making {
        let application = self().into_application();
        // Values that it holds must not keep tasks alive that end with the application.
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

/// Makes a worker's application, on the worker's thread.
pub type Make = Box<dyn FnOnce() -> Making + Send>;

/// What makes the applications of all workers, without their type. By that all of the server is compiled
/// with this crate, and not with each application.
pub fn makes<Via, M: MakeApplication<Via>>(make: M) -> impl FnMut() -> Make + Send {
    move || {
        let make = make.clone();
        Box::new(move || make.make())
    }
}
