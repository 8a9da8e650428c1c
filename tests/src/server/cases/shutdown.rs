//! How a server shuts down.

use super::{begin, begin_with, limits};
use crate::server::app::Shared;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::server_timeouts::ServerTimeouts;
use peregrine::Limits;
use std::time::Duration;

/// Idle connections are closed, whether or not they were used.
pub async fn idle_connections_are_closed<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut used = Peer::new(server.connect());
    used.expect_alive().await;
    let mut unused = Peer::new(server.connect());
    bench.sleep(Duration::from_millis(50)).await;
    server.shut_down();
    used.expect_end().await;
    // It may not even have been accepted.
    unused.rest().await;
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("drained"), outcome.snapshot.accepted);
    assert_eq!(outcome.cut, []);
}

/// A request in progress is finished, and its response announces the close.
pub async fn requests_in_progress_are_finished<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    peer.get("/hello");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    server.shut_down();
    peer.expect_nothing(Duration::from_millis(50)).await;
    shared.open(1);
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.closes()), ("waited", true));
    peer.expect_end().await;
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("drained"), 1, "{outcome:?}");
    assert_eq!((outcome.snapshot.requests, outcome.cut.len()), (1, 0));
}

/// No connection is accepted after the shutdown request.
pub async fn no_connection_is_accepted_after_the_shutdown_request<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut busy = Peer::new(server.connect());
    busy.get("/wait");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    server.shut_down();
    bench.sleep(Duration::from_millis(200)).await;
    shared.open(1);
    assert_eq!(busy.reply().await.text(), "waited");
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.accepted, 1);
}

/// Connections that are busy at the deadline are aborted and reported.
pub async fn requests_in_progress_at_the_deadline_are_aborted_and_reported<B: Bench>(bench: &B) {
    let time = Duration::from_millis(700);
    let (server, shared) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    let mut waiting = Peer::new(server.connect());
    waiting.get("/sleep/3600000");
    let mut streaming = Peer::new(server.connect());
    streaming.get("/gated/5");
    streaming.expect("HTTP/1.1 200 OK\r\n").await;
    let mut partial = Peer::new(server.connect());
    partial.send("GET /hel");
    bench.wait_until("the stream started", || shared.started.get() == 1).await;
    // The other two cannot report that they have started.
    bench.sleep(Duration::from_millis(1500)).await;
    let start = bench.now();
    server.shut_down();
    for mut peer in [waiting, partial] {
        let received = peer.rest().await;
        assert!(received.is_empty(), "{}", received.escape_ascii());
    }
    streaming.rest().await;
    let outcome = server.ended().await;
    let elapsed = bench.now() - start;
    assert!(elapsed >= time, "{elapsed:?}");
    if bench.is_virtual() {
        assert!(elapsed <= time + Duration::from_millis(500), "{elapsed:?}");
    }
    assert_eq!(outcome.ended("force-closed"), 3, "{outcome:?}");
    let mut aborted: Vec<_> =
        outcome.cut.iter().map(|aborted| aborted.request.as_deref()).collect();
    aborted.sort_unstable();
    // The incomplete head is not a request yet.
    assert_eq!(aborted, [None, Some("GET /gated/{pieces}"), Some("GET /sleep/{milliseconds}")]);
    assert!(outcome.cut.iter().all(|aborted| !aborted.peer.is_empty()), "{:?}", outcome.cut);
    assert_eq!(shared.dropped.get(), 1, "the stream was dropped");
}

/// An abort needs no preceding shutdown request.
pub async fn an_abort_ends_everything<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peers: Vec<_> = (0..5).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.get("/wait");
    }
    bench.wait_until("all wait", || shared.started.get() == 5).await;
    let mut idle = Peer::new(server.connect());
    idle.expect_alive().await;
    server.cut();
    for peer in &mut peers {
        assert_eq!(peer.rest().await, b"");
    }
    idle.rest().await;
    let outcome = server.ended().await;
    assert_eq!((outcome.ended("force-closed"), shared.dropped.get()), (5, 5));
}

/// Endless tasks are dropped at the deadline, and counted.
pub async fn endless_tasks_are_aborted_at_the_deadline_and_counted<B: Bench>(bench: &B) {
    let time = Duration::from_millis(700);
    let (server, shared) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    leave_work(bench, &server, &shared, &["/leave-task", "/leave-local-task", "/leave-task"]).await;
    let start = bench.now();
    server.shut_down();
    let outcome = server.ended().await;
    let elapsed = bench.now() - start;
    assert!(elapsed >= time, "{elapsed:?}");
    if bench.is_virtual() {
        assert!(elapsed <= time + Duration::from_millis(500), "{elapsed:?}");
    }
    assert_eq!(outcome.snapshot.aborted_tasks, 3);
    assert_eq!((shared.finished.get(), outcome.cut.len()), (0, 0));
    if !bench.is_virtual() {
        // The simulated network's runtime lives as long as the case.
        assert_eq!(shared.dropped.get(), 3);
    }
    shared.open(3);
}

/// Tasks can have their own shutdown timeout.
pub async fn tasks_may_get_less_time_than_connections<B: Bench>(bench: &B) {
    let (shutdown_timeout, background_task_timeout) =
        (Duration::from_secs(3600), Duration::from_millis(100));
    let limits = Limits { shutdown_timeout, background_task_timeout, ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-task"]).await;
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.aborted_tasks, 1);
    shared.open(1);
}

/// A second shutdown request does not wait for tasks.
pub async fn a_second_shutdown_request_aborts_tasks_at_once<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-task"]).await;
    server.shut_down();
    bench.sleep(Duration::from_millis(100)).await;
    assert_eq!((shared.finished.get(), shared.dropped.get()), (0, 0));
    server.cut();
    assert_eq!(server.ended().await.snapshot.aborted_tasks, 1);
    shared.open(1);
}

/// Tasks that run only while the application holds the other end of a channel, such as those of a
/// pool, do not delay the shutdown until its deadline.
pub async fn tasks_owned_by_the_application_end_with_it<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-pool", "/leave-pool"]).await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!((shared.finished.get(), outcome.snapshot.aborted_tasks), (2, 0));
}

/// Endless tasks and streams may wait for the shutdown request.
pub async fn tasks_and_streams_may_await_the_shutdown_request<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let (server, shared) = begin_with(bench, limits);
    leave_work(bench, &server, &shared, &["/leave-obedient"]).await;
    let mut peer = Peer::new(server.connect());
    peer.get("/stream-to-the-end");
    bench.wait_until("the stream started", || shared.started.get() == 2).await;
    assert_eq!(shared.finished.get(), 0);
    server.shut_down();
    assert_eq!(peer.reply().await.text(), "goodbye");
    let outcome = server.ended().await;
    assert_eq!((shared.finished.get(), outcome.snapshot.aborted_tasks), (2, 0));
    assert_eq!(outcome.cut, []);
}

/// The longest duration disables a timeout.
pub async fn a_shutdown_phase_may_be_unlimited<B: Bench>(bench: &B) {
    let unlimited = Duration::MAX;
    let limits = Limits {
        first_byte_timeout: unlimited,
        head_timeout: unlimited,
        idle_timeout: unlimited,
        connection_age_max: Some(unlimited),
        shutdown_timeout: unlimited,
        background_task_timeout: unlimited,
        ..Limits::default()
    };
    let timeouts = ServerTimeouts {
        limits,
        rate_window: unlimited,
        linger: unlimited,
        linger_time_max: unlimited,
        upgrade_idle: Some(unlimited),
        exchange: Some(unlimited),
        ..ServerTimeouts::default()
    };
    let (server, shared) = begin_with(bench, timeouts.limits());
    leave_work(bench, &server, &shared, &["/leave-task"]).await;
    let mut uploader = Peer::new(server.connect());
    uploader.send("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    bench.wait_until("the handler reads", || shared.consumed.get() == 5).await;
    let mut partial = Peer::new(server.connect());
    partial.send("GET /hel");
    server.shut_down();
    uploader.send("world");
    assert_eq!(uploader.reply().await.text(), "10");
    uploader.expect_end().await;
    partial.send("lo HTTP/1.1\r\nHost: a\r\n\r\n");
    partial.rest().await;
    // Nor does the unlimited linger timeout expire.
    drop((uploader, partial));
    shared.open(1);
    let outcome = server.ended().await;
    // The upload and the task.
    assert_eq!((shared.finished.get(), outcome.snapshot.aborted_tasks), (2, 0));
    assert_eq!(outcome.cut, []);
}

/// Requests each path, whose handler leaves work behind, and waits until all of that work has
/// started.
pub(super) async fn leave_work<B: Bench>(
    bench: &B,
    server: &B::Server,
    shared: &Shared,
    paths: &[&str],
) {
    let mut peer = Peer::new(server.connect());
    for path in paths {
        peer.get(path);
        assert_eq!(peer.reply().await.text(), "left", "{path}");
    }
    bench.wait_until("all work has started", || shared.started.get() == paths.len()).await;
}
