//! Mounts services under a prefix, and removes the prefix from the paths that the services see.

use crate::dispatch::Dispatch;
use crate::handler::{IntoTowerHandler, TowerHandler, ViaTowerHandler};
use peregrine_web::extract::RouteRequirements;
use peregrine_web::handler::{RouteOptions, Signature};
use peregrine_web::{App, Handler, Request, Response, Scope};

/// Mounts tower services under a prefix, beside native routes.
///
/// ```
/// use axum::{Router, routing::get};
/// use peregrine::tower::Mount;
/// use peregrine::App;
///
/// let router = Router::new().route("/", get("all")).route("/{id}", get("one"));
/// let app = App::new().get("/", || "ours").mount("/birds", router);
/// let client = app.test();
/// assert_eq!(client.get("/").send_blocking().text(), "ours");
/// assert_eq!(client.get("/birds").send_blocking().text(), "all");
/// assert_eq!(client.get("/birds/7").send_blocking().text(), "one");
/// ```
#[doc(alias = "nest_service")]
pub trait Mount: Sized {
    /// Passes requests for `prefix`, `prefix/` and all paths below it to `service`, whatever their
    /// method. Native routes that match a path more specifically take precedence.
    ///
    /// As in axum's `nest_service`, the service sees the path without the prefix, beginning with
    /// `/`. The request's extensions contain the full path, as [`OriginalUri`]. The prefix may
    /// contain parameters.
    ///
    /// [`OriginalUri`]: crate::OriginalUri
    #[doc(alias = "nest_service")]
    #[doc(alias = "nest")]
    #[doc(alias = "route_service")]
    #[track_caller]
    #[must_use]
    fn mount<Via, T: IntoTowerHandler<Via>>(self, prefix: &str, service: T) -> Self;
}

impl Mount for App {
    #[track_caller]
    fn mount<Via, T: IntoTowerHandler<Via>>(self, prefix: &str, service: T) -> Self {
        self.subtree(prefix, StripPrefix(service.into_tower_handler()))
    }
}

impl Mount for Scope {
    #[track_caller]
    fn mount<Via, T: IntoTowerHandler<Via>>(self, prefix: &str, service: T) -> Self {
        self.subtree(prefix, StripPrefix(service.into_tower_handler()))
    }
}

/// A mounted service, which sees paths without the mount's prefix.
struct StripPrefix<D>(TowerHandler<D>);

impl<D: Dispatch> Signature<ViaTowerHandler> for StripPrefix<D> {}

impl<D: Dispatch> Handler<ViaTowerHandler, ()> for StripPrefix<D> {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        self.0.respond(request, true) // strips the path's prefix
    }

    fn require(&self, requirements: &mut RouteRequirements) {
        self.0.require(requirements);
    }

    fn configure(&self, options: &mut RouteOptions) {
        self.0.configure(options);
    }
}
