//! How a server shuts down.

use super::{SHORT, begin, begin_with};
use crate::server::bench::{Bench, Got, Served};
use crate::server::cases::limits;
use crate::server::client::{Length, Way};
use peregrine::Limits;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

/// Idle connections are closed cleanly. HTTP/2 sends GOAWAY.
pub async fn idle_connections_are_closed<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    client.expect_alive().await;
    bench.sleep(SHORT / 14).await;
    site.server.shut_down();
    assert_eq!(client.ended().await, Got::End);
    assert_eq!(client.is_told_to_go(), way.differs(false, true));
    assert_eq!(site.end().await.ended("drained"), 1);
}

/// Work in progress is finished: handlers, responses being sent, and uploads. The server announces
/// to the client that it accepts no further requests.
pub async fn requests_in_progress_complete<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let shared = &site.shared;
    let mut clients = Vec::new();
    for path in ["/wait", "/gated/2", "/count"] {
        let mut client = site.client().await;
        let length = if path == "/count" { Length::Declared(10) } else { Length::None };
        let method = if path == "/count" { "POST" } else { "GET" };
        let id = client.begin(method, path, &[], length);
        if path == "/count" {
            client.part(id, b"hello").await;
        }
        client
            .wait_until(bench, "the handler has started", || {
                shared.started.get() == clients.len() + 1
            })
            .await;
        clients.push((client, id));
    }
    clients[2].0.wait_until(bench, "the handler reads", || shared.consumed.get() == 5).await;
    site.server.shut_down();
    for (client, id) in &mut clients {
        client.fill(SHORT / 10).await;
        assert!(!client.so_far(*id).is_complete);
    }
    shared.open(3);
    let (client, id) = &mut clients[2];
    client.upload(*id, b"world").await;
    for ((client, id), text) in clients.iter_mut().zip(["waited", "piece 0\npiece 1\n", "10"]) {
        let response = client.answer(*id).await;
        assert_eq!((response.text(), response.is_complete), (text, true));
        assert_eq!(client.ended().await, Got::End);
    }
    // An HTTP/1.1 head that was sent before the shutdown request cannot announce the close.
    let announced: Vec<_> = clients.iter().map(|(client, _)| client.is_told_to_go()).collect();
    assert_eq!(announced, [true, way.differs(false, true), true]);
    drop(clients);
    assert_eq!(site.end().await.ended("drained"), 3);
}

/// Requests that are in progress at the deadline are aborted and reported.
pub async fn requests_in_progress_at_the_deadline_are_aborted_and_reported<B: Bench>(
    bench: &B,
    way: Way,
) {
    bench.calm();
    let site = begin_with(bench, way, Limits { shutdown_timeout: SHORT, ..limits() });
    let shared = &site.shared;
    let mut clients = Vec::new();
    for path in ["/wait", "/gated/5"] {
        let mut client = site.client().await;
        let id = client.get(path);
        client
            .wait_until(bench, "the handler has started", || {
                shared.started.get() == clients.len() + 1
            })
            .await;
        clients.push((client, id));
    }
    let start = bench.now();
    site.server.shut_down();
    for (client, id) in &mut clients {
        assert!(!client.answer(*id).await.is_complete);
        client.ended().await;
    }
    let outcome = site.server.ended().await;
    assert!(bench.now() - start >= SHORT, "{:?}", bench.now() - start);
    let mut aborted: Vec<_> =
        outcome.cut.iter().map(|aborted| aborted.request.as_deref()).collect();
    aborted.sort_unstable();
    assert_eq!(aborted, [Some("GET /gated/{pieces}"), Some("GET /wait")]);
    assert_eq!((outcome.ended("force-closed"), shared.dropped.get()), (2, 2));
}

/// A second shutdown request does not wait for the deadline, nor for handlers marked to run to
/// completion.
pub async fn a_second_shutdown_request_aborts_at_once<B: Bench>(bench: &B, way: Way) {
    let site = begin_with(bench, way, Limits { shutdown_timeout: HOUR, ..limits() });
    let shared = &site.shared;
    let mut client = site.client().await;
    let id = client.get("/wait-to-end");
    client.wait_until(bench, "the handler waits", || shared.started.get() == 1).await;
    site.server.shut_down();
    client.expect_nothing(id, SHORT / 14).await;
    site.server.cut();
    assert_eq!(client.answer(id).await.status(), 0);
    let outcome = site.server.ended().await;
    assert_eq!((outcome.ended("force-closed"), outcome.cut.len()), (1, 1));
    assert_eq!(outcome.cut[0].request.as_deref(), Some("GET /wait-to-end"));
    assert_eq!(shared.dropped.get(), 1);
}

/// Endless streams may wait for the shutdown request, and data they send afterwards arrives.
pub async fn streams_are_notified_of_the_shutdown_request<B: Bench>(bench: &B, way: Way) {
    let site = begin_with(bench, way, Limits { shutdown_timeout: HOUR, ..limits() });
    let shared = &site.shared;
    let mut client = site.client().await;
    let id = client.get("/stream-to-the-end");
    client.wait_until(bench, "the handler has started", || shared.started.get() == 1).await;
    assert_eq!(shared.finished.get(), 0);
    site.server.shut_down();
    let response = client.answer(id).await;
    assert_eq!((response.text(), response.is_complete), ("goodbye", true));
    assert_eq!(client.ended().await, Got::End);
    assert_eq!(shared.finished.get(), 1);
    site.end().await;
}

/// The shutdown waits for tasks that outlive their request.
pub async fn the_server_waits_for_tasks_that_outlive_their_request<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for _ in 0..2 {
        let id = client.get("/leave-short-task");
        assert_eq!(client.answer(id).await.text(), "left");
    }
    client.close().await;
    let shared = site.shared.clone();
    let outcome = site.end().await;
    assert_eq!((shared.finished.get(), shared.dropped.get()), (2, 0));
    assert_eq!(outcome.snapshot.aborted_tasks, 0);
}

/// A server in its lame-duck period accepts and answers requests, and asks every client to
/// disconnect.
pub async fn the_server_accepts_and_answers_in_the_lame_duck_phase<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let lame_duck_period = Duration::from_secs(2);
    let site = begin_with(bench, way, Limits { lame_duck_period, ..limits() });
    site.server.shut_down();
    for _ in 0..2 {
        let mut client = site.client().await;
        let id = client.get("/hello");
        assert_eq!(client.answer(id).await.text(), "hello");
        client.expect_goodbye().await;
        assert_eq!(client.go_away_code(), 0);
    }
    site.end().await;
}
