//! Describes the arguments of handlers as parameters, bodies and error responses of an operation.

use crate::operation::Operation;
use crate::parameter::Parameter;
use bytes::Bytes;
use http::{HeaderMap, Method, Uri, Version};
use peregrine_web::Urls;
use peregrine_web::connection::{ClientIdentity, ConnectionInfo, TlsInfo};
use peregrine_web::extract::{
    Accept, ClientIp, Extension, Form, Interim, Json, MatchedPath, NdJson, OriginalPath, Path,
    PeerAddr, Preconditions, Query, RawQuery, State, StateRef,
};
use peregrine_web::sse::LastEventId;
use peregrine_web::trace::TraceContext;
use peregrine_web::{Body, Problem, Request};
use schemars::JsonSchema;
use serde_json::json;
use std::rc::Rc;
use std::sync::Arc;

/// The description of the 422 response of `Valid`.
#[cfg(feature = "validate")]
pub(crate) const VALIDATION_FAILED: &str =
    "Values break rules; `errors` lists them with JSON pointers.";

/// An extractor that describes what it requires of requests. A handler's route can be described
/// automatically only if all arguments of the handler implement this trait.
///
/// ```
/// use peregrine::openapi::{OperationInput, Operation, Parameter};
/// use peregrine::prelude::*;
///
/// struct ApiVersion(u32);
///
/// impl FromRequestParts for ApiVersion {
///     async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
///         let version = parts.head.header("x-api-version").and_then(|text| text.parse().ok());
///         version.map(ApiVersion).ok_or_else(|| {
///             let detail = "send X-Api-Version with a whole number";
///             Problem::new(StatusCode::BAD_REQUEST, "no-api-version", detail)
///         })
///     }
/// }
///
/// impl OperationInput for ApiVersion {
///     fn describe(operation: &mut Operation) {
///         let version = Parameter::header("X-Api-Version").required().schema::<u32>();
///         operation.parameter(version).problem_statuses(&[400]);
///     }
/// }
/// ```
///
/// An extractor that requires nothing has an empty implementation; one that checks credentials
/// calls [`Operation::security`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not describe what it requires of requests, so an OpenAPI document cannot include it",
    label = "an argument of a described handler",
    note = "the `T` in `Json<T>`, `Form<T>`, `Query<T>` and `Path<T>` must be `schemars::JsonSchema`: add `#[derive(schemars::JsonSchema)]`",
    note = "for your own extractor, implement `peregrine::openapi::OperationInput`; an empty implementation means that it requires nothing of requests"
)]
pub trait OperationInput {
    /// Adds what the extractor requires, and the problems with which it rejects requests.
    fn describe(_operation: &mut Operation) {}
}

macro_rules! require_nothing {
    ($($Type:ty)*) => {
        $(impl OperationInput for $Type {})*
    };
}

require_nothing! {
    PeerAddr ClientIp ConnectionInfo Rc<ConnectionInfo> MatchedPath OriginalPath Method Uri HeaderMap Version
    Interim Urls TraceContext RawQuery Request peregrine_middleware::RequestId
}

#[cfg(feature = "security-headers")]
require_nothing! { peregrine_middleware::CspNonce }
#[cfg(feature = "csrf")]
require_nothing! { peregrine_middleware::CsrfToken }
#[cfg(feature = "cookies")]
require_nothing! { peregrine_web::cookies::Cookies }
#[cfg(feature = "cookies-signed")]
require_nothing! { peregrine_web::cookies::SignedCookies }
#[cfg(feature = "cookies-private")]
require_nothing! { peregrine_web::cookies::PrivateCookies }
#[cfg(feature = "sessions")]
require_nothing! { peregrine_session::Session }

impl<T> OperationInput for State<T> {}
impl<T> OperationInput for StateRef<T> {}
impl<T> OperationInput for Extension<T> {}

macro_rules! described {
    ($($Type:ty => $describe:expr;)*) => {
        $(
            impl OperationInput for $Type {
                fn describe(operation: &mut Operation) {
                    let describe: fn(&mut Operation) = $describe;
                    describe(operation);
                }
            }
        )*
    };
}

described! {
    TlsInfo => |it| { it.problem_statuses(&[403]); };
    ClientIdentity => |it| { it.problem_statuses(&[403]); };
    Arc<ClientIdentity> => |it| { it.problem_statuses(&[403]); };
    Bytes => |it| { it.body_with_schema("*/*", json!({}), false).problem_statuses(&[400, 408, 413]); };
    Vec<u8> => |it| { it.body_with_schema("*/*", json!({}), false).problem_statuses(&[400, 408, 413]); };
    String => |it| { it.body_with_schema("text/plain", json!({ "type": "string" }), false).problem_statuses(&[400, 408, 413]); };
    Body => |it| { it.body_with_schema("*/*", json!({}), false); };
    // OpenAPI does not allow `Accept` as a parameter: the media types of the responses imply it.
    Accept => |it| { it.problem_statuses(&[406]); };
    Preconditions => describe_preconditions;
}

fn describe_preconditions(operation: &mut Operation) {
    for (name, text) in [
        ("If-Match", "The entity tags of the expected states."),
        ("If-None-Match", "The entity tags of the known states, or `*` for any."),
        ("If-Modified-Since", "The time of the known state."),
        ("If-Unmodified-Since", "The time of the expected state."),
    ] {
        operation.parameter(Parameter::header(name).description(text));
    }
    operation.problem(412, "The resource does not meet the conditions.");
}

/// The schema applies to each line. OpenAPI 3.1 cannot express that, but JSON Schema has a keyword
/// for text that contains JSON.
impl<T: JsonSchema> OperationInput for NdJson<T> {
    fn describe(operation: &mut Operation) {
        let line = operation.schemas().input::<T>();
        let schema = json!({
            "type": "string",
            "description": "One JSON document per line.",
            "contentMediaType": "application/json",
            "contentSchema": line,
        });
        operation
            .body_with_schema("application/x-ndjson", schema, true)
            .problem_statuses(&[400, 408, 413, 415, 422]);
    }
}

#[cfg(any(feature = "cbor", feature = "fast-json", feature = "message-pack"))]
macro_rules! formats {
    ($($(#[$when:meta])* $Format:ident $media_type:literal)*) => {
        $(
            $(#[$when])*
            impl<T: JsonSchema> OperationInput for peregrine_web::extract::$Format<T> {
                fn describe(operation: &mut Operation) {
                    let schema = operation.schemas().input::<T>();
                    operation.body_with_schema($media_type, schema, true).problem_statuses(&[400, 408, 413, 415, 422]);
                }
            }

            $(#[$when])*
            impl<T: JsonSchema> crate::OperationOutput for peregrine_web::extract::$Format<T> {
                fn describe(responses: &mut crate::ResponsesBuilder) {
                    let schema = responses.schemas().output::<T>();
                    responses.content(200, $media_type, schema);
                }
            }
        )*
    };
}

#[cfg(any(feature = "cbor", feature = "fast-json", feature = "message-pack"))]
formats! {
    #[cfg(feature = "cbor")]
    Cbor "application/cbor"
    #[cfg(feature = "fast-json")]
    SimdJson "application/json"
    #[cfg(feature = "message-pack")]
    MessagePack "application/vnd.msgpack"
}

/// Messages have no JSON schema; their `.proto` file defines them.
#[cfg(feature = "protobuf")]
impl<T> OperationInput for peregrine_web::extract::Protobuf<T> {
    fn describe(operation: &mut Operation) {
        operation
            .body_with_schema("application/protobuf", json!({}), true)
            .problem_statuses(&[400, 408, 413, 415]);
    }
}

#[cfg(feature = "protobuf")]
impl<T> crate::OperationOutput for peregrine_web::extract::Protobuf<T> {
    fn describe(responses: &mut crate::ResponsesBuilder) {
        responses.bytes(200, "application/protobuf");
    }
}

#[cfg(feature = "auth")]
described! {
    peregrine_auth::BasicAuth => |it| { it.problem_statuses(&[400, 401]); };
    peregrine_auth::BearerToken => |it| { it.problem_statuses(&[400, 401]); };
    peregrine_auth::ApiKey => |it| { it.problem_statuses(&[400, 401]); };
}

#[cfg(feature = "auth")]
impl<T> OperationInput for peregrine_auth::User<T> {
    fn describe(operation: &mut Operation) {
        operation.problem_statuses(&[401]);
    }
}

#[cfg(feature = "auth-jwt")]
impl<T> OperationInput for peregrine_auth::Jwt<T> {
    fn describe(operation: &mut Operation) {
        operation.problem_statuses(&[400, 401]);
    }
}

impl<T: JsonSchema> OperationInput for Path<T> {
    fn describe(operation: &mut Operation) {
        operation.path::<T>().problem_statuses(&[400]);
    }
}

impl<T: JsonSchema> OperationInput for Query<T> {
    fn describe(operation: &mut Operation) {
        operation.query::<T>().problem_statuses(&[400]);
    }
}

impl<T: JsonSchema> OperationInput for Json<T> {
    fn describe(operation: &mut Operation) {
        let schema = operation.schemas().input::<T>();
        operation
            .body_with_schema("application/json", schema, true)
            .problem_statuses(&[400, 408, 413, 415, 422]);
    }
}

impl<T: JsonSchema> OperationInput for Form<T> {
    fn describe(operation: &mut Operation) {
        if matches!(*operation.method(), Method::GET | Method::HEAD) {
            operation.query::<T>().problem_statuses(&[400]);
            return;
        }
        let schema = operation.schemas().input::<T>();
        let media_type = "application/x-www-form-urlencoded";
        operation
            .body_with_schema(media_type, schema, true)
            .problem_statuses(&[400, 408, 413, 415, 422]);
    }
}

impl<T> OperationInput for LastEventId<T> {
    fn describe(operation: &mut Operation) {
        let parameter = Parameter::header("Last-Event-ID").required();
        let text = "The ID of the last event that the client received.";
        operation.parameter(parameter.description(text)).problem_statuses(&[400]);
    }
}

#[cfg(feature = "typed-headers")]
impl<T: headers::Header> OperationInput for peregrine_web::extract::TypedHeader<T> {
    fn describe(operation: &mut Operation) {
        operation
            .parameter(Parameter::header(T::name().as_str()).required())
            .problem_statuses(&[400]);
    }
}

#[cfg(feature = "websocket")]
impl OperationInput for peregrine_websocket::WebSocketUpgrade {
    fn describe(operation: &mut Operation) {
        operation
            .response(101, "The connection is switched to the WebSocket protocol.")
            .problem_statuses(&[400, 403, 426]);
    }
}

#[cfg(feature = "multipart")]
impl OperationInput for peregrine_multipart::Multipart {
    fn describe(operation: &mut Operation) {
        let schema = json!({ "type": "object" });
        operation
            .body_with_schema("multipart/form-data", schema, true)
            .problem_statuses(&[400, 408, 413, 415]);
    }
}

#[cfg(feature = "multipart")]
impl<T: JsonSchema> OperationInput for peregrine_multipart::MultipartForm<T> {
    fn describe(operation: &mut Operation) {
        let schema = operation.schemas().input::<T>();
        operation
            .body_with_schema("multipart/form-data", schema, true)
            .problem_statuses(&[400, 408, 413, 415, 422]);
    }
}

#[cfg(feature = "validate")]
impl<E: OperationInput> OperationInput for peregrine_validate::Valid<E> {
    fn describe(operation: &mut Operation) {
        E::describe(operation);
        operation.problem(422, VALIDATION_FAILED);
    }
}

impl<T: OperationInput> OperationInput for Option<T> {
    fn describe(operation: &mut Operation) {
        operation.make_optional(T::describe);
    }
}

impl<T: OperationInput> OperationInput for Result<T, Problem> {
    fn describe(operation: &mut Operation) {
        operation.without_problems(T::describe);
    }
}
