//! Key usage limits: after a number of records keys are updated, or the connection ends.

use crate::peer::{Pair, identity, lenient_client};
use peregrine_tls::rustls::crypto::aws_lc_rs::{self, cipher_suite};
use peregrine_tls::rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use peregrine_tls::rustls::server::ResolvesServerCert;
use peregrine_tls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use peregrine_tls::rustls::{
    ServerConfig, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};
use peregrine_tls::{TlsConfig, TlsSendError};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

/// The key limit in these tests; that of real suites is 2^24 records.
const RECORDS_MAX: u64 = 10;

fn with_low_limit(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    CipherSuiteCommon {
        suite: common.suite,
        hash_provider: common.hash_provider,
        confidentiality_limit: RECORDS_MAX,
    }
}

/// The same suite with a low key limit. Leaked for the lifetime of the test process.
fn suite_with_low_limit(suite: SupportedCipherSuite) -> SupportedCipherSuite {
    match suite {
        SupportedCipherSuite::Tls12(suite) => {
            SupportedCipherSuite::Tls12(Box::leak(Box::new(Tls12CipherSuite {
                common: with_low_limit(&suite.common),
                prf_provider: suite.prf_provider,
                kx: suite.kx,
                sign: suite.sign,
                aead_alg: suite.aead_alg,
            })))
        }
        SupportedCipherSuite::Tls13(suite) => {
            SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
                common: with_low_limit(&suite.common),
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: None,
            })))
        }
    }
}

fn pair_with(suite: SupportedCipherSuite) -> Pair {
    let identity = identity(&["localhost"]);
    let provider = CryptoProvider {
        cipher_suites: vec![suite_with_low_limit(suite)],
        ..aws_lc_rs::default_provider()
    };
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let certified_key = CertifiedKey::from_der(chain, key, &provider).unwrap();
    let resolver: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(certified_key));
    let config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(resolver);
    let tls = TlsConfig::from_config(Arc::new(config)).unwrap();
    Pair::connected(&tls, &lenient_client(&[suite]).into(), "localhost")
}

#[test]
fn tls_1_3_updates_its_keys_before_the_limit() {
    let mut pair = pair_with(cipher_suite::TLS13_AES_128_GCM_SHA256);
    for round in 0..100_u8 {
        pair.session.send(&[round; 100], &mut pair.out).unwrap();
        pair.exchange();
        assert_eq!(pair.client_received(), [round; 100]);
        // The client's responses to the key updates are accepted.
        pair.client_send(&[round]);
    }
    assert_eq!(pair.plain, (0..100).collect::<Vec<u8>>());
    // Half of a key's limit, in one call.
    pair.session.send(&[7; 5 * 16_384], &mut pair.out).unwrap();
    let out = std::mem::take(&mut pair.out);
    let mut received = Vec::new();
    for piece in out.chunks(4_096) {
        pair.out = piece.to_vec();
        pair.deliver_output().unwrap();
        received.extend(pair.client_received());
    }
    assert_eq!(received.len(), 5 * 16_384);
}

#[test]
fn tls_1_2_ends_the_connection_at_the_limit() {
    let mut pair = pair_with(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    let mut sent = 0;
    let error = loop {
        match pair.session.send(b"reply", &mut pair.out) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, TlsSendError::KeysExhausted);
    // The handshake used one record.
    assert_eq!(sent, RECORDS_MAX - 1);
    pair.deliver_output().unwrap();
    assert_eq!(pair.client_received(), b"reply".repeat(sent as usize));
    assert!(pair.client.process_new_packets().unwrap().peer_has_closed(), "close_notify arrives");
    assert_eq!(pair.session.send(b"reply", &mut pair.out), Err(TlsSendError::Closed));
    pair.session.close(&mut pair.out);
    assert_eq!(pair.out, b"");
    // The other direction has its own keys.
    pair.client_send(b"a question");
    assert_eq!(pair.plain, b"a question");
}
