//! Errors in the settings and their messages.

use crate::peer::{
    BOTH_VERSIONS, Failure, Pair, TLS13, client_config, identity, identity_with, lenient_client,
};
use peregrine_tls::rustls::crypto::aws_lc_rs::{self, cipher_suite};
use peregrine_tls::rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use peregrine_tls::rustls::sign::CertifiedKey;
use peregrine_tls::rustls::{RootCertStore, ServerConfig, version};
use peregrine_tls::{
    PEM_BYTES_MAX, PemOrigin, TlsConfig, TlsConnectionError, TlsSetupError, TlsWarning,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;

fn error(certificate: &str, key: &str) -> TlsSetupError {
    TlsConfig::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err()
}

#[test]
fn files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (identity(&["localhost"]), identity(&["other.test"]));
    let path = |name: &str| dir.path().join(name);
    for (name, text) in [
        ("first.pem", &first.certificate),
        ("first.key", &first.key),
        ("second.pem", &second.certificate),
        ("second.key", &second.key),
    ] {
        std::fs::write(path(name), text).unwrap();
    }
    let tls = TlsConfig::from_pem_files(path("first.pem"), path("first.key"))
        .unwrap()
        .with_certificate_files(path("second.pem"), path("second.key"))
        .unwrap();
    assert_eq!(tls.warnings(), []);
    for (name, trusted) in [("localhost", &first), ("other.test", &second)] {
        let client = client_config(&[TLS13], &[&trusted.certificate]);
        Pair::connected(&tls, &client.into(), name);
    }
}

#[test]
fn a_key_and_a_chain_may_be_in_one_text() {
    let (leaf, issuer) = (identity(&["localhost"]), identity(&["issuer.test"]));
    let text = [leaf.key.as_str(), &leaf.certificate, &issuer.certificate].concat();
    let tls = TlsConfig::from_pem(text.as_bytes(), text.as_bytes()).unwrap();
    let client = lenient_client(&[cipher_suite::TLS13_AES_128_GCM_SHA256]);
    let pair = Pair::connected(&tls, &client.into(), "localhost");
    assert_eq!(pair.client.peer_certificates().unwrap().len(), 2);
}

#[test]
fn a_missing_file_is_named_in_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("absent.pem");
    let error = TlsConfig::from_pem_files(&path, &path).unwrap_err();
    let TlsSetupError::Unreadable { path: error_path, error: io_error } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(*error_path, path);
    assert_eq!(io_error.kind(), std::io::ErrorKind::NotFound);
    assert!(error.to_string().contains("absent.pem"), "{error}");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn a_directory_and_a_huge_file_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let error = TlsConfig::from_pem_files(dir.path(), dir.path()).unwrap_err();
    assert!(matches!(error, TlsSetupError::Unreadable { .. }), "{error:?}");
    let path = dir.path().join("huge.pem");
    std::fs::write(&path, vec![b'\n'; PEM_BYTES_MAX + 1]).unwrap();
    let error = TlsConfig::from_pem_files(&path, &path).unwrap_err();
    assert!(matches!(error, TlsSetupError::TooLarge { .. }), "{error:?}");
}

#[test]
fn each_mistake_has_its_own_error_with_the_fix() {
    let first = identity(&["one.test"]);
    let second = identity(&["other.test"]);
    let encrypted = first.key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let legacy = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAAAA\n\
                  -----END RSA PRIVATE KEY-----\n";
    let truncated = &first.certificate[..first.certificate.len() / 2];
    let invalid_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let invalid_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let table = [
        (error("", &first.key), "NoCertificate", "BEGIN CERTIFICATE"),
        (error("text", &first.key), "NoCertificate", "BEGIN CERTIFICATE"),
        (error(&first.key, &first.certificate), "NoCertificate", "swap"),
        (error(&first.certificate, ""), "NoKey", "BEGIN PRIVATE KEY"),
        (error(&first.certificate, &first.certificate), "NoKey", "holds a certificate"),
        (error(&first.certificate, &encrypted), "EncryptedKey", "passphrase"),
        (error(&first.certificate, legacy), "EncryptedKey", "openssl pkey"),
        (error(&first.certificate, invalid_key), "UnsupportedKey", "ECDSA"),
        (error(&first.certificate, &second.key), "KeyMismatch", "does not belong"),
        (error(truncated, &first.key), "InvalidPem", "END"),
        (error(invalid_certificate, &first.key), "BadCertificate", "X.509"),
    ];
    for (error, variant, remedy) in table {
        let (debug, text) = (format!("{error:?}"), error.to_string());
        assert!(debug.starts_with(variant), "{debug} is not {variant}");
        assert!(text.contains(remedy), "{text} lacks {remedy}");
        assert!(text.contains("PEM text"), "{text} does not name the source");
    }
}

#[test]
fn a_key_mismatch_in_a_second_certificate_is_detected() {
    let (first, second) = (identity(&["one.test"]), identity(&["other.test"]));
    let tls = TlsConfig::from_pem(first.certificate.as_bytes(), first.key.as_bytes()).unwrap();
    let error =
        tls.with_certificate_pem(second.certificate.as_bytes(), first.key.as_bytes()).unwrap_err();
    let memory = PemOrigin::Memory;
    assert!(
        matches!(&error, TlsSetupError::KeyMismatch { certificate, key } if *certificate == memory
            && *key == memory),
        "{error:?}"
    );
}

fn config_valid(from: (i32, u8, u8), until: (i32, u8, u8)) -> TlsConfig {
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    parameters.not_before = rcgen::date_time_ymd(from.0, from.1, from.2);
    parameters.not_after = rcgen::date_time_ymd(until.0, until.1, until.2);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    TlsConfig::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

#[test]
fn an_expired_or_not_yet_valid_certificate_is_a_warning() {
    assert_eq!(config_valid((2000, 1, 1), (2999, 1, 1)).warnings(), []);
    let expired = config_valid((2000, 1, 1), (2001, 1, 1));
    let [TlsWarning::Expired { origin: PemOrigin::Memory, days }] = *expired.warnings() else {
        panic!("{:?}", expired.warnings());
    };
    assert!(days > 9_000, "{days}");
    let not_yet_valid = config_valid((2990, 1, 1), (2999, 1, 1));
    let [TlsWarning::NotYetValid { origin: PemOrigin::Memory, days }] = *not_yet_valid.warnings()
    else {
        panic!("{:?}", not_yet_valid.warnings());
    };
    assert!(days > 300_000, "{days}");
}

#[test]
fn a_certificate_that_is_never_chosen_is_a_warning() {
    let first = identity(&["a.test", "*.b.test"]);
    let tls = TlsConfig::from_pem(first.certificate.as_bytes(), first.key.as_bytes()).unwrap();
    let warnings_with = |names: &[&str]| {
        let second = identity(names);
        let (certificate, key) = (second.certificate.as_bytes(), second.key.as_bytes());
        tls.clone().with_certificate_pem(certificate, key).unwrap().warnings().to_vec()
    };
    let shadowed = [TlsWarning::Shadowed { origin: PemOrigin::Memory }];
    assert_eq!(warnings_with(&["a.test"]), shadowed);
    assert_eq!(warnings_with(&["A.TEST", "*.b.test"]), shadowed);
    assert_eq!(warnings_with(&["192.0.2.1"]), shadowed);
    assert_eq!(warnings_with(&[]), shadowed);
    assert_eq!(warnings_with(&["a.test", "c.test"]), []);
    assert_eq!(warnings_with(&["b.test"]), []);
    assert_eq!(tls.warnings(), [], "a certificate added to a clone does not change the original");
}

#[test]
fn a_self_signed_certificate_is_valid_for_its_names() {
    let self_signed = TlsConfig::self_signed(&["localhost", "127.0.0.1", "::1"]).unwrap();
    assert_eq!(self_signed.tls.warnings(), []);
    let client = Arc::new(client_config(&[TLS13], &[&self_signed.certificate_pem]));
    for name in ["localhost", "127.0.0.1", "::1"] {
        Pair::connected(&self_signed.tls, &client, name);
    }
    Pair::new(&self_signed.tls, &client, "example.test").try_exchange().unwrap_err();
}

#[test]
fn an_invalid_name_is_rejected() {
    let error = TlsConfig::self_signed(&["größe"]).unwrap_err();
    assert!(matches!(error, TlsSetupError::SelfSignedFailed { .. }), "{error:?}");
    assert!(error.to_string().contains("größe"), "{error}");
}

#[derive(Debug)]
struct FixedCertificate(Arc<CertifiedKey>);

impl ResolvesServerCert for FixedCertificate {
    fn resolve(&self, _client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

fn external_config() -> (ServerConfig, String) {
    let identity = identity_with(&["localhost"], &rcgen::PKCS_ED25519);
    let provider = aws_lc_rs::default_provider();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let certified_key = CertifiedKey::new(
        vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
        provider.key_provider.load_private_key(key).unwrap(),
    );
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(FixedCertificate(Arc::new(certified_key))));
    (config, identity.certificate)
}

#[test]
fn an_external_configuration_is_used_and_the_server_name_is_recorded() {
    let (mut config, certificate) = external_config();
    // Small records, so that sending reaches a limit that this crate does not set.
    config.max_fragment_size = Some(64);
    let tls = TlsConfig::from_config(Arc::new(config)).unwrap().with_alpn(&[b"mine"]);
    let mut client = client_config(&[TLS13], &[&certificate]);
    client.alpn_protocols = vec![b"mine".to_vec()];
    let mut pair = Pair::connected(&tls, &client.into(), "localhost");
    let info = pair.session.handshake_info().unwrap();
    assert_eq!((info.server_name, info.alpn), (Some("localhost"), Some(&b"mine"[..])));
    pair.session.send(&[7; 5_000], &mut pair.out).unwrap();
    pair.exchange();
    assert_eq!(pair.client_received(), [7; 5_000]);
}

#[test]
fn an_external_configuration_may_request_client_certificates() {
    let (config, certificate) = external_config();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let provider = config.crypto_provider().clone();
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone())
        .build()
        .unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(config.cert_resolver);
    let tls = TlsConfig::from_config(Arc::new(config)).unwrap();
    for version in BOTH_VERSIONS {
        let client = client_config(&[version], &[&certificate]);
        let failure = Pair::new(&tls, &client.into(), "localhost").try_exchange();
        assert_eq!(failure, Err(Failure::Server(TlsConnectionError::NoClientCertificate)));
    }
}

#[test]
fn an_unusable_external_configuration_is_rejected() {
    let (mut config, _) = external_config();
    config.max_early_data_size = 1;
    let error = TlsConfig::from_config(Arc::new(config.clone())).unwrap_err();
    assert!(matches!(error, TlsSetupError::EarlyDataEnabled), "{error:?}");
    config.max_early_data_size = 0;
    config.max_fragment_size = Some(1);
    let error = TlsConfig::from_config(Arc::new(config)).unwrap_err();
    assert!(matches!(error, TlsSetupError::BadConfig(_)), "{error:?}");
}

#[test]
fn certificates_cannot_be_added_to_an_external_configuration() {
    let (config, _) = external_config();
    let identity = identity(&["other.test"]);
    let error = TlsConfig::from_config(Arc::new(config))
        .unwrap()
        .with_certificate_pem(identity.certificate.as_bytes(), identity.key.as_bytes())
        .unwrap_err();
    assert!(matches!(error, TlsSetupError::ExternalConfig), "{error:?}");
}

#[test]
fn an_origin_is_displayed_as_its_path() {
    assert_eq!(PemOrigin::File(PathBuf::from("a/b.pem")).to_string(), "a/b.pem");
}
