//! Validation connections of ACME, which have a separate configuration from clients.

use crate::peer::{
    self, BOTH_VERSIONS, Failure, Identity, Pair, TLS12, TLS13, TrustsAnything, client_config, der,
    identity, shown,
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
fn supplied() -> (TlsConfig, Arc<ChallengeResponses>) {
    let challenges = ChallengeResponses::new().unwrap();
    (TlsConfig::with_provider(Arc::clone(&challenges), Arc::new(())).unwrap(), challenges)
}

/// Exchanges messages until neither side has more to send, and returns the server's state.
fn handshake(pair: &mut Pair) -> Result<TlsReadState, Failure> {
    pair.try_exchange()?;
    pair.session.receive(&[], &mut pair.plain, &mut pair.out).map_err(Failure::Server)
}

/// A validation certificate, which has a critical extension that other software does not know.
fn answering() -> Identity {
    let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    parameters.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(&[7; 32])];
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem();
    Identity { certificate, key: key.serialize_pem() }
}

/// A client that validates a name: it accepts any certificate and offers one protocol.
fn checker(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let mut client = builder
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustsAnything))
        .with_no_client_auth();
    client.alpn_protocols = vec![ACME.to_vec()];
    Arc::new(client)
}

fn put(tls: &TlsConfig, name: &str) -> String {
    let own = identity(&[name]);
    let certificate = Certificate::from_pem(own.certificate.as_bytes(), own.key.as_bytes());
    tls.upsert_certificate(certificate.label(name)).unwrap();
    own.certificate
}

#[test]
fn who_checks_a_name_is_shown_its_answer_and_nothing_else_happens() {
    for version in BOTH_VERSIONS {
        for piece_bytes in [1, 7, 100_000] {
            let (tls, challenges) = supplied();
            // Settings that do not apply to validation: ALPN, a newer version, client certificates.
            let clients = peer::Authority::new("clients");
            let auth = ClientAuth::required().roots_pem(clients.certificate.as_bytes());
            let tls = tls.with_alpn(&[]).with_min_version(TlsVersion::Tls13).unwrap();
            let tls = tls.with_client_auth(auth).unwrap();
            put(&tls, "localhost");
            let answer = answering();
            let (chain, key) = (answer.certificate.as_bytes(), answer.key.as_bytes());
            challenges.set_tls_alpn("LocalHost", chain, key).unwrap();
            let mut pair = Pair::new(&tls, &checker(version), "localhost");
            pair.piece_bytes = piece_bytes;
            assert_eq!(
                handshake(&mut pair),
                Ok(TlsReadState::PeerClosed),
                "{version:?} {piece_bytes}"
            );
            assert_eq!(shown(&pair), der(&answer.certificate));
            assert_eq!(pair.client.alpn_protocol(), Some(ACME));
            assert!(pair.plain.is_empty());
            // After the challenge is removed, validation connections fail.
            challenges.remove_tls_alpn("localhost");
            let mut pair = Pair::new(&tls, &checker(version), "localhost");
            assert!(handshake(&mut pair).is_err());
        }
    }
}

/// A lookup that completes after a number of steps.
struct Elsewhere {
    steps: Arc<AtomicUsize>,
    looks: Arc<AtomicUsize>,
}

impl RemoteChallengeLookup for Elsewhere {
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
fn a_name_that_is_not_known_here_is_looked_up_elsewhere_while_its_handshake_waits() {
    let (steps, looks) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
    let (tls, challenges) = supplied();
    let place = Elsewhere { steps: Arc::clone(&steps), looks: Arc::clone(&looks) };
    challenges.set_remote_lookup(Box::new(place), true, false);
    let usual = put(&tls, "localhost");
    let mut cx = Context::from_waker(Waker::noop());
    for version in BOTH_VERSIONS {
        for piece_bytes in [1, 7, 100_000] {
            steps.store(1, Ordering::Relaxed);
            let begun = looks.load(Ordering::Relaxed);
            let mut pair = Pair::new(&tls, &checker(version), "localhost");
            pair.piece_bytes = piece_bytes;
            assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
            assert!(
                pair.session.is_lookup_pending() && pair.session.poll_lookup(&mut cx).is_pending()
            );
            let answer = answering();
            let found = ("localhost".to_owned(), answer.certificate.clone(), answer.key);
            challenges.replace_remote([found].into_iter(), [].into_iter());
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
            assert_eq!(shown(&pair), der(&answer.certificate));
            assert_eq!(looks.load(Ordering::Relaxed), begun + 1);
        }
    }
    // Nothing is found, so the handshake is rejected. In the meantime the peer cannot send without
    // limit, and clients do not wait.
    let begun = looks.load(Ordering::Relaxed);
    challenges.replace_remote([].into_iter(), [].into_iter());
    let mut pair = Pair::new(&tls, &checker(TLS13), "localhost");
    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
    assert!(pair.session.poll_lookup(&mut cx).is_ready());
    assert!(handshake(&mut pair).is_err());
    steps.store(1, Ordering::Relaxed);
    let mut pair = Pair::new(&tls, &checker(TLS13), "localhost");
    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Handshaking));
    let more = vec![0; HANDSHAKE_BYTES_MAX];
    let result = pair.session.receive(&more, &mut pair.plain, &mut pair.out);
    assert_eq!(result, Err(TlsConnectionError::HandshakeTooLong));
    assert_eq!(looks.load(Ordering::Relaxed), begun + 2);
    let client = Arc::new(client_config(&[TLS13], &[&usual]));
    assert_eq!(
        handshake(&mut Pair::new(&tls, &client, "localhost")),
        Ok(TlsReadState::Established)
    );
    // This server's own challenges need no lookup.
    let answer = answering();
    let (chain, key) = (answer.certificate.as_bytes(), answer.key.as_bytes());
    challenges.set_tls_alpn("localhost", chain, key).unwrap();
    assert_eq!(
        handshake(&mut Pair::new(&tls, &checker(TLS13), "localhost")),
        Ok(TlsReadState::PeerClosed)
    );
    assert_eq!(looks.load(Ordering::Relaxed), begun + 2);
}

#[test]
fn clients_notice_nothing_of_it_however_their_bytes_are_cut() {
    let (tls, challenges) = supplied();
    let usual = put(&tls, "localhost");
    let answer = answering();
    let (chain, key) = (answer.certificate.as_bytes(), answer.key.as_bytes());
    challenges.set_tls_alpn("localhost", chain, key).unwrap();
    for version in [TLS12, TLS13] {
        for piece_bytes in [1, 2, 6, 100, 100_000] {
            for protocols in [&[][..], &[b"h2".to_vec()], &[b"h2".to_vec(), ACME.to_vec()]] {
                let mut client = client_config(&[version], &[&usual]);
                client.alpn_protocols = protocols.to_vec();
                let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
                pair.piece_bytes = piece_bytes;
                // Only a client that offers that single protocol is a validation connection.
                if protocols.len() < 2 {
                    assert_eq!(handshake(&mut pair), Ok(TlsReadState::Established));
                    assert_eq!(shown(&pair), der(&usual));
                } else {
                    assert!(handshake(&mut pair).is_err());
                }
            }
        }
    }
}

#[test]
fn without_a_certificate_a_handshake_is_refused_and_the_first_one_counts_at_once() {
    let (tls, _challenges) = supplied();
    let other = identity(&["localhost"]);
    let client = Arc::new(client_config(&[TLS13], &[&other.certificate]));
    assert!(handshake(&mut Pair::new(&tls, &client, "localhost")).is_err());
    let certificate = Certificate::from_pem(other.certificate.as_bytes(), other.key.as_bytes());
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
fn certificates_stand_in_the_order_that_was_asked_for_whenever_they_come() {
    let (tls, _challenges) = supplied();
    let put = |name: &str, later: &[&str]| {
        let own = identity(&[name]);
        let certificate = Certificate::from_pem(own.certificate.as_bytes(), own.key.as_bytes());
        let later: Vec<_> = later.iter().map(|name| (*name).to_owned()).collect();
        tls.upsert_certificate_before(certificate.label(name), &later).unwrap();
        let labels = tls.status().certificates.into_iter().map(|known| known.label);
        labels.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(put("c", &[]), "c");
    assert_eq!(put("a", &["b", "c"]), "a c");
    assert_eq!(put("b", &["c"]), "a b c");
    assert_eq!(put("a", &["b", "c"]), "a b c");
    assert_eq!(put("d", &[]), "a b c d");
}
