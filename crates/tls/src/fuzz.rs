//! Entry points of the fuzz targets: arbitrary bytes from a peer at any stage, and arbitrary
//! certificates.

use crate::challenge::ChallengeResponses;
use crate::config::TlsConfig;
use crate::connection::TlsConnection;
use crate::connection_error::TlsConnectionError;
use crate::handshake_info::TlsReadState;
use crate::limits::HANDSHAKE_BYTES_MAX;
use crate::self_signed::generate_self_signed;
use crate::{inspect, ocsp, peer_certificate, x509};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::sync::{Arc, OnceLock};

/// Feeds a connection with `data`, whole and in chunks, and compares the results.
///
/// The first byte chooses the stage: a new connection, a modified ClientHello of a real client, or
/// after the handshake. The second byte is the length of the chunks. The rest is sent by the peer.
///
/// # Panics
///
/// If the results differ.
#[doc(hidden)]
pub fn fuzz_one(data: &[u8]) {
    let [stage, chunk_bytes, data @ ..] = data else {
        return;
    };
    let setup = setup();
    let mut input = Vec::new();
    if stage % 3 == 1 {
        input.extend_from_slice(&setup.hello);
        let (edits, rest) = data.split_at(data.len() / 2);
        for edit in edits.chunks_exact(3) {
            let position = usize::from(edit[0]) << 8 | usize::from(edit[1]);
            let position = position % input.len();
            input[position] ^= edit[2];
        }
        input.extend_from_slice(rest);
    } else {
        input.extend_from_slice(data);
    }

    let new_connection = || match stage % 3 {
        2 => setup.established_connection(),
        // While challenges are pending, the first record is inspected before the handshake starts.
        _ if stage & 0x80 != 0 => setup.tls_with_challenges.new_connection(),
        _ => setup.tls.new_connection(),
    };
    let whole = feed(new_connection(), &input, input.len().max(1));
    let chunked = feed(new_connection(), &input, usize::from(*chunk_bytes).max(1));
    // Whether the handshake limit is exceeded depends on how many bytes arrive at once.
    if input.len() <= HANDSHAKE_BYTES_MAX {
        assert_eq!(whole, chunked, "the result depends on how the input is split");
    }
}

/// Parses `data` as a client's certificate, as a revocation list and as an OCSP response.
///
/// # Panics
///
/// If a parsed subject name is ambiguous.
#[doc(hidden)]
pub fn fuzz_certificate(data: &[u8]) {
    let _ = x509::crl_next_update(data);
    let _ = ocsp::check_ocsp_response(data, b"\x07", 0);
    let _ = x509::parse_tbs_certificate(data)
        .map(|fields| inspect::authority_key_identifier(fields.after_subject));
    let identity =
        peer_certificate::parse(&[CertificateDer::from(data)]).expect("the chain is not empty");
    assert!(!identity.subject.chars().any(char::is_control), "a name is one line");
    for name in [&identity.dns_names, &identity.uris, &identity.emails].into_iter().flatten() {
        assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()), "{name:?}");
    }
}

/// Returns all plaintext and the final result.
fn feed(
    mut connection: TlsConnection,
    input: &[u8],
    chunk_bytes: usize,
) -> (Vec<u8>, Result<TlsReadState, TlsConnectionError>) {
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let mut state = Ok(TlsReadState::Handshaking);
    for chunk in input.chunks(chunk_bytes) {
        state = connection.receive(chunk, &mut plain, &mut out);
        // These calls must not affect the received data.
        let _ = connection.send(b"reply", &mut out);
        let _ = connection.handshake_info();
    }
    connection.close(&mut out);
    (plain, state)
}

struct Setup {
    tls: TlsConfig,
    /// The same with pending challenges.
    tls_with_challenges: TlsConfig,
    client: Arc<ClientConfig>,
    hello: Vec<u8>,
}

impl Setup {
    fn connect(&self) -> ClientConnection {
        let name = ServerName::try_from("localhost").expect("the name is valid");
        ClientConnection::new(self.client.clone(), name).expect("the client configuration is valid")
    }

    /// Creates a connection that has completed its handshake.
    fn established_connection(&self) -> TlsConnection {
        let (mut client, mut connection) = (self.connect(), self.tls.new_connection());
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        while connection.handshake_info().is_none() {
            let mut flight = Vec::new();
            client.write_tls(&mut flight).expect("writing to a vector cannot fail");
            connection
                .receive(&flight, &mut plain, &mut out)
                .expect("the peer follows the protocol");
            let mut response = std::mem::take(&mut out);
            while !response.is_empty() {
                let read = client
                    .read_tls(&mut response.as_slice())
                    .expect("reading from a slice cannot fail");
                response.drain(..read);
                client.process_new_packets().expect("the peer follows the protocol");
            }
        }
        connection
    }
}

fn config_with_challenges() -> TlsConfig {
    let challenges = ChallengeResponses::new().expect("the configuration is valid");
    let (chain, key) = generate_self_signed(&["localhost"]).expect("the name is valid");
    let result = challenges.set_tls_alpn("localhost", chain.as_bytes(), key.as_bytes());
    result.expect("the certificate is valid");
    TlsConfig::with_provider(challenges, Arc::new(())).expect("the system returns random bytes")
}

fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| {
        let self_signed = TlsConfig::self_signed(&["localhost"]).expect("the name is valid");
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self_signed.certificate_pem.as_bytes());
        roots
            .add(certificate.expect("the PEM was just generated"))
            .expect("the root was just generated");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (client, hello) = (Arc::new(client), Vec::new());
        let mut setup = Setup {
            tls: self_signed.tls,
            tls_with_challenges: config_with_challenges(),
            client,
            hello,
        };
        let mut hello = Vec::new();
        setup.connect().write_tls(&mut hello).expect("writing to a vector cannot fail");
        setup.hello = hello;
        setup
    })
}
