//! Connections that end after a response: the response announces it, and arrives.

use super::{begin, begin_with, limits, server_timeouts};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::server_timeouts::ServerTimeouts;
use peregrine::Limits;
use std::time::Duration;

/// When the rest of a body is too large to discard, the response says `Connection: close`.
pub async fn a_response_to_an_unread_body_announces_the_close<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let length = 2 * usize::try_from(limits().drain_bytes_max).expect("the value is small");
    for (path, status) in [("/ignore", 200), ("/nowhere", 404), ("/echo-limited", 413)] {
        for part in [0, 1_000, length] {
            let mut peer = Peer::new(server.connect());
            let head =
                format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
            peer.send(head);
            peer.send(pattern(part));
            let reply = peer.reply().await;
            assert_eq!((reply.status, reply.closes()), (status, true), "{path}, {part} sent");
        }
    }
    server.shut_down();
    server.ended().await;
}

/// No connection ends between two requests unless the first response announced it (RFC 9112,
/// section 9.6), even if only the arriving data shows that a body is too large.
pub async fn no_connection_closes_unannounced<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let length = 2 * usize::try_from(limits().drain_bytes_max).expect("the value is small");
    for path in ["/ignore", "/nowhere", "/echo-limited"] {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"));
        let reply = async {
            if path == "/echo-limited" {
                peer.send(chunk(length));
                peer.send("0\r\n\r\n");
                return peer.reply().await;
            }
            let reply = peer.reply().await;
            peer.send(chunk(length));
            peer.send("0\r\n\r\n");
            reply
        };
        if reply.await.closes() {
            peer.expect_end().await;
        } else {
            peer.expect_alive().await;
        }
    }
    server.shut_down();
    server.ended().await;
}

fn chunk(length: usize) -> Vec<u8> {
    let mut chunk = format!("{length:x}\r\n").into_bytes();
    chunk.extend(pattern(length));
    chunk.extend_from_slice(b"\r\n");
    chunk
}

/// Clients that ask for the connection to close, or use HTTP/1.0, get their response while their
/// body is still arriving: the connection is not reset before they have read it.
pub async fn the_last_response_arrives_while_the_request_body_is_still_arriving<B: Bench>(
    bench: &B,
) {
    bench.calm();
    let (server, _) = begin(bench);
    for request in [
        "POST /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n",
        "POST /ignore HTTP/1.1\r\nHost: a\r\nConnection: close\r\n",
        "POST /ignore HTTP/1.0\r\n",
        "POST /echo-limited HTTP/1.0\r\n",
        "POST /nowhere HTTP/1.1\r\nHost: a\r\n",
    ] {
        let (parts, part) = (20, 50_000);
        let mut peer = Peer::new(server.connect());
        peer.send(format!("{request}Content-Length: {}\r\n\r\n", parts * part));
        for _ in 0..parts {
            peer.send(pattern(part));
            bench.sleep(Duration::from_millis(10)).await;
        }
        let reply = peer.reply().await;
        assert!(reply.closes(), "{request}: {reply:?}");
        peer.expect_end().await;
    }
    server.shut_down();
    server.ended().await;
}

/// Data behind the last request does not cost the client its response.
pub async fn the_last_response_arrives_although_more_requests_follow<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    for request in [
        "GET /close HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET /hello HTTP/1.0\r\n\r\n",
        "GET /panic HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\r\n\r\n",
    ] {
        let mut peer = Peer::new(server.connect());
        peer.send(request);
        for _ in 0..5 {
            bench.sleep(Duration::from_millis(20)).await;
            peer.get("/numbers/7");
        }
        let reply = peer.reply().await;
        assert!(reply.closes(), "{request}: {reply:?}");
        peer.expect_end().await;
    }
    server.shut_down();
    server.ended().await;
}

/// A 413 arrives however much the body exceeds its limit: 6 MB are discarded, then the connection
/// ends.
pub async fn a_413_arrives_after_megabytes<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let body = pattern(6_000_000);
    for version in ["1.1", "1.0"] {
        let mut peer = Peer::new(server.connect());
        let length = body.len();
        peer.send(format!(
            "POST /echo-limited HTTP/{version}\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ));
        peer.send(&body);
        bench.sleep(Duration::from_millis(300)).await;
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.closes()), (413, true));
        peer.expect_end().await;
        assert_eq!(peer.last(), Some(&Got::End));
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 2)]);
}

/// A peer that sends the rest of its body slowly gets the response once it has sent it.
pub async fn a_response_waits_for_a_peer_that_sends_slowly<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { linger: Duration::from_secs(1), ..server_timeouts() };
    let (server, _) = begin_with(bench, timeouts.limits());
    let mut peer = Peer::new(server.connect());
    peer.send("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    for _ in 0..15 {
        peer.send(vec![7; 10_000]);
        bench.sleep(Duration::from_millis(200)).await;
    }
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (404, true));
    peer.expect_end().await;
    server.shut_down();
    server.ended().await;
}

/// The server waits no longer than the linger timeout for a peer that stops sending, however much
/// it had sent.
pub async fn a_peer_that_stops_sending_is_disconnected<B: Bench>(bench: &B) {
    bench.calm();
    let timeouts = ServerTimeouts { linger: Duration::from_secs(1), ..server_timeouts() };
    let limits = Limits { head_timeout: Duration::from_secs(1), ..timeouts.limits() };
    for (request, status) in [
        ("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nbegin", 404),
        ("GET /hello HTTP/1.1\r\nHost: a\r\n", 408),
        ("GET /hello HTTP/1.1\r\nHost: a\r\nX", 408),
    ] {
        let (server, _) = begin_with(bench, limits.clone());
        let mut peer = Peer::new(server.connect());
        peer.send(request);
        assert_eq!(peer.reply().await.status, status);
        peer.expect_end().await;
        let start = bench.now();
        server.shut_down();
        server.ended().await;
        let elapsed = bench.now() - start;
        let elapsed_max = timeouts.linger + Duration::from_millis(200);
        assert!(!bench.is_virtual() || elapsed <= elapsed_max, "{request:?}: {elapsed:?}");
        drop(peer);
    }
}
