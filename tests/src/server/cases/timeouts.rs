//! The server's timeouts: how long each one is, and how the server reacts when it expires.
//!
//! In the simulator the times are exact, up to the resolution of the server's timers. On a kernel
//! the cases assert only what holds on a busy machine: nothing ends too early.

use super::{begin_with, limits, server_timeouts};
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::reply::Reply;
use crate::server::secure::server_tls;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use crate::server::streams::Streams;
use peregrine::Limits;
use peregrine_proto::h2::frame::{self, FrameType, flags};
use std::ops::Range;
use std::time::Duration;

/// The resolution of the server's timers.
const TICK: Duration = Duration::from_millis(100);
/// How late drivers may be, and the rounding of their clocks.
const SLACK: Duration = Duration::from_millis(10);

const SHORT: Duration = Duration::from_millis(700);

/// Asserts that `elapsed` is `expected`, as exactly as the bench can measure.
fn assert_elapsed<B: Bench>(bench: &B, elapsed: Duration, expected: Duration) {
    assert!(elapsed + SLACK >= expected, "too early: {elapsed:?} instead of {expected:?}");
    if bench.is_virtual() {
        let elapsed_max = expected + TICK + SLACK;
        assert!(elapsed <= elapsed_max, "too late: {elapsed:?} instead of {expected:?}");
    }
}

/// Asserts that `elapsed` is in `expected`, as exactly as the bench can measure.
fn assert_within<B: Bench>(bench: &B, elapsed: Duration, expected: Range<Duration>) {
    assert!(elapsed + SLACK >= expected.start, "too early: {elapsed:?} instead of {expected:?}");
    let elapsed_max = expected.end + TICK + SLACK;
    assert!(
        !bench.is_virtual() || elapsed <= elapsed_max,
        "too late: {elapsed:?} instead of {expected:?}"
    );
}

/// A connection on which nothing arrives is closed.
pub async fn a_silent_connection_is_closed<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { first_byte_timeout: SHORT, ..limits() });
    let start = bench.now();
    let mut peer = Peer::new(server.connect());
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("first-byte-timeout", 1)]);
}

/// A head that does not complete gets a 408, however many of its bytes arrive.
pub async fn a_slow_head_is_a_408<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { head_timeout: SHORT, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.get("/hello");
    assert_eq!(peer.reply().await.text(), "hello");
    let start = bench.now();
    peer.send("GET / HTTP/1.1\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (408, true));
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);

    // One byte now and then does not help.
    let start = bench.now();
    let mut peer = Peer::new(server.connect());
    let drip = b"GET /hello HTTP/1.1\r\nHost: example.org\r\nX-Filler: drip drip drip";
    for byte in drip.iter().take(6) {
        peer.send([*byte]);
        bench.sleep(Duration::from_millis(100)).await;
    }
    let reply = peer.reply().await;
    assert_eq!(reply.status, 408);
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("head-timeout", 2)]);
}

/// When a body stalls, its reader gets a 408.
pub async fn a_slow_body_is_a_408<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts =
        ServerTimeouts { rate_window: SHORT, transfer_rate_min: 1000, ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    let start = bench.now();
    peer.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (408, true));
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);

    // Arriving bytes satisfy the window in which they arrive, and no other.
    let mut peer = Peer::new(server.connect());
    let start = bench.now();
    peer.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    peer.send([b'x'; 90_000]);
    assert_eq!(peer.reply().await.status, 408);
    assert_within(bench, bench.now() - start, SHORT..2 * SHORT);
    peer.expect_end().await;

    // And a body that is fast enough may take longer than a window.
    let mut peer = Peer::new(server.connect());
    peer.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n");
    for _ in 0..10 {
        peer.send([b'x'; 300]);
        bench.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(peer.reply().await.body.len(), 3000);
    drop(peer);
    server.shut_down();
    let outcome = server.ended().await;
    let ended = outcome.ended("body-too-slow") + outcome.ended("connection-close");
    assert_eq!(ended, 2, "{outcome:?}");
}

/// The time during which a handler does not read does not count against its client.
pub async fn a_body_does_not_time_out_while_it_is_not_read<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts =
        ServerTimeouts { rate_window: SHORT, transfer_rate_min: 1_000_000, ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.send("POST /ignore-after-wait HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(2 * SHORT).await;
    shared.open(1);
    let reply: Reply = peer.reply().await;
    assert_eq!((reply.status, reply.text()), (200, "waited"));
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// A client that never sends the rest of an unread body is disconnected.
pub async fn an_unread_body_must_arrive_soon<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: SHORT, ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let start = bench.now();
    let mut peer = Peer::new(server.connect());
    peer.send("POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(peer.reply().await.text(), "ignored");
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("body-too-slow", 1)]);
}

/// A connection that is idle between requests is closed; each request restarts the timeout.
pub async fn an_idle_connection_is_closed<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { idle_timeout: SHORT, ..limits() });
    let mut peer = Peer::new(server.connect());
    if bench.is_virtual() {
        for _ in 0..5 {
            peer.expect_alive().await;
            bench.sleep(Duration::from_millis(500)).await;
        }
    }
    let start = bench.now();
    peer.expect_alive().await;
    peer.expect_end().await;
    assert_elapsed(bench, bench.now() - start, SHORT);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("idle-timeout", 1)]);
}

/// A connection at its maximum age announces its close in the next response, or is closed when
/// idle.
pub async fn an_old_connection_is_closed<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { connection_age_max: Some(SHORT), ..limits() });
    let start = bench.now();
    let mut peer = Peer::new(server.connect());
    peer.get("/hello");
    assert_eq!(peer.reply().await.status, 200);
    peer.expect_end().await;
    assert_within(bench, bench.now() - start, SHORT * 9 / 10..SHORT);

    let mut peer = Peer::new(server.connect());
    peer.get("/sleep/900");
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.closes()), ("slept 900", true));
    peer.expect_end().await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("connection-age-max"), 1);
    assert_eq!(outcome.ended("connection-close"), 1, "{outcome:?}");
}

/// An incomplete handshake times out, however many bytes trickle in.
pub async fn a_slow_handshake_times_out<B: Bench>(bench: &B) {
    bench.calm();
    let shared = crate::server::app::Shared::default();
    let limits = Limits { handshake_timeout: SHORT, ..limits() };
    let server = bench.start(limits, Some(server_tls()), shared.app());
    let start = bench.now();
    let mut silent = Peer::new(server.connect_secure());
    silent.rest().await;
    assert_elapsed(bench, bench.now() - start, SHORT);

    let start = bench.now();
    let mut dripping = Peer::new(server.connect_secure());
    for byte in [0x16, 0x03, 0x01, 0x02] {
        dripping.send([byte]);
        bench.sleep(Duration::from_millis(100)).await;
    }
    dripping.rest().await;
    assert_elapsed(bench, bench.now() - start, SHORT);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("handshake-timeout", 2)]);
}

/// A route's own timeout is as exact as the others.
pub async fn the_timeout_of_a_route_applies<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, limits());
    let mut peer = Peer::new(server.connect());
    let start = bench.now();
    peer.get("/wait-a-moment");
    assert_eq!(peer.reply().await.status, 503);
    assert_elapsed(bench, bench.now() - start, Duration::from_millis(500));
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// A stalled reader is disconnected within one window after the last bytes it read.
pub async fn a_stalled_reader_is_disconnected_in_time<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: SHORT, ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let start = bench.now();
    let mut peer = Peer::new(server.connect());
    peer.get("/endless");
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    assert_within(bench, bench.now() - start, SHORT..2 * SHORT);
    peer.rest().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("write-stalled", 1)]);
}

/// Once the response has started, the client may be silent indefinitely, as over HTTP/2.
pub async fn a_bidirectional_stream_may_be_silent<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: SHORT, ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.send("POST /echo-stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for count in 0..3 {
        peer.send("4\r\nword\r\n");
        if count == 0 {
            peer.expect("HTTP/1.1 200").await;
        }
        peer.expect("word\r\n").await;
        peer.expect_nothing(SHORT * 3).await;
    }
    peer.send("0\r\n\r\n");
    peer.expect("0\r\n\r\n").await;
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A conversation that is silent in both directions ends like an idle upgraded connection.
pub async fn a_dead_bidirectional_stream_is_ended<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(
        bench,
        Limits { upgraded_idle_timeout: Some(SHORT), ..server_timeouts().limits() },
    );
    let mut peer = Peer::new(server.connect());
    peer.send("POST /echo-stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for _ in 0..5 {
        peer.send("4\r\nword\r\n");
        peer.expect("word\r\n").await;
        bench.sleep(SHORT / 2).await;
    }
    peer.expect_end().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("response-body-failed", 1)]);
}

/// A malformed head does not extend a timeout: a connection with a series of partial heads ends
/// when one with a single endless head does.
pub async fn malformed_heads_in_pieces_are_refused_early(bench: &SimulatedBench) {
    bench.calm_with_large_buffers();
    let limits = Limits { head_timeout: 3 * SHORT, idle_timeout: 10 * SHORT, ..limits() };
    let (server, _) = begin_with(bench, limits);
    let mut client = Streams::new(server.connect());
    client.round_trip().await;
    let mut frames = Vec::new();
    for id in (1..).step_by(2).take(40) {
        // A literal field with an upper-case name.
        frame::write_frame(
            FrameType::Headers,
            flags::END_HEADERS | flags::END_STREAM,
            id,
            b"\0\x01A\x01b",
            &mut frames,
        );
    }
    let (start, length) = (bench.now(), frames.len() / 40);
    client.send(&frames[..5]);
    // Each piece is the rest of one head and the beginning of the next.
    let pieces = frames[5..].chunks_exact(length);
    for piece in pieces {
        client.send(piece);
        bench.sleep(SHORT / 2).await;
        while client.fill(Duration::ZERO).await {}
        if matches!(client.last(), Some(Got::End | Got::Broken)) {
            break;
        }
    }
    let elapsed = bench.now() - start;
    assert!(elapsed >= 3 * SHORT && elapsed <= 5 * SHORT, "{elapsed:?}");
    drop(client);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("head-timeout", 1)]);
}
