//! The interface of stores, and the serialized form of outcomes.

use crate::compact;
use bytes::{BufMut, Bytes};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::response::NoCompression;
use peregrine_web::{Body, Response};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// A request's fingerprint: a 128-bit hash of what must not change when it is sent again, and a
/// 128-bit hash of its client's identity.
pub type Fingerprint = [u8; 32];

/// Stores the outcomes of requests for [`Idempotency`](super::Idempotency). Implementations are
/// [`MemoryIdempotencyStore`](super::MemoryIdempotencyStore), or your own, such as a database that
/// several machines share.
///
/// `claim` must be atomic across all users of the store: of two concurrent calls with the same key,
/// one gets the claim. In Redis, use `SET key value NX PX lease`; in SQL,
/// `INSERT .. ON CONFLICT DO NOTHING`.
pub trait IdempotencyStore {
    /// Claims `key` unless it is already claimed or has an outcome. A claim expires after `lease`,
    /// in case its process dies.
    ///
    /// # Errors
    /// The store is unreachable or full. The request is not executed then.
    fn claim(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> impl Future<Output = Result<ClaimResult, IdempotencyStoreError>>;

    /// Like `claim`, for a request without an identity. Any client can send any number of such
    /// requests, so a store with limited space should restrict them to a part of it. The default
    /// implementation calls `claim`.
    ///
    /// # Errors
    /// As for `claim`.
    fn claim_anonymous(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> impl Future<Output = Result<ClaimResult, IdempotencyStoreError>> {
        self.claim(key, fingerprint, lease)
    }

    /// Stores the outcome of the request that holds this claim, for the time `retention`. Does
    /// nothing if the claim has expired.
    ///
    /// # Errors
    /// The store is unreachable. The key stays claimed until its lease ends.
    fn complete(
        &self,
        key: &str,
        claim: u64,
        outcome: IdempotentOutcome,
        retention: Duration,
    ) -> impl Future<Output = Result<(), IdempotencyStoreError>>;

    /// Removes the key if it still has this claim. Called if the request changed nothing, so that
    /// it can be executed when it is sent again.
    ///
    /// # Errors
    /// As for `complete`.
    fn release(
        &self,
        key: &str,
        claim: u64,
    ) -> impl Future<Output = Result<(), IdempotencyStoreError>>;
}

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimResult {
    /// The key was new and is now claimed. The number distinguishes this claim from others on the
    /// same key.
    Claimed(u64),
    /// A request with this fingerprint is in progress.
    InProgress(Fingerprint),
    /// A request with this fingerprint had this outcome.
    Completed(Fingerprint, IdempotentOutcome),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdempotentOutcome {
    /// The request got this response.
    Stored(StoredResponse),
    /// The request got a response that was not stored, for example because it was too long or
    /// streamed for too long.
    NotStored,
}

/// A stored response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// The content.
    pub content: Bytes,
    /// The content includes a secret and must not be compressed ([`NoCompression`]).
    pub forbids_compression: bool,
}

impl StoredResponse {
    pub(crate) fn new(response: &Response, content: &Bytes) -> Self {
        let fields = response.headers.iter().map(compact::compact_field).collect();
        let forbids_compression = NoCompression::is_set(response);
        Self {
            status: response.status,
            fields,
            content: compact::compact_bytes(content),
            forbids_compression,
        }
    }

    pub(crate) fn to_response(&self) -> Response {
        let mut response = Response::new(self.status).with_body(Body::from(self.content.clone()));
        response.headers.extend(self.fields.iter().cloned());
        if self.forbids_compression {
            NoCompression.apply_to(&mut response);
        }
        response
    }

    /// Approximate memory use.
    pub(crate) fn memory_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + value.len());
        self.content.len() + fields.sum::<usize>()
    }
}

/// The version of the serialized format, in its first byte.
const FORMAT_VERSION: u8 = 1;
/// The same format, for a response that must not be compressed. It has a separate version so that
/// older versions of this crate reject it instead of compressing the response.
const FORMAT_VERSION_NO_COMPRESSION: u8 = 2;

impl IdempotentOutcome {
    /// Serializes the outcome, for stores outside the process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self::Stored(response) = self else { return vec![FORMAT_VERSION, 0] };
        let version = if response.forbids_compression {
            FORMAT_VERSION_NO_COMPRESSION
        } else {
            FORMAT_VERSION
        };
        let mut bytes = vec![version, 1];
        bytes.put_u16(response.status.as_u16());
        bytes.put_u32(u32::try_from(response.fields.len()).unwrap_or_default());
        for (name, value) in &response.fields {
            for part in [name.as_str().as_bytes(), value.as_bytes()] {
                bytes.put_u32(u32::try_from(part.len()).unwrap_or_default());
                bytes.extend_from_slice(part);
            }
        }
        bytes.extend_from_slice(&response.content);
        bytes
    }

    /// Parses the output of [`IdempotentOutcome::to_bytes`]. Returns `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (version, mut rest) = bytes.split_first()?;
        let forbids_compression = match *version {
            FORMAT_VERSION => false,
            FORMAT_VERSION_NO_COMPRESSION => true,
            _ => return None,
        };
        match read_number::<1>(&mut rest)? {
            0 if forbids_compression => return None,
            0 => return rest.is_empty().then_some(Self::NotStored),
            1 => {}
            _ => return None,
        }
        let status =
            StatusCode::from_u16(u16::try_from(read_number::<2>(&mut rest)?).ok()?).ok()?;
        let mut fields = Vec::new();
        for _ in 0..read_number::<4>(&mut rest)? {
            let name = HeaderName::from_bytes(read_bytes(&mut rest)?).ok()?;
            fields.push((name, HeaderValue::from_bytes(read_bytes(&mut rest)?).ok()?));
        }
        let content = Bytes::copy_from_slice(rest);
        Some(Self::Stored(StoredResponse { status, fields, content, forbids_compression }))
    }
}

/// Reads a big-endian number of `N` bytes.
fn read_number<const N: usize>(rest: &mut &[u8]) -> Option<u64> {
    let (digits, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(digits.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn read_bytes<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(read_number::<4>(rest)?).ok()?;
    let (bytes, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(bytes)
}

/// Why a store operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum IdempotencyStoreError {
    /// The store has no room for another key until keys expire.
    Full,
    /// The store has no room for another key until the next one expires, after this time. The store
    /// logs this itself.
    FullFor(Duration),
    /// The store is unreachable or failed.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for IdempotencyStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full | Self::FullFor(_) => f.write_str(
                "the store of idempotency keys is full: enlarge the store, or shorten the retention time",
            ),
            Self::Failed(error) => write!(f, "the store of idempotency keys failed: {error}"),
        }
    }
}

impl Error for IdempotencyStoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Full | Self::FullFor(_) => None,
            Self::Failed(error) => Some(&**error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_round_trip_and_other_bytes_are_rejected() {
        let response = StoredResponse {
            status: StatusCode::CREATED,
            fields: vec![(http::header::LOCATION, HeaderValue::from_static("/a"))],
            content: Bytes::from_static(b"content"),
            forbids_compression: false,
        };
        let secret = StoredResponse { forbids_compression: true, ..response.clone() };
        for outcome in [
            IdempotentOutcome::NotStored,
            IdempotentOutcome::Stored(response),
            IdempotentOutcome::Stored(secret),
        ] {
            let bytes = outcome.to_bytes();
            assert_eq!(IdempotentOutcome::from_bytes(&bytes), Some(outcome));
            for length in 0..bytes.len().min(20) {
                assert_eq!(IdempotentOutcome::from_bytes(&bytes[..length]), None, "{length}");
            }
        }
        // The format as written before the other one existed.
        let old = IdempotentOutcome::from_bytes(&[1, 1, 0, 200, 0, 0, 0, 0, b'x']);
        assert!(
            matches!(old, Some(IdempotentOutcome::Stored(response)) if !response.forbids_compression)
        );
        for bytes in
            [&[2, 0][..], &[1, 2], &[1, 0, 0], &[1, 1, 0, 99, 255, 255, 255, 255], &[1, 1, 0, 5]]
        {
            assert_eq!(IdempotentOutcome::from_bytes(bytes), None, "{bytes:?}");
        }
    }
}
