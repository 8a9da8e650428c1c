//! Descriptions of the framework's response types.

use super::{
    OperationOutput, OperationOutputParts, ResponseSpec, ResponseStatus, ResponsesBuilder,
};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use peregrine_web::UrlError;
use peregrine_web::extract::Extension;
use peregrine_web::response::Headers;
use peregrine_web::response::{AppendHeaders, Form, Html, IntoResponse, Json, Redirect};
use peregrine_web::sse::Sse;
use peregrine_web::{Body, BodyError, Problem, Response};
use schemars::JsonSchema;
use std::borrow::Cow;
use std::convert::Infallible;

/// A response whose status is part of its type, so that the document can state it:
/// `WithStatus<201, Json<Bird>>`.
///
/// ```
/// use peregrine::openapi::WithStatus;
/// use peregrine::prelude::*;
///
/// async fn create() -> WithStatus<201, Json<&'static str>> {
///     WithStatus(Json("made"))
/// }
/// assert_eq!(App::new().post("/", create).test().post("/").send_blocking().status(), 201);
/// ```
///
/// An invalid status does not compile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WithStatus<const CODE: u16, R>(pub R);

impl<const CODE: u16, R: IntoResponse> IntoResponse for WithStatus<CODE, R> {
    fn into_response(self) -> Response {
        const { assert!(CODE >= 200 && CODE < 600, "the status must be between 200 and 599") };
        let status = StatusCode::from_u16(CODE).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, self.0).into_response()
    }
}

impl<const CODE: u16, R: OperationOutput> OperationOutput for WithStatus<CODE, R> {
    fn describe(responses: &mut ResponsesBuilder) {
        R::describe(responses);
        responses.status(CODE);
    }
}

impl<T: JsonSchema> OperationOutput for Json<T> {
    fn describe(responses: &mut ResponsesBuilder) {
        let schema = responses.schemas().output::<T>();
        responses.content(200, "application/json", schema);
    }
}

impl<T: JsonSchema> OperationOutput for Form<T> {
    fn describe(responses: &mut ResponsesBuilder) {
        let schema = responses.schemas().output::<T>();
        responses.content(200, "application/x-www-form-urlencoded", schema);
    }
}

impl<T> OperationOutput for Html<T> {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.text(200, "text/html");
    }
}

macro_rules! described {
    ($($Type:ty => $describe:expr;)*) => {
        $(
            impl OperationOutput for $Type {
                fn describe(responses: &mut ResponsesBuilder) {
                    let describe: fn(&mut ResponsesBuilder) = $describe;
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
    Response => |it| { it.add(ResponseSpec::new(ResponseStatus::Unknown).with_description("Determined by the handler.")); };
    Infallible => |_| {};
    Sse => |it| { it.text(200, "text/event-stream"); };
    Problem => |it| { it.any_problem(); };
    BodyError => |it| { it.problem(400, "").problem(408, "").problem(413, ""); };
    UrlError => |it| { it.problem(500, ""); };
    HeaderMap => |it| { it.empty(200); };
    Redirect => |it| {
        let mut redirect = ResponseSpec::new(ResponseStatus::Class(3));
        redirect = redirect.with_description("A redirect.");
        redirect.header("Location", "The target URL.");
        it.add(redirect);
    };
}

impl<const N: usize> OperationOutput for &'static [u8; N] {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.bytes(200, "application/octet-stream");
    }
}

impl<B> OperationOutput for http::Response<B> {
    fn describe(responses: &mut ResponsesBuilder) {
        Response::describe(responses);
    }
}

impl<K, V, const N: usize> OperationOutput for [(K, V); N] {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.empty(200);
    }
}

impl<I> OperationOutput for AppendHeaders<I> {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.empty(200);
    }
}

impl<T: OperationOutput, E: OperationOutput> OperationOutput for Result<T, E> {
    fn describe(responses: &mut ResponsesBuilder) {
        T::describe(responses);
        E::describe(responses);
    }
}

impl OperationOutputParts for StatusCode {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.any_status();
    }
}

impl OperationOutputParts for HeaderMap {}
impl OperationOutputParts for Headers {}
impl OperationOutputParts for () {}
impl<K, V, const N: usize> OperationOutputParts for [(K, V); N] {}
impl<I> OperationOutputParts for AppendHeaders<I> {}
impl<T> OperationOutputParts for Extension<T> {}

impl<P: OperationOutputParts> OperationOutputParts for Option<P> {
    fn describe(responses: &mut ResponsesBuilder) {
        P::describe(responses);
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> OperationOutputParts for peregrine_web::extract::TypedHeader<T> {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.header(T::name().as_str(), "");
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> OperationOutput for peregrine_web::extract::TypedHeader<T> {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.empty(200).header(T::name().as_str(), "");
    }
}

#[cfg(feature = "cookies")]
macro_rules! cookie_jars {
    ($($(#[$when:meta])* $Jar:ident)*) => {
        $(
            $(#[$when])*
            impl OperationOutputParts for peregrine_web::cookies::$Jar {
                fn describe(responses: &mut ResponsesBuilder) {
                    responses.header("Set-Cookie", "Changed cookies.");
                }
            }

            $(#[$when])*
            impl OperationOutput for peregrine_web::cookies::$Jar {
                fn describe(responses: &mut ResponsesBuilder) {
                    responses.empty(200).header("Set-Cookie", "Changed cookies.");
                }
            }
        )*
    };
}

#[cfg(feature = "cookies")]
cookie_jars! {
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
impl OperationOutputParts for peregrine_compression::NoCompression {}

#[cfg(feature = "validate")]
impl OperationOutput for peregrine_validate::ValidationErrors {
    fn describe(responses: &mut ResponsesBuilder) {
        responses.problem(422, crate::input::VALIDATION_FAILED);
    }
}

macro_rules! tuples {
    ($($part:ident),+) => {
        impl<$($part: OperationOutputParts,)+ R: OperationOutput> OperationOutput for ($($part,)+ R) {
            fn describe(responses: &mut ResponsesBuilder) {
                // Parts affect only the response in their own tuple, not those added earlier.
                let mut tuple_responses = ResponsesBuilder::new(&responses.schemas);
                R::describe(&mut tuple_responses);
                $($part::describe(&mut tuple_responses);)+
                responses.responses.extend(tuple_responses.responses);
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
