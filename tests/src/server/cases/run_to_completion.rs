//! Handlers that are marked to run to completion, however their connection ends, and what their
//! panics may affect.

use super::{begin, begin_with, limits, server_timeouts};
use crate::server::app::{Shared, pattern};
use crate::server::bench::{Bench, PATIENCE, Served};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, VERSIONS, client_config, server_tls};
use crate::server::server_timeouts::ServerTimeouts;
use crate::server::simulated::SimulatedBench;
use peregrine::Limits;
use peregrine_driver_sim::SocketBuffers;
use std::time::Duration;

/// A handler that runs to completion and reads its body gets an error when the peer disconnects,
/// and completes.
pub async fn a_run_to_completion_handler_gets_an_error_for_a_truncated_body<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let head = "POST /read-to-end HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n";
    let mut peer = Peer::new(server.connect());
    peer.send(format!("{head}begin"));
    bench.wait_until("the handler reads", || shared.consumed.get() == 5).await;
    peer.reset();
    bench.wait_until("the handler has completed", || shared.finished.get() == 1).await;

    let mut peer = Peer::new(server.connect());
    peer.send(format!("{head}begin"));
    bench.wait_until("the handler reads", || shared.consumed.get() == 10).await;
    peer.half_close();
    bench.wait_until("the handler has completed", || shared.finished.get() == 2).await;
    drop(peer);
    assert_eq!(shared.dropped.get(), 0);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.connections, outcome.cut.len()), (0, 0), "{outcome:?}");
}

/// A TLS error ends the connection, but not a handler marked to run to completion.
pub async fn a_tls_error_does_not_cancel_a_run_to_completion_handler<B: Bench>(bench: &B) {
    let shared = Shared::default();
    let server = bench.start(limits(), Some(server_tls()), shared.app());
    let mut wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    wire.shake_hands(PATIENCE).await;
    let mut peer = Peer::new(wire);
    peer.get("/wait-to-end");
    // Session tickets come first: a client that does not read them gets no response.
    peer.swallow(Duration::from_millis(500)).await;
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    peer.wire().send_raw(b"\x17\x03\x03\x00\x20not a record that any peer sealed");
    peer.rest().await;
    drop(peer);
    bench.sleep(Duration::from_millis(500)).await;
    assert_eq!(shared.dropped.get(), 0, "the handler was dropped");
    shared.open(1);
    bench.wait_until("the handler has completed", || shared.finished.get() == 1).await;
    server.shut_down();
    server.ended().await;
}

/// A peer that does not read earlier output loses its connection, and the handler behind it
/// continues.
pub async fn a_stalled_write_does_not_cancel_a_run_to_completion_handler(bench: &SimulatedBench) {
    bench.calm_with(SocketBuffers::with_size(5_000));
    let window = Duration::from_secs(5);
    let timeouts = ServerTimeouts { rate_window: window, ..server_timeouts() };
    let (server, shared) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.get("/large/30000");
    peer.get("/wait-to-end");
    bench.sleep(3 * window).await;
    assert_eq!((shared.started.get(), shared.dropped.get()), (1, 0), "the handler was dropped");
    shared.open(1);
    bench.wait_until("the handler has completed", || shared.finished.get() == 1).await;
    peer.rest().await;
    server.shut_down();
    server.ended().await;
}

fn upgrade_to(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: any\r\n\r\n")
}

/// An upgraded connection without traffic ends after its idle timeout.
pub async fn a_silent_upgraded_connection_is_closed<B: Bench>(bench: &B) {
    bench.calm();
    let idle = Duration::from_secs(1);
    let timeouts = ServerTimeouts { upgrade_idle: Some(idle), ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.send(upgrade_to("/upgrade"));
    assert_eq!(peer.reply().await.status, 101);
    for _ in 0..4 {
        bench.sleep(idle / 2).await;
        peer.send("hello");
        peer.expect("hello").await;
    }
    let start = bench.now();
    peer.rest().await;
    let elapsed = bench.now() - start;
    let elapsed_max = idle + Duration::from_millis(150);
    assert!(!bench.is_virtual() || (elapsed >= idle && elapsed <= elapsed_max), "{elapsed:?}");
    server.shut_down();
    server.ended().await;
}

/// An upgraded protocol may wait for the shutdown request, and data it sends afterwards arrives.
pub async fn an_upgraded_protocol_may_await_the_shutdown_request<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(upgrade_to("/upgrade-obedient"));
    assert_eq!(peer.reply().await.status, 101);
    bench.wait_until("the handler has started", || shared.started.get() == 1).await;
    server.shut_down();
    assert_eq!(peer.rest().await, b"goodbye");
    let outcome = server.ended().await;
    assert_eq!((shared.finished.get(), outcome.cut.len()), (1, 0));
}

/// An upgraded protocol and a stream that ignore the shutdown request are aborted at the deadline,
/// not before.
pub async fn a_handler_that_ignores_the_shutdown_request_is_aborted_in_time<B: Bench>(bench: &B) {
    bench.calm();
    let time = Duration::from_secs(2);
    for path in ["/upgrade", "/stream-silent"] {
        let (server, _) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
        let mut peer = Peer::new(server.connect());
        peer.send(upgrade_to(path));
        peer.expect("\r\n\r\n").await;
        let start = bench.now();
        server.shut_down();
        peer.rest().await;
        let elapsed = bench.now() - start;
        let elapsed_max = time + Duration::from_millis(150);
        assert!(
            !bench.is_virtual() || (elapsed >= time && elapsed <= elapsed_max),
            "{path} {elapsed:?}"
        );
        let outcome = server.ended().await;
        assert_eq!(
            (outcome.cut.len(), outcome.ended("force-closed")),
            (1, 1),
            "{path} {outcome:?}"
        );
    }
}

/// With TLS, the last bytes and `close_notify` may arrive together.
pub async fn an_upgrade_inside_tls_ends_with_its_peer<B: Bench>(bench: &B) {
    let shared = Shared::default();
    let server = bench.start(limits(), Some(server_tls()), shared.app());
    let mut wire = Secure::new(server.connect_secure(), &client_config(VERSIONS[0]));
    wire.shake_hands(PATIENCE).await;
    let request = wire.seal(upgrade_to("/upgrade").as_bytes());
    wire.send_raw(&request);
    let mut peer = Peer::new(wire);
    assert_eq!(peer.reply().await.status, 101);
    peer.send("hello");
    peer.expect("hello").await;
    let mut last = peer.wire().seal(&pattern(500));
    last.extend(peer.wire().seal_end());
    peer.wire().send_raw(&last);
    assert_eq!(peer.expect(pattern(500)).await, pattern(500));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("upgraded", 1)]);
}
