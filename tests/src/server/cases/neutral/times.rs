//! How long the server waits.

use super::{PROBLEM, SHORT, begin_with};
use crate::server::bench::{Bench, Got};
use crate::server::cases::limits;
use crate::server::client::{Length, Way};
use peregrine::Limits;

/// A connection on which no request arrives is closed. HTTP/2 sends GOAWAY.
pub async fn a_silent_connection_is_closed<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { first_byte_timeout: SHORT, ..limits() });
    let start = bench.now();
    let mut client = site.client().await;
    assert_eq!(client.ended().await, Got::End);
    assert!(bench.now() - start >= SHORT - SHORT / 10);
    assert_eq!(client.is_told_to_go(), way.differs(false, true));
    assert_eq!(site.end().await.endings(), [("first-byte-timeout", 1)]);
}

/// A connection that is idle between requests is closed. HTTP/2 sends GOAWAY.
pub async fn an_idle_connection_is_closed<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { idle_timeout: SHORT, ..limits() });
    let mut client = site.client().await;
    client.expect_alive().await;
    let start = bench.now();
    client.expect_alive().await;
    assert_eq!(client.ended().await, Got::End);
    assert!(bench.now() - start >= SHORT - SHORT / 10);
    assert_eq!((client.is_told_to_go(), client.go_away_code()), (way.differs(false, true), 0));
    assert_eq!(site.end().await.endings(), [("idle-timeout", 1)]);
}

/// A head that does not complete times out. HTTP/1.1 answers 408; HTTP/2 has no stream yet, and
/// sends GOAWAY.
pub async fn a_slow_head_times_out<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { head_timeout: SHORT, ..limits() });
    let mut client = site.client().await;
    client.expect_alive().await;
    let start = bench.now();
    let id = client.half_a_head();
    let response = client.answer(id).await;
    assert_eq!(response.status(), way.differs(408, 0));
    assert_eq!(response.field("content-type"), way.differs(PROBLEM, None));
    client.expect_goodbye().await;
    assert!(bench.now() - start >= SHORT - SHORT / 10);
    assert_eq!(site.end().await.endings(), [("head-timeout", 1)]);
}

/// When a body stalls, its reader gets a 408. HTTP/1.1 cannot discard the rest, and ends the
/// connection.
pub async fn a_slow_body_is_a_408<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(
        bench,
        way,
        Limits { transfer_rate_grace: SHORT, transfer_rate_min: 1_000, ..limits() },
    );
    for length in [Length::Declared(1_000), Length::Undeclared] {
        let mut client = site.client().await;
        let id = client.begin("POST", "/echo", &[], length);
        client.part(id, b"so far").await;
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.field("content-type")), (408, PROBLEM));
        if way.differs(true, false) {
            client.expect_goodbye().await;
        } else {
            client.expect_alive().await;
        }
    }
    site.end().await;
}

/// A body that is fast enough may take longer than the timeout for a single piece.
pub async fn a_steady_body_does_not_time_out<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(
        bench,
        way,
        Limits { transfer_rate_grace: 2 * SHORT, transfer_rate_min: 100, ..limits() },
    );
    let mut client = site.client().await;
    let id = client.begin("POST", "/echo", &[], Length::Declared(3_000));
    for _ in 0..10 {
        client.part(id, &[b'x'; 300]).await;
        bench.sleep(SHORT / 3).await;
    }
    client.end(id, &[]);
    assert_eq!(client.answer(id).await.body.len(), 3_000);
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// The time during which a handler does not read does not count against its client.
pub async fn a_body_does_not_time_out_while_it_is_not_read<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let limits = Limits { transfer_rate_grace: SHORT, transfer_rate_min: 1_000_000, ..limits() };
    let site = begin_with(bench, way, limits);
    let mut client = site.client().await;
    let id = client.post("/ignore-after-wait", b"hello").await;
    client.wait_until(bench, "the handler waits", || site.shared.started.get() == 1).await;
    bench.sleep(2 * SHORT).await;
    site.shared.open(1);
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.text()), (200, "waited"));
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// A handler that exceeds its route's timeout is dropped, its client gets a 503, and the connection
/// stays open.
pub async fn a_late_handler_is_a_503<B: Bench>(bench: &B, way: Way) {
    let site = begin_with(bench, way, limits());
    let shared = &site.shared;
    let mut client = site.client().await;
    let id = client.get("/wait-a-moment");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.field("content-type")), (503, PROBLEM));
    client.wait_until(bench, "the handler is dropped", || shared.dropped.get() == 1).await;
    client.expect_alive().await;
    shared.open(1);
    let id = client.get("/wait-a-moment");
    assert_eq!(client.answer(id).await.text(), "waited");
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// An exchange may not exceed its time limit: it gets a 503, or a broken response if the response
/// has started. HTTP/1.1 then closes the connection, and HTTP/2 resets the stream.
pub async fn an_exchange_has_a_timeout<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { exchange_timeout: Some(SHORT), ..limits() });
    let mut client = site.client().await;
    let id = client.get("/wait");
    assert_eq!(client.answer(id).await.status(), 503);
    client.expect_alive().await;
    let id = client.get("/gated/2");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.is_complete), (200, false));
    assert_eq!(response.reset, way.differs(None, Some(8)));
    if way.differs(true, false) {
        assert!(client.last().is_some(), "the connection has ended");
    } else {
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}

/// A connection at its maximum age announces its close, and the request in progress is answered.
pub async fn an_old_connection_is_closed<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { connection_age_max: Some(SHORT), ..limits() });
    let mut client = site.client().await;
    let id = client.get("/sleep/1500");
    assert_eq!(client.answer(id).await.text(), "slept 1500");
    client.expect_goodbye().await;
    assert_eq!(client.go_away_code(), 0);
    site.end().await;
}

/// A peer that requests much and reads nothing is disconnected. HTTP/2 resets the stream whose
/// window stays closed, and keeps the connection.
pub async fn a_stalled_reader_is_disconnected<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { transfer_rate_grace: SHORT, ..limits() });
    let shared = &site.shared;
    let mut client = site.client().await;
    client.take_no_more();
    let id = client.get("/endless");
    client.wait_until(bench, "the stream was dropped", || shared.dropped.get() == 1).await;
    let response = client.answer(id).await;
    assert_eq!((response.is_complete, response.reset), (false, way.differs(None, Some(8))));
    client.close().await;
    let stalled_count = site.end().await.ended("write-stalled");
    assert_eq!(stalled_count, way.differs(1, 0));
}
