//! Where outcomes are kept, and in which form.

use crate::owned;
use bytes::{BufMut, Bytes};
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine_web::respond::Uncompressed;
use peregrine_web::{Body, Response};
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The fingerprint of a request: 128 bits of what may not change when it is sent again, then 128
/// bits of its client.
pub type Fingerprint = [u8; 32];

/// Keeps what became of requests, for [`Idempotency`](super::Idempotency). [`MemoryStore`](super::MemoryStore) is one; a data base that
/// several machines share is another.
///
/// `begin` must be one step for everybody who shares the store: of two that begin with one key at the same time, one gets the claim.
/// In Redis that is `SET key value NX PX lease`, in SQL an `INSERT .. ON CONFLICT DO NOTHING`.
pub trait IdempotencyStore {
    /// Claims `key`, unless it is known. A claim counts for as long as `lease`, so that one whose process died ends.
    ///
    /// # Errors
    /// The store cannot be reached, or is full. The request is not carried out then.
    fn begin(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> impl Future<Output = Result<Begun, StoreError>>;

    /// As `begin`, for a request that carries no identity. Every client can send any number of
    /// these, so a store that can be filled gives them a share of its room only. The default is
    /// `begin`.
    ///
    /// # Errors
    /// As with `begin`.
    fn begin_anonymous(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
        lease: Duration,
    ) -> impl Future<Output = Result<Begun, StoreError>> {
        self.begin(key, fingerprint, lease)
    }

    /// Keeps what became of the request that has this claim, for so long. A claim that has run out changes nothing.
    ///
    /// # Errors
    /// The store cannot be reached. The key stays claimed until its lease ends.
    fn finish(
        &self,
        key: &str,
        claim: u64,
        outcome: Outcome,
        keep_for: Duration,
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// Forgets the key, if it has this claim still: nothing was done, and the request may be sent again.
    ///
    /// # Errors
    /// As with `finish`.
    fn release(&self, key: &str, claim: u64) -> impl Future<Output = Result<(), StoreError>>;
}

/// What a store says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is new. The number tells this claim from others on the key.
    Claimed(u64),
    /// A request with this fingerprint is being worked on.
    InProgress(Fingerprint),
    /// A request with this fingerprint came to this.
    Done(Fingerprint, Outcome),
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This response.
    Kept(KeptResponse),
    /// It was answered, but the response could not be kept: it was too large, or is not over yet.
    Lost,
}

/// A response to be sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub fields: Vec<(HeaderName, HeaderValue)>,
    /// The content.
    pub content: Bytes,
    /// It has a secret, and must not be compressed ([`Uncompressed`]).
    pub is_uncompressed: bool,
}

impl KeptResponse {
    pub(crate) fn of(response: &Response, content: &Bytes) -> Self {
        let fields = response.fields.iter().map(owned::field).collect();
        let is_uncompressed = Uncompressed::is_on(response);
        Self { status: response.status, fields, content: owned::content(content), is_uncompressed }
    }

    pub(crate) fn to_response(&self) -> Response {
        let mut response = Response::new(self.status).with_body(Body::from(self.content.clone()));
        response.fields.extend(self.fields.iter().cloned());
        if self.is_uncompressed {
            Uncompressed.put_on(&mut response);
        }
        response
    }

    /// About how much memory it takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let fields = self.fields.iter().map(|(name, value)| 64 + name.as_str().len() + value.len());
        self.content.len() + fields.sum::<usize>()
    }
}

/// The form's number, which stands first.
const FORM: u8 = 1;
/// The same form, for a response that must not be compressed. Who does not know it must not send the response.
const FORM_UNCOMPRESSED: u8 = 2;

impl Outcome {
    /// The outcome as bytes, for stores outside of the process.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self::Kept(kept) = self else { return vec![FORM, 0] };
        let form = if kept.is_uncompressed { FORM_UNCOMPRESSED } else { FORM };
        let mut bytes = vec![form, 1];
        bytes.put_u16(kept.status.as_u16());
        bytes.put_u32(u32::try_from(kept.fields.len()).unwrap_or_default());
        for (name, value) in &kept.fields {
            for text in [name.as_str().as_bytes(), value.as_bytes()] {
                bytes.put_u32(u32::try_from(text.len()).unwrap_or_default());
                bytes.extend_from_slice(text);
            }
        }
        bytes.extend_from_slice(&kept.content);
        bytes
    }

    /// Reads what [`Outcome::to_bytes`] wrote; `None` for anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (form, mut rest) = bytes.split_first()?;
        let is_uncompressed = match *form {
            FORM => false,
            FORM_UNCOMPRESSED => true,
            _ => return None,
        };
        match number::<1>(&mut rest)? {
            0 if is_uncompressed => return None,
            0 => return rest.is_empty().then_some(Self::Lost),
            1 => {}
            _ => return None,
        }
        let status = StatusCode::from_u16(u16::try_from(number::<2>(&mut rest)?).ok()?).ok()?;
        let mut fields = Vec::new();
        for _ in 0..number::<4>(&mut rest)? {
            let name = HeaderName::from_bytes(text(&mut rest)?).ok()?;
            fields.push((name, HeaderValue::from_bytes(text(&mut rest)?).ok()?));
        }
        let content = Bytes::copy_from_slice(rest);
        Some(Self::Kept(KeptResponse { status, fields, content, is_uncompressed }))
    }
}

/// A number of so many bytes, the largest part first.
fn number<const N: usize>(rest: &mut &[u8]) -> Option<u64> {
    let (number, behind) = rest.split_first_chunk::<N>()?;
    *rest = behind;
    Some(number.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)))
}

fn text<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(number::<4>(rest)?).ok()?;
    let (text, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(text)
}

/// Why a store did not do what it was asked for.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// It has no room for another key. Keys run out with time.
    Full,
    /// It has no room for another key before this time is over, when one ends. The store logs this
    /// itself.
    FullFor(Duration),
    /// It could not be reached, or failed.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full | Self::FullFor(_) => f.write_str(
                "the store of idempotency keys is full: give it more room, or keep outcomes for a shorter time",
            ),
            Self::Failed(error) => write!(f, "the store of idempotency keys failed: {error}"),
        }
    }
}

impl Error for StoreError {
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
    fn outcomes_survive_as_bytes_and_nothing_else_is_read_as_one() {
        let kept = KeptResponse {
            status: StatusCode::CREATED,
            fields: vec![(http::header::LOCATION, HeaderValue::from_static("/a"))],
            content: Bytes::from_static(b"content"),
            is_uncompressed: false,
        };
        let secret = KeptResponse { is_uncompressed: true, ..kept.clone() };
        for outcome in [Outcome::Lost, Outcome::Kept(kept), Outcome::Kept(secret)] {
            let bytes = outcome.to_bytes();
            assert_eq!(Outcome::from_bytes(&bytes), Some(outcome));
            for length in 0..bytes.len().min(20) {
                assert_eq!(Outcome::from_bytes(&bytes[..length]), None, "{length}");
            }
        }
        // As it was written before there was another form.
        let old = Outcome::from_bytes(&[1, 1, 0, 200, 0, 0, 0, 0, b'x']);
        assert!(matches!(old, Some(Outcome::Kept(kept)) if !kept.is_uncompressed));
        for bytes in
            [&[2, 0][..], &[1, 2], &[1, 0, 0], &[1, 1, 0, 99, 255, 255, 255, 255], &[1, 1, 0, 5]]
        {
            assert_eq!(Outcome::from_bytes(bytes), None, "{bytes:?}");
        }
    }
}
