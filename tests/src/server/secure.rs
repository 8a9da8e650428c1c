//! TLS on top of any wire, by a client that performs no I/O itself.

use crate::server::bench::{Got, Wire};
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, version,
};
use peregrine_tls::{SelfSigned, TlsConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A certificate for `localhost` that all cases share, because generating one takes time.
fn identity() -> &'static SelfSigned {
    static IDENTITY: OnceLock<SelfSigned> = OnceLock::new();
    IDENTITY
        .get_or_init(|| TlsConfig::self_signed(&["localhost"]).expect("a certificate can be made"))
}

/// The TLS configuration of a server for `localhost`. It does not share session tickets.
#[must_use]
pub fn server_tls() -> TlsConfig {
    let identity = identity();
    identity.tls.clone()
}

/// The certificate, for clients that should trust it.
#[must_use]
pub fn certificate_pem() -> &'static str {
    &identity().certificate_pem
}

/// TLS 1.3 and 1.2.
pub static VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// A client configuration that trusts the server and supports this version only.
///
/// # Panics
/// If the library does not support the version.
#[must_use]
pub fn client_config(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let pem = certificate_pem().as_bytes();
    let certificate =
        CertificateDer::from_pem_slice(pem).expect("the certificate was just generated");
    roots.add(certificate).expect("the certificate was just generated");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[version])
        .expect("the provider supports the version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// A wire with TLS on it.
pub struct Secure<W> {
    wire: W,
    tls: ClientConnection,
    /// Decrypted data that was not read yet.
    plain: Vec<u8>,
    /// The server announced the end of its data.
    is_ended: bool,
}

impl<W: Wire> Secure<W> {
    /// A client that has sent its first message.
    ///
    /// # Panics
    /// If the configuration is invalid.
    #[must_use]
    pub fn new(wire: W, config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from("localhost").expect("the name is valid");
        let mut tls = ClientConnection::new(Arc::clone(config), name)
            .expect("the client configuration is valid");
        tls.set_buffer_limit(None);
        let mut secure = Self { wire, tls, plain: Vec::new(), is_ended: false };
        secure.flush();
        secure
    }

    /// Sends pending TLS output.
    fn flush(&mut self) {
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).expect("writing to a vector cannot fail");
        }
        if !bytes.is_empty() {
            self.wire.send(&bytes);
        }
    }

    /// Waits until the handshake is complete.
    ///
    /// # Panics
    /// If it fails.
    pub async fn shake_hands(&mut self, timeout: Duration) {
        while self.tls.is_handshaking() {
            let Got::Bytes(bytes) = self.wire.recv(timeout).await else {
                panic!("the handshake was not completed");
            };
            self.feed(&bytes).expect("the server keeps to the rules");
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            self.tls.process_new_packets().map_err(|error| error.to_string())?;
            match self.tls.reader().read_to_end(&mut self.plain) {
                Ok(_) => self.is_ended = true,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        self.flush();
        Ok(())
    }

    /// Returns the wire, whatever the state of TLS.
    pub fn into_wire(self) -> W {
        self.wire
    }

    /// Encrypts plaintext into records without sending them.
    ///
    /// # Panics
    /// If the handshake is not complete.
    pub fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        assert!(!self.tls.is_handshaking(), "there are keys only after the handshake");
        self.tls.writer().write_all(plain).expect("the TLS buffer is unlimited");
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).expect("writing to a vector cannot fail");
        }
        bytes
    }

    /// Creates a `close_notify` record without sending it.
    ///
    /// # Panics
    /// Never: writing to a vector cannot fail.
    pub fn seal_end(&mut self) -> Vec<u8> {
        self.tls.send_close_notify();
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).expect("writing to a vector cannot fail");
        }
        bytes
    }

    /// Requests a key update: later records use another key.
    ///
    /// # Panics
    /// If the version is not 1.3.
    pub fn renew_keys(&mut self) {
        self.tls.refresh_traffic_keys().expect("TLS 1.3 supports key updates");
        self.flush();
    }

    /// Sends bytes below TLS.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.wire.send(bytes);
    }
}

impl<W: Wire> Wire for Secure<W> {
    fn send(&mut self, bytes: &[u8]) {
        self.tls.writer().write_all(bytes).expect("the TLS buffer is unlimited");
        self.flush();
    }

    /// Sends `close_notify`, and leaves the wire open.
    fn half_close(&mut self) {
        self.tls.send_close_notify();
        self.flush();
    }

    async fn recv(&mut self, timeout: Duration) -> Got {
        loop {
            if !self.plain.is_empty() {
                return Got::Bytes(std::mem::take(&mut self.plain));
            }
            if self.is_ended {
                return Got::End;
            }
            match self.wire.recv(timeout).await {
                Got::Bytes(bytes) => {
                    if let Err(error) = self.feed(&bytes) {
                        eprintln!("TLS: {error}");
                        return Got::Broken;
                    }
                }
                // Without `close_notify`, the end of the wire is a truncation.
                Got::End => return Got::Broken,
                other => return other,
            }
        }
    }

    fn reset(self) {
        self.wire.reset();
    }
}
