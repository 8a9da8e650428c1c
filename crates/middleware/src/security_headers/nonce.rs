//! The nonce of a response, which is created on first use.

use crate::random::{Hex, random_bytes};
use http::StatusCode;
use peregrine_web::extract::FromRequestParts;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::private_response::PrivateResponse;
use peregrine_web::{Parts, Problem};
use std::cell::Cell;
use std::fmt;

/// A random number of 128 bits that this response's policy contains, as text: scripts and styles
/// with it in their `nonce` attribute are allowed, and injected ones are not.
///
/// As a handler argument it requires [`SecurityHeaders`](super::SecurityHeaders) with
/// [`NONCE`](super::NONCE) in its policy around the handler; otherwise the problem has status 500,
/// and `Option<CspNonce>` is `None`. It is created on first use by a handler or by a middleware's
/// extractor, and is the same within a request. A response with a nonce has `Cache-Control:
/// no-store`, because a cached page would have an old nonce. A `Cache-Control` set by the handler
/// is kept, unless it is just `private`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CspNonce([u8; 16]);

/// The state of the nonce of the request that is being polled.
#[derive(Clone, Copy)]
pub(super) enum NonceState {
    Unused,
    Used(CspNonce),
}

thread_local! {
    pub(super) static CURRENT: Cell<Option<NonceState>> = const { Cell::new(None) };
}

/// Returns the nonce of the current request, creating it on first use. `None` outside of the
/// middleware.
fn current_nonce() -> Option<CspNonce> {
    let nonce = match CURRENT.get()? {
        NonceState::Used(nonce) => nonce,
        NonceState::Unused => CspNonce(random_bytes()),
    };
    CURRENT.set(Some(NonceState::Used(nonce)));
    Some(nonce)
}

impl FromRequestParts for CspNonce {
    async fn from_request_parts(parts: &mut Parts) -> Result<Self, Problem> {
        // A page that contains the nonce is for one request only.
        PrivateResponse::mark(parts);
        current_nonce().ok_or_else(|| {
            catch_subscriber_panic(|| tracing::error!(target: "peregrine",
                "the handler needs a nonce; add `.wrap(SecurityHeaders::new().csp(..))` around it, with NONCE in the policy"));
            let detail = "the server lacks something that it needs for this request; its log says what";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "missing-csp-nonce", detail)
        })
    }

    async fn optional_from_request_parts(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let nonce = current_nonce();
        if nonce.is_some() {
            PrivateResponse::mark(parts);
        }
        Ok(nonce)
    }
}

impl fmt::Display for CspNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0).fmt(f)
    }
}

impl fmt::Debug for CspNonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CspNonce({self})")
    }
}
