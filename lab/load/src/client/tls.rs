//! TLS for a client that judges speed, not identity.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, NamedGroup, SignatureScheme,
};

/// The names of the protocols in ALPN.
pub(crate) const HTTP1: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";

/// As [`config`], but it speaks HTTP/2 and nothing else.
#[must_use]
pub fn http2_config() -> Arc<ClientConfig> {
    Arc::new(unshared_config(HTTP2))
}

/// A configuration that speaks TLS 1.3 and `http/1.1`, accepts every certificate (but checks that
/// the server holds its key), and resumes nothing. AES-128-GCM stands first in its offer, so that
/// servers that follow the client and servers that choose for themselves use the same cipher.
#[must_use]
pub fn config() -> Arc<ClientConfig> {
    Arc::new(unshared_config(HTTP1))
}

/// As [`config`], but new connections resume sessions with the tickets that the server sent on
/// earlier ones. It is for one server: tickets are not told apart by name.
#[must_use]
pub fn resuming_config() -> Arc<ClientConfig> {
    let mut config = unshared_config(HTTP1);
    config.resumption = Resumption::store(Arc::new(Tickets::default()));
    Arc::new(config)
}

fn unshared_config(protocol: &[u8]) -> ClientConfig {
    let mut provider = default_provider();
    provider.cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    let provider = Arc::new(provider);
    let verifier = Arc::new(AnyCertificate { provider: provider.clone() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 suites")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    config
}

/// The most tickets that are kept.
const TICKETS_MAX: usize = 1 << 16;

/// The tickets of one server, each used once.
///
/// The store that rustls offers keeps eight, so of many connections that come back at the same
/// time most would shake hands in full, and a run would measure a mixture.
#[derive(Debug, Default)]
struct Tickets {
    tickets: Mutex<VecDeque<Tls13ClientSessionValue>>,
    group: Mutex<Option<NamedGroup>>,
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server_name: ServerName<'static>, group: NamedGroup) {
        *self.group.lock().expect("nobody panics while he holds the lock") = Some(group);
    }

    fn kx_hint(&self, _server_name: &ServerName<'_>) -> Option<NamedGroup> {
        *self.group.lock().expect("nobody panics while he holds the lock")
    }

    // TLS 1.2 is not spoken here.
    fn set_tls12_session(&self, _name: ServerName<'static>, _value: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server_name: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _name: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut tickets = self.tickets.lock().expect("nobody panics while he holds the lock");
        if tickets.len() == TICKETS_MAX {
            tickets.pop_front();
        }
        tickets.push_back(value);
    }

    // RFC 8446 §C.4: a client should not use a ticket twice.
    fn take_tls13_ticket(&self, _name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.tickets.lock().expect("nobody panics while he holds the lock").pop_back()
    }
}

/// A session that has not begun; its bytes go through whatever the caller has.
pub(crate) fn begin(
    config: &Arc<ClientConfig>,
    name: &ServerName<'static>,
) -> Result<Box<ClientConnection>, Error> {
    ClientConnection::new(config.clone(), name.clone()).map(Box::new)
}

/// Shakes hands on a blocking stream.
///
/// # Errors
///
/// Whatever breaks the handshake: the socket's error, or `InvalidData` for a TLS error.
pub(crate) fn handshake(
    config: &Arc<ClientConfig>,
    stream: &mut TcpStream,
) -> io::Result<Box<ClientConnection>> {
    let name = ServerName::try_from("localhost").expect("the name is a valid one");
    let mut session = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
    while session.is_handshaking() {
        session.complete_io(stream)?;
    }
    while session.wants_write() {
        session.write_tls(stream)?;
    }
    Ok(Box::new(session))
}

#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
