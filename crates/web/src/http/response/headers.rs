//! Header fields as parts of a response, and [`NoCompression`].

use super::into_response::{
    IntoResponse, IntoResponseParts, is_response_error, response_error_from,
};
use crate::http::panic::catch_subscriber_panic;
use crate::http::problem::Problem;
use crate::http::response::{Headers, Response};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::fmt::Display;

/// Header fields that are added to fields of the same name instead of replacing them.
///
/// ```
/// use peregrine::http::header::LINK;
/// use peregrine::web::response::{AppendHeaders, IntoResponse};
///
/// let links =
///     AppendHeaders([(LINK, "</style.css>; rel=preload"), (LINK, "</app.js>; rel=preload")]);
/// let response = (links, "page").into_response();
/// assert_eq!(response.headers.iter().filter(|(name, _)| *name == LINK).count(), 2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct AppendHeaders<I>(pub I);

/// The name-value pairs of `map`, whose own iterator yields each name only with its first value.
pub(super) fn flatten_header_map(
    map: HeaderMap,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
    let mut last = None;
    map.into_iter().filter_map(move |(name, value)| {
        last = name.or(last.take());
        last.clone().map(|name| (name, value))
    })
}

/// Converts a name and a value from a handler into a header field. If one of them is invalid, logs
/// it and returns a problem.
fn parse_header<K, V>(name: K, value: V) -> Result<(HeaderName, HeaderValue), Problem>
where
    K: TryInto<HeaderName, Error: Display>,
    V: TryInto<HeaderValue, Error: Display>,
{
    let report_invalid = |what: &str, error: &dyn Display| {
        catch_subscriber_panic(
            || tracing::error!(what, %error, "a handler returned an invalid header field"),
        );
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "invalid-response-header",
            "the server created an invalid header field; its log says which",
        )
    };
    let name = name.try_into().map_err(|error| report_invalid("name", &error))?;
    let value = value.try_into().map_err(|error| report_invalid(name.as_str(), &error))?;
    Ok((name, value))
}

/// Sets the status, unless the response is sent because the intended one could not be built.
impl IntoResponseParts for StatusCode {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        if !is_response_error(response) {
            response.status = self;
        }
        Ok(())
    }
}

/// Each name replaces earlier fields of that name.
impl IntoResponseParts for HeaderMap {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        for name in self.keys() {
            response.headers.remove(name);
        }
        response.headers.extend(flatten_header_map(self));
        Ok(())
    }
}

/// Each name replaces earlier fields of that name.
impl IntoResponseParts for Headers {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        for (name, _) in self.iter() {
            response.headers.remove(name);
        }
        response.headers.extend(self.iter().map(|(name, value)| (name.clone(), value.clone())));
        Ok(())
    }
}

/// Each field replaces earlier fields of its name.
impl<K, V, const N: usize> IntoResponseParts for [(K, V); N]
where
    K: TryInto<HeaderName, Error: Display>,
    V: TryInto<HeaderValue, Error: Display>,
{
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        for (name, value) in self {
            let (name, value) = parse_header(name, value)?;
            response.headers.insert(name, value);
        }
        Ok(())
    }
}

impl<I, K, V> IntoResponseParts for AppendHeaders<I>
where
    I: IntoIterator<Item = (K, V)>,
    K: TryInto<HeaderName, Error: Display>,
    V: TryInto<HeaderValue, Error: Display>,
{
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        for (name, value) in self.0 {
            let (name, value) = parse_header(name, value)?;
            response.headers.append(name, value);
        }
        Ok(())
    }
}

/// `None` changes nothing.
impl<P: IntoResponseParts> IntoResponseParts for Option<P> {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        self.map_or(Ok(()), |part| part.into_response_parts(response))
    }
}

impl IntoResponseParts for () {
    fn into_response_parts(self, _: &mut Response) -> Result<(), Problem> {
        Ok(())
    }
}

/// Creates a response that consists of these parts only.
pub(crate) fn response_from_parts(parts: impl IntoResponseParts) -> Response {
    let mut response = Response::new(StatusCode::OK);
    match parts.into_response_parts(&mut response) {
        Ok(()) => response,
        Err(problem) => response_error_from(problem),
    }
}

/// Status 200 with these fields and no content.
impl IntoResponse for HeaderMap {
    fn into_response(self) -> Response {
        response_from_parts(self)
    }
}

/// Status 200 with these fields and no content.
impl<K, V, const N: usize> IntoResponse for [(K, V); N]
where
    K: TryInto<HeaderName, Error: Display>,
    V: TryInto<HeaderValue, Error: Display>,
{
    fn into_response(self) -> Response {
        response_from_parts(self)
    }
}

/// Status 200 with these fields and no content.
impl<I, K, V> IntoResponse for AppendHeaders<I>
where
    I: IntoIterator<Item = (K, V)>,
    K: TryInto<HeaderName, Error: Display>,
    V: TryInto<HeaderValue, Error: Display>,
{
    fn into_response(self) -> Response {
        response_from_parts(self)
    }
}

/// Exempts a response from compression. Use it for a response that contains both a secret and data
/// from the request, because the compressed length would reveal the secret (BREACH). In a tuple it
/// comes before the body, as header fields do. Middleware that stores responses, such as `Cache`,
/// stores the exemption too.
#[doc(alias = "BREACH")]
#[doc(alias = "uncompressed")]
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCompression;

impl NoCompression {
    /// Whether the response must not be compressed.
    #[must_use]
    pub fn is_set(response: &Response) -> bool {
        response.extensions().is_some_and(|extensions| extensions.get::<Self>().is_some())
    }

    /// Exempts `response` from compression.
    pub fn apply_to(self, response: &mut Response) {
        response.extensions_mut().insert(self);
    }
}

impl IntoResponseParts for NoCompression {
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem> {
        self.apply_to(response);
        Ok(())
    }
}
