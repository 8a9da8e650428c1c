//! CBOR (RFC 8949).

use super::shared::{
    DEPTH_MAX, check_content_type, empty_body, is_one_of, respond, syntax_problem,
};
use crate::extract::{FromRequest, field_problem, optional_from_body, read_body};
use crate::http::body::pool;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::into_response::response_error;
use crate::http::response::{IntoResponse, Response};
use ciborium::de::Error;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// CBOR (RFC 8949), in a request or a response. Requires the feature `cbor`.
///
/// The `Content-Type` of a request must be `application/cbor` or a type with the suffix `+cbor`.
/// The problems are those of [`Json`](crate::response::Json): 415, 400 (kind `invalid-cbor`), 422,
/// 413.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::Cbor;
///
/// async fn sum(Cbor(numbers): Cbor<Vec<u32>>) -> Cbor<u32> {
///     Cbor(numbers.iter().sum())
/// }
/// let client = App::new().post("/sum", sum).test();
/// let request = client.post("/sum").header("content-type", "application/cbor");
/// let request = request.body(&b"\x83\x01\x02\x03"[..]);
/// assert_eq!(request.send_blocking().bytes(), [6][..]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Cbor<T>(pub T);

const MEDIA_TYPE: &str = "application/cbor";

impl<T: DeserializeOwned> FromRequest for Cbor<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        check_content_type(&request, MEDIA_TYPE, |essence| {
            is_one_of(essence, &[MEDIA_TYPE], "+cbor")
        })?;
        read_body(request.body, parse).await?.map(Self)
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if bytes.is_empty() {
        return Err(empty_body(MEDIA_TYPE));
    }
    let mut unread = bytes;
    let value = ciborium::de::from_reader_with_recursion_limit(&mut unread, DEPTH_MAX);
    let value = value.map_err(|error| match error {
        Error::Io(_) => invalid_cbor("it ends too early"),
        Error::Syntax(offset) => {
            invalid_cbor(&format!("the byte at offset {offset} is unexpected"))
        }
        Error::RecursionLimitExceeded => invalid_cbor("it is nested too deeply"),
        Error::Semantic(_, reason) => field_problem(".", &reason),
    })?;
    if !unread.is_empty() {
        let end = bytes.len() - unread.len();
        return Err(invalid_cbor(&format!(
            "extra bytes follow its value, which ends at byte {end}"
        )));
    }
    Ok(value)
}

#[cold]
fn invalid_cbor(reason: &str) -> Problem {
    syntax_problem("invalid-cbor", format!("the body is not valid CBOR: {reason}"))
}

impl<T: Serialize> IntoResponse for Cbor<T> {
    fn into_response(self) -> Response {
        let mut buffer = pool::get();
        match ciborium::ser::into_writer(&self.0, &mut buffer) {
            Ok(()) => respond(MEDIA_TYPE, buffer),
            Err(error) => {
                pool::put(buffer);
                response_error("unserializable-cbor", &error)
            }
        }
    }
}
