//! HTTP over TLS.

use super::{half_close, limits};
use crate::server::app::{Shared, pattern};
use crate::server::authority::{Authority, Identity, LONG_AFTER};
use crate::server::bench::{Bench, Got, PATIENCE, Served, Wire};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, VERSIONS, certificate_pem, client_config, server_tls};
use peregrine_tls::{Certificate, ClientAuth, TlsConfig};
use std::sync::OnceLock;
use std::time::Duration;

fn begin<B: Bench>(bench: &B) -> (B::Server, Shared) {
    let shared = Shared::default();
    (bench.start(limits(), Some(server_tls()), shared.app()), shared)
}

/// Requests work as they do without TLS, with both TLS versions.
pub async fn requests_work_inside_tls<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for (version, name) in VERSIONS.into_iter().zip(["TLSv1.3", "TLSv1.2"]) {
        let wire = Secure::new(server.connect_secure(), &client_config(version));
        let mut peer = Peer::new(wire);
        peer.expect_alive().await;
        peer.get("/tls");
        assert_eq!(peer.reply().await.text(), format!("{name} false"));
        let body = pattern(bench.large(40_000));
        peer.post("/echo", &body);
        assert!(peer.reply().await.body == body);
        peer.get("/stream/3");
        assert_eq!(peer.reply().await.text(), "piece 0\npiece 1\npiece 2\n");
        peer.send("GET /close HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(peer.reply().await.text(), "bye");
        // A clean end needs `close_notify`: this wire treats any other end as a truncation.
        peer.expect_end().await;
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 2)]);
}

/// A client that reconnects resumes its session, and handlers can see that.
pub async fn sessions_are_resumed<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for version in VERSIONS {
        let config = client_config(version);
        for resumed in ["false", "true"] {
            let mut peer = Peer::new(Secure::new(server.connect_secure(), &config));
            peer.get("/tls");
            let reply = peer.reply().await;
            assert!(reply.text().ends_with(resumed), "{resumed}: {}", reply.text());
        }
    }
    server.shut_down();
    server.ended().await;
}

/// Pipelined requests in one record are answered in order and in one send.
pub async fn pipelining_works_inside_tls<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    wire.shake_hands(PATIENCE).await;
    let mut peer = Peer::new(wire);
    let requests: String = (0..16)
        .map(|number| format!("GET /numbers/{number} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .chain(["GET /wait HTTP/1.1\r\nHost: a\r\n\r\n".to_owned()])
        .collect();
    peer.send(requests);
    for number in 0..16 {
        assert_eq!(peer.reply().await.text(), number.to_string());
    }
    shared.open(1);
    assert_eq!(peer.reply().await.text(), "waited");
    drop(peer);
    server.shut_down();
    let outcome = server.ended().await;
    if bench.is_calm() {
        // At most two handshake flights, the sixteen responses, the last response, and
        // `close_notify`.
        assert!(outcome.snapshot.sends <= 5, "{outcome:?}");
    }
    assert_eq!(outcome.snapshot.requests, 17);
}

/// With `half_close`, a client that sends `close_notify` gets the responses to its earlier
/// requests, and a `close_notify` in return.
pub async fn close_notify_is_answered<B: Bench>(bench: &B) {
    let shared = Shared::default();
    let server = bench.start(half_close(), Some(server_tls()), shared.app());
    for version in VERSIONS {
        let mut wire = Secure::new(server.connect_secure(), &client_config(version));
        wire.shake_hands(PATIENCE).await;
        let mut peer = Peer::new(wire);
        peer.get("/sleep/20");
        peer.get("/hello");
        peer.half_close();
        assert_eq!(peer.reply().await.text(), "slept 20");
        assert_eq!(peer.reply().await.text(), "hello");
        peer.expect_end().await;
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [], "{outcome:?}");
}

/// Without `half_close`, ready responses are sent, and waiting work is cancelled: a handler, and a
/// stream.
pub async fn close_notify_cancels_pending_handlers<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut count = 0;
    for version in VERSIONS {
        for path in ["/wait", "/gated/1"] {
            let mut wire = Secure::new(server.connect_secure(), &client_config(version));
            wire.shake_hands(PATIENCE).await;
            let mut peer = Peer::new(wire);
            // In one record, followed by `close_notify`.
            peer.send(
                "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n\
                 POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            );
            assert_eq!(peer.reply().await.text(), "hello");
            peer.send(format!("0\r\n\r\nGET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
            peer.half_close();
            assert_eq!(peer.reply().await.text(), "abc");
            count += 1;
            bench.wait_until("the work is cancelled", || shared.dropped.get() == count).await;
            let received = peer.rest().await;
            assert!(!received.ends_with(b"0\r\n\r\n"), "{}", received.escape_ascii());
        }
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("peer-aborted", count as u64)], "{outcome:?}");
}

/// A TLS connection that ends without `close_notify` in the middle of a body does not
/// deliver half of it as complete.
pub async fn a_truncated_record_is_not_an_end<B: Bench>(bench: &B) {
    // The client does not read its session tickets, so the network must have room for them.
    bench.calm();
    let (server, shared) = begin(bench);
    let mut wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    wire.shake_hands(PATIENCE).await;
    let request = b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
    wire.send(request);
    bench.wait_until("the handler has read", || shared.consumed.get() == 5).await;
    let record = wire.seal(b"world");
    wire.send_raw(&record[..record.len() - 1]);
    let mut wire = wire.into_wire();
    wire.half_close();
    while let Got::Bytes(_) = wire.recv(PATIENCE).await {}
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
    assert_eq!((shared.consumed.get(), shared.finished.get()), (5, 0));
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 1)]);
}

/// Plain HTTP on the TLS port gets an explanation in plain HTTP.
pub async fn plain_http_on_the_tls_port_gets_an_explanation<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect_secure());
    peer.get("/hello");
    let reply = peer.rest().await;
    assert!(reply.starts_with(b"HTTP/1.1 400 "), "{}", reply.escape_ascii());
    assert_eq!(peer.last(), Some(&Got::End));
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("plaintext-on-tls-port", 1)]);
}

/// Invalid TLS data gets an alert, and affects no other connection.
pub async fn garbage_instead_of_tls_affects_no_other_connection<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for garbage in
        [&b"\x00\x01\x02\x03\x04\x05\x06\x07"[..], b"SSH-2.0-OpenSSH_9.6\r\n", &[0xff; 600]]
    {
        let mut peer = Peer::new(server.connect_secure());
        peer.send(garbage);
        peer.half_close();
        let received = peer.rest().await;
        assert!(
            received.is_empty() || received[0] == 0x15,
            "an alert: {}",
            received.escape_ascii()
        );
    }
    // Garbage after the handshake affects no other connection either.
    let mut wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    wire.shake_hands(PATIENCE).await;
    wire.send_raw(&[0x17, 0x03, 0x03, 0x00, 0x20]);
    wire.send_raw(&[0x55; 0x20]);
    let mut peer = Peer::new(wire);
    peer.rest().await;
    let config = client_config(VERSIONS[0]);
    Peer::new(Secure::new(server.connect_secure(), &config)).expect_alive().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("tls-failed", 4)]);
}

/// A client that disconnects in the middle of its handshake affects no other connection.
pub async fn a_handshake_may_be_abandoned<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let config = client_config(VERSIONS[0]);
    let mut wire = Secure::new(server.connect_secure(), &config).into_wire();
    wire.half_close();
    while let Got::Bytes(_) = wire.recv(PATIENCE).await {}
    Secure::new(server.connect_secure(), &config).into_wire().reset();
    let mut peer = Peer::new(Secure::new(server.connect_secure(), &config));
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.requests, 1, "{outcome:?}");
}

/// The authority and identities of clients with certificates, shared because generating them takes
/// time.
fn clients() -> &'static (Authority, Identity, Identity) {
    static CLIENTS: OnceLock<(Authority, Identity, Identity)> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        let authority = Authority::new("clients");
        let alice = authority.issue("alice", "alice.test", LONG_AFTER);
        let expired = authority.issue("late", "late.test", Duration::from_secs(1_000_000_000));
        (authority, alice, expired)
    })
}

/// Handlers see the client's certificate, also after a resumption, and see that a client has none.
pub async fn handlers_see_the_client_certificate<B: Bench>(bench: &B) {
    let (authority, alice, _) = clients();
    let client_auth = ClientAuth::optional().roots_pem(authority.certificate.as_bytes());
    let tls = server_tls().with_client_auth(client_auth).expect("the certificates are valid");
    let server = bench.start(limits(), Some(tls), Shared::default().app());
    for version in VERSIONS {
        for (identity, subject, required) in
            [(Some(alice), "CN=alice", Some("alice.test")), (None, "nobody", None)]
        {
            let config = authority.client(version, &[certificate_pem()], identity);
            for resumed in ["false", "true"] {
                let mut peer = Peer::new(Secure::new(server.connect_secure(), &config));
                peer.get("/tls");
                let reply = peer.reply().await;
                assert!(reply.text().ends_with(resumed), "{resumed}: {}", reply.text());
                peer.get("/client");
                assert_eq!(peer.reply().await.text(), subject);
                peer.get("/client/required");
                let reply = peer.reply().await;
                match required {
                    Some(name) => assert_eq!(reply.text(), name),
                    None => {
                        assert_eq!(reply.status, 403);
                        assert!(reply.text().contains("client-certificate-required"));
                    }
                }
            }
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// Where a certificate is required, a client without one or with an invalid one is refused, and the
/// counter names the reason.
pub async fn rejected_certificates_are_counted_by_reason<B: Bench>(bench: &B) {
    let (authority, alice, expired) = clients();
    let stranger = Authority::new("strangers").issue("alice", "alice.test", LONG_AFTER);
    let client_auth = ClientAuth::required().roots_pem(authority.certificate.as_bytes());
    let tls = server_tls().with_client_auth(client_auth).expect("the certificates are valid");
    let server = bench.start(limits(), Some(tls), Shared::default().app());
    for version in VERSIONS {
        for identity in [None, Some(expired), Some(&stranger)] {
            let config = authority.client(version, &[certificate_pem()], identity);
            let mut peer = Peer::new(Secure::new(server.connect_secure(), &config));
            assert!(peer.rest().await.is_empty());
        }
        let config = authority.client(version, &[certificate_pem()], Some(alice));
        Peer::new(Secure::new(server.connect_secure(), &config)).expect_alive().await;
    }
    server.shut_down();
    let reasons = ["client-certificate-expired", "client-certificate-missing"];
    let reasons = reasons.into_iter().chain(["client-certificate-unknown"]);
    let expected: Vec<_> = reasons.map(|reason| (reason, 2)).collect();
    assert_eq!(server.ended().await.endings(), expected);
}

/// Replacing a certificate while the server runs affects neither open connections nor a handshake
/// in progress.
pub async fn a_new_certificate_does_not_affect_connections_and_handshakes_in_progress<B: Bench>(
    bench: &B,
) {
    let authority = Authority::new("servers");
    let issue = |number: u32| authority.issue(&number.to_string(), "localhost", LONG_AFTER);
    let pem = |identity: &Identity| {
        let certificate =
            Certificate::from_pem(identity.certificate.as_bytes(), identity.key.as_bytes());
        certificate.label("own")
    };
    let tls = TlsConfig::from_certificate(pem(&issue(0))).expect("the certificate is valid");
    let server = bench.start(limits(), Some(tls.clone()), Shared::default().app());
    let mut open = Vec::new();
    for number in 1..5 {
        for version in VERSIONS {
            let config = authority.client(version, &[], None);
            let handshaking = Secure::new(server.connect_secure(), &config);
            tls.upsert_certificate(pem(&issue(number))).expect("the certificate is valid");
            for wire in [handshaking, Secure::new(server.connect_secure(), &config)] {
                let mut peer = Peer::new(wire);
                peer.expect_alive().await;
                open.push(peer);
            }
        }
        for peer in &mut open {
            peer.expect_alive().await;
        }
    }
    drop(open);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}
