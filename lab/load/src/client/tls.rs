//! TLS for a client that judges speed, not identity.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

/// A configuration that speaks TLS 1.3 and `http/1.1`, accepts every certificate (but checks that
/// the server holds its key), and resumes nothing. AES-128-GCM stands first in its offer, so that
/// servers that follow the client and servers that choose for themselves use the same cipher.
#[must_use]
pub fn config() -> Arc<ClientConfig> {
    Arc::new(unshared_config())
}

/// As [`config`], but new connections resume sessions with the tickets that the server sent on
/// earlier ones.
#[must_use]
pub fn resuming_config() -> Arc<ClientConfig> {
    let mut config = unshared_config();
    config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
    Arc::new(config)
}

fn unshared_config() -> ClientConfig {
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
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.resumption = Resumption::disabled();
    config
}

/// The most servers whose tickets are kept.
const SESSIONS_MAX: usize = 256;

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
