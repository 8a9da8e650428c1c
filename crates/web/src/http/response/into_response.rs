//! Conversion of handler return values into responses.

use crate::http::panic::catch_subscriber_panic;
use crate::http::problem::Problem;
use crate::http::response::Response;

/// A value that a handler can return.
///
/// ```
/// use peregrine::http::{StatusCode, header::RETRY_AFTER};
/// use peregrine::web::response::{IntoResponse, Json};
///
/// async fn text() -> &'static str {
///     "hello"
/// }
///
/// async fn more() -> impl IntoResponse {
///     (StatusCode::ACCEPTED, [(RETRY_AFTER, "5")], Json(["soon"]))
/// }
/// # let response = (StatusCode::ACCEPTED, [(RETRY_AFTER, "5")], Json(["soon"])).into_response();
/// # assert_eq!((response.status.as_u16(), response.headers.len()), (202, 2));
/// # let _ = (text, more);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be returned from a handler",
    label = "not a response",
    note = "return `Response`, text, bytes, `StatusCode`, `Html<_>`, `Redirect`, `Result<_, Problem>`, or a tuple `(StatusCode, headers, body)`",
    note = "to return an error type, implement `IntoResponse` for it, or `From<..> for Problem` and use `?`",
    note = "to send it as JSON, derive `serde::Serialize` and return `Json<{Self}>`"
)]
pub trait IntoResponse {
    /// Converts the value.
    fn into_response(self) -> Response;
}

/// A value that changes a response: a status, header fields, cookies. In a tuple such parts come
/// before the last element. They are applied from left to right to the response of the last
/// element.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot stand before the body in a tuple that a handler returns",
    label = "not a part of a response",
    note = "parts are `StatusCode`, `HeaderMap`, `[(name, value); N]`, `AppendHeaders`, `TypedHeader`, `Cookies` and `Extension`; the body comes last"
)]
pub trait IntoResponseParts {
    /// Changes `response`.
    ///
    /// # Errors
    /// The value cannot be part of a response, for example because a header value contains a line
    /// break. The problem is sent instead of the response.
    fn into_response_parts(self, response: &mut Response) -> Result<(), Problem>;
}

/// Marks a response that the framework sends because it could not build the intended one. A status
/// code before such a response in a tuple must not replace its status.
#[derive(Clone, Copy)]
pub(crate) struct ResponseFailed;

/// Logs `error` and creates the response that is sent instead of one that could not be built.
pub(crate) fn response_error(kind: &'static str, error: &dyn std::fmt::Display) -> Response {
    catch_subscriber_panic(|| tracing::error!(kind, %error, "a response could not be built"));
    response_error_from(Problem::new(
        http::StatusCode::INTERNAL_SERVER_ERROR,
        kind,
        "the server could not build the response; its log says why",
    ))
}

/// Converts `problem` to a response that is marked with [`ResponseFailed`].
pub(crate) fn response_error_from(problem: Problem) -> Response {
    let mut response = problem.into_response();
    response.extensions_mut().insert(ResponseFailed);
    response
}

/// Whether `response` is marked with [`ResponseFailed`].
pub(crate) fn is_response_error(response: &Response) -> bool {
    response.extensions().is_some_and(|extensions| extensions.get::<ResponseFailed>().is_some())
}

/// Implements [`IntoResponse`] for tuples: applies the parts from left to right to the response of
/// the last element.
macro_rules! tuples {
    ($($part:ident),+) => {
        impl<$($part: IntoResponseParts,)+ R: IntoResponse> IntoResponse for ($($part,)+ R) {
            #[expect(non_snake_case, reason = "a type's name serves as its value's name here")]
            fn into_response(self) -> Response {
                let ($($part,)+ last) = self;
                let mut response = last.into_response();
                $(
                    if let Err(problem) = $part.into_response_parts(&mut response) {
                        return response_error_from(problem);
                    }
                )+
                response
            }
        }
    };
}

tuples!(A);
tuples!(A, B);
tuples!(A, B, C);
tuples!(A, B, C, D);
tuples!(A, B, C, D, E);
tuples!(A, B, C, D, E, F);
tuples!(A, B, C, D, E, F, G);
tuples!(A, B, C, D, E, F, G, H);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extract::test_support::assert_ready;
    use crate::http::body::{Body, BodyError};
    use crate::http::response::Headers;
    use crate::http::response::content::{Form, Html, Json};
    use crate::http::response::headers::AppendHeaders;
    use crate::http::response::redirect::Redirect;
    use bytes::Bytes;
    use http::header::{CONTENT_TYPE, ETAG, LOCATION, SET_COOKIE};
    use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
    use std::borrow::Cow;
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    /// Status, `Content-Type` (empty if there is none) and body.
    fn status_type_and_body(response: Response) -> (u16, String, String) {
        let media_type =
            response.headers.get(&CONTENT_TYPE).map(|value| value.to_str().expect("ASCII"));
        let (status, media_type) = (response.status.as_u16(), media_type.unwrap_or("").to_owned());
        let body = assert_ready(response.body.collect(u64::MAX)).expect("the body is complete");
        (status, media_type, String::from_utf8(body).expect("UTF-8"))
    }

    fn assert_response(value: impl IntoResponse, status: u16, media_type: &str, body: &str) {
        let expected = (status, media_type.to_owned(), body.to_owned());
        assert_eq!(status_type_and_body(value.into_response()), expected);
    }

    #[test]
    fn text_and_bytes_have_their_media_types() {
        const TEXT: &str = "text/plain; charset=utf-8";
        const BYTES: &str = "application/octet-stream";
        assert_response("a", 200, TEXT, "a");
        assert_response(String::from("a"), 200, TEXT, "a");
        assert_response(Box::<str>::from("a"), 200, TEXT, "a");
        assert_response(Cow::Borrowed("a"), 200, TEXT, "a");
        assert_response(Cow::<str>::Owned("a".into()), 200, TEXT, "a");
        assert_response(Bytes::from_static(b"a"), 200, BYTES, "a");
        assert_response(b"a".to_vec(), 200, BYTES, "a");
        assert_response(b"a", 200, BYTES, "a");
        assert_response(&b"a"[..], 200, BYTES, "a");
        assert_response(Cow::<[u8]>::Owned(b"a".to_vec()), 200, BYTES, "a");
        assert_response(Html("<p>"), 200, "text/html; charset=utf-8", "<p>");
    }

    #[test]
    fn a_value_without_a_media_type_gets_no_content_type() {
        assert_response((), 200, "", "");
        assert_response(StatusCode::IM_A_TEAPOT, 418, "", "");
        assert_response(Body::from("a"), 200, "", "a");
        assert_response(Response::new(StatusCode::ACCEPTED), 202, "", "");
        assert_response(Ok::<(), Infallible>(()), 200, "", "");
    }

    #[test]
    fn data_is_serialised() {
        assert_response(Json([("a", 1)]), 200, "application/json", r#"[["a",1]]"#);
        assert_response(Form([("a", "b c")]), 200, "application/x-www-form-urlencoded", "a=b+c");
    }

    #[test]
    fn json_is_written_into_a_pooled_buffer_that_returns_to_the_pool() {
        let buffer = crate::http::body::pool::get();
        let address = buffer.as_ptr();
        crate::http::body::pool::put(buffer);
        let response = Json([1, 2]).into_response();
        assert_eq!(response.body.as_slice().map(<[u8]>::as_ptr), Some(address));
        drop(response);
        let reused = crate::http::body::pool::get();
        assert_eq!(reused.as_ptr(), address);
    }

    #[test]
    fn unserialisable_data_is_a_500_even_if_the_tuple_has_another_status() {
        // A map whose keys are not strings cannot be written as JSON.
        let unserialisable = || Json(BTreeMap::from([((1, 2), 3)]));
        for response in [
            unserialisable().into_response(),
            (StatusCode::CREATED, [(ETAG, "1")], unserialisable()).into_response(),
        ] {
            let (status, media_type, body) = status_type_and_body(response);
            assert_eq!((status, media_type.as_str()), (500, "application/problem+json"));
            assert!(body.contains("unserializable-json"), "{body}");
            assert!(!body.contains("key"), "the cause is only logged: {body}");
        }
    }

    #[test]
    fn parts_are_applied_from_left_to_right() {
        let mut map = HeaderMap::new();
        map.append(SET_COOKIE, HeaderValue::from_static("a=1"));
        map.append(SET_COOKIE, HeaderValue::from_static("b=2"));
        let mut fields = Headers::new();
        fields.append(ETAG, HeaderValue::from_static("second"));
        let links = AppendHeaders([("link", "x"), ("link", "y")]);
        let response = (
            StatusCode::CREATED,
            [(ETAG, "first")],
            map,
            links,
            None::<HeaderMap>,
            fields,
            (),
            "a",
        )
            .into_response();
        // The first field is the `Content-Type` of the body.
        let added: Vec<_> = response
            .headers
            .iter()
            .skip(1)
            .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
            .collect();
        let expected = [
            ("set-cookie", "a=1"),
            ("set-cookie", "b=2"),
            ("link", "x"),
            ("link", "y"),
            ("etag", "second"),
        ];
        assert_eq!((response.status.as_u16(), added.as_slice()), (201, &expected[..]));
    }

    #[test]
    fn headers_alone_are_a_response() {
        let response = [("x-a", "1"), ("x-b", "2")].into_response();
        assert_eq!((response.status.as_u16(), response.headers.len()), (200, 2));
        assert_eq!(HeaderMap::new().into_response().headers.len(), 0);
        assert_eq!(AppendHeaders([("x-a", "1")]).into_response().headers.len(), 1);
    }

    #[test]
    fn an_invalid_header_is_a_500_and_is_not_sent() {
        for response in [
            ([("x-a", "1\r\nx-b: 2")], "a").into_response(),
            (AppendHeaders([("no name", "1")]), "a").into_response(),
            [("x-a", "1\n")].into_response(),
        ] {
            assert_eq!(response.headers.get(&HeaderName::from_static("x-a")), None);
            let (status, media_type, body) = status_type_and_body(response);
            assert_eq!((status, media_type.as_str()), (500, "application/problem+json"));
            assert!(body.contains("invalid-response-header"), "{body}");
        }
    }

    #[test]
    fn a_redirect_has_a_status_and_a_location() {
        for (redirect, status) in [
            (Redirect::to("/a?b=c"), 303),
            (Redirect::temporary("/a?b=c"), 307),
            (Redirect::permanent("/a?b=c"), 308),
        ] {
            let response = redirect.into_response();
            assert_eq!(response.status, status);
            assert_eq!(response.headers.get(&LOCATION).expect("a location"), "/a?b=c");
        }
        let (status, _, body) =
            status_type_and_body(Redirect::to("/a\r\nset-cookie: b").into_response());
        assert_eq!(status, 500);
        assert!(body.contains("invalid-redirect"), "{body}");
    }

    #[test]
    fn a_result_responds_with_its_value_or_its_error() {
        let problem = || Problem::new(StatusCode::CONFLICT, "taken", "choose another");
        assert_response(Ok::<_, Problem>("a"), 200, "text/plain; charset=utf-8", "a");
        let json = problem().to_json();
        assert_response(Err::<(), _>(problem()), 409, "application/problem+json", &json);
        let large = Err::<(), _>(BodyError::TooLarge { limit: 1 }).into_response();
        assert_eq!(large.status, 413);
    }

    #[test]
    fn a_response_of_the_http_crate_keeps_its_headers_and_extensions() {
        let http_response = http::Response::builder()
            .status(203)
            .header(SET_COOKIE, "a")
            .header(SET_COOKIE, "b")
            .header(CONTENT_TYPE, "text/x")
            .extension(7u8)
            .body(String::from("text"));
        let response = http_response.expect("a valid response").into_response();
        assert_eq!(response.extensions().and_then(|extensions| extensions.get::<u8>()), Some(&7));
        assert_eq!(response.headers.len(), 3);
        assert_eq!(status_type_and_body(response), (203, "text/x".into(), "text".into()));

        let with_own_body = http::Response::new(Body::from("whole")).into_response();
        assert_eq!(with_own_body.body.as_slice(), Some(&b"whole"[..]), "a `Body` is not wrapped");
    }
}
