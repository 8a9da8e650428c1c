//! What only a real kernel has: tokio's own sockets and threads.

use super::begin;
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;

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
