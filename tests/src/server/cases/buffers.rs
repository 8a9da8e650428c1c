//! Waiting connections do not block others: receive buffers, scheduling, the shutdown.

use super::{begin, begin_with, limits, server_timeouts};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use peregrine::{Limits, OverloadLimits};
use peregrine_driver_sim::SocketBuffers;
use std::time::Duration;

/// More than the longest wait of a case: anything that needs this long happens too late.
const TOO_LATE: Duration = Duration::from_secs(120);

/// Incomplete heads, more than a worker has receive buffers, hold no receive buffer.
pub async fn partial_heads_hold_no_buffer_while_they_wait<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { head_timeout: TOO_LATE, ..limits() });
    let mut partial = Vec::new();
    for _ in 0..400 {
        let mut peer = Peer::new(server.connect());
        peer.send("GET /hello HTTP/1.1\r\nHost: a");
        partial.push(peer);
    }
    bench.sleep(Duration::from_millis(100)).await;
    assert!(
        bench.chunks_on_loan().is_none_or(|chunks| chunks == 0),
        "waiting connections hold no buffer"
    );
    let mut peer = Peer::new(server.connect());
    peer.expect_alive().await;
    for peer in partial.iter_mut().take(20) {
        peer.send("\r\n\r\n");
        assert_eq!(peer.reply().await.text(), "hello");
    }
    drop(partial);
    server.cut();
    server.ended().await;
}

/// Peers that do not read their response hold no receive buffer for the requests behind it.
pub async fn peers_that_do_not_read_hold_no_buffer_while_they_wait<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { rate_window: TOO_LATE, ..server_timeouts() };
    // Together the responses are two gigabytes, more than half of a small machine's memory.
    let limits = Limits { overload: OverloadLimits::unlimited(), ..timeouts.limits() };
    let (server, _) = begin_with(bench, limits);
    let mut non_readers = Vec::new();
    let length = if bench.is_virtual() { 200_000 } else { 8_000_000 };
    for _ in 0..300 {
        let mut peer = Peer::new(server.connect());
        let large = format!("GET /large/{length} HTTP/1.1\r\nHost: a\r\n\r\n");
        peer.send(format!("{large}{large}GET /hello HT"));
        non_readers.push(peer);
    }
    bench.sleep(Duration::from_millis(500)).await;
    assert!(
        bench.chunks_on_loan().is_none_or(|chunks| chunks == 0),
        "waiting connections hold no buffer"
    );
    let mut peer = Peer::new(server.connect());
    peer.expect_alive().await;
    server.cut();
    server.ended().await;
}

/// Upgraded protocols that do not read hold no receive buffer, so other connections are served.
pub async fn upgrades_that_do_not_read_hold_no_buffer<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin(bench);
    let request =
        "GET /upgrade-deaf HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: any\r\n";
    // More than the server buffers for a protocol that does not read.
    let bytes = pattern(if bench.is_virtual() { 70_000 } else { 300_000 });
    let mut non_readers = Vec::new();
    for _ in 0..300 {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("{request}\r\n"));
        peer.send(&bytes);
        non_readers.push(peer);
    }
    bench.wait_until("all have started", || shared.started.get() == 300).await;
    bench.sleep(Duration::from_millis(500)).await;
    assert!(
        bench.chunks_on_loan().is_none_or(|chunks| chunks == 0),
        "waiting connections hold no buffer"
    );
    let mut peer = Peer::new(server.connect());
    for _ in 0..3 {
        peer.expect_alive().await;
    }
    server.cut();
    server.ended().await;
}

/// A stream of empty pieces yields to other tasks.
pub async fn a_stream_of_empty_pieces_does_not_starve_others<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut empty = Peer::new(server.connect());
    empty.get("/empties");
    empty.expect("HTTP/1.1 200 OK").await;
    let mut peer = Peer::new(server.connect());
    peer.get("/stop-empties");
    assert_eq!(peer.reply().await.text(), "stopped");
    let end = empty.expect("0\r\n\r\n").await;
    let end = String::from_utf8_lossy(&end);
    assert!(end.contains("stopped"), "no other task ran: {end}");
    drop((peer, empty));
    server.shut_down();
    server.ended().await;
}

/// The deadline of a shutdown also ends uploads that wait for a handler that does not read, and
/// connections whose peer waits for a 100.
pub async fn an_abort_is_noticed_during_an_upload<B: Bench>(bench: &B) {
    bench.calm();
    let time = Duration::from_millis(700);
    let (server, shared) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    let mut with_post = Peer::new(server.connect());
    with_post.post("/hold-body", &pattern(500_000));
    let mut with_get = Peer::new(server.connect());
    with_get.send("GET /hold-body HTTP/1.1\r\nHost: a\r\nContent-Length: 500000\r\n\r\n");
    with_get.send(pattern(500_000));
    let mut with_expect = Peer::new(server.connect());
    let head = "POST /hold-body HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n";
    with_expect.send(format!("{head}Expect: 100-continue\r\n\r\n"));
    bench.wait_until("the handlers wait", || shared.started.get() == 3).await;
    bench.sleep(Duration::from_millis(100)).await;
    let start = bench.now();
    server.shut_down();
    let outcome = server.ended().await;
    let elapsed = bench.now() - start;
    assert!(!bench.is_virtual() || elapsed <= time + Duration::from_millis(150), "{elapsed:?}");
    let mut aborted: Vec<_> =
        outcome.cut.iter().map(|aborted| aborted.request.as_deref()).collect();
    aborted.sort_unstable();
    let post = Some("POST /hold-body");
    assert_eq!(aborted, [Some("GET /hold-body"), post, post]);
    assert_eq!((outcome.ended("force-closed"), shared.dropped.get()), (3, 3));
}

/// When more handshakes than allowed are in progress, the oldest ends, even while its bytes keep
/// arriving.
pub async fn a_handshake_beyond_the_limit_ends_the_oldest(bench: &SimulatedBench) {
    bench.calm();
    let limits = Limits { handshakes_max: 1, handshake_timeout: TOO_LATE, ..limits() };
    let tls = Some(crate::server::secure::server_tls());
    let server = bench.start(limits, tls, crate::server::app::Shared::default().app());
    let begin = || {
        let mut peer = Peer::new(server.connect_secure());
        peer.send([0x16, 0x03, 0x01, 0x20, 0x00, 0x01, 0x00, 0x1f, 0xfc, 0x03, 0x03]);
        peer
    };
    let mut older = begin();
    for round in 0..12 {
        bench.sleep(Duration::from_millis(5)).await;
        let newer = begin();
        let start = bench.now();
        // A byte arrives whenever the server polls, including the iteration in which the second
        // handshake arrives.
        while older.last().is_none() && bench.now() < start + Duration::from_secs(10) {
            older.send([0]);
            older.swallow(Duration::from_millis(1)).await;
        }
        assert!(older.last().is_some(), "two handshakes are in progress, in round {round}");
        older = newer;
    }
    server.cut();
    server.ended().await;
}

/// Sending the server's handshake messages counts towards the handshake timeout: a peer that does
/// not read them is disconnected in time.
pub async fn a_handshake_that_is_not_read_times_out(bench: &SimulatedBench) {
    use crate::server::secure::{Secure, VERSIONS, client_config, server_tls};
    bench.calm_with(SocketBuffers::with_size(100));
    let time = Duration::from_secs(2);
    let limits = Limits { handshake_timeout: time, ..limits() };
    let shared = crate::server::app::Shared::default();
    let server = bench.start(limits, Some(server_tls()), shared.app());
    let start = bench.now();
    let wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    bench.sleep(Duration::from_secs(1)).await;
    server.shut_down();
    let outcome = server.ended().await;
    let elapsed = bench.now() - start;
    assert!(elapsed >= time && elapsed <= time + Duration::from_millis(150), "{elapsed:?}");
    assert_eq!(outcome.endings(), [("handshake-timeout", 1)]);
    drop(wire);
}
