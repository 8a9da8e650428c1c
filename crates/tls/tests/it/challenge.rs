//! Validation connections of ACME, which have a separate configuration from clients.

use crate::peer::{
    self, AcceptAnyCertificate, BOTH_VERSIONS, Failure, Identity, Pair, TLS12, TLS13,
    client_config, der, identity, presented_certificate,
};
use peregrine_tls::rustls::crypto::aws_lc_rs;
use peregrine_tls::rustls::{ClientConfig, SupportedProtocolVersion};
use peregrine_tls::{
    Certificate, ChallengeResponses, ClientAuth, HANDSHAKE_BYTES_MAX, LookupFuture,
    RemoteChallengeLookup, TlsConfig, TlsConnectionError, TlsReadState, TlsVersion,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

const ACME: &[u8] = b"acme-tls/1";

/// A `TlsConfig` whose certificates are obtained at run time, and which has none yet.
fn config_with_challenges() -> (TlsConfig, Arc<ChallengeResponses>) {
    let challenges = ChallengeResponses::new().unwrap();
    (TlsConfig::with_provider(Arc::clone(&challenges), Arc::new(())).unwrap(), challenges)
}

/// Exchanges messages until neither side has more to send, and returns the server's state.
fn handshake(pair: &mut Pair) -> Result<TlsReadState, Failure> {
    pair.try_exchange()?;
    pair.session.receive(&[], &mut pair.plain, &mut pair.out).map_err(Failure::Server)
}

/// A validation certificate, which has a critical extension that other software does not know.
fn validation_identity() -> Identity {
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    parameters.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem();
    Identity { certificate, key: key.serialize_pem() }
}

/// A client that validates a name: it accepts any certificate and offers one protocol.
fn validator(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut client = builder
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate))
        .with_no_client_auth();
    client.alpn_protocols = vec![ACME.to_vec()];
    Arc::new(client)
}

fn add_certificate(tls: &TlsConfig, name: &str) -> String {
    let server_identity = identity(&[name]);
    let certificate = Certificate::from_pem(
        server_identity.certificate.as_bytes(),
        server_identity.key.as_bytes(),
    );
    tls.upsert_certificate(certificate.label(name)).unwrap();
    server_identity.certificate
}

#[test]
fn a_validation_connection_gets_the_validation_certificate() {
    for version in BOTH_VERSIONS {
        for piece_bytes in [1, 7, 100_000] {
            let (tls, challenges) = config_with_challenges();
            // Settings that do not apply to validation: ALPN, a newer version, client certificates.
            let authority = peer::Authority::new("clients");
            let client_auth = ClientAuth::required().roots_pem(authority.certificate.as_bytes());
            let tls = tls.with_alpn(&[]).with_min_version(TlsVersion::Tls13).unwrap();
            let tls = tls.with_client_auth(client_auth).unwrap();
            add_certificate(&tls, "localhost");
            let validation = validation_identity();
            let (chain, key) = (validation.certificate.as_bytes(), validation.key.as_bytes());
            challenges.set_tls_alpn("LocalHost", chain, key).unwrap();
            let mut pair = Pair::new(&tls, &validator(version), "localhost");
            pair.piece_bytes = piece_bytes;
            assert_eq!(
                handshake(&mut pair),
                Ok(TlsReadState::PeerClosed),
                "{version:?} {piece_bytes}"
            );
            assert_eq!(presented_certificate(&pair), der(&validation.certificate));
            assert_eq!(pair.client.alpn_protocol(), Some(ACME));
            assert!(pair.plain.is_empty());
            // After the challenge is removed, validation connections fail.
            challenges.remove_tls_alpn("localhost");
            let mut pair = Pair::new(&tls, &validator(version), "localhost");
            assert!(handshake(&mut pair).is_err());
        }
    }
}

/// A lookup that completes once `steps` is zero.
struct TestLookup {
    steps: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
}

impl RemoteChallengeLookup for TestLookup {
    fn lookup(&self) -> LookupFuture {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let steps = Arc::clone(&self.steps);
        Box::pin(std::future::poll_fn(move |_| match steps.load(Ordering::Relaxed) {
            0 => Poll::Ready(()),
            _ => Poll::Pending,
        }))
    }
}

#[test]
fn a_handshake_waits_for_the_lookup_of_a_remote_challenge() {
    let (steps, lookups) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
    let (tls, challenges) = config_with_challenges();
    let lookup = TestLookup { steps: Arc::clone(&steps), looks: Arc::clone(&lookups) };
    challenges.set_remote_lookup(Box::new(lookup), true, false);
    let server_certificate = add_certificate(&tls, "localhost");
    let mut cx = Context::from_waker(Waker::noop());
    for version in BOTH_VERSIONS {
        for piece_bytes in [1, 7, 100_000] {
            steps.store(1, Ordering::Relaxed);
            let lookups_before = lookups.load(Ordering::Relaxed);
            let mut pair = Pair::new(&tls, &validator(version), "localhost");
            pair.piece_bytes = piece_bytes;
            assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
            assert!(
                pair.session.is_lookup_pending() && pair.session.poll_lookup(&mut cx).is_pending()
            );
            let validation = validation_identity();
            let remote = ("localhost".to_owned(), validation.certificate.clone(), validation.key);
            challenges.replace_remote([remote].into_iter(), [].into_iter());
            steps.store(0, Ordering::Relaxed);
            assert!(
                pair.session.poll_lookup(&mut cx).is_ready() && !pair.session.is_lookup_pending()
            );
            // It continues without further bytes from the peer.
            assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
            assert_eq!(
                handshake(&mut pair),
                Ok(TlsReadState::PeerClosed),
                "{version:?} {piece_bytes}"
            );
            assert_eq!(presented_certificate(&pair), der(&validation.certificate));
            assert_eq!(lookups.load(Ordering::Relaxed), lookups_before + 1);
        }
    }
    // Nothing is found, so the handshake is rejected. In the meantime the peer cannot send without
    // limit, and clients do not wait.
    let lookups_before = lookups.load(Ordering::Relaxed);
    challenges.replace_remote([].into_iter(), [].into_iter());
    let mut pair = Pair::new(&tls, &validator(TLS13), "localhost");
    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
    assert!(pair.session.poll_lookup(&mut cx).is_ready());
    assert!(handshake(&mut pair).is_err());
    steps.store(1, Ordering::Relaxed);
    let mut pair = Pair::new(&tls, &validator(TLS13), "localhost");
    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
    let excess = vec![0; HANDSHAKE_BYTES_MAX];
    let result = pair.session.receive(&excess, &mut pair.plain, &mut pair.out);
    assert_eq!(result, Err(TlsConnectionError::HandshakeTooLong));
    assert_eq!(lookups.load(Ordering::Relaxed), lookups_before + 2);
    let client = Arc::new(client_config(&[TLS13], &[&server_certificate]));
    assert_eq!(
        handshake(&mut Pair::new(&tls, &client, "localhost")),
        Ok(TlsReadState::Established)
    );
    // This server's own challenges need no lookup.
    let validation = validation_identity();
    let (chain, key) = (validation.certificate.as_bytes(), validation.key.as_bytes());
    challenges.set_tls_alpn("localhost", chain, key).unwrap();
    assert_eq!(
        handshake(&mut Pair::new(&tls, &validator(TLS13), "localhost")),
        Ok(TlsReadState::PeerClosed)
    );
    assert_eq!(lookups.load(Ordering::Relaxed), lookups_before + 2);
}

#[test]
fn pending_challenges_do_not_affect_clients() {
    let (tls, challenges) = config_with_challenges();
    let server_certificate = add_certificate(&tls, "localhost");
    let validation = validation_identity();
    let (chain, key) = (validation.certificate.as_bytes(), validation.key.as_bytes());
    challenges.set_tls_alpn("localhost", chain, key).unwrap();
    for version in [TLS12, TLS13] {
        for piece_bytes in [1, 2, 6, 100, 100_000] {
            for protocols in [&[][..], &[b"h2".to_vec()], &[b"h2".to_vec(), ACME.to_vec()]] {
                let mut client = client_config(&[version], &[&server_certificate]);
                client.alpn_protocols = protocols.to_vec();
                let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
                pair.piece_bytes = piece_bytes;
                // Only a client that offers that single protocol is a validation connection.
                if protocols.len() < 2 {
                    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Established));
                    assert_eq!(presented_certificate(&pair), der(&server_certificate));
                } else {
                    assert!(handshake(&mut pair).is_err());
                }
            }
        }
    }
}

#[test]
fn handshakes_fail_until_the_first_certificate_is_added() {
    let (tls, _challenges) = config_with_challenges();
    let server_identity = identity(&["localhost"]);
    let client = Arc::new(client_config(&[TLS13], &[&server_identity.certificate]));
    assert!(handshake(&mut Pair::new(&tls, &client, "localhost")).is_err());
    let certificate = Certificate::from_pem(
        server_identity.certificate.as_bytes(),
        server_identity.key.as_bytes(),
    );
    tls.upsert_certificate(certificate.label("own")).unwrap();
    assert_eq!(
        handshake(&mut Pair::new(&tls, &client, "localhost")),
        Ok(TlsReadState::Established)
    );
    // The last certificate may be removed as well.
    assert!(tls.remove_certificate("own").unwrap());
    assert!(handshake(&mut Pair::new(&tls, &client, "localhost")).is_err());
    assert!(tls.reload().is_ok());
}

#[test]
fn certificates_are_inserted_before_the_given_labels() {
    let (tls, _challenges) = config_with_challenges();
    let upsert = |name: &str, successors: &[&str]| {
        let server_identity = identity(&[name]);
        let certificate = Certificate::from_pem(
            server_identity.certificate.as_bytes(),
            server_identity.key.as_bytes(),
        );
        let successors: Vec<_> = successors.iter().map(|name| (*name).to_owned()).collect();
        tls.upsert_certificate_before(certificate.label(name), &successors).unwrap();
        let labels = tls.status().certificates.into_iter().map(|certificate| certificate.label);
        labels.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(upsert("c", &[]), "c");
    assert_eq!(upsert("a", &["b", "c"]), "a c");
    assert_eq!(upsert("b", &["c"]), "a b c");
    assert_eq!(upsert("a", &["b", "c"]), "a b c");
    assert_eq!(upsert("d", &[]), "a b c d");
}
