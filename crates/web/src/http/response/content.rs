//! Response content: text, bytes, JSON, HTML, forms, and whole responses.

use super::headers::flatten_header_map;
use super::into_response::{IntoResponse, response_error};
use crate::http::body::{Body, BodyError, pool};
use crate::http::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use serde::Serialize;
use std::any::Any;
use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error;

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");

/// JSON. As a handler's last argument it is the deserialized request body; as a return value it
/// becomes the response body.
///
/// The request's `Content-Type` must be `application/json` or end in `+json`. The response's is
/// `application/json`. A value that cannot be serialised produces a problem with status 500.
///
/// ```
/// use peregrine::web::response::Json;
///
/// #[derive(serde::Deserialize, serde::Serialize)]
/// struct Bird {
///     name: String,
/// }
///
/// async fn rename(Json(mut bird): Json<Bird>) -> Json<Bird> {
///     bird.name.push_str(" the second");
///     Json(bird)
/// }
/// # let _ = rename;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Json<T>(pub T);

/// A URL-encoded form. As a handler's last argument it is the deserialized form of the request; as
/// a return value it becomes the response body.
///
/// With GET and HEAD the form is the query; with other methods it is the body, whose `Content-Type`
/// must be `application/x-www-form-urlencoded`. Repeated keys fill a `Vec`.
///
/// ```
/// use peregrine::web::response::Form;
///
/// #[derive(serde::Deserialize)]
/// struct Search {
///     text: String,
///     #[serde(default)]
///     tag: Vec<String>,
/// }
///
/// async fn search(Form(search): Form<Search>) -> String {
///     format!("{} with {} tags", search.text, search.tag.len())
/// }
/// # let _ = search;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Form<T>(pub T);

/// An HTML page, with the type `text/html; charset=utf-8`.
///
/// ```
/// use peregrine::web::response::{Html, IntoResponse};
///
/// let response = Html("<h1>Hello</h1>").into_response();
/// let content_type = response.headers.get(&peregrine::http::header::CONTENT_TYPE).unwrap();
/// assert_eq!(content_type, "text/html; charset=utf-8");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Html<T>(pub T);

/// Creates a response with status 200, a `Content-Type` and a body.
fn content_response(media_type: HeaderValue, body: impl Into<Body>) -> Response {
    let mut response = Response::new(StatusCode::OK).with_body(body);
    response.headers.append(CONTENT_TYPE, media_type);
    response
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let mut buffer = pool::get();
        match serde_json::to_writer(&mut buffer, &self.0) {
            Ok(()) => content_response(JSON, buffer),
            Err(error) => {
                pool::put(buffer);
                response_error("unserializable-json", &error)
            }
        }
    }
}

impl<T: Serialize> IntoResponse for Form<T> {
    fn into_response(self) -> Response {
        match serde_html_form::to_string(&self.0) {
            Ok(text) => content_response(FORM, text),
            Err(error) => response_error("unserializable-form", &error),
        }
    }
}

impl<T: Into<Body>> IntoResponse for Html<T> {
    fn into_response(self) -> Response {
        content_response(HTML, self.0)
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        content_response(TEXT, self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Response {
        content_response(TEXT, self)
    }
}

impl IntoResponse for Box<str> {
    fn into_response(self) -> Response {
        content_response(TEXT, String::from(self))
    }
}

impl IntoResponse for Cow<'static, str> {
    fn into_response(self) -> Response {
        match self {
            Cow::Borrowed(text) => text.into_response(),
            Cow::Owned(text) => text.into_response(),
        }
    }
}

impl IntoResponse for Bytes {
    fn into_response(self) -> Response {
        content_response(BYTES, self)
    }
}

impl IntoResponse for Vec<u8> {
    fn into_response(self) -> Response {
        content_response(BYTES, self)
    }
}

impl IntoResponse for &'static [u8] {
    fn into_response(self) -> Response {
        content_response(BYTES, self)
    }
}

impl<const N: usize> IntoResponse for &'static [u8; N] {
    fn into_response(self) -> Response {
        content_response(BYTES, self.as_slice())
    }
}

impl IntoResponse for Cow<'static, [u8]> {
    fn into_response(self) -> Response {
        match self {
            Cow::Borrowed(bytes) => bytes.into_response(),
            Cow::Owned(bytes) => bytes.into_response(),
        }
    }
}

/// Status 200 without content.
impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK)
    }
}

/// The status without content.
impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

/// The body without a `Content-Type`.
impl IntoResponse for Body {
    fn into_response(self) -> Response {
        Response::new(StatusCode::OK).with_body(self)
    }
}

impl IntoResponse for Infallible {
    fn into_response(self) -> Response {
        match self {}
    }
}

impl<T: IntoResponse, E: IntoResponse> IntoResponse for Result<T, E> {
    fn into_response(self) -> Response {
        match self {
            Ok(value) => value.into_response(),
            Err(error) => error.into_response(),
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        crate::http::problem::Problem::from(self).into_response()
    }
}

/// A response in the type of the `http` crate, which other libraries return. Its version is
/// ignored.
impl<B> IntoResponse for http::Response<B>
where
    B: http_body::Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_response(self) -> Response {
        let (parts, body) = self.into_parts();
        // A `Body` of this crate is used directly, without a box around it.
        let mut body = Some(body);
        let any: &mut dyn Any = &mut body;
        let body = match any.downcast_mut::<Option<Body>>() {
            Some(body) => body.take().expect("the body was stored above"),
            None => Body::new(body.expect("the body was stored above")),
        };
        let mut response = Response::new(parts.status).with_body(body);
        response.headers.extend(flatten_header_map(parts.headers));
        if !parts.extensions.is_empty() {
            *response.extensions_mut() = parts.extensions;
        }
        response
    }
}
