//! Large shared in-memory responses: HTTP/1 only.

use super::{begin, begin_with, limits};
use crate::server::bench::{Bench, Served};
use crate::server::peer::Peer;
use crate::server::reply::Framing;
use crate::server::shared::content;
use peregrine::Limits;
use std::time::Duration;

/// A stream of large pieces to an HTTP/1.0 client ends with the connection, and is complete.
pub async fn large_pieces_to_http_1_0_end_with_the_connection<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /frames/7/40000 HTTP/1.0\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!(reply.framing, Framing::UntilClose);
    assert!(reply.body == content(280_000), "{} bytes", reply.body.len());
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 1)]);
}

/// A client that reads a large response slowly is served as long as it keeps the minimum rate.
pub async fn shared_content_reaches_a_slow_reader<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let length = if bench.is_virtual() { 300_000 } else { 3_000_000 };
    for path in [format!("/shared/{length}"), format!("/frames/3/{}", length / 3)] {
        let mut peer = Peer::new(server.connect());
        peer.get(&path);
        let reply = peer.reply_slowly(bench, length / 40, Duration::from_millis(10)).await;
        assert!(reply.body == content(length), "{path}: {} bytes", reply.body.len());
        peer.expect_alive().await;
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A client that stops reading a large response is disconnected, and it received a prefix of the
/// response.
pub async fn a_client_that_does_not_read_shared_content_is_disconnected<B: Bench>(bench: &B) {
    bench.calm();
    let limits = Limits { transfer_rate_grace: Duration::from_millis(700), ..limits() };
    let (server, _) = begin_with(bench, limits);
    let mut peer = Peer::new(server.connect());
    peer.get("/shared/6000000");
    bench.sleep(Duration::from_secs(5)).await;
    let received = peer.rest().await;
    assert!(received.len() < 6_000_000);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("write-stalled", 1)]);
}

/// A large response in progress at the deadline of a shutdown is aborted and reported.
pub async fn shared_content_in_progress_is_aborted_and_reported<B: Bench>(bench: &B) {
    bench.calm();
    let time = Duration::from_millis(700);
    let (server, _) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.get("/shared/6000000");
    peer.expect("HTTP/1.1 200 OK\r\n").await;
    server.shut_down();
    let outcome = server.ended().await;
    let aborted: Vec<_> = outcome.cut.iter().map(|aborted| aborted.request.as_deref()).collect();
    assert_eq!(aborted, [Some("GET /shared/{bytes}")]);
    assert!(peer.rest().await.len() < 6_000_000);
}

/// Requests that wait behind large responses are answered in order, and the announcement of the
/// close comes last.
pub async fn large_and_small_responses_keep_their_order<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let mut requests = Vec::new();
    for number in 0..10_usize {
        let length = 10_000 + number * 13_000;
        for path in [format!("/numbers/{number}"), format!("/shared/{length}")] {
            requests
                .extend_from_slice(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        }
    }
    requests.extend_from_slice(b"GET /frames/2/50000 HTTP/1.1\r\nHost: a\r\n\r\n");
    requests.extend_from_slice(b"GET /close HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.send(requests);
    for number in 0..10_usize {
        assert_eq!(peer.reply().await.text(), number.to_string());
        let length = 10_000 + number * 13_000;
        assert!(peer.reply().await.body == content(length), "{length}");
    }
    assert!(peer.reply().await.body == content(100_000));
    assert_eq!(peer.reply().await.text(), "bye");
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 1)]);
}
