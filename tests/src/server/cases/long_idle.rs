//! Timeouts after hours without traffic, and after a blocked worker.

use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::{SimulatedBench, SimulatedServer};
use peregrine::Limits;
use std::time::Duration;

/// The resolution of the server's timers, and how late they may fire.
const SLACK: Duration = Duration::from_millis(150);
const MINUTE: Duration = Duration::from_secs(60);
const FIRST_BYTE: Duration = Duration::from_secs(30);

fn begin(bench: &SimulatedBench) -> (SimulatedServer, crate::server::app::Shared) {
    bench.calm();
    let limits = Limits { first_byte_timeout: FIRST_BYTE, ..Limits::default() };
    super::begin_with(bench, ServerTimeouts { limits, ..ServerTimeouts::default() }.limits())
}

/// A silent connection is closed when its timeout expires, and not before.
async fn assert_silent_is_closed(bench: &SimulatedBench, server: &SimulatedServer) {
    let start = bench.now();
    Peer::new(server.connect()).expect_end().await;
    let elapsed = bench.now() - start;
    assert!(elapsed >= FIRST_BYTE && elapsed <= FIRST_BYTE + SLACK, "{elapsed:?}");
}

/// However long the server had no connections, a silent connection is closed in time, and so is the
/// next one.
pub async fn timeouts_work_after_any_pause(bench: &SimulatedBench) {
    let (server, _) = begin(bench);
    assert_silent_is_closed(bench, &server).await;
    for minutes in [1, 4, 20, 90, 24 * 60, 40 * 24 * 60] {
        bench.sleep(minutes * MINUTE + Duration::from_millis(bench.choose(1_000) as u64)).await;
        assert_silent_is_closed(bench, &server).await;
        assert_silent_is_closed(bench, &server).await;
    }
    server.shut_down();
    server.ended().await;
}

/// The remaining idle time of a connection is kept across a long quiet period.
pub async fn an_idle_connection_is_closed_after_a_long_pause(bench: &SimulatedBench) {
    bench.calm();
    let idle = 7 * 60 * MINUTE;
    let limits = Limits { idle_timeout: idle, ..Limits::default() };
    let (server, _) = super::begin_with(bench, limits);
    let mut peer = Peer::new(server.connect());
    for _ in 0..3 {
        peer.expect_alive().await;
        bench.sleep(idle - MINUTE).await;
    }
    peer.expect_alive().await;
    let start = bench.now();
    while peer.last().is_none() && bench.now() < start + 2 * idle {
        peer.swallow(MINUTE).await;
    }
    let elapsed = bench.now() - start;
    assert!(elapsed >= idle && elapsed <= idle + SLACK, "{elapsed:?}");
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("idle-timeout", 1)]);
}

/// A handler that blocks its worker for minutes changes no timeout that starts later, and expired
/// timeouts take effect at once.
pub async fn timeouts_work_after_a_worker_was_blocked(bench: &SimulatedBench) {
    let (server, _) = begin(bench);
    let mut silent = Peer::new(server.connect());
    bench.sleep(Duration::from_secs(1)).await;
    for seconds in [3 * 60, 101, 103, 60 * 60] {
        let mut peer = Peer::new(server.connect());
        peer.get(&format!("/stall/{seconds}"));
        assert_eq!(peer.reply().await.text(), "stalled");
        let start = bench.now();
        silent.expect_end().await;
        // The connection gets a moment in which data it may have sent is processed.
        let elapsed_max = Duration::from_secs(1) + SLACK;
        assert!(bench.now() - start <= elapsed_max, "{:?} after {seconds} s", bench.now() - start);
        assert_silent_is_closed(bench, &server).await;
        silent = Peer::new(server.connect());
        bench.sleep(Duration::from_secs(1)).await;
    }
    server.shut_down();
    server.ended().await;
}
