//! Learns the name a client asked for.
//!
//! The unbuffered interface of rustls does not tell it afterwards, but every choice of a
//! certificate sees it, and choices happen inside a call that the session makes. So the resolver
//! leaves the name in a place of the thread, and the session fetches it right after the call.

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static ASKED: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// Takes the name that the last choice on this thread left.
pub(crate) fn take() -> Option<Box<str>> {
    ASKED.take()
}

/// Leaves the client's name for the session and lets another resolver choose.
#[derive(Debug)]
pub(crate) struct NotesServerName(pub(crate) Arc<dyn ResolvesServerCert>);

impl ResolvesServerCert for NotesServerName {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        ASKED.set(client_hello.server_name().map(Box::from));
        self.0.resolve(client_hello)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.only_raw_public_keys()
    }
}
