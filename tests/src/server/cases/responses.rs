//! Streamed responses, and slow readers.

use super::{begin, begin_with, half_close, server_timeouts};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::reply::Framing;
use crate::server::server_timeouts::ServerTimeouts;
use std::time::Duration;

/// A stream is sent in chunks, and the connection stays open after it.
pub async fn a_stream_is_sent_in_chunks<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for pieces in [0, 1, 3, bench.large(5_000) / 10] {
        peer.get(&format!("/stream/{pieces}"));
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.framing), (200, Framing::Chunked));
        let expected: String = (0..pieces).map(|number| format!("piece {number}\n")).collect();
        assert_eq!(reply.text(), expected);
    }
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A large body arrives complete, even on a connection with more requests waiting.
pub async fn a_large_response_arrives_complete<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let large = if bench.is_virtual() { 200_000 } else { 6_000_000 };
    for length in [bench.large(65_536), bench.large(large)] {
        peer.get(&format!("/large/{length}"));
        peer.get("/numbers/8");
        let reply = peer.reply().await;
        assert_eq!(reply.framing, Framing::Length);
        assert!(reply.body == pattern(length), "{length}");
        assert_eq!(peer.reply().await.text(), "8");
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// An endless stream is not produced while its client does not read, and eventually the connection
/// is closed.
pub async fn an_endless_stream_waits_for_its_reader<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: Duration::from_secs(2), ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.get("/endless");
    peer.expect("HTTP/1.1 200 OK").await;
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    // The kernels' buffers plus the server's limit.
    let bytes_max = if bench.is_virtual() { 64 * 1024 + 3 * 64 * 1024 } else { 32 << 20 };
    assert!(shared.produced.get() <= bytes_max, "{} bytes were produced", shared.produced.get());
    peer.rest().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("write-stalled", 1)]);
}

/// A slow reader is not a stalled one: it is served as long as it reads.
pub async fn a_slow_reader_is_served<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: Duration::from_secs(2), ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    let length = bench.large(if bench.is_virtual() { 150_000 } else { 3_000_000 });
    peer.get(&format!("/large/{length}"));
    bench.sleep(Duration::from_millis(1000)).await;
    assert!(peer.reply().await.body == pattern(length));
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A stream ends when its reader disconnects.
pub async fn a_stream_ends_when_its_reader_disconnects<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/endless");
    peer.expect("HTTP/1.1 200 OK").await;
    peer.reset();
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;

    // Also while it has nothing to send, where the transport detects resets.
    let mut streams = 1;
    if bench.has_resets() {
        let mut peer = Peer::new(server.connect());
        peer.get("/gated/3");
        shared.open(1);
        peer.expect("piece 0\n").await;
        peer.reset();
        bench.wait_until("the stream was dropped", || shared.dropped.get() == 2).await;
        streams += 1;
    }
    // Or while it yields only empty frames. Virtual time does not advance meanwhile.
    if bench.has_resets() && !bench.is_virtual() {
        let mut peer = Peer::new(server.connect());
        let before = shared.started.get();
        peer.get("/endless-nothing");
        bench.wait_until("the stream started", || shared.started.get() > before).await;
        peer.reset();
        bench.wait_until("the stream was dropped", || shared.dropped.get() == 3).await;
        streams += 1;
    }
    server.shut_down();
    let outcome = server.ended().await;
    let left = outcome.ended("peer-aborted") + outcome.ended("io-error");
    assert_eq!(left, streams, "{outcome:?}");
}

/// With `half_close`, a peer that ended its sending side still gets the complete stream.
pub async fn a_half_closed_reader_gets_the_complete_stream<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, half_close());
    let mut peer = Peer::new(server.connect());
    peer.get("/gated/2");
    peer.half_close();
    bench.wait_until("the stream started", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_millis(700)).await;
    shared.open(2);
    let reply = peer.reply().await;
    assert_eq!(reply.text(), "piece 0\npiece 1\n");
    peer.expect_end().await;
    assert_eq!(peer.last(), Some(&Got::End));
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A stream with nothing to send is cancelled when its client ends its side. Data sent before
/// arrives, and does not look complete.
pub async fn a_quiet_stream_is_cancelled_when_its_client_closes<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for (round, half) in [true, false].into_iter().enumerate() {
        let mut peer = Peer::new(server.connect());
        peer.get("/gated/2");
        bench.wait_until("the stream started", || shared.started.get() == round + 1).await;
        shared.open(1);
        peer.expect("piece 0\n\r\n").await;
        assert_eq!(shared.dropped.get(), round);
        if half {
            peer.half_close();
            assert_eq!(peer.rest().await.escape_ascii().to_string(), "");
        } else {
            drop(peer);
        }
        bench.wait_until("the stream was dropped", || shared.dropped.get() == round + 1).await;
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 2)]);
}

/// A body of known length is sent to its end, however long its pauses are.
pub async fn a_half_closed_reader_gets_a_body_of_known_length<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/slow-of-known-length/4");
    peer.half_close();
    let reply = peer.reply().await;
    assert_eq!(reply.framing, Framing::Length);
    assert_eq!(reply.text(), "piece 0\npiece 1\npiece 2\npiece 3\n");
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A body is not polled after its trailers.
pub async fn nothing_follows_trailers<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /more-after-trailers HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n");
    peer.expect("hello\r\n0\r\nx-checksum: abc\r\n\r\n").await;
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}
