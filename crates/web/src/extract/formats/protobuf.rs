//! Protocol Buffers.

use super::shared::{check_content_type, is_one_of, respond, syntax_problem};
use crate::extract::{FromRequest, optional_from_body, read_body};
use crate::http::body::pool;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::into_response::response_error;
use crate::http::response::{IntoResponse, Response};
use prost::Message;

/// A Protocol Buffers message, in a request or a response: a type that derives `prost::Message`.
/// Requires the feature `protobuf`.
///
/// The `Content-Type` of a request must be `application/protobuf`, `application/x-protobuf`,
/// `application/vnd.google.protobuf`, or a type with the suffix `+protobuf`. The problems are 415,
/// 400 (kinds `invalid-protobuf` and `empty-body`) and 413. An empty body with a `Content-Type` is
/// a message with all fields at their defaults. `Option<Protobuf<T>>` is `None` for a request with
/// neither a body nor a `Content-Type`.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::Protobuf;
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct Bird {
///     #[prost(string, tag = "1")]
///     name: String,
/// }
/// async fn echo(Protobuf(bird): Protobuf<Bird>) -> Protobuf<Bird> {
///     Protobuf(bird)
/// }
/// let client = App::new().post("/", echo).test();
/// let request = client.post("/").header("content-type", "application/protobuf");
/// let request = request.body(&b"\x0a\x05hobby"[..]);
/// assert_eq!(request.send_blocking().bytes(), b"\x0a\x05hobby"[..]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Protobuf<T>(pub T);

const MEDIA_TYPES: [&str; 3] =
    ["application/protobuf", "application/x-protobuf", "application/vnd.google.protobuf"];

impl<T: Message + Default> FromRequest for Protobuf<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        check_content_type(&request, MEDIA_TYPES[0], |essence| {
            is_one_of(essence, &MEDIA_TYPES, "+protobuf")
        })?;
        let message = read_body(request.body, |bytes| T::decode(bytes)).await?;
        message.map(Self).map_err(|error| {
            syntax_problem("invalid-protobuf", format!("the body is not a valid message: {error}"))
        })
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

impl<T: Message> IntoResponse for Protobuf<T> {
    fn into_response(self) -> Response {
        let mut buffer = pool::get();
        match self.0.encode(&mut buffer) {
            Ok(()) => respond(MEDIA_TYPES[0], buffer),
            Err(error) => {
                pool::put(buffer);
                response_error("unserializable-protobuf", &error)
            }
        }
    }
}
