//! JSON read with SIMD instructions.

use crate::extract::{FromRequest, Json, json_with_parser, optional_from_body};
use crate::http::body::pool;
use crate::http::problem::Problem;
use crate::http::request::Request;
use crate::http::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use simd_json::Buffers;
use std::cell::RefCell;

/// JSON in a request or a response, read by the crate `simd-json`, which is faster for documents of
/// many kilobytes. Requires the feature `fast-json`. For small documents, [`Json`] is as fast, and
/// its library has less `unsafe` code. Responses are written as by [`Json`].
///
/// If `simd-json` rejects a document, it is read again with `serde_json`, so everything that
/// [`Json`] accepts is accepted here, and the problems are the same. There are two differences:
///
/// - A number with more than 15 digits, or with a large exponent, may differ in its last bit when
///   read as a float. For such numbers, `simd-json` is exact. [`Json`] is exact only if a crate of
///   the program enables the feature `float_roundtrip` of `serde_json`. With that feature, [`Json`]
///   rejects a number that overflows an `f32`, if the type expects an `f32`.
/// - An enum with `#[serde(tag = "..")]` that is sent as a list may contain the number of the
///   variant in place of its name. [`Json`] rejects this.
///
/// ```
/// use peregrine::App;
/// use peregrine::web::extract::SimdJson;
///
/// async fn sum(SimdJson(numbers): SimdJson<Vec<u32>>) -> SimdJson<u32> {
///     SimdJson(numbers.iter().sum())
/// }
/// let client = App::new().post("/sum", sum).test();
/// assert_eq!(client.post("/sum").json(&[1, 2, 3]).send_blocking().text(), "6");
/// ```
#[doc(alias = "FastJson")]
#[doc(alias = "simd")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct SimdJson<T>(pub T);

/// The maximum nesting depth, the same as in `serde_json`.
const DEPTH_MAX: usize = 127;
/// The buffers are stored for the next document unless the document was longer than this.
const RETAINED_DOCUMENT_BYTES_MAX: usize = 256 * 1024;

thread_local! {
    static BUFFERS: RefCell<Option<Buffers>> = const { RefCell::new(None) };
}

impl<T: DeserializeOwned> FromRequest for SimdJson<T> {
    async fn from_request(request: Request) -> Result<Self, Problem> {
        json_with_parser(request, parse, |value, _| Ok(Self(value))).await
    }

    async fn optional_from_request(request: Request) -> Result<Option<Self>, Problem> {
        optional_from_body(request).await
    }
}

/// Reads the document with `simd-json`. `None` means that `serde_json` must read it.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    if may_have_negative_zero(bytes) {
        return None;
    }
    // `T::deserialize` may itself extract JSON, so the buffers are taken, not borrowed.
    let mut buffers =
        BUFFERS.take().unwrap_or_else(|| Buffers::with_max_depth(bytes.len(), DEPTH_MAX));
    // The reader overwrites its input, which `serde_json` may have to read again.
    let mut copy = pool::get();
    copy.extend_from_slice(bytes);
    let value = simd_json::serde::from_slice_with_buffers(&mut copy, &mut buffers).ok();
    pool::put(copy);
    if bytes.len() <= RETAINED_DOCUMENT_BYTES_MAX {
        BUFFERS.set(Some(buffers));
    }
    value
}

/// Whether the document may contain the number `-0`, which `serde_json` reads as the float -0.0,
/// but `simd-json` as the integer 0.
fn may_have_negative_zero(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'-', bytes).any(|index| {
        bytes.get(index + 1) == Some(&b'0')
            && !matches!(bytes.get(index + 2), Some(b'.' | b'e' | b'E'))
    })
}

impl<T: Serialize> IntoResponse for SimdJson<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T> From<SimdJson<T>> for Json<T> {
    fn from(SimdJson(value): SimdJson<T>) -> Self {
        Json(value)
    }
}
