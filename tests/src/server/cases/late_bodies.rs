//! Request bodies that are read after the response.

use super::{begin, begin_with, limits};
use crate::server::app::pattern;
use crate::server::bench::{Bench, PATIENCE, Served, Wire};
use crate::server::peer::Peer;
use peregrine::Limits;
use std::time::Duration;

/// More than the server discards, and more than its pipe holds.
const LARGE: usize = 700_000;

/// Sends a request whose body is stored, with this much of the body, and waits for the response.
async fn store_body<B: Bench>(
    peer: &mut Peer<B::Wire>,
    path: &str,
    length: usize,
    body_part: &[u8],
) {
    peer.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
    peer.send(body_part);
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.field("connection")), ("kept", None));
}

/// When the reader drops the body, the rest is discarded if it is short; otherwise the connection
/// ends.
pub async fn a_late_body_that_is_dropped_is_discarded<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { drain_bytes_max: 1_000, ..limits() });
    let mut reader = Peer::new(server.connect());
    for (length, stays_open) in [(900, true), (LARGE, false)] {
        let mut peer = Peer::new(server.connect());
        let body = pattern(length);
        store_body::<B>(&mut peer, "/keep", length, &body[..10]).await;
        reader.get("/drop-kept");
        assert_eq!(reader.reply().await.text(), "dropped");
        peer.send(&body[10..]);
        if stays_open {
            peer.expect_alive().await;
        } else {
            peer.expect_end().await;
        }
    }
    drop(reader);
    server.shut_down();
    server.ended().await;
}

/// The reader gets an error if the peer resets the connection or ends its side in the middle.
pub async fn a_late_reader_gets_an_error_when_its_peer_disconnects<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut reader = Peer::new(server.connect());
    for is_reset in [true, false] {
        let mut peer = Peer::new(server.connect());
        store_body::<B>(&mut peer, "/keep", 500, b"some").await;
        if is_reset {
            peer.reset();
        } else {
            peer.half_close();
            peer.expect_end().await;
        }
        reader.get("/read-kept");
        assert_eq!(reader.reply().await.text(), "Disconnected");
    }
    drop(reader);
    server.shut_down();
    server.ended().await;
}

/// A peer that sends too slowly after its response times out like any other.
pub async fn a_slow_body_times_out_after_the_response_too<B: Bench>(bench: &B) {
    let slack = Duration::from_millis(700);
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: slack, ..limits() });
    let mut peer = Peer::new(server.connect());
    let mut reader = Peer::new(server.connect());
    store_body::<B>(&mut peer, "/keep", 500, b"some").await;
    reader.get("/read-kept");
    assert_eq!(reader.reply().await.text(), "TooSlow");
    peer.expect_end().await;
    drop((peer, reader));
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("body-too-slow", 1)]);
}

/// A body that is stored but not read is dropped once the connection has been idle for long enough.
pub async fn a_late_body_that_is_not_read_times_out<B: Bench>(bench: &B) {
    bench.calm();
    let time = Duration::from_millis(700);
    let (server, _) = begin_with(bench, Limits { idle_timeout: time, ..limits() });
    let mut peer = Peer::new(server.connect());
    store_body::<B>(&mut peer, "/keep", LARGE, &pattern(LARGE / 2)).await;
    peer.send(pattern(LARGE / 2));
    peer.wire().recv(PATIENCE).await;
    let mut reader = Peer::new(server.connect());
    reader.get("/read-kept");
    assert_eq!(reader.reply().await.text(), "Disconnected");
    drop((peer, reader));
    server.shut_down();
    server.ended().await;
}

/// A drain waits for a body that is read after its response.
pub async fn a_drain_waits_for_a_body_that_is_read_after_its_response<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let mut reader = Peer::new(server.connect());
    let body = pattern(bench.large(LARGE));
    store_body::<B>(&mut peer, "/keep", body.len(), &body[..10]).await;
    reader.get("/read-kept");
    bench.sleep(Duration::from_secs(1)).await;
    server.shut_down();
    bench.sleep(Duration::from_secs(3)).await;
    peer.send(&body[10..]);
    assert_eq!(reader.reply().await.text(), format!("{} bytes", body.len()));
    peer.expect_end().await;
    let outcome = server.ended().await;
    assert!(outcome.cut.is_empty(), "{outcome:?}");
}

/// A handler whose body buffer is full ends when its peer resets the connection.
pub async fn a_reset_is_noticed_while_a_body_buffer_is_full<B: Bench>(bench: &B) {
    if !bench.has_resets() {
        return;
    }
    bench.calm();
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(format!("GET /hold HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE}\r\n\r\n"));
    peer.send(pattern(LARGE - 1));
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_secs(1)).await;
    peer.reset();
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
    drop(server);
}
