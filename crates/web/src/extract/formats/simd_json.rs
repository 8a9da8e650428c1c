//! JSON by a reader that uses the processor's wide registers.

use crate::extract::{FromRequest, Json, json_by};
use crate::http::body::pool;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use simd_json::Buffers;
use std::cell::RefCell;

/// JSON in a request or a response, by the feature `fast-json`: read by the crate `simd-json`, which pays for documents of many kilobytes. Small ones
/// [`Json`] reads as fast, and its library has less `unsafe` code. Written it is as by [`Json`].
///
/// What `simd-json` refuses, `serde_json` is asked about, so all that [`Json`] takes is taken here, and problems are the same. Two things differ:
///
/// - a number with more than 15 digits, or a large exponent, that is read as a float may differ in its last bit, in which [`Json`] is less exact, unless a crate of
///   the program switches on the feature `float_roundtrip` of `serde_json`: then [`Json`] is exact, and refuses what is more than an `f32` holds where one is asked
///   for;
/// - an enum with `#[serde(tag = "..")]` that is sent as a list may have the variant's number in place of its name, which [`Json`] refuses.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::FastJson;
///
/// async fn sum(FastJson(numbers): FastJson<Vec<u32>>) -> FastJson<u32> {
///     FastJson(numbers.iter().sum())
/// }
/// let client = App::new().post("/sum", sum).test();
/// assert_eq!(client.post("/sum").json(&[1, 2, 3]).send_now().text(), "6");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct FastJson<T>(pub T);

/// As deep as `serde_json` reads.
const DEPTH_MAX: usize = 127;
/// What was needed for a longer document is not kept.
const KEPT_BYTES_MAX: usize = 256 * 1024;

thread_local! {
    static BUFFERS: RefCell<Option<Buffers>> = const { RefCell::new(None) };
}

impl<T: DeserializeOwned> FromRequest for FastJson<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        json_by(request, parse, |value, _| Ok(Self(value))).await
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        let absent = request.body.length() == Some(0);
        if absent && request.parts.head.field("content-type").is_none() {
            return Ok(None);
        }
        Self::from_request(request).await.map(Some)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    if has_minus_zero(bytes) {
        return None;
    }
    // A type's own code may read JSON in its turn, so nothing is borrowed meanwhile.
    let mut buffers =
        BUFFERS.take().unwrap_or_else(|| Buffers::with_max_depth(bytes.len(), DEPTH_MAX));
    // It writes into what it reads, and that may have to be read again.
    let mut copy = pool::take();
    copy.extend_from_slice(bytes);
    let value = simd_json::serde::from_slice_with_buffers(&mut copy, &mut buffers).ok();
    pool::give(copy);
    if bytes.len() <= KEPT_BYTES_MAX {
        BUFFERS.set(Some(buffers));
    }
    value
}

/// May there be a `-0`? That is the float -0.0 for `serde_json`, and the integer 0 for `simd-json`.
fn has_minus_zero(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'-', bytes).any(|at| {
        bytes.get(at + 1) == Some(&b'0') && !matches!(bytes.get(at + 2), Some(b'.' | b'e' | b'E'))
    })
}

impl<T: Serialize> IntoResponse for FastJson<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T> From<FastJson<T>> for Json<T> {
    fn from(FastJson(value): FastJson<T>) -> Self {
        Json(value)
    }
}
