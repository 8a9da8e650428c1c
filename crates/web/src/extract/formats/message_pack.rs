//! MessagePack.

use super::message_pack_depth::exceeds_depth;
use super::shared::{
    DEPTH_MAX, check_content_type, empty_body, is_one_of, respond, syntax_problem,
};
use crate::extract::{FromRequest, field_problem, optional_from_body, read_body};
use crate::http::body::pool;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::into_response::response_error;
use crate::http::response::{IntoResponse, Response};
use rmp_serde::Deserializer;
use rmp_serde::decode::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Cursor;

/// MessagePack, in a request or a response. Requires the feature `message-pack`. Structs are
/// written as maps from names to values.
///
/// The `Content-Type` of a request must be `application/vnd.msgpack`, `application/msgpack`,
/// `application/x-msgpack`, or a type with the suffix `+msgpack`. Responses use the first one. The
/// problems are those of [`Json`](crate::response::Json): 415, 400 (kind `invalid-message-pack`),
/// 422, 413.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::MessagePack;
///
/// async fn sum(MessagePack(numbers): MessagePack<Vec<u32>>) -> MessagePack<u32> {
///     MessagePack(numbers.iter().sum())
/// }
/// let client = App::new().post("/sum", sum).test();
/// let request = client.post("/sum").header("content-type", "application/msgpack");
/// let request = request.body(&b"\x93\x01\x02\x03"[..]);
/// assert_eq!(request.send_blocking().bytes(), [6][..]);
/// ```
#[doc(alias = "MsgPack")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct MessagePack<T>(pub T);

const MEDIA_TYPES: [&str; 3] =
    ["application/vnd.msgpack", "application/msgpack", "application/x-msgpack"];
const EXPECTED: &str = "application/vnd.msgpack (or application/msgpack)";

impl<T: DeserializeOwned> FromRequest for MessagePack<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        check_content_type(&request, EXPECTED, |essence| {
            is_one_of(essence, &MEDIA_TYPES, "+msgpack")
        })?;
        read_body(request.body, parse).await?.map(Self)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.is_empty() {
        return Err(empty_body(EXPECTED));
    }
    // The library's own limit, set below, does not count enum variants. A variant is encoded as a
    // map with one pair, so a recursive enum could nest without limit and overflow the stack.
    if exceeds_depth(bytes, DEPTH_MAX) {
        return Err(decode_problem(&Error::DepthLimitExceeded));
    }
    let mut deserializer = Deserializer::new(Cursor::new(bytes));
    deserializer.set_max_depth(DEPTH_MAX);
    let value = T::deserialize(&mut deserializer).map_err(|error| decode_problem(&error))?;
    let end = deserializer.position();
    if end < bytes.len() as u64 {
        let detail = format!("extra bytes follow the body's value, which ends at byte {end}");
        return Err(syntax_problem("invalid-message-pack", detail));
    }
    Ok(value)
}

#[cold]
fn decode_problem(error: &Error) -> Problem {
    let reason = match error {
        Error::InvalidMarkerRead(_) | Error::InvalidDataRead(_) => "it ends too early",
        Error::DepthLimitExceeded => "it is nested too deeply",
        Error::Utf8Error(_) => "a string in it is not UTF-8",
        Error::TypeMismatch(_) => return field_problem(".", "a value has the wrong type"),
        Error::OutOfRange => return field_problem(".", "a number is out of range"),
        Error::LengthMismatch(length) => {
            return field_problem(".", &format!("a list does not have {length} elements"));
        }
        Error::Uncategorized(reason) | Error::Syntax(reason) => return field_problem(".", reason),
    };
    syntax_problem("invalid-message-pack", format!("the body is not valid MessagePack: {reason}"))
}

impl<T: Serialize> IntoResponse for MessagePack<T> {
    fn into_response(self) -> Response {
        let mut buffer = pool::get();
        match rmp_serde::encode::write_named(&mut buffer, &self.0) {
            Ok(()) => respond(MEDIA_TYPES[0], buffer),
            Err(error) => {
                pool::put(buffer);
                response_error("unserializable-message-pack", &error)
            }
        }
    }
}
