//! Cases that need a real kernel: tokio's own sockets and threads.

use super::shutdown::leave_work;
use super::{begin, begin_with, limits};
use crate::server::app::Shared;
use crate::server::bench::{Bench, PATIENCE, Served};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, VERSIONS, client_config, server_tls};
use peregrine::Limits;
use std::time::Duration;

/// Handlers may use tokio's sockets.
pub async fn handlers_may_use_tokio_sockets<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peers: Vec<_> = (0..5).map(|_| Peer::new(server.connect())).collect();
    for _ in 0..5 {
        for peer in &mut peers {
            peer.get("/tcp");
        }
        for peer in &mut peers {
            assert_eq!(peer.reply().await.text(), "round");
        }
    }
    drop(peers);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// Handlers may run work on other threads.
pub async fn handlers_may_use_blocking_threads<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for _ in 0..20 {
        peer.get("/spawn-blocking");
        assert_eq!(peer.reply().await.text(), "worked");
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A handler that blocks its thread for too long is counted; one that waits is not.
pub async fn a_handler_that_blocks_its_thread_is_noticed<B: Bench>(bench: &B) {
    let threshold = Some(Duration::from_millis(200));
    let (server, _) = begin_with(bench, Limits { blocking_poll_threshold: threshold, ..limits() });
    let mut peer = Peer::new(server.connect());
    for path in ["/sleep/600", "/block/600", "/hello"] {
        peer.get(path);
        assert_eq!(peer.reply().await.status, 200, "{path}");
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.blocking_polls, 1);
}

/// A blocked worker does not make its peers late: data that arrived meanwhile is processed before
/// timeouts are checked.
pub async fn no_peer_times_out_because_its_worker_was_blocked<B: Bench>(bench: &B) {
    let time = Duration::from_secs(2);
    let limits = Limits { first_byte_timeout: time, handshake_timeout: time, ..limits() };
    let server = bench.start(limits, Some(server_tls()), Shared::default().app());
    let mut plain: Vec<_> = (0..10).map(|_| Peer::new(server.connect())).collect();
    let secure: Vec<_> = (0..10).map(|_| server.connect_secure()).collect();
    let mut blocker = Peer::new(server.connect());
    blocker.expect_alive().await;
    blocker.get("/block/4000");
    bench.sleep(Duration::from_millis(200)).await;
    // All of them were accepted, and the worker is blocked.
    plain.iter_mut().for_each(|peer| peer.get("/hello"));
    let config = client_config(VERSIONS[0]);
    let secure: Vec<_> = secure.into_iter().map(|wire| Secure::new(wire, &config)).collect();
    assert_eq!(blocker.reply().await.text(), "blocked");
    for peer in &mut plain {
        assert_eq!(peer.reply().await.text(), "hello");
    }
    for mut wire in secure {
        wire.shake_hands(PATIENCE).await;
        Peer::new(wire).expect_alive().await;
    }
    server.shut_down();
    server.ended().await;
}

/// Silent connections are closed in time, even where handlers block their worker in every
/// iteration.
pub async fn silent_connections_are_closed_while_handlers_block<B: Bench>(bench: &B) {
    let time = Duration::from_millis(700);
    let limits = Limits { first_byte_timeout: time, idle_timeout: time, ..limits() };
    let server = bench.start(limits, None, Shared::default().app());
    let (unused, mut idle) = (Peer::new(server.connect()), Peer::new(server.connect()));
    idle.expect_alive().await;
    let (mut silent, mut busy, mut responses) =
        (vec![unused, idle], Peer::new(server.connect()), 0);
    while !silent.is_empty() {
        busy.get("/block/120");
        assert_eq!(busy.reply().await.text(), "blocked");
        responses += 1;
        assert!(responses < 60, "{} are still connected", silent.len());
        let mut still_open = Vec::new();
        for mut peer in silent {
            match peer.more(Duration::ZERO).await {
                Ok(received) => {
                    assert_eq!(received, None);
                    still_open.push(peer);
                }
                Err(is_clean) => assert!(is_clean),
            }
        }
        silent = still_open;
    }
    drop(busy);
    server.shut_down();
    server.ended().await;
}

/// Blocking functions that outlive their request continue, and the shutdown waits for them.
pub async fn the_server_waits_for_blocking_functions_that_outlive_their_request<B: Bench>(
    bench: &B,
) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for _ in 0..3 {
        // The last ones may not even have started when the shutdown is requested.
        peer.get("/leave-function/400");
        assert_eq!(peer.reply().await.text(), "left");
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!((shared.started.get(), shared.finished.get()), (3, 3));
    assert_eq!((outcome.snapshot.abandoned_blocking_tasks, outcome.snapshot.aborted_tasks), (0, 0));
}

/// The shutdown does not wait for idle blocking threads, which exit later.
pub async fn idle_blocking_threads_do_not_delay_the_end<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-function/0", "/leave-function/0"]).await;
    bench.wait_until("both are done", || shared.finished.get() == 2).await;
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.abandoned_blocking_tasks, 0);
}

/// A blocking function that never returns is abandoned at the deadline, and counted.
pub async fn an_endless_blocking_function_does_not_delay_the_end<B: Bench>(bench: &B) {
    let time = Duration::from_millis(500);
    let (server, shared) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    leave_work(bench, &server, &shared, &["/leave-function/3600000", "/leave-function/1"]).await;
    let start = bench.now();
    server.shut_down();
    let outcome = server.ended().await;
    assert!(bench.now() >= start + time);
    assert_eq!((outcome.snapshot.abandoned_blocking_tasks, outcome.snapshot.aborted_tasks), (1, 0));
    assert_eq!(shared.finished.get(), 1, "one function is still running");
    shared.open(1);
    bench.wait_until("the function ends by itself", || shared.finished.get() == 2).await;
}

/// A second shutdown request does not wait for blocking functions.
pub async fn a_second_shutdown_request_abandons_blocking_functions<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-function/3600000"]).await;
    server.shut_down();
    bench.sleep(Duration::from_millis(200)).await;
    server.cut();
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.abandoned_blocking_tasks, shared.finished.get()), (1, 0));
    shared.open(1);
    bench.wait_until("the function ends by itself", || shared.finished.get() == 1).await;
}

/// While work is offloaded, the worker serves other requests before the work completes.
pub async fn offloaded_work_does_not_block_other_requests<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peers: Vec<_> = (0..3).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.get("/offload");
    }
    bench.wait_until("all functions run", || shared.started.get() == 3).await;
    let mut other = Peer::new(server.connect());
    for _ in 0..20 {
        other.expect_alive().await;
    }
    assert_eq!(shared.finished.get(), 0);
    shared.open(3);
    for peer in &mut peers {
        assert_eq!(peer.reply().await.text(), "offloaded");
    }
    drop((peers, other));
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A panic in offloaded work is treated as the handler's panic, and affects nothing else.
pub async fn a_panic_in_offloaded_work_is_a_500<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut other_peer = Peer::new(server.connect());
    other_peer.expect_alive().await;
    let mut peer = Peer::new(server.connect());
    peer.get("/offload-panic");
    assert_eq!(peer.reply().await.status, 500);
    peer.expect_end().await;
    other_peer.expect_alive().await;
    drop(other_peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("handler-panicked", 1)]);
}

/// Offloaded work continues to its end when its peer disconnects.
pub async fn offloaded_work_completes_after_its_peer_disconnects<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/offload");
    bench.wait_until("the function runs", || shared.started.get() == 1).await;
    peer.reset();
    let mut other = Peer::new(server.connect());
    other.expect_alive().await;
    shared.open(1);
    bench.wait_until("the function ends", || shared.finished.get() == 1).await;
    server.cut();
}
