//! Learns the name that a client asked for, and the certificate that it got.
//!
//! The unbuffered interface of rustls tells neither afterwards, but every choice of a certificate
//! knows both, and choices happen inside a call that the session makes. So the resolver leaves them
//! in a thread-local, and the session fetches them right after the call.

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static CHOICE: Cell<Option<Choice>> = const { Cell::new(None) };
}

/// What is known of the choice of a certificate.
pub(crate) struct Choice {
    /// The name that the client asked for.
    pub(crate) server_name: Option<Box<str>>,
    /// The certificate that the client got, if it is kept.
    pub(crate) certificate: Option<Arc<CertifiedKey>>,
}

/// Takes what the last choice on this thread left.
pub(crate) fn take() -> Option<Choice> {
    CHOICE.take()
}

/// Lets another resolver choose and leaves the choice for the session.
#[derive(Debug)]
pub(crate) struct NotesChoice {
    pub(crate) resolver: Arc<dyn ResolvesServerCert>,
    pub(crate) keeps_certificate: bool,
}

impl ResolvesServerCert for NotesChoice {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let server_name = client_hello.server_name().map(Box::from);
        let chosen = self.resolver.resolve(client_hello);
        // A raw public key names nobody.
        let is_kept = self.keeps_certificate && !self.only_raw_public_keys();
        let certificate = if is_kept { chosen.clone() } else { None };
        CHOICE.set(Some(Choice { server_name, certificate }));
        chosen
    }

    fn only_raw_public_keys(&self) -> bool {
        self.resolver.only_raw_public_keys()
    }
}
