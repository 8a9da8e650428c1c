//! TLS to upstreams.

use crate::error::UpstreamError;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The TLS configuration for one upstream.
pub(crate) struct UpstreamTls {
    server_name: ServerName<'static>,
    alpn_connector: TlsConnector,
    /// For upgrades, which are sent over HTTP/1.1 only.
    http1_connector: TlsConnector,
}

impl UpstreamTls {
    pub(crate) fn new(host: &str, config: &Arc<ClientConfig>) -> Option<Self> {
        let server_name = ServerName::try_from(host.to_owned()).ok()?;
        let connector = |protocols: &[&[u8]]| {
            let mut config = ClientConfig::clone(config);
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Some(Self {
            server_name,
            alpn_connector: connector(&[b"h2", b"http/1.1"]),
            http1_connector: connector(&[b"http/1.1"]),
        })
    }

    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        is_upgrade: bool,
    ) -> io::Result<TlsStream<TcpStream>> {
        let connector = if is_upgrade { &self.http1_connector } else { &self.alpn_connector };
        connector.connect(self.server_name.clone(), stream).await
    }
}

/// A configuration that trusts the root certificates of the system.
pub(crate) fn native_roots_config() -> Result<Arc<ClientConfig>, UpstreamError> {
    let native_certs = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(native_certs.certs);
    if added == 0 {
        let reason = native_certs.errors.first().map(ToString::to_string);
        return Err(UpstreamError::NoTrustRoots(
            reason.unwrap_or_else(|| "there are none".to_owned()),
        ));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| UpstreamError::NoTrustRoots(error.to_string()))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
