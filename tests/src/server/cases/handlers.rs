//! How handlers end: panics, timeouts, peers that disconnect; and handlers that use tokio.

use super::{begin, begin_with, half_close};
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use std::time::Duration;

/// With `half_close`, a peer that ended its sending side has not disconnected: its handlers run,
/// and it gets their responses.
pub async fn a_half_closed_peer_has_not_disconnected<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, half_close());
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    peer.half_close();
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
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

/// With `half_close`, an HTTP/1.0 peer, which does not understand interim responses, gets its
/// response too.
pub async fn a_half_closed_http_1_0_peer_gets_its_response<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, half_close());
    let mut peer = Peer::new(server.connect());
    peer.send("GET /wait HTTP/1.0\r\n\r\n");
    peer.half_close();
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_millis(500)).await;
    shared.open(1);
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len()), ("waited", 0));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 1)]);
}

/// A waiting handler is cancelled when its client ends its side. The server sends nothing to find
/// out whether the client is still there.
pub async fn a_pending_handler_is_cancelled_when_its_client_closes<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut count = 0;
    for request in [
        "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /wait HTTP/1.0\r\n\r\n",
        "POST /read-after-wait HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        for is_half_close in [true, false] {
            count += 1;
            let mut peer = Peer::new(server.connect());
            peer.send(request);
            bench.wait_until("the handler waits", || shared.started.get() == count).await;
            if is_half_close {
                peer.half_close();
                bench.wait_until("the handler is dropped", || shared.dropped.get() == count).await;
                peer.expect_end().await;
            } else {
                drop(peer);
                bench.wait_until("the handler is dropped", || shared.dropped.get() == count).await;
            }
        }
    }
    assert_eq!(shared.finished.get(), 0);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 6)]);
}

/// A handler marked to run to completion does so although its client has ended its side.
pub async fn a_run_to_completion_handler_is_not_cancelled<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait-to-end");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    peer.half_close();
    peer.expect_end().await;
    bench.sleep(Duration::from_millis(300)).await;
    assert_eq!(shared.dropped.get(), 0);
    shared.open(1);
    bench.wait_until("the handler has finished", || shared.finished.get() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 1)]);
}

/// Many handlers wait at the same time, each for its own event.
pub async fn many_handlers_wait_concurrently<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peers: Vec<_> = (0..30).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.get("/wait");
    }
    bench.wait_until("all wait", || shared.started.get() == 30).await;
    shared.open(30);
    for peer in &mut peers {
        assert_eq!(peer.reply().await.text(), "waited");
    }
    drop(peers);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// Handlers run in a tokio runtime: tasks and timers work.
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
