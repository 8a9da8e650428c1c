//! Limits on what the server accepts.

use super::{begin, begin_with, limits};
use crate::server::app::Shared;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, VERSIONS, client_config, server_tls};
use peregrine::Limits;
use std::fmt::Write;
use std::time::Duration;

/// At the connection limit, the next connection waits until another one closes.
pub async fn connections_beyond_the_limit_wait<B: Bench>(bench: &B) {
    let (server, _) = begin_with(bench, Limits { connections_max: 2, ..limits() });
    let mut first = Peer::new(server.connect());
    first.expect_alive().await;
    let mut second = Peer::new(server.connect());
    second.expect_alive().await;
    let mut third = Peer::new(server.connect());
    third.get("/hello");
    third.expect_nothing(Duration::from_millis(100)).await;
    first.expect_alive().await;
    drop(first);
    assert_eq!(third.reply().await.text(), "hello");
    second.expect_alive().await;
    drop((second, third));
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.accepted, 3);
    assert_eq!(outcome.endings(), []);
}

/// A listener without connections does not reserve the last slot that another listener needs.
pub async fn listeners_share_the_connection_limit<B: Bench>(bench: &B) {
    bench.calm();
    let limits = Limits { connections_max: 1, ..limits() };
    let server = bench.start(limits, Some(server_tls()), Shared::default().app());
    let config = client_config(VERSIONS[0]);
    for _ in 0..3 {
        let mut plain = Peer::new(server.connect());
        plain.expect_alive().await;
        let mut secure = Peer::new(Secure::new(server.connect_secure(), &config));
        secure.get("/hello");
        secure.expect_nothing(Duration::from_millis(100)).await;
        let mut next = Peer::new(server.connect());
        next.get("/hello");
        next.expect_nothing(Duration::from_millis(100)).await;
        drop(plain);
        // The connection that arrives first gets the slot, then the other one; or both do, if the
        // kernel handed them over in the same iteration.
        let mut attempts = 0;
        let is_next_served = loop {
            let is_next_served = next.is_answered().await;
            if is_next_served || secure.is_answered().await {
                break is_next_served;
            }
            attempts += 1;
            assert!(attempts < 300, "no connection gets the slot");
            bench.sleep(Duration::from_millis(100)).await;
        };
        if is_next_served {
            assert_eq!(next.reply().await.text(), "hello");
            drop(next);
            assert_eq!(secure.reply().await.text(), "hello");
        } else {
            assert_eq!(secure.reply().await.text(), "hello");
            drop(secure);
            assert_eq!(next.reply().await.text(), "hello");
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.accepted, 9);
}

/// Sends `head` and asserts the status of the response.
async fn assert_status<B: Bench>(server: &B::Server, head: String, status: u16) {
    let mut peer = Peer::new(server.connect());
    peer.send(head);
    let reply = peer.reply().await;
    assert_eq!(reply.status, status);
    assert_eq!(reply.closes(), status != 404 && status != 200);
    if status >= 400 {
        assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    }
    if reply.closes() {
        peer.expect_end().await;
    }
}

/// A request line beyond its limit gets a 414.
pub async fn a_long_target_is_a_414<B: Bench>(bench: &B) {
    let limits = Limits { request_line_bytes_max: 100, ..limits() };
    let (server, _) = begin_with(bench, limits);
    let request_of_length = |bytes: usize| {
        // RFC 9112 §3: "GET ", the target, and " HTTP/1.1" with the line's end.
        let path = "x".repeat(bytes - "GET / HTTP/1.1\r\n".len());
        format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n")
    };
    assert_status::<B>(&server, request_of_length(98), 404).await;
    assert_status::<B>(&server, request_of_length(110), 414).await;
    assert_status::<B>(&server, format!("GET /{}", "x".repeat(200)), 414).await;
    server.shut_down();
    assert_eq!(server.ended().await.ended("rejected"), 2);
}

/// Too many fields, fields that are too long, or a head that is too large get a 431.
pub async fn a_large_head_is_a_431<B: Bench>(bench: &B) {
    let limits = Limits { fields_max: 10, field_bytes_max: 100, head_bytes_max: 500, ..limits() };
    let (server, _) = begin_with(bench, limits);
    let with_fields = |fields: &str| format!("GET /hello HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
    let fields = |count: usize| {
        (0..count).fold(String::new(), |mut fields, number| {
            write!(fields, "X-{number}: y\r\n").expect("writing to a string cannot fail");
            fields
        })
    };
    assert_status::<B>(&server, with_fields(&fields(9)), 200).await;
    assert_status::<B>(&server, with_fields(&fields(10)), 431).await;
    let long_field = |bytes: usize| format!("X: {}\r\n", "y".repeat(bytes));
    assert_status::<B>(&server, with_fields(&long_field(90)), 200).await;
    assert_status::<B>(&server, with_fields(&long_field(120)), 431).await;
    assert_status::<B>(&server, with_fields(&long_field(90).repeat(6)), 431).await;
    server.shut_down();
    assert_eq!(server.ended().await.ended("rejected"), 3);
}

/// A failed accept does not stop the listener.
pub async fn accepting_continues_after_errors<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    bench.run_out_of_descriptors();
    for _ in 0..5 {
        Peer::new(server.connect()).expect_alive().await;
    }
    bench.calm();
    Peer::new(server.connect()).expect_alive().await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.accepted, 6);
}
