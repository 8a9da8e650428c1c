//! Until when the certificate of the client whose handshake is under way is valid.
//!
//! A ticket that is made for a client must not outlive its certificate, and rustls says to neither who
//! checks the certificate nor who makes the ticket which connection it is about. Both happen inside
//! calls that the session makes, so the session puts what it knows into a thread-local before such a
//! call, and takes it back after it.

use std::cell::Cell;

thread_local! {
    static UNTIL: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Until when, in seconds since 1970, if the client has shown a certificate.
pub(crate) fn get() -> Option<u64> {
    UNTIL.get()
}

pub(crate) fn set(until: Option<u64>) {
    UNTIL.set(until);
}
