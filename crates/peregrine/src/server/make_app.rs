//! [`MakeApp`]: the functions that build the workers' applications. They can be `async`.

use peregrine_runtime::internal::{BoxedMakeApp, BuildFuture};
use peregrine_web::built::BuiltApp;
use peregrine_web::{App, BuildError};
use std::future::ready;

/// An application that [`Server::serve`](crate::Server::serve) accepts: an [`App`], or one that is
/// already built.
pub trait IntoBuiltApp {
    /// Checks and builds the application.
    ///
    /// # Errors
    /// The application is invalid, for example because routes conflict.
    fn into_built_app(self) -> Result<BuiltApp, BuildError>;
}

impl IntoBuiltApp for App {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        self.build()
    }
}

impl IntoBuiltApp for BuiltApp {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        Ok(self)
    }
}

impl<A: IntoBuiltApp> IntoBuiltApp for Result<A, BuildError> {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        self?.into_built_app()
    }
}

/// A closure or function, possibly `async`, that has no arguments and returns an application.
/// [`Server::serve`](crate::Server::serve) calls it once on each worker's thread.
///
/// The compiler infers `Via`, which distinguishes synchronous functions from `async` ones.
#[doc(alias = "app_factory")]
#[doc(alias = "MakeService")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not create an application",
    label = "this does not return an `App`, or cannot be sent to each worker",
    note = "write `|| App::new()` or `async || App::new()`; it must be `Clone + Send + 'static`"
)]
pub trait MakeApp<Via>: Clone + Send + 'static {
    /// Builds an application for the calling thread.
    #[doc(hidden)]
    fn make(self) -> BuildFuture;
}

/// The `Via` of [`MakeApp`] for synchronous functions.
#[derive(Debug)]
pub enum ViaSync {}

/// The `Via` of [`MakeApp`] for `async` functions.
#[derive(Debug)]
pub enum ViaAsync {}

impl<A, M> MakeApp<ViaSync> for M
where
    A: IntoBuiltApp,
    M: Fn() -> A + Clone + Send + 'static,
{
    fn make(self) -> BuildFuture {
        let application = self().into_built_app();
        // Drops the captured values. A captured channel sender, for example, would keep a task
        // alive that should end when the application drops its last sender.
        drop(self);
        Box::pin(ready(application))
    }
}

impl<A, M> MakeApp<ViaAsync> for M
where
    A: IntoBuiltApp,
    M: AsyncFn() -> A + Clone + Send + 'static,
{
    fn make(self) -> BuildFuture {
        Box::pin(async move {
            let application = self().await.into_built_app();
            drop(self);
            application
        })
    }
}

/// Returns a function that creates a boxed clone of `make` for each worker. This erases the type of
/// `make`, so that the server is compiled once, with this crate, instead of once for each
/// application.
pub fn box_make_app<Via, M: MakeApp<Via>>(make: M) -> impl FnMut() -> BoxedMakeApp + Send {
    move || {
        let make = make.clone();
        Box::new(move || make.make())
    }
}
