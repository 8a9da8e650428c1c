//! What handlers take, as parameters, bodies and refusals of an operation.

use crate::operation::Operation;
use crate::parameter::Parameter;
use bytes::Bytes;
use http::{HeaderMap, Method, Uri, Version};
use peregrine_web::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
use peregrine_web::extract::{
    Accept, ClientAddress, Extension, Form, Interim, Json, MatchedPath, NdJson, OriginalPath, Path,
    PeerAddress, Preconditions, Query, RawQuery, State, StateRef,
};
use peregrine_web::sse::LastEventId;
use peregrine_web::trace::TraceContext;
use peregrine_web::urls::Urls;
use peregrine_web::{Body, Problem, Request};
use schemars::JsonSchema;
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;

/// What a 422 of `Valid` is.
#[cfg(feature = "validate")]
pub(crate) const BREAKS_RULES: &str =
    "A value breaks a rule; `errors` lists them with JSON pointers.";

/// An extractor that says what it asks of requests. Without it a route cannot be described by its handler alone.
///
/// ```
/// use peregrine::openapi::{DescribeArgument, Operation, Parameter};
/// use peregrine::prelude::*;
///
/// struct ApiVersion(u32);
///
/// impl FromRequestParts for ApiVersion {
///     async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
///         let version = parts.head.field_text("x-api-version").and_then(|text| text.parse().ok());
///         version.map(ApiVersion).ok_or_else(|| {
///             Problem::new(StatusCode::BAD_REQUEST, "no-api-version", "send X-Api-Version with a whole number")
///         })
///     }
/// }
///
/// impl DescribeArgument for ApiVersion {
///     fn describe(operation: &mut Operation) {
///         operation.parameter(Parameter::header("X-Api-Version").required().of::<u32>()).problems(&[400]);
///     }
/// }
/// ```
///
/// An extractor that asks nothing of requests has an empty implementation; one that lets in who has a token calls
/// [`Operation::security`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say what it asks of requests, so that no OpenAPI document can",
    label = "an argument of a handler that is to be described",
    note = "the `T` in `Json<T>`, `Form<T>`, `Query<T>` and `Path<T>` must be `schemars::JsonSchema`: put `#[derive(schemars::JsonSchema)]` on it",
    note = "for an extractor of your own implement `peregrine::openapi::DescribeArgument`; an empty implementation says that it asks nothing of requests"
)]
pub trait DescribeArgument {
    /// Adds what it asks for, and how it refuses.
    fn describe(_operation: &mut Operation) {}
}

macro_rules! silent {
    ($($Type:ty)*) => {
        $(impl DescribeArgument for $Type {})*
    };
}

silent! {
    PeerAddress ClientAddress ConnectionInfo Rc<ConnectionInfo> MatchedPath OriginalPath Method Uri HeaderMap Version
    Interim Urls TraceContext RawQuery Request peregrine_middleware::RequestIdValue
}

#[cfg(feature = "security-headers")]
silent! { peregrine_middleware::CspNonce }
#[cfg(feature = "csrf")]
silent! { peregrine_middleware::CsrfToken }
#[cfg(feature = "cookies")]
silent! { peregrine_web::cookies::Cookies }
#[cfg(feature = "cookies-signed")]
silent! { peregrine_web::cookies::SignedCookies }
#[cfg(feature = "cookies-private")]
silent! { peregrine_web::cookies::PrivateCookies }
#[cfg(feature = "sessions")]
silent! { peregrine_session::Session }

impl<T> DescribeArgument for State<T> {}
impl<T> DescribeArgument for StateRef<T> {}
impl<T> DescribeArgument for Extension<T> {}

macro_rules! described {
    ($($Type:ty => $describe:expr;)*) => {
        $(
            impl DescribeArgument for $Type {
                fn describe(operation: &mut Operation) {
                    let describe: fn(&mut Operation) = $describe;
                    describe(operation);
                }
            }
        )*
    };
}

described! {
    TlsInfo => |it| { it.problems(&[403]); };
    ClientIdentity => |it| { it.problems(&[403]); };
    Arc<ClientIdentity> => |it| { it.problems(&[403]); };
    Bytes => |it| { it.body_of("*/*", json!({}), false).problems(&[400, 408, 413]); };
    Vec<u8> => |it| { it.body_of("*/*", json!({}), false).problems(&[400, 408, 413]); };
    String => |it| { it.body_of("text/plain", json!({ "type": "string" }), false).problems(&[400, 408, 413]); };
    Body => |it| { it.body_of("*/*", json!({}), false); };
    // The field itself is none of OpenAPI's parameters: the media types of the responses say it.
    Accept => |it| { it.problems(&[406]); };
    Preconditions => conditions;
}

fn conditions(operation: &mut Operation) {
    for (name, text) in [
        ("If-Match", "The entity tags of states that are meant."),
        ("If-None-Match", "The entity tags of states that are not meant, or `*` for any."),
        ("If-Modified-Since", "The state that is known is of this time."),
        ("If-Unmodified-Since", "The state that is meant is of this time."),
    ] {
        operation.parameter(Parameter::header(name).description(text));
    }
    operation.problem(412, "The resource is in another state than the conditions ask for.");
}

/// Each line has the schema. OpenAPI 3.1 has no word for that, but JSON Schema has one for text that is JSON.
impl<T: JsonSchema> DescribeArgument for NdJson<T> {
    fn describe(operation: &mut Operation) {
        let line = operation.schemas().input::<T>();
        let schema = json!({
            "type": "string",
            "description": "A JSON document a line.",
            "contentMediaType": "application/json",
            "contentSchema": line,
        });
        operation
            .body_of("application/x-ndjson", schema, true)
            .problems(&[400, 408, 413, 415, 422]);
    }
}

#[cfg(any(feature = "cbor", feature = "fast-json", feature = "message-pack"))]
macro_rules! forms {
    ($($(#[$when:meta])* $Form:ident $media_type:literal)*) => {
        $(
            $(#[$when])*
            impl<T: JsonSchema> DescribeArgument for peregrine_web::extract::$Form<T> {
                fn describe(operation: &mut Operation) {
                    let schema = operation.schemas().input::<T>();
                    operation.body_of($media_type, schema, true).problems(&[400, 408, 413, 415, 422]);
                }
            }

            $(#[$when])*
            impl<T: JsonSchema> crate::DescribeResponse for peregrine_web::extract::$Form<T> {
                fn describe(responses: &mut crate::Responses) {
                    let schema = responses.schemas().output::<T>();
                    responses.content(200, $media_type, schema);
                }
            }
        )*
    };
}

#[cfg(any(feature = "cbor", feature = "fast-json", feature = "message-pack"))]
forms! {
    #[cfg(feature = "cbor")]
    Cbor "application/cbor"
    #[cfg(feature = "fast-json")]
    FastJson "application/json"
    #[cfg(feature = "message-pack")]
    MessagePack "application/vnd.msgpack"
}

/// Messages have no JSON schema: their `.proto` file says what they are.
#[cfg(feature = "protobuf")]
impl<T> DescribeArgument for peregrine_web::extract::Protobuf<T> {
    fn describe(operation: &mut Operation) {
        operation.body_of("application/protobuf", json!({}), true).problems(&[400, 408, 413, 415]);
    }
}

#[cfg(feature = "protobuf")]
impl<T> crate::DescribeResponse for peregrine_web::extract::Protobuf<T> {
    fn describe(responses: &mut crate::Responses) {
        responses.bytes(200, "application/protobuf");
    }
}

#[cfg(feature = "auth")]
described! {
    peregrine_auth::BasicAuth => |it| { it.problems(&[400, 401]); };
    peregrine_auth::BearerToken => |it| { it.problems(&[400, 401]); };
    peregrine_auth::ApiKey => |it| { it.problems(&[400, 401]); };
}

#[cfg(feature = "auth")]
impl<T> DescribeArgument for peregrine_auth::User<T> {
    fn describe(operation: &mut Operation) {
        operation.problems(&[401]);
    }
}

#[cfg(feature = "auth-jwt")]
impl<T> DescribeArgument for peregrine_auth::Jwt<T> {
    fn describe(operation: &mut Operation) {
        operation.problems(&[400, 401]);
    }
}

impl<T: JsonSchema> DescribeArgument for Path<T> {
    fn describe(operation: &mut Operation) {
        operation.path::<T>().problems(&[400]);
    }
}

impl<T: JsonSchema> DescribeArgument for Query<T> {
    fn describe(operation: &mut Operation) {
        operation.query::<T>().problems(&[400]);
    }
}

impl<T: JsonSchema> DescribeArgument for Json<T> {
    fn describe(operation: &mut Operation) {
        let schema = operation.schemas().input::<T>();
        operation.body_of("application/json", schema, true).problems(&[400, 408, 413, 415, 422]);
    }
}

impl<T: JsonSchema> DescribeArgument for Form<T> {
    fn describe(operation: &mut Operation) {
        if matches!(*operation.method(), Method::GET | Method::HEAD) {
            operation.query::<T>().problems(&[400]);
            return;
        }
        let schema = operation.schemas().input::<T>();
        let media_type = "application/x-www-form-urlencoded";
        operation.body_of(media_type, schema, true).problems(&[400, 408, 413, 415, 422]);
    }
}

impl<T> DescribeArgument for LastEventId<T> {
    fn describe(operation: &mut Operation) {
        let parameter = Parameter::header("Last-Event-ID").required();
        let text = "The id of the last event that the reader got.";
        operation.parameter(parameter.description(text)).problems(&[400]);
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> DescribeArgument for peregrine_web::extract::TypedHeader<T> {
    fn describe(operation: &mut Operation) {
        operation.parameter(Parameter::header(T::name().as_str()).required()).problems(&[400]);
    }
}

#[cfg(feature = "websocket")]
impl DescribeArgument for peregrine_websocket::WebSocketUpgrade {
    fn describe(operation: &mut Operation) {
        operation
            .response(101, "The connection is a WebSocket from here on.")
            .problems(&[400, 403, 426]);
    }
}

#[cfg(feature = "multipart")]
impl DescribeArgument for peregrine_multipart::Multipart {
    fn describe(operation: &mut Operation) {
        let schema = json!({ "type": "object" });
        operation.body_of("multipart/form-data", schema, true).problems(&[400, 408, 413, 415]);
    }
}

#[cfg(feature = "multipart")]
impl<T: JsonSchema> DescribeArgument for peregrine_multipart::MultipartForm<T> {
    fn describe(operation: &mut Operation) {
        let schema = operation.schemas().input::<T>();
        operation.body_of("multipart/form-data", schema, true).problems(&[400, 408, 413, 415, 422]);
    }
}

#[cfg(feature = "validate")]
impl<E: DescribeArgument> DescribeArgument for peregrine_validate::Valid<E> {
    fn describe(operation: &mut Operation) {
        E::describe(operation);
        operation.problem(422, BREAKS_RULES);
    }
}

impl<T: DescribeArgument> DescribeArgument for Option<T> {
    fn describe(operation: &mut Operation) {
        operation.optionally(T::describe);
    }
}

impl<T: DescribeArgument> DescribeArgument for Result<T, Problem> {
    fn describe(operation: &mut Operation) {
        operation.without_problems(T::describe);
    }
}
