//! Connections that switch to another protocol.

use super::begin;
use crate::server::app::pattern;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use std::time::Duration;

fn request(path: &str, name: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: {name}\r\n\r\n")
}

/// After a 101, bytes flow in both directions, and bytes that arrived with the head are not lost.
pub async fn an_upgraded_connection_carries_bytes_both_ways<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send([request("/upgrade", "echo").as_bytes(), b"first"].concat());
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.field("upgrade")), (101, Some("echo")));
    assert_eq!(reply.field("connection"), Some("upgrade"));
    assert_eq!(peer.expect("first").await, b"first");
    for round in 0..3 {
        peer.send(format!("round {round};"));
        assert_eq!(peer.expect(";").await, format!("round {round};").as_bytes());
    }
    // More than the buffers hold is echoed too.
    let bytes = pattern(bench.large(if bench.is_virtual() { 100_000 } else { 1_000_000 }));
    peer.send(&bytes);
    peer.half_close();
    assert!(peer.rest().await == bytes);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("upgraded", 1)]);
}

/// The last data of the other protocol arrives, and its end ends the connection.
pub async fn the_upgraded_protocol_may_send_first_and_close_first<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/hello");
    peer.send(request("/upgrade-greeting", "greeting"));
    assert_eq!(peer.reply().await.text(), "hello");
    assert_eq!(peer.reply().await.status, 101);
    assert_eq!(peer.expect("\n").await, b"welcome\n");
    bench.sleep(Duration::from_millis(5)).await;
    peer.send("x");
    assert_eq!(peer.expect("x").await, b"x");
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("upgraded", 1)]);
}

/// An upgrade that the client did not request is the application's error: a 500, not a broken
/// connection.
pub async fn an_unrequested_upgrade_is_a_500<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/upgrade");
    assert_eq!(peer.reply().await.status, 500);
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A protocol that does not read, behind a peer that has filled the buffers, ends when the peer
/// resets.
pub async fn a_protocol_that_does_not_read_ends_with_its_peer<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(request("/upgrade-deaf", "any"));
    assert_eq!(peer.reply().await.status, 101);
    peer.send(pattern(if bench.is_virtual() { 70_000 } else { 300_000 }));
    bench.wait_until("the protocol has started", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_secs(1)).await;
    assert_eq!(shared.dropped.get(), 0);
    peer.reset();
    bench.sleep(Duration::from_secs(4)).await;
    assert_eq!(shared.dropped.get(), 1, "the reset is noticed");
    server.shut_down();
    let endings = server.ended().await.endings();
    // The simulated network reports the reset by itself.
    let is_reported = bench.is_virtual() && endings == [("io-error", 1)];
    assert!(is_reported || endings == [("peer-aborted", 1)], "{endings:?}");
}

/// The other protocol ends when its peer resets the connection, and at the deadline of a shutdown.
pub async fn an_upgraded_connection_ends_with_its_peer<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(request("/upgrade", "echo"));
    assert_eq!(peer.reply().await.status, 101);
    peer.reset();
    let mut peer = Peer::new(server.connect());
    peer.send(request("/upgrade", "echo"));
    assert_eq!(peer.reply().await.status, 101);
    peer.send("hello");
    assert_eq!(peer.expect("hello").await, b"hello");
    bench.sleep(Duration::from_millis(300)).await;
    server.cut();
    peer.rest().await;
    let outcome = server.ended().await;
    let ended_by_peer = outcome.ended("upgraded") + outcome.ended("io-error");
    assert_eq!((ended_by_peer, outcome.ended("force-closed")), (1, 1), "{outcome:?}");
}
