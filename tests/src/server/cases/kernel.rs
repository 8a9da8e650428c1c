//! What only a real kernel has: tokio's own sockets and threads.

use super::{begin, begin_with, limits};
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
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

/// Handlers may hand work to other threads.
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

/// A handler that keeps its thread for longer than it may is counted; one that waits is not.
pub async fn a_handler_that_blocks_its_thread_is_noticed<B: Bench>(bench: &B) {
    let budget = Some(Duration::from_millis(200));
    let (server, _) = begin_with(bench, Limits { poll_budget: budget, ..limits() });
    let mut peer = Peer::new(server.connect());
    for path in ["/sleep/300", "/block/300", "/hello"] {
        peer.get(path);
        assert_eq!(peer.reply().await.status, 200, "{path}");
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.blocked, 1);
}
