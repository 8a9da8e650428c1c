//! What becomes of handlers: panics, timeouts, peers that leave, and tokio.

use super::begin;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use std::time::Duration;

/// A panic is a 500 and ends its connection, not the worker, nor any other connection.
pub async fn a_panic_is_a_500_and_harms_nobody_else<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut bystander = Peer::new(server.connect());
    bystander.get("/wait");
    bench.until("the bystander waits", || shared.started.get() == 1).await;
    for path in ["/panic", "/panic-late"] {
        let mut peer = Peer::new(server.connect());
        peer.get("/hello");
        peer.get(path);
        peer.get("/hello");
        assert_eq!(peer.reply().await.text(), "hello");
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.closes()), (500, true));
        assert!(!reply.text().contains("purpose"), "the inside is nobody's business: {reply:?}");
        peer.expect_end().await;
    }
    shared.open(1);
    assert_eq!(bystander.reply().await.text(), "waited");
    bystander.expect_alive().await;
    drop(bystander);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("handler-panicked", 2)]);
}

/// A handler that takes longer than its route allows is dropped and answered for.
pub async fn a_late_handler_is_a_503<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait-a-moment");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (503, false));
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    bench.until("the handler is gone", || shared.dropped.get() == 1).await;
    shared.open(1);
    peer.get("/wait-a-moment");
    assert_eq!(peer.reply().await.text(), "waited");
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// When a peer breaks off, its handler is dropped.
pub async fn a_handler_ends_when_its_peer_breaks_off<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    bench.until("the handler waits", || shared.started.get() == 1).await;
    assert_eq!(shared.dropped.get(), 0);
    peer.reset();
    bench.until("the handler is gone", || shared.dropped.get() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-left", 1)]);
}

/// When a peer just closes, its handler is dropped too, though TCP does not tell at once.
pub async fn a_handler_ends_when_its_peer_closes<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    bench.until("the handler waits", || shared.started.get() == 1).await;
    drop(peer);
    bench.until("the handler is gone", || shared.dropped.get() == 1).await;
    assert_eq!(shared.finished.get(), 0);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-left", 1)]);
}

/// A handler that is to run to its end does, though nobody waits for it any more.
pub async fn a_handler_may_outlast_its_peer<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait-to-end");
    bench.until("the handler waits", || shared.started.get() == 1).await;
    peer.reset();
    bench.sleep(Duration::from_millis(100)).await;
    assert_eq!(shared.dropped.get() + shared.finished.get(), 0);
    shared.open(1);
    bench.until("the handler has finished", || shared.finished.get() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-left", 1)]);
}

/// A peer that ended its sending side has not left: its handlers run, and it gets their answers.
pub async fn a_half_closed_peer_has_not_left<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    peer.half_close();
    bench.until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_millis(1_500)).await;
    assert_eq!(shared.dropped.get(), 0);
    shared.open(1);
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.text()), (200, "waited"));
    assert!(reply.interim.iter().all(|status| *status == 102), "{reply:?}");
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A half-closed peer of HTTP/1.0, which knows no interim responses, gets its answer as well.
pub async fn a_half_closed_http_1_0_peer_gets_its_answer<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /wait HTTP/1.0\r\n\r\n");
    peer.half_close();
    bench.until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_millis(500)).await;
    shared.open(1);
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len()), ("waited", 0));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("agreed", 1)]);
}

/// Many handlers wait at the same time, each for its own.
pub async fn many_handlers_wait_at_a_time<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peers: Vec<_> = (0..30).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.get("/wait");
    }
    bench.until("all wait", || shared.started.get() == 30).await;
    shared.open(30);
    for peer in &mut peers {
        assert_eq!(peer.reply().await.text(), "waited");
    }
    drop(peers);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// Handlers find a tokio runtime: tasks and timers work.
pub async fn handlers_may_use_tokio<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for _ in 0..3 {
        peer.get("/spawn");
        peer.get("/sleep/20");
        peer.get("/spawn-many");
        assert_eq!(peer.reply().await.text(), "spawned");
        assert_eq!(peer.reply().await.text(), "slept 20");
        assert_eq!(peer.reply().await.text(), "4950");
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}
