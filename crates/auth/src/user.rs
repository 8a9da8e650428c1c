//! The authenticated user, as an extractor.

use crate::challenge::unauthorized;
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::{Parts, Problem};
use std::any::type_name;

/// The authenticated user: what the verify function of the enclosing
/// [`Authenticate`](crate::Authenticate) returned for the request's credentials.
///
/// If an optional `Authenticate` found no credentials, the extractor fails with a problem of status
/// 401, and `Option<User<T>>` is `None`. Without any enclosing `Authenticate`, the problem has
/// status 500. Code that has the request's parts can also get the user from their extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User<T>(pub T);

/// The challenges of the optional `Authenticate` layers that found no credentials.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingChallenges(pub(crate) Vec<HeaderValue>);

impl<T: Clone + Send + Sync + 'static> FromRequestParts for User<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        if let Some(user) = parts.extensions().get::<Self>() {
            return Ok(user.clone());
        }
        if let Some(PendingChallenges(challenges)) = parts.extensions().get::<PendingChallenges>() {
            let detail = "Credentials are required; WWW-Authenticate lists the accepted schemes.";
            return Err(unauthorized("missing-credentials", detail, challenges.iter().cloned()));
        }
        let name = type_name::<T>();
        catch_subscriber_panic(
            || tracing::error!(target: "peregrine", "the handler needs a User<{name}>; wrap it in an `Authenticate` that creates one"),
        );
        let detail = "the server lacks something that it needs for this request; its log says what";
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-user", detail))
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.extensions().get::<Self>().cloned())
    }
}
