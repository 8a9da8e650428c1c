//! Unexpected ends: truncated responses, peers that disconnect in the middle, and how the
//! shutdown report describes them.

use super::{begin, begin_with, limits};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use peregrine::Limits;
use std::time::Duration;

/// A stream that ends with its connection does not end cleanly when it fails.
pub async fn a_failed_stream_to_http_1_0_does_not_look_complete<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /broken HTTP/1.0\r\n\r\n");
    let received = peer.rest().await;
    assert_ne!(
        peer.last(),
        Some(&Got::End),
        "the response looks complete: {}",
        received.escape_ascii()
    );
    drop(server);
}

/// A stream to an HTTP/1.0 client that is aborted does not end cleanly, although everything sent so
/// far was read.
pub async fn an_aborted_stream_to_http_1_0_does_not_look_complete<B: Bench>(bench: &B) {
    let time = Duration::from_millis(700);
    let (server, shared) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.send("GET /gated/5 HTTP/1.0\r\n\r\n");
    bench.wait_until("the stream started", || shared.started.get() == 1).await;
    shared.open(1);
    peer.expect("piece 0\n").await;
    server.shut_down();
    peer.rest().await;
    assert_ne!(peer.last(), Some(&Got::End), "the response looks complete");
}

/// Nor does one whose exchange takes too long.
pub async fn a_timed_out_stream_to_http_1_0_does_not_look_complete<B: Bench>(bench: &B) {
    let time = Some(Duration::from_secs(2));
    let (server, shared) = begin_with(bench, Limits { exchange_timeout: time, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.send("GET /gated/5 HTTP/1.0\r\n\r\n");
    bench.wait_until("the stream started", || shared.started.get() == 1).await;
    shared.open(1);
    peer.expect("piece 0\n").await;
    peer.rest().await;
    assert_ne!(peer.last(), Some(&Got::End), "the response looks complete");
    drop(server);
}

/// Nor does one that is cancelled because its client ended its side.
pub async fn a_cancelled_stream_to_http_1_0_does_not_look_complete<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for request in
        ["GET /gated/5 HTTP/1.0\r\n", "POST /read-later HTTP/1.0\r\nContent-Length: 9\r\n"]
    {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("{request}\r\n"));
        peer.expect("\r\n\r\n").await;
        peer.half_close();
        peer.rest().await;
        assert_ne!(peer.last(), Some(&Got::End), "the response looks complete: {request}");
    }
    assert_eq!(shared.finished.get(), 0);
    drop(server);
}

/// A peer that keeps sending after an alert is disconnected like any other.
pub async fn a_peer_that_keeps_sending_after_an_alert_is_disconnected<B: Bench>(bench: &B) {
    let limits = Limits { shutdown_timeout: Duration::from_secs(3600), ..limits() };
    let tls = crate::server::secure::server_tls();
    let shared = crate::server::app::Shared::default();
    let server = bench.start(limits, Some(tls), shared.app());
    let mut peer = Peer::new(server.connect_secure());
    peer.get("/hello");
    bench.sleep(Duration::from_secs(1)).await;
    server.shut_down();
    let start = bench.now();
    for _ in 0..100 {
        peer.send("x");
        peer.swallow(Duration::from_secs(3)).await;
    }
    assert!(peer.last().is_some(), "the server has ended the connection");
    let sending_time = bench.now() - start;
    let outcome = server.ended().await;
    assert!(
        bench.now() - start < sending_time + Duration::from_secs(10),
        "the connection should have ended earlier"
    );
    assert_eq!(outcome.endings(), [("plaintext-on-tls-port", 1)]);
}

/// A peer that ends its side within an unread body gets its response.
pub async fn a_response_arrives_although_the_request_body_was_cut_short<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    // More than the largest buffers of the simulated network.
    let bytes = bench.large(3_000_000).max(200_000);
    let head = format!("GET /large/{bytes} HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    peer.send(head + "abc");
    peer.half_close();
    let reply = peer.reply().await;
    assert_eq!(reply.body.len(), bytes);
    drop(server);
}

/// A connection that becomes idle long after the drain started still gets the idle grace period.
/// For kernel drivers only: in the simulated network, capacity and delays are random.
pub async fn connections_that_become_idle_in_a_drain_get_a_grace_period<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let bytes = bench.large(3_000_000);
    peer.get(&format!("/large/{bytes}"));
    // A head written before the shutdown request does not announce the close.
    peer.expect("\r\n\r\n").await;
    server.shut_down();
    bench.sleep(Duration::from_secs(3)).await;
    peer.expect(pattern(bytes)).await;
    bench.sleep(Duration::from_millis(20)).await;
    peer.get("/hello");
    assert_eq!(peer.reply().await.text(), "hello");
    drop(server);
}

/// A client that was answered and has not sent the rest of an unread body does not delay a drain.
pub async fn an_unread_body_does_not_delay_a_drain<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nabc");
    assert_eq!(peer.reply().await.text(), "ignored");
    server.shut_down();
    peer.expect_end().await;
    drop(peer);
    let outcome = server.ended().await;
    assert_eq!((outcome.cut.len(), outcome.ended("drained")), (0, 1));
}

/// A TLS session that its peer ends within an unread body is answered and closed too.
pub async fn close_notify_within_a_body_is_answered<B: Bench>(bench: &B) {
    let tls = crate::server::secure::server_tls();
    let shared = crate::server::app::Shared::default();
    let server = bench.start(limits(), Some(tls), shared.app());
    let config = crate::server::secure::client_config(crate::server::secure::VERSIONS[0]);
    let wire = crate::server::secure::Secure::new(server.connect_secure(), &config);
    let mut peer = Peer::new(wire);
    peer.expect_alive().await;
    peer.send("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nabc");
    peer.half_close();
    assert_eq!(peer.reply().await.status, 404);
    server.shut_down();
    server.ended().await;
}

/// The report lists no request whose response was delivered.
pub async fn delivered_requests_are_not_reported_as_aborted<B: Bench>(bench: &B) {
    let time = Duration::from_millis(700);
    let (server, _) = begin_with(bench, Limits { shutdown_timeout: time, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.send("GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /hel");
    assert_eq!(peer.reply().await.text(), "hello");
    server.shut_down();
    peer.rest().await;
    let outcome = server.ended().await;
    let aborted: Vec<_> = outcome.cut.iter().map(|aborted| aborted.request.as_deref()).collect();
    assert_eq!(aborted, [None]);
}

/// A handler that has not read the body ends when its peer shuts down the sending side: the rest of
/// the body cannot arrive.
pub async fn a_half_close_is_noticed_before_the_body_is_read<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    peer.half_close();
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
    server.shut_down();
    server.ended().await;
}

/// Handlers end when their peer resets, even if so much was read ahead that nothing more is
/// received.
pub async fn a_reset_is_noticed_behind_buffered_data<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, Limits { read_ahead_bytes_max: 100, ..limits() });
    let requests = [
        "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n",
        "GET /gated/5 HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let mut peers: Vec<_> = requests.iter().map(|_| Peer::new(server.connect())).collect();
    for (peer, request) in peers.iter_mut().zip(requests) {
        peer.send(request);
        (0..20).for_each(|_| peer.get("/hello"));
    }
    bench.wait_until("all of them wait", || shared.started.get() == requests.len()).await;
    bench.sleep(Duration::from_secs(1)).await;
    peers.into_iter().for_each(Peer::reset);
    bench.sleep(Duration::from_secs(4)).await;
    assert_eq!(shared.dropped.get(), requests.len(), "the reset is noticed");
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("peer-aborted", 3)]);
}

/// A handler that has not yet read its body ends when its peer resets.
pub async fn a_reset_is_noticed_before_the_body_is_read<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    bench.sleep(Duration::from_secs(1)).await;
    peer.reset();
    bench.sleep(Duration::from_secs(4)).await;
    assert_eq!(shared.dropped.get(), 1, "the reset is noticed");
    drop(server);
}
