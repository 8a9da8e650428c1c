//! Accepting connections.

use peregrine_driver::{Address, Driver, Listener, Stream};

use super::{A_WHILE, echo, pause, send};
use crate::harness::{Harness, Peer, accept};
use crate::poll::{both, first_of, polled_once};

/// Dropping an `accept` future loses no connection: the next call returns it.
pub fn a_dropped_accept_loses_no_connection(harness: &impl Harness) {
    const CONNECTIONS: usize = 10;
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        let mut peers = Vec::new();
        let mut streams = Vec::new();
        for number in 0..CONNECTIONS {
            // The future is dropped before the connection arrives, after it, and at an unknown
            // moment.
            streams.extend(polled_once(listener.accept()).await.and_then(Result::ok));
            drop(listener.accept());
            peers.push(harness.connect(&driver, &server_address));
            if number % 2 == 0 {
                pause(&driver, A_WHILE / 20).await;
            }
            let timer = pause(&driver, A_WHILE / 20);
            streams.extend(first_of(listener.accept(), timer).await.and_then(Result::ok));
        }
        while streams.len() < CONNECTIONS {
            streams.push(accept(&listener).await);
        }
        for stream in streams {
            driver.spawn(echo(stream));
        }
        for peer in &peers {
            let (sent, back) = both(peer.send(b"here".to_vec()), peer.recv_exact(4)).await;
            sent.expect("the connection is open");
            assert_eq!(back.expect("the connection is open"), b"here");
        }
        for peer in &peers {
            peer.half_close().await.expect("the connection is open");
            assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
        }
    });
}

/// When a listener is dropped, the connections in its backlog are closed.
pub fn a_dropped_listener_closes_queued_connections(harness: &impl Harness) {
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        let before = harness.connect(&driver, &server_address);
        // The driver may already have accepted this connection for the dropped future.
        drop(polled_once(listener.accept()).await);
        let peers: Vec<_> = (0..5).map(|_| harness.connect(&driver, &server_address)).collect();
        pause(&driver, A_WHILE).await;
        drop(listener);
        for peer in peers.into_iter().chain([before]) {
            // A clean end or a reset: systems differ.
            if let Ok(all) = peer.recv_all().await {
                assert!(all.is_empty());
            }
        }
    });
}

/// Peers that disconnect before they are accepted do not affect those that stay.
pub fn accepting_continues_after_a_peer_disconnected(harness: &impl Harness) {
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        for _ in 0..3 {
            drop(harness.connect(&driver, &server_address));
            harness.connect(&driver, &server_address).reset().await;
        }
        let server = driver.clone();
        driver.spawn(async move {
            loop {
                let stream = accept(&listener).await;
                server.spawn(async move {
                    // The peers that left produce an end or an error; only one peer sends data.
                    while let Ok(chunk) = stream.recv().await {
                        if chunk.is_empty() || send(&stream, chunk.to_vec()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let peer = harness.connect(&driver, &server_address);
        let (sent, back) = both(peer.send(b"hello".to_vec()), peer.recv_exact(5)).await;
        sent.expect("the connection is open");
        assert_eq!(back.expect("the connection is open"), b"hello");
    });
}

/// An accepted connection does not depend on its listener.
pub fn a_stream_outlives_its_listener(harness: &impl Harness) {
    harness.check(async |driver| {
        let (listener, server_address) = harness.listen(&driver);
        let peer = harness.connect(&driver, &server_address);
        let stream = accept(&listener).await;
        assert!(polled_once(listener.accept()).await.is_none(), "no other peer connected");
        drop(listener);
        pause(&driver, A_WHILE).await;
        driver.spawn(echo(stream));
        let (sent, back) = both(peer.send(b"still".to_vec()), peer.recv_exact(5)).await;
        sent.expect("the connection is open");
        assert_eq!(back.expect("the connection is open"), b"still");
        peer.half_close().await.expect("the connection is open");
        assert!(peer.recv_all().await.expect("the stream ends cleanly").is_empty());
    });
}

/// Both addresses of an accepted connection are known, and remain known after the peer is gone.
pub fn both_ends_have_an_address(harness: &impl Harness) {
    harness.check(async |driver| {
        let (stream, peer) = harness.pair(&driver).await;
        let (there, here) = (stream.peer_addr(), stream.local_addr());
        assert_ne!(there, Address::Unknown);
        assert_ne!(here, Address::Unknown);
        assert_ne!(there.to_string(), here.to_string());
        drop(peer);
        pause(&driver, A_WHILE).await;
        assert_eq!(stream.peer_addr(), there);
    });
}
