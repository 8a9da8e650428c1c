//! Descriptions of the framework's response types.

use super::{Answer, DescribeParts, DescribeResponse, Responses, Status as Known};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use peregrine_web::extract::Extension;
use peregrine_web::respond::{AppendHeaders, Form, Html, IntoResponse, Json, Redirect};
use peregrine_web::response::Fields;
use peregrine_web::sse::Sse;
use peregrine_web::urls::UrlError;
use peregrine_web::{Body, BodyError, Problem, Response};
use schemars::JsonSchema;
use std::borrow::Cow;
use std::convert::Infallible;

/// A response whose status is part of its type, so that the document can state it:
/// `Status<201, Json<Bird>>`.
///
/// ```
/// use peregrine::openapi::Status;
/// use peregrine::prelude::*;
///
/// async fn create() -> Status<201, Json<&'static str>> {
///     Status(Json("made"))
/// }
/// assert_eq!(App::new().post("/", create).test().post("/").send_now().status(), 201);
/// ```
///
/// An invalid status does not compile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status<const CODE: u16, R>(pub R);

impl<const CODE: u16, R: IntoResponse> IntoResponse for Status<CODE, R> {
    fn into_response(self) -> Response {
        const { assert!(CODE >= 200 && CODE < 600, "the status must be between 200 and 599") };
        let status = StatusCode::from_u16(CODE).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, self.0).into_response()
    }
}

impl<const CODE: u16, R: DescribeResponse> DescribeResponse for Status<CODE, R> {
    fn describe(responses: &mut Responses) {
        R::describe(responses);
        responses.status(CODE);
    }
}

impl<T: JsonSchema> DescribeResponse for Json<T> {
    fn describe(responses: &mut Responses) {
        let schema = responses.schemas().output::<T>();
        responses.content(200, "application/json", schema);
    }
}

impl<T: JsonSchema> DescribeResponse for Form<T> {
    fn describe(responses: &mut Responses) {
        let schema = responses.schemas().output::<T>();
        responses.content(200, "application/x-www-form-urlencoded", schema);
    }
}

impl<T> DescribeResponse for Html<T> {
    fn describe(responses: &mut Responses) {
        responses.text(200, "text/html");
    }
}

macro_rules! described {
    ($($Type:ty => $describe:expr;)*) => {
        $(
            impl DescribeResponse for $Type {
                fn describe(responses: &mut Responses) {
                    let describe: fn(&mut Responses) = $describe;
                    describe(responses);
                }
            }
        )*
    };
}

described! {
    &'static str => |it| { it.text(200, "text/plain"); };
    String => |it| { it.text(200, "text/plain"); };
    Box<str> => |it| { it.text(200, "text/plain"); };
    Cow<'static, str> => |it| { it.text(200, "text/plain"); };
    Bytes => |it| { it.bytes(200, "application/octet-stream"); };
    Vec<u8> => |it| { it.bytes(200, "application/octet-stream"); };
    &'static [u8] => |it| { it.bytes(200, "application/octet-stream"); };
    Cow<'static, [u8]> => |it| { it.bytes(200, "application/octet-stream"); };
    Body => |it| { it.bytes(200, "*/*"); };
    () => |it| { it.empty(200); };
    StatusCode => |it| { it.empty(200).any_status(); };
    Response => |it| { it.add(Answer::new(Known::Unknown).describe("Determined by the handler.")); };
    Infallible => |_| {};
    Sse => |it| { it.text(200, "text/event-stream"); };
    Problem => |it| { it.any_problem(); };
    BodyError => |it| { it.problem(400, "").problem(408, "").problem(413, ""); };
    UrlError => |it| { it.problem(500, ""); };
    HeaderMap => |it| { it.empty(200); };
    Redirect => |it| {
        let mut redirect = Answer::new(Known::Class(3)).describe("A redirect.");
        redirect.header("Location", "The target URL.");
        it.add(redirect);
    };
}

impl<const N: usize> DescribeResponse for &'static [u8; N] {
    fn describe(responses: &mut Responses) {
        responses.bytes(200, "application/octet-stream");
    }
}

impl<B> DescribeResponse for http::Response<B> {
    fn describe(responses: &mut Responses) {
        Response::describe(responses);
    }
}

impl<K, V, const N: usize> DescribeResponse for [(K, V); N] {
    fn describe(responses: &mut Responses) {
        responses.empty(200);
    }
}

impl<I> DescribeResponse for AppendHeaders<I> {
    fn describe(responses: &mut Responses) {
        responses.empty(200);
    }
}

impl<T: DescribeResponse, E: DescribeResponse> DescribeResponse for Result<T, E> {
    fn describe(responses: &mut Responses) {
        T::describe(responses);
        E::describe(responses);
    }
}

impl DescribeParts for StatusCode {
    fn describe(responses: &mut Responses) {
        responses.any_status();
    }
}

impl DescribeParts for HeaderMap {}
impl DescribeParts for Fields {}
impl DescribeParts for () {}
impl<K, V, const N: usize> DescribeParts for [(K, V); N] {}
impl<I> DescribeParts for AppendHeaders<I> {}
impl<T> DescribeParts for Extension<T> {}

impl<P: DescribeParts> DescribeParts for Option<P> {
    fn describe(responses: &mut Responses) {
        P::describe(responses);
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> DescribeParts for peregrine_web::extract::TypedHeader<T> {
    fn describe(responses: &mut Responses) {
        responses.header(T::name().as_str(), "");
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> DescribeResponse for peregrine_web::extract::TypedHeader<T> {
    fn describe(responses: &mut Responses) {
        responses.empty(200).header(T::name().as_str(), "");
    }
}

#[cfg(feature = "cookies")]
macro_rules! jars {
    ($($(#[$when:meta])* $Jar:ident)*) => {
        $(
            $(#[$when])*
            impl DescribeParts for peregrine_web::cookies::$Jar {
                fn describe(responses: &mut Responses) {
                    responses.header("Set-Cookie", "Changed cookies.");
                }
            }

            $(#[$when])*
            impl DescribeResponse for peregrine_web::cookies::$Jar {
                fn describe(responses: &mut Responses) {
                    responses.empty(200).header("Set-Cookie", "Changed cookies.");
                }
            }
        )*
    };
}

#[cfg(feature = "cookies")]
jars! {
    Cookies
    #[cfg(feature = "cookies-signed")]
    SignedCookies
    #[cfg(feature = "cookies-private")]
    PrivateCookies
}

#[cfg(any(
    feature = "compression-br",
    feature = "compression-deflate",
    feature = "compression-gzip",
    feature = "compression-zstd"
))]
impl DescribeParts for peregrine_compression::Uncompressed {}

#[cfg(feature = "validate")]
impl DescribeResponse for peregrine_validate::Invalid {
    fn describe(responses: &mut Responses) {
        responses.problem(422, crate::argument::BREAKS_RULES);
    }
}

macro_rules! tuples {
    ($($part:ident),+) => {
        impl<$($part: DescribeParts,)+ R: DescribeResponse> DescribeResponse for ($($part,)+ R) {
            fn describe(responses: &mut Responses) {
                // Parts affect only the response in their own tuple, not those added before.
                let mut own = Responses::new(&responses.schemas);
                R::describe(&mut own);
                $($part::describe(&mut own);)+
                responses.answers.extend(own.answers);
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
