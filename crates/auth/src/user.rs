//! Who asks, as handlers have it.

use crate::challenge::unauthorized;
use http::{HeaderValue, StatusCode};
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panics::contained;
use peregrine_web::{Parts, Problem};
use std::any::type_name;

/// Who asks: what the function of an [`Authenticate`](crate::Authenticate) around the handler made of the request's credentials.
///
/// Where an optional one found no credentials, the problem has status 401, and `Option<User<T>>` is `None`. Without an `Authenticate` around
/// the handler, the problem has status 500. Code that has a request's parts finds it in the extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User<T>(pub T);

/// What those that found no credentials would have told the client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passed(pub(crate) Vec<HeaderValue>);

impl<T: Clone + Send + Sync + 'static> FromRequestParts for User<T> {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        if let Some(user) = parts.extensions().get::<Self>() {
            return Ok(user.clone());
        }
        if let Some(Passed(challenges)) = parts.extensions().get::<Passed>() {
            let detail = "This is for those who say who they are; WWW-Authenticate says how.";
            return Err(unauthorized("missing-credentials", detail, challenges.iter().cloned()));
        }
        let name = type_name::<T>();
        contained(
            || tracing::error!(target: "peregrine", "the handler needs a User<{name}>; add an `Authenticate` that makes one around it"),
        );
        let detail = "the server lacks something that it needs for this request; its log says what";
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-user", detail))
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        Ok(parts.extensions().get::<Self>().cloned())
    }
}
