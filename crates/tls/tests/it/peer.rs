//! The clients of these tests: correct ones, built with rustls, and forgers.

use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::crypto::cipher::{MessageEncrypter, OutboundPlainMessage};
use peregrine_tls::rustls::{
    self, ClientConfig, ClientConnection, ConnectionTrafficSecrets, ContentType, ProtocolVersion,
    RootCertStore, SupportedCipherSuite, SupportedProtocolVersion,
};
use peregrine_tls::{TlsConfig, TlsConnection, TlsConnectionError, TlsReadState};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::io::{Read, Write};
use std::sync::Arc;

pub(crate) static TLS12: &SupportedProtocolVersion = &rustls::version::TLS12;
pub(crate) static TLS13: &SupportedProtocolVersion = &rustls::version::TLS13;
pub(crate) static BOTH_VERSIONS: [&SupportedProtocolVersion; 2] = [TLS12, TLS13];

/// A certificate and its key in PEM.
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

pub(crate) fn identity(names: &[&str]) -> Identity {
    identity_with(names, &rcgen::PKCS_ECDSA_P256_SHA256)
}

pub(crate) fn identity_with(
    names: &[&str],
    algorithm: &'static rcgen::SignatureAlgorithm,
) -> Identity {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    Identity { certificate: certificate.pem(), key: key.serialize_pem() }
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    /// Its own certificate, in PEM.
    pub(crate) certificate: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let (parameters, key) = (Self::parameters(name), rcgen::KeyPair::generate().unwrap());
        let certificate = parameters.self_signed(&key).unwrap().pem();
        Self { issuer: rcgen::Issuer::new(parameters, key), certificate }
    }

    /// Creates an intermediate authority, issued by this one.
    pub(crate) fn issue_authority(&self, name: &str) -> Self {
        let (parameters, key) = (Self::parameters(name), rcgen::KeyPair::generate().unwrap());
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap().pem();
        Self { issuer: rcgen::Issuer::new(parameters, key), certificate }
    }

    fn parameters(name: &str) -> rcgen::CertificateParams {
        let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.key_usages =
            vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        parameters
    }

    /// Issues a certificate for these names, modified by `configure`.
    pub(crate) fn issue(
        &self,
        names: &[&str],
        configure: impl FnOnce(&mut rcgen::CertificateParams),
    ) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        configure(&mut parameters);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = parameters.signed_by(&key, &self.issuer).unwrap();
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// A revocation list with these serial numbers and a `nextUpdate` in this year.
    pub(crate) fn revocation_list(&self, serials: &[u64], year: i32) -> String {
        let revoked_certificate = |serial: &u64| rcgen::RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let parameters = rcgen::CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(2000, 1, 1),
            next_update: rcgen::date_time_ymd(year, 1, 1),
            crl_number: 1_u64.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked_certificate).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        parameters.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

/// The certificate that the client received, in DER.
pub(crate) fn presented_certificate(pair: &Pair) -> Vec<u8> {
    pair.client.peer_certificates().unwrap()[0].to_vec()
}

pub(crate) fn der(pem: &str) -> Vec<u8> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
}

/// A server for `localhost`, and a client that trusts it.
pub(crate) fn server_and_client(
    version: &'static SupportedProtocolVersion,
) -> (TlsConfig, ClientConfig) {
    let self_signed = TlsConfig::self_signed(&["localhost"]).unwrap();
    let client = client_config(&[version], &[&self_signed.certificate_pem]);
    (self_signed.tls, client)
}

pub(crate) fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    trusted: &[&str],
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for pem in trusted {
        roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    config
}

/// A client with these suites in this order, which accepts any certificate.
pub(crate) fn lenient_client(suites: &[SupportedCipherSuite]) -> ClientConfig {
    let provider = rustls::crypto::CryptoProvider {
        cipher_suites: suites.to_vec(),
        ..aws_lc_rs::default_provider()
    };
    ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth()
}

#[derive(Debug)]
pub(crate) struct AcceptAnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: rustls_pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A client and a server session, connected by a link that splits bytes into pieces.
pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) session: TlsConnection,
    /// Plaintext received by the server.
    pub(crate) plain: Vec<u8>,
    /// Bytes sent by the server that the client has not received yet.
    pub(crate) out: Vec<u8>,
    /// The maximum number of bytes per piece to the server.
    pub(crate) piece_bytes: usize,
}

impl Pair {
    pub(crate) fn new(tls: &TlsConfig, client: &Arc<ClientConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self {
            client: ClientConnection::new(client.clone(), name).unwrap(),
            session: tls.new_connection(),
            plain: Vec::new(),
            out: Vec::new(),
            piece_bytes: usize::MAX,
        }
    }

    /// Creates a pair and completes its handshake.
    pub(crate) fn connected(tls: &TlsConfig, client: &Arc<ClientConfig>, name: &str) -> Self {
        let mut pair = Self::new(tls, client, name);
        pair.exchange();
        assert!(!pair.client.is_handshaking());
        pair
    }

    /// Creates a pair with a new server of the given version.
    pub(crate) fn of_version(version: &'static SupportedProtocolVersion) -> Self {
        let (tls, client) = server_and_client(version);
        Self::connected(&tls, &Arc::new(client), "localhost")
    }

    /// Takes the bytes that the client has to send.
    pub(crate) fn client_bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.client.wants_write() {
            self.client.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Passes bytes to the session as if the client had sent them.
    pub(crate) fn deliver(&mut self, bytes: &[u8]) -> Result<TlsReadState, TlsConnectionError> {
        let mut result = Ok(TlsReadState::Handshaking);
        for piece in bytes.chunks(self.piece_bytes) {
            result = self.session.receive(piece, &mut self.plain, &mut self.out);
            if result.is_err() {
                break;
            }
        }
        result
    }

    /// Passes the server's output to the client.
    pub(crate) fn deliver_output(&mut self) -> Result<(), rustls::Error> {
        let out = std::mem::take(&mut self.out);
        let mut unread = &out[..];
        while !unread.is_empty() {
            self.client.read_tls(&mut unread).unwrap();
            self.client.process_new_packets()?;
        }
        Ok(())
    }

    /// Exchanges bytes until neither side has more to send, or one rejects the other.
    pub(crate) fn try_exchange(&mut self) -> Result<(), Failure> {
        loop {
            let bytes = self.client_bytes();
            if bytes.is_empty() && self.out.is_empty() {
                return Ok(());
            }
            let server_result =
                if bytes.is_empty() { Ok(()) } else { self.deliver(&bytes).map(|_| ()) };
            let client_result = self.deliver_output();
            server_result.map_err(Failure::Server)?;
            client_result.map_err(Failure::Client)?;
        }
    }

    pub(crate) fn exchange(&mut self) {
        self.try_exchange().unwrap();
    }

    /// Sends application data from the client; it is then in `plain`.
    pub(crate) fn client_send(&mut self, text: &[u8]) {
        self.client.writer().write_all(text).unwrap();
        self.exchange();
    }

    /// The plaintext that the client has received since the last call.
    pub(crate) fn client_received(&mut self) -> Vec<u8> {
        let mut received = Vec::new();
        match self.client.reader().read_to_end(&mut received) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        received
    }

    /// Turns the client into a forger that has the client's keys and ignores the protocol.
    pub(crate) fn forger(self) -> (Forger, TlsConnection) {
        assert!(self.plain.is_empty() && self.out.is_empty());
        (Forger::new(self.client), self.session)
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Failure {
    Server(TlsConnectionError),
    Client(rustls::Error),
}

/// Encrypts arbitrary records with a client's keys.
pub(crate) struct Forger {
    encrypter: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Forger {
    fn new(client: ClientConnection) -> Self {
        let suite = client.negotiated_cipher_suite().unwrap();
        #[allow(deprecated, reason = "the replacement is for the kernel's TLS")]
        let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets
        else {
            panic!("the server prefers AES");
        };
        let encrypter = match suite {
            SupportedCipherSuite::Tls13(suite) => suite.aead_alg.encrypter(key, iv),
            SupportedCipherSuite::Tls12(suite) => {
                let (fixed, explicit) = iv.as_ref().split_at(4);
                suite.aead_alg.encrypter(key, fixed, explicit)
            }
        };
        let mut forger = Self { encrypter, sequence: 0 };
        // The cipher requires the sequence numbers to start from the first.
        while forger.sequence < sequence {
            forger.record(ContentType::ApplicationData, b"");
        }
        forger
    }

    pub(crate) fn record(&mut self, content_type: ContentType, payload: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ: content_type,
            version: ProtocolVersion::TLSv1_2,
            payload: payload.into(),
        };
        let encrypted = self.encrypter.encrypt(message, self.sequence).unwrap();
        self.sequence += 1;
        encrypted.encode()
    }
}
