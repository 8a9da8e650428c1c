//! Typed values from requests.

use crate::problem::Problem;
use crate::request::{Parts, Request};
use crate::requirements::Requirements;

/// A value from a request's head. Any number of these may come before the last argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's argument here",
    label = "not an extractor of the request's head",
    note = "arguments before the last must leave the body alone: `Path`, `Query`, `State`, `HeaderMap`, ...",
    note = "an argument that reads the body (`Json`, `Form`, `Bytes`, `String`, `Body`, `Request`) must come last"
)]
pub trait FromRequestParts: Sized {
    /// Takes the value from `parts`.
    ///
    /// # Errors
    /// The request does not have it: the problem is the answer to the peer.
    fn from_request_parts(parts: &mut Parts) -> impl Future<Output = Result<Self, Problem>>;

    /// Says what the application must provide for this extractor to work, such as a state. It is
    /// checked once, when the application is built.
    fn require(_requirements: &mut Requirements) {}
}

/// Marks extractors that take the whole request.
#[derive(Debug)]
pub enum ViaRequest {}

/// Marks extractors that take only the head, used in the last place.
#[derive(Debug)]
pub enum ViaParts {}

/// A value from a whole request, body included. One of these may come last. `Via` keeps the two
/// ways apart; leave it out.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's last argument",
    label = "not an extractor",
    note = "implement `FromRequestParts` or `FromRequest` for it, or wrap it: `Json<{Self}>`, `Form<{Self}>`, `Path<{Self}>`, `State<{Self}>`, ..."
)]
pub trait FromRequest<Via = ViaRequest>: Sized {
    /// Takes the value from `request`.
    ///
    /// # Errors
    /// The request does not have it: the problem is the answer to the peer.
    fn from_request(request: Request) -> impl Future<Output = Result<Self, Problem>>;

    /// As [`FromRequestParts::require`].
    fn require(_requirements: &mut Requirements) {}
}

impl<T: FromRequestParts> FromRequest<ViaParts> for T {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        let (mut parts, _body) = request.into_parts();
        T::from_request_parts(&mut parts).await
    }

    fn require(requirements: &mut Requirements) {
        T::require(requirements);
    }
}
