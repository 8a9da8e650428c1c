//! Passes the expiry of the client's certificate from the verifier to the ticketer.
//!
//! A ticket must not outlive the client's certificate, but rustls tells neither the certificate
//! verifier nor the ticketer which connection it is called for. Both run inside calls made by the
//! session, so the session sets a thread-local before such a call and takes it afterwards.

use std::cell::Cell;

thread_local! {
    static CLIENT_NOT_AFTER: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The expiry in seconds since 1970, if the client presented a certificate.
pub(crate) fn get() -> Option<u64> {
    CLIENT_NOT_AFTER.get()
}

pub(crate) fn set(until: Option<u64>) {
    CLIENT_NOT_AFTER.set(until);
}
