//! Passes the expiry of the client's certificate from the verifier to the ticketer.
//!
//! A ticket must not outlive the client's certificate, but rustls does not say for which connection
//! it calls the certificate verifier or the ticketer. Both run inside calls made by a connection,
//! so the connection sets a thread-local before such a call and reads it afterwards.

use std::cell::Cell;

thread_local! {
    static CLIENT_NOT_AFTER: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The expiry in seconds since 1970, if the client presented a certificate.
pub(crate) fn get() -> Option<u64> {
    CLIENT_NOT_AFTER.get()
}

pub(crate) fn set(not_after: Option<u64>) {
    CLIENT_NOT_AFTER.set(not_after);
}
