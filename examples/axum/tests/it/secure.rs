//! A certificate that servers present and clients trust, and TLS around `axum::serve`.

use rcgen::{CertifiedKey, KeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A certificate for `localhost`, generated once.
fn identity() -> &'static CertifiedKey<KeyPair> {
    static IDENTITY: OnceLock<CertifiedKey<KeyPair>> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a valid name")
    })
}

/// Certificate and key as PEM.
pub(crate) fn pem() -> (String, String) {
    (identity().cert.pem(), identity().signing_key.serialize_pem())
}

/// A client that trusts the certificate.
pub(crate) fn client_config() -> ClientConfig {
    static CONFIG: OnceLock<ClientConfig> = OnceLock::new();
    let make = || {
        let mut roots = RootCertStore::empty();
        roots.add(identity().cert.der().clone()).expect("a valid certificate");
        ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("aws-lc-rs supports these versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    };
    CONFIG.get_or_init(make).clone()
}

/// A TLS listener for `axum::serve`, as in the documentation of its trait.
pub(crate) struct SecureListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl SecureListener {
    /// TLS on the connections of `listener`.
    pub(crate) fn new(listener: TcpListener) -> Self {
        let (certificate, key) = pem();
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("aws-lc-rs supports these versions")
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.expect("it was just encoded")],
                key.expect("it was just encoded"),
            )
            .expect("the key matches the certificate");
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)) }
    }
}

impl axum::serve::Listener for SecureListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
