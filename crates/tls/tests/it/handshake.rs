//! The parameters that client and server negotiate.

use crate::peer::{
    BOTH_VERSIONS, Failure, Pair, TLS12, TLS13, client_config, identity, identity_with,
};
use crate::peer::{lenient_client, server_and_client};
use peregrine_tls::rustls::crypto::aws_lc_rs::cipher_suite as suite;
use peregrine_tls::rustls::{AlertDescription, Error};
use peregrine_tls::{
    HandshakeInfo, TlsConfig, TlsConnectionError, TlsReadState, TlsSendError, TlsVersion,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::sync::Arc;

#[test]
fn both_versions_transfer_data_in_both_directions() {
    for (version, expected) in [(TLS12, TlsVersion::Tls12), (TLS13, TlsVersion::Tls13)] {
        let mut pair = Pair::of_version(version);
        assert_eq!(pair.session.handshake_info().unwrap().version, expected);
        pair.client_send(b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(pair.plain, b"GET / HTTP/1.1\r\n\r\n");
        pair.session.send(b"HTTP/1.1 204 No Content\r\n\r\n", &mut pair.out).unwrap();
        pair.exchange();
        assert_eq!(pair.client_received(), b"HTTP/1.1 204 No Content\r\n\r\n");
    }
}

#[test]
fn the_second_connection_of_a_client_is_resumed_in_both_versions() {
    for version in BOTH_VERSIONS {
        let (tls, client) = server_and_client(version);
        let client = Arc::new(client);
        // The clone acts as another worker: the ticket keys are shared.
        for (tls, resumed) in [(tls.clone(), false), (tls, true)] {
            let mut pair = Pair::connected(&tls, &client, "localhost");
            let info = pair.session.handshake_info().unwrap();
            assert_eq!(info.resumed, resumed, "{version:?}");
            assert_eq!(info.server_name, Some("localhost"));
            pair.client_send(b"hello");
            assert_eq!(pair.plain, b"hello");
        }
    }
}

#[test]
fn a_client_gets_one_ticket() {
    let pair = Pair::of_version(TLS13);
    assert_eq!(pair.client.tls13_tickets_received(), 1);
}

#[test]
fn a_ticket_of_another_server_is_not_accepted() {
    for version in BOTH_VERSIONS {
        let server_identity = identity(&["localhost"]);
        let client = Arc::new(client_config(&[version], &[&server_identity.certificate]));
        for _ in 0..2 {
            let tls = TlsConfig::from_pem(
                server_identity.certificate.as_bytes(),
                server_identity.key.as_bytes(),
            )
            .unwrap();
            let pair = Pair::connected(&tls, &client, "localhost");
            assert!(!pair.session.handshake_info().unwrap().resumed);
        }
    }
}

#[test]
fn http2_is_negotiated_by_default_if_the_client_offers_it() {
    for (offered, negotiated) in
        [(&[&b"http/1.1"[..], b"h2"][..], &b"h2"[..]), (&[b"http/1.1"], b"http/1.1")]
    {
        let (tls, mut client) = server_and_client(TLS13);
        client.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
        let pair = Pair::connected(&tls, &Arc::new(client), "localhost");
        assert_eq!(pair.session.handshake_info().unwrap().alpn, Some(negotiated));
        assert_eq!(pair.client.alpn_protocol(), Some(negotiated));
    }
}

#[test]
fn the_servers_order_of_application_protocols_applies() {
    let (tls, mut client) = server_and_client(TLS12);
    let tls = tls.with_alpn(&[b"http/1.1", b"h2"]);
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let pair = Pair::connected(&tls, &Arc::new(client), "localhost");
    assert_eq!(pair.session.handshake_info().unwrap().alpn, Some(&b"http/1.1"[..]));
}

#[test]
fn a_client_without_alpn_is_served() {
    let pair = Pair::of_version(TLS13);
    assert_eq!(pair.session.handshake_info().unwrap().alpn, None);
}

#[test]
fn a_client_with_only_other_protocols_is_rejected_with_an_alert() {
    for version in BOTH_VERSIONS {
        let (tls, mut client) = server_and_client(version);
        client.alpn_protocols = vec![b"smtp".to_vec()];
        let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
        let bytes = pair.client_bytes();
        assert_eq!(pair.deliver(&bytes), Err(TlsConnectionError::NoApplicationProtocol));
        let alert = AlertDescription::NoApplicationProtocol;
        assert_eq!(pair.deliver_output(), Err(Error::AlertReceived(alert)));
    }
}

#[test]
fn the_certificate_is_chosen_by_exact_name_before_wildcard() {
    let first = identity(&["first.test"]);
    let wildcard = identity(&["*.example.test", "other.test"]);
    let exact = identity(&["www.example.test"]);
    let tls = TlsConfig::from_pem(first.certificate.as_bytes(), first.key.as_bytes())
        .unwrap()
        .with_certificate_pem(wildcard.certificate.as_bytes(), wildcard.key.as_bytes())
        .unwrap()
        .with_certificate_pem(exact.certificate.as_bytes(), exact.key.as_bytes())
        .unwrap();
    let client = Arc::new(lenient_client(&[suite::TLS13_AES_128_GCM_SHA256]));
    for (name, expected) in [
        ("first.test", &first),
        ("other.test", &wildcard),
        ("api.example.test", &wildcard),
        ("API.Example.TEST", &wildcard),
        ("www.example.test", &exact),
        ("deep.api.example.test", &first),
        ("example.test", &first),
        ("unknown.test", &first),
        ("127.0.0.1", &first),
    ] {
        let pair = Pair::connected(&tls, &client, name);
        let presented = &pair.client.peer_certificates().unwrap()[0];
        let expected = CertificateDer::from_pem_slice(expected.certificate.as_bytes()).unwrap();
        assert!(*presented == expected, "{name}");
        let requested = (name != "127.0.0.1").then(|| name.to_ascii_lowercase());
        assert_eq!(pair.session.handshake_info().unwrap().server_name, requested.as_deref());
    }
}

#[test]
fn the_server_name_of_one_client_is_not_reported_for_another() {
    let (tls, client) = server_and_client(TLS13);
    let mut rejected_client = client;
    rejected_client.alpn_protocols = vec![b"smtp".to_vec()];
    let mut pair = Pair::new(&tls, &Arc::new(rejected_client), "localhost");
    pair.try_exchange().unwrap_err();

    let without_name = lenient_client(&[suite::TLS13_AES_128_GCM_SHA256]);
    let mut pair = Pair::new(&tls, &Arc::new(without_name), "127.0.0.1");
    pair.piece_bytes = 7;
    pair.exchange();
    assert_eq!(pair.session.handshake_info().unwrap().server_name, None);
}

#[test]
fn aes_128_is_chosen_regardless_of_the_clients_preference() {
    let (tls, _) = server_and_client(TLS13);
    for (offered, expected) in [
        (
            &[
                suite::TLS13_AES_256_GCM_SHA384,
                suite::TLS13_CHACHA20_POLY1305_SHA256,
                suite::TLS13_AES_128_GCM_SHA256,
            ][..],
            "TLS13_AES_128_GCM_SHA256",
        ),
        (
            &[suite::TLS13_CHACHA20_POLY1305_SHA256, suite::TLS13_AES_256_GCM_SHA384],
            "TLS13_AES_256_GCM_SHA384",
        ),
        (&[suite::TLS13_CHACHA20_POLY1305_SHA256], "TLS13_CHACHA20_POLY1305_SHA256"),
        (
            &[
                suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
                suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
                suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            ],
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        ),
    ] {
        let client = Arc::new(lenient_client(offered));
        let mut pair = Pair::connected(&tls, &client, "localhost");
        assert_eq!(pair.session.handshake_info().unwrap().cipher_suite, expected);
        pair.client_send(b"hello");
        assert_eq!(pair.plain, b"hello");
    }
}

#[test]
fn every_kind_of_key_works() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let identity = identity_with(&["localhost"], algorithm);
        let tls =
            TlsConfig::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes()).unwrap();
        for version in BOTH_VERSIONS {
            let client = Arc::new(client_config(&[version], &[&identity.certificate]));
            Pair::connected(&tls, &client, "localhost");
        }
    }
}

#[test]
fn a_handshake_fed_byte_by_byte_succeeds() {
    for version in BOTH_VERSIONS {
        let (tls, client) = server_and_client(version);
        let client = Arc::new(client);
        // A full and a resumed handshake.
        for _ in 0..2 {
            let mut pair = Pair::new(&tls, &client, "localhost");
            pair.piece_bytes = 1;
            pair.exchange();
            pair.client_send(b"hello");
            assert_eq!(pair.plain, b"hello");
        }
    }
}

#[test]
fn data_after_the_clients_last_flight_is_received_with_it() {
    let (tls, client) = server_and_client(TLS13);
    let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
    let hello = pair.client_bytes();
    assert_eq!(pair.deliver(&hello), Ok(TlsReadState::Handshaking));
    pair.deliver_output().unwrap();
    std::io::Write::write_all(&mut pair.client.writer(), b"at once").unwrap();
    let last_flight = pair.client_bytes();
    assert_eq!(pair.deliver(&last_flight), Ok(TlsReadState::Established));
    assert_eq!(pair.plain, b"at once");
}

#[test]
fn a_client_hello_in_many_records_is_reassembled() {
    let (tls, client) = server_and_client(TLS13);
    let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
    let hello = pair.client_bytes();
    let mut fragmented = Vec::new();
    for fragment in hello[5..].chunks(3) {
        fragmented.extend_from_slice(&[22, 3, 1, 0, fragment.len() as u8]);
        fragmented.extend_from_slice(fragment);
    }
    pair.piece_bytes = 11;
    pair.deliver(&fragmented).unwrap();
    pair.deliver_output().unwrap();
    pair.exchange();
    assert_eq!(pair.session.handshake_info().unwrap().server_name, Some("localhost"));
}

#[test]
fn nothing_is_reported_or_sent_before_the_handshake_is_complete() {
    let (tls, client) = server_and_client(TLS13);
    let mut pair = Pair::new(&tls, &Arc::new(client), "localhost");
    let mut out = Vec::new();
    assert_eq!(pair.session.send(b"early", &mut out), Err(TlsSendError::Handshaking));
    let hello = pair.client_bytes();
    pair.deliver(&hello).unwrap();
    assert_eq!(pair.session.send(b"early", &mut out), Err(TlsSendError::Handshaking));
    assert_eq!(pair.session.handshake_info(), None);
    pair.session.close(&mut out);
    assert_eq!(out, b"");
}

#[test]
fn the_alert_of_a_client_that_distrusts_the_certificate_is_reported() {
    let (tls, _) = server_and_client(TLS13);
    let other_identity = identity(&["localhost"]);
    for version in BOTH_VERSIONS {
        let client = Arc::new(client_config(&[version], &[&other_identity.certificate]));
        let mut pair = Pair::new(&tls, &client, "localhost");
        let Err(Failure::Client(_)) = pair.try_exchange() else {
            panic!("the client must not trust the certificate");
        };
        let alert = pair.client_bytes();
        let error = pair.deliver(&alert).unwrap_err();
        assert!(matches!(error, TlsConnectionError::AlertReceived(_)), "{error:?}");
        assert_eq!(pair.out, b"", "an alert is not answered");
        assert_eq!(pair.deliver(b"more"), Err(error));
    }
}

#[test]
fn handshake_info_has_the_negotiated_parameters() {
    let pair = Pair::of_version(TLS13);
    assert_eq!(
        pair.session.handshake_info(),
        Some(HandshakeInfo {
            version: TlsVersion::Tls13,
            cipher_suite: "TLS13_AES_128_GCM_SHA256",
            server_name: Some("localhost"),
            alpn: None,
            resumed: false,
        })
    );
}
