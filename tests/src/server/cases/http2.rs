//! HTTP/2: many exchanges on one connection.

use super::{begin, begin_with, limits};
use crate::server::app::{Shared, pattern};
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, client_config, server_tls};
use crate::server::simulated::SimulatedBench;
use crate::server::streams::Streams;
use peregrine::{Http2Limits, Limits};
use peregrine_proto::h2::frame::{self, FrameType, setting_id};
use peregrine_tls::rustls::version;
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(700);

/// Ends a case whose client has an open connection.
async fn close<S: Served>(server: S, mut client: Streams<S::Wire>) {
    client.round_trip().await;
    drop(client);
    end(server).await;
}

async fn end<S: Served>(server: S) {
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.cut, []);
}

/// The preface may arrive in pieces, and an HTTP/1.1 request may begin like it.
pub async fn the_preface_may_arrive_in_pieces<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for split_at in [1, 3, 14, 23, 24, 30] {
        let mut client = Streams::silent(server.connect());
        let mut bytes = frame::PREFACE.to_vec();
        frame::write_settings([], &mut bytes);
        client.send(&bytes[..split_at]);
        bench.sleep(Duration::from_millis(5)).await;
        client.send(&bytes[split_at..]);
        let id = client.get("/hello");
        assert_eq!(client.answer(id).await.text(), "hello", "after {split_at} bytes");
        client.round_trip().await;
    }
    let mut peer = Peer::new(server.connect());
    peer.send("P");
    bench.sleep(Duration::from_millis(5)).await;
    peer.send("OST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(peer.reply().await.text(), "hi");
    let mut peer = Peer::new(server.connect());
    peer.send("PRI * HTTP/2.0\r\n\r\nSX");
    assert!(peer.reply().await.status >= 400);
    end(server).await;
}

/// With prior knowledge disabled, the preface is answered by HTTP/1.1.
pub async fn prior_knowledge_can_be_disabled<B: Bench>(bench: &B) {
    let http2 = Http2Limits { prior_knowledge: false, ..Http2Limits::default() };
    let (server, _) = begin_with(bench, Limits { http2, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.send(frame::PREFACE);
    assert_eq!(peer.reply().await.status, 505);
    end(server).await;
}

/// One stream too many is refused, and the others continue.
pub async fn streams_beyond_the_limit_are_refused<B: Bench>(bench: &B) {
    let http2 = Http2Limits { concurrent_streams_max: 3, ..Http2Limits::default() };
    let (server, shared) = begin_with(bench, Limits { http2, ..limits() });
    let mut client = Streams::new(server.connect());
    let waiting: Vec<_> = (0..3).map(|_| client.get("/wait")).collect();
    let refused = client.get("/hello");
    assert_eq!(client.answer(refused).await.reset, Some(7));
    shared.open(3);
    for id in waiting {
        assert_eq!(client.answer(id).await.text(), "waited");
    }
    close(server, client).await;
}

/// Responses larger than all windows arrive complete, several at a time.
pub async fn large_responses_arrive_complete<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let all: Vec<_> = (0..5).map(|_| client.get("/large/300000")).collect();
    let stream = client.get("/stream/2000");
    let expected = pattern(300_000);
    for id in all {
        let response = client.answer(id).await;
        assert!(response.body == expected, "{} bytes of {id}", response.body.len());
    }
    let response = client.answer(stream).await;
    assert_eq!(response.text().lines().count(), 2000);
    assert_eq!(response.text().lines().last(), Some("piece 1999"));
    close(server, client).await;
}

/// Bodies larger than all windows arrive complete, several at a time, even with slow handlers.
pub async fn large_bodies_arrive_complete<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let body = pattern(400_000);
    for path in ["/echo-large", "/echo-stream", "/echo-slowly"] {
        let first = client.open("POST", path, &[], false);
        let second = client.open("POST", path, &[("content-length", "400000")], false);
        client.upload(first, &body).await;
        client.upload(second, &body).await;
        for id in [first, second] {
            let response = client.answer(id).await;
            assert!(response.body == body, "{path}: {} {}", response.status(), response.body.len());
        }
    }
    close(server, client).await;
}

/// The short rest of a request that was answered early is read, so no reset is needed.
pub async fn a_short_request_remainder_is_read<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    for length in [Some("200000"), None] {
        let fields: Vec<_> = length.map(|length| ("content-length", length)).into_iter().collect();
        let id = client.open("POST", "/ignore", &fields, false);
        client.upload_part(id, &pattern(10_000), false).await;
        assert_eq!(client.answer(id).await.text(), "ignored");
        client.round_trip().await;
        client.upload(id, &pattern(190_000)).await;
        client.round_trip().await;
        assert_eq!(client.so_far(id).reset, None);
    }
    close(server, client).await;
}

/// Data that a client sent before it learned that it is unwanted is not an error, even if it
/// is a whole window in small frames, repeatedly.
pub async fn data_in_flight_is_not_a_protocol_error<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let mut frames = Vec::new();
    for _ in 0..20 {
        // More than the server discards.
        let id = client.open("POST", "/ignore", &[("content-length", "10000000")], false);
        client.data(id, b"a", false);
        assert_eq!(client.answer(id).await.text(), "ignored");
        while client.so_far(id).reset.is_none() {
            client.round_trip().await;
        }
        assert_eq!(client.so_far(id).reset, Some(0));
        frames.clear();
        for _ in 0..300 {
            frame::write_frame(FrameType::Data, 0, id, &[7; 200], &mut frames);
        }
        client.send(&frames);
        client.round_trip().await;
    }
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A reset drops the handler, unless it is marked to run to completion.
pub async fn a_reset_ends_the_handler<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let dropped =
        [client.get("/wait"), client.open("POST", "/count", &[], false), client.get("/gated/3")];
    let marked = client.get("/wait-to-end");
    bench.wait_until("all have started", || shared.started.get() == 4).await;
    for id in dropped {
        client.reset(id);
    }
    client.reset(marked);
    bench.wait_until("three were dropped", || shared.dropped.get() == 3).await;
    assert_eq!(shared.finished.get(), 0);
    shared.open(1);
    bench.wait_until("the marked handler completes", || shared.finished.get() == 1).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A broken connection ends all its handlers.
pub async fn a_broken_connection_ends_all_handlers<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for is_reset in [true, false] {
        let (started, dropped) = (shared.started.get(), shared.dropped.get());
        let mut client = Streams::new(server.connect());
        for path in ["/wait", "/wait", "/gated/3"] {
            client.get(path);
        }
        client.open("POST", "/count", &[], false);
        client.round_trip().await;
        bench.wait_until("all have started", || shared.started.get() == started + 4).await;
        if is_reset {
            client.break_off();
        } else {
            drop(client);
        }
        bench.wait_until("all were dropped", || shared.dropped.get() == dropped + 4).await;
    }
    end(server).await;
}

/// A drain finishes the requests in progress, in two steps.
pub async fn a_drain_finishes_streams<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let mut idle = Streams::new(server.connect());
    idle.round_trip().await;
    let waiting = client.get("/wait");
    let upload = client.open("POST", "/count", &[], false);
    let stream = client.get("/gated/1");
    bench.wait_until("all have started", || shared.started.get() == 3).await;
    server.shut_down();
    while client.go_away.is_empty() {
        client.round_trip().await;
        bench.sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(client.go_away.first().map(|(last, code)| (*last, *code)), Some((0x7fff_ffff, 0)));
    idle.ended().await;
    assert_eq!(idle.go_away.last().map(|(_, code)| *code), Some(0));
    client.data(upload, b"12345", true);
    shared.open(2);
    assert_eq!(client.answer(waiting).await.text(), "waited");
    assert_eq!(client.answer(upload).await.text(), "5");
    assert_eq!(client.answer(stream).await.text(), "piece 0\n");
    client.ended().await;
    let outcome = server.ended().await;
    assert_eq!((outcome.ended("drained"), outcome.cut.len()), (2, 0), "{outcome:?}");
}

/// The shutdown report lists every aborted stream.
pub async fn an_abort_reports_all_streams<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    client.get("/wait");
    client.get("/gated/1");
    bench.wait_until("both have started", || shared.started.get() == 2).await;
    server.cut();
    client.ended().await;
    let outcome = server.ended().await;
    let mut names: Vec<_> =
        outcome.cut.iter().filter_map(|aborted| aborted.request.clone()).collect();
    names.sort();
    assert_eq!(names, ["GET /gated/{pieces}", "GET /wait"]);
}

/// Connections without streams are closed in time, whatever frames they sent.
pub async fn idle_connections_are_closed<B: Bench>(bench: &B) {
    let times =
        Limits { idle_timeout: SHORT, first_byte_timeout: SHORT, head_timeout: SHORT, ..limits() };
    let (server, _) = begin_with(bench, times);
    let mut used = Streams::new(server.connect());
    let id = used.get("/hello");
    assert_eq!(used.answer(id).await.text(), "hello");
    let mut unused = Streams::new(server.connect());
    let mut partial_frame = Streams::new(server.connect());
    partial_frame.send(&[0, 0, 10, 1]);
    let mut partial_preface = Streams::silent(server.connect());
    partial_preface.send(&frame::PREFACE[..10]);
    used.ended().await;
    unused.ended().await;
    partial_frame.ended().await;
    assert_eq!(used.go_away.last().map(|(last, code)| (*last, *code)), Some((1, 0)));
    server.shut_down();
    drop(partial_preface);
    let outcome = server.ended().await;
    let ended = (outcome.ended("idle-timeout"), outcome.ended("first-byte-timeout"));
    assert_eq!(ended, (1, 1), "{outcome:?}");
}

/// Frames that open no stream do not keep a connection open, even if one is always in flight.
pub async fn useless_frames_do_not_keep_a_connection_open<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { head_timeout: SHORT, ..limits() });
    for (kind, length) in [(FrameType::Settings, 0), (FrameType::Ping, 8)] {
        let mut client = Streams::new(server.connect());
        client.round_trip().await;
        let mut bytes = Vec::new();
        frame::write_frame(kind, 0, 0, &vec![0; length], &mut bytes);
        let (first, second) = bytes.split_at(5);
        client.send(first);
        let end = bench.now() + SHORT * 4;
        while client.last().is_none() {
            assert!(bench.now() < end, "{kind:?} keeps the connection");
            bench.sleep(SHORT / 5).await;
            client.send(&[second, first].concat());
            client.fill(SHORT / 50).await;
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("head-timeout", 2)]);
}

/// Once the response has started, the client may be silent indefinitely: the two sides may
/// alternate.
pub async fn a_bidirectional_stream_may_be_silent<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/echo-stream", &[], false);
    for count in 1..4 {
        client.data(id, b"word", false);
        client.expect(id, 4 * count).await;
        client.listen(SHORT * 3).await;
    }
    client.data(id, b"", true);
    let response = client.answer(id).await;
    assert_eq!((response.text(), response.reset), ("wordwordword", None));

    // A client that declared a length has an upload to complete, even if its response has started.
    let id = client.open("POST", "/echo-stream", &[("content-length", "100")], false);
    client.data(id, b"word", false);
    client.expect(id, 4).await;
    assert!(client.answer(id).await.reset.is_some());
    close(server, client).await;
}

/// A bidirectional stream that is silent in both directions ends like an idle upgraded connection.
pub async fn a_dead_bidirectional_stream_is_ended<B: Bench>(bench: &B) {
    bench.calm();
    let timeout = Some(SHORT);
    let (server, _) = begin_with(bench, Limits { upgraded_idle_timeout: timeout, ..limits() });
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/echo-stream", &[], false);
    for count in 1..6 {
        client.data(id, b"word", false);
        client.expect(id, 4 * count).await;
        client.listen(SHORT / 2).await;
    }
    assert_eq!(client.answer(id).await.text(), "wordwordwordwordword");
    assert!(client.answer(id).await.reset.is_some());
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// While requests are in progress, the server sends PING to a silent client.
pub async fn a_vanished_client_is_disconnected<B: Bench>(bench: &B) {
    bench.calm();
    let http2 = Http2Limits { keep_alive_interval: Some(SHORT), ..Http2Limits::default() };
    let (server, shared) =
        begin_with(bench, Limits { transfer_rate_grace: SHORT, http2, ..limits() });
    let mut present = Streams::new(server.connect());
    let mut vanished = Streams::new(server.connect());
    vanished.answer_no_pings();
    let ids = [present.get("/wait"), vanished.get("/wait")];
    bench.wait_until("both have started", || shared.started.get() == 2).await;
    while shared.dropped.get() == 0 {
        present.listen(SHORT / 7).await;
    }
    for _ in 0..40 {
        present.listen(SHORT / 7).await;
    }
    vanished.ended().await;
    assert_eq!((shared.dropped.get(), vanished.so_far(ids[1]).heads.len()), (1, 0));
    shared.open(1);
    assert_eq!(present.answer(ids[0]).await.text(), "waited");
    // If a PING of the server is unread, this resets the connection.
    drop((present, vanished));
    server.shut_down();
    assert_eq!(server.ended().await.ended("ping-timeout"), 1);
}

/// A response that was read late, but just in time, is complete: the client is not late while the
/// rest of its request is discarded.
pub async fn a_past_stall_does_not_count<B: Bench>(bench: &B) {
    bench.calm();
    let slack = SHORT * 2;
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: slack, ..limits() });
    let settings = [(setting_id::INITIAL_WINDOW_SIZE, 3)];
    let mut client = Streams::with_settings(server.connect(), &settings);
    client.keep_windows_shut();
    let id = client.open("POST", "/ignore", &[], false);
    client.expect(id, 3).await;
    bench.sleep(slack / 2).await;
    client.open_window_by(id, 10);
    assert_eq!(client.answer(id).await.text(), "ignored");
    for _ in 0..10 {
        bench.sleep(slack / 10).await;
        client.data(id, b"x", false);
        client.round_trip().await;
    }
    assert_eq!(client.so_far(id).reset, None);
    client.data(id, b"x", true);
    let last = client.get("/empty");
    assert_eq!(client.answer(last).await.status(), 204);
    close(server, client).await;
}

/// A body is not polled after its trailers.
pub async fn nothing_follows_trailers<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.get("/more-after-trailers");
    let response = client.answer(id).await;
    assert_eq!((response.text(), response.reset), ("hello", None));
    let trailers = response.heads.last().expect("the response has a head");
    assert_eq!(trailers, &[("x-checksum".to_owned(), "abc".to_owned())]);
    close(server, client).await;
}

/// A stream whose window stays closed is reset, and the connection stays open.
pub async fn a_window_that_stays_closed_causes_a_reset<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let closed_window = [(setting_id::INITIAL_WINDOW_SIZE, 0)];
    let mut client = Streams::with_settings(server.connect(), &closed_window);
    let all = [client.get("/hello"), client.get("/large/100000"), client.get("/gated/1")];
    shared.open(1);
    for id in all {
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.reset), (200, Some(8)), "{id}");
    }
    let empty = client.get("/empty");
    assert_eq!(client.answer(empty).await.status(), 204);
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    close(server, client).await;
}

/// The connection's window is watched like those of streams.
pub async fn a_connection_window_that_stays_closed_ends_its_streams<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    client.keep_windows_shut();
    let all = [client.get("/endless"), client.get("/large/100000")];
    for id in all {
        assert_eq!(client.answer(id).await.reset, Some(8), "{id}");
    }
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    assert!(shared.produced.get() < 200_000, "{}", shared.produced.get());
    close(server, client).await;
}

/// A client may acknowledge each DATA frame separately, and read more slowly than the handler
/// produces: the windows it opens do not split small pieces into fragments.
pub async fn small_pieces_reach_a_client_that_acknowledges_every_frame<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    client.keep_windows_shut();
    let id = client.get("/pieces/6000/100");
    // Everything that fits in the window arrives, including the fragment at its end.
    client.expect(id, 65_535).await;
    let mut body = Vec::new();
    loop {
        let timeout = Duration::from_millis(5);
        let (bytes, is_complete, reset) = client.more(id, body.len(), timeout).await;
        body.extend(bytes);
        assert_eq!(reset, None, "after {} bytes", body.len());
        if is_complete {
            break;
        }
        client.acknowledge_frame();
    }
    assert!(body == pattern(100).repeat(6000));
    assert_eq!(client.go_away, []);
    close(server, client).await;
}

/// A client whose windows have the maximum size.
fn client_with_large_windows<S: Served>(server: &S) -> Streams<S::Wire> {
    let window_max = (1 << 31) - 1;
    let large_window = [(setting_id::INITIAL_WINDOW_SIZE, window_max)];
    let mut client = Streams::with_settings(server.connect(), &large_window);
    client.keep_windows_shut();
    let mut bytes = Vec::new();
    frame::write_window_update(0, window_max - 65_535, &mut bytes);
    client.send(&bytes);
    client
}

/// Frames of a client that reads fast, and whose windows never close, are processed beside an
/// endless response.
pub async fn a_client_that_reads_everything_is_served<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin(bench);
    let mut client = client_with_large_windows(&server);
    let endless = client.get("/endless");
    client.expect(endless, 1_000_000).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    client.reset(endless);
    client.round_trip().await;
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    close(server, client).await;
}

/// Streams share the connection's window. A stream that waits for its share is not late while
/// others make progress.
pub async fn a_stream_that_waits_for_others_does_not_time_out<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let large_window = [(setting_id::INITIAL_WINDOW_SIZE, 1 << 20)];
    let mut client = Streams::with_settings(server.connect(), &large_window);
    client.keep_windows_shut();
    let all: Vec<_> = (0..3).map(|_| client.get("/large/200000")).collect();
    for _ in 0..60 {
        bench.sleep(SHORT / 12).await;
        let mut bytes = Vec::new();
        frame::write_window_update(0, 10_000, &mut bytes);
        client.send(&bytes);
        client.round_trip().await;
    }
    for id in all {
        let response = client.answer(id).await;
        assert_eq!((response.body.len(), response.reset), (200_000, None), "{id}");
    }
    close(server, client).await;
}

/// A client may send its uploads one after the other, as long as data arrives.
pub async fn uploads_may_follow_each_other<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    let all: Vec<_> = (0..2).map(|_| client.open("POST", "/count", &[], false)).collect();
    for id in &all {
        for piece in 0..18 {
            client.data(*id, &[7; 100], piece == 17);
            bench.sleep(SHORT / 12).await;
        }
    }
    for id in all {
        assert_eq!(client.answer(id).await.text(), "1800");
    }
    close(server, client).await;
}

/// An upload that arrives while a response is sent is read, and is not late.
pub async fn an_upload_is_read_during_a_fast_download<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let mut client = client_with_large_windows(&server);
    let endless = client.get("/endless");
    client.expect(endless, 100_000).await;
    let upload = client.open("POST", "/count", &[], false);
    client.data(upload, &[7; 15_000], false);
    client.data(upload, &[7; 15_000], true);
    assert_eq!(client.answer(upload).await.text(), "30000");
    client.reset(endless);
    close(server, client).await;
}

/// The idle timeout of a connection starts when its last stream ends, also if by a reset.
pub async fn a_reset_starts_the_idle_timeout<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, Limits { idle_timeout: 2 * SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    let id = client.get("/wait");
    bench.wait_until("the handler has started", || shared.started.get() == 1).await;
    bench.sleep(3 * SHORT).await;
    client.reset(id);
    client.round_trip().await;
    bench.sleep(SHORT / 4).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A peer whose windows the server keeps closed is not late, whether its own handler or that of
/// another stream does not read.
pub async fn a_handler_that_reads_late_does_not_delay_others<B: Bench>(bench: &B) {
    bench.calm();
    let window = 65_535;
    let http2 = Http2Limits {
        initial_connection_window: window,
        connection_window_max: window,
        ..Http2Limits::default()
    };
    let (server, shared) =
        begin_with(bench, Limits { transfer_rate_grace: SHORT, http2, ..limits() });
    let mut client = Streams::new(server.connect());
    let partly_read = client.open("POST", "/sip", &[], false);
    client.upload_part(partly_read, &[7; 65_535], false).await;
    let other = client.open("POST", "/count", &[], false);
    bench.wait_until("the handler waits", || shared.started.get() > 0).await;
    bench.sleep(3 * SHORT).await;
    shared.open(1);
    client.upload(partly_read, &[7; 5_000]).await;
    client.upload(other, &[7; 5_000]).await;
    assert_eq!(client.answer(partly_read).await.text(), "70535");
    assert_eq!(client.answer(other).await.text(), "5000");
    close(server, client).await;
}

/// When uploads stall, their readers consume the received data, which opens the connection's window
/// while their responses continue.
pub async fn reading_a_stalled_upload_opens_the_window<B: Bench>(bench: &B) {
    bench.calm();
    let window = 65_535;
    let http2 = Http2Limits {
        initial_connection_window: window,
        connection_window_max: window,
        ..Http2Limits::default()
    };
    let (server, shared) =
        begin_with(bench, Limits { transfer_rate_grace: SHORT, http2, ..limits() });
    let mut client = Streams::new(server.connect());
    for _ in 0..4 {
        let id = client.open("POST", "/read-later", &[("content-length", "100000")], false);
        assert_eq!(client.data_that_fits(id, &[7; 16_000], false), 16_000);
        client.expect_head(id).await;
    }
    bench.sleep(4 * SHORT).await;
    shared.open(4);
    bench.wait_until("the readers get the error", || shared.finished.get() == 4).await;
    client.round_trip().await;
    let id = client.open("POST", "/count", &[], false);
    assert_eq!(client.data_that_fits(id, &[7; 10_000], true), 10_000);
    assert_eq!(client.answer(id).await.text(), "10000");
    drop(client);
    server.cut();
}

/// A connection that reached its maximum age sends GOAWAY, even if its streams are silent and no
/// PING is pending.
pub async fn silent_streams_do_not_delay_the_maximum_connection_age<B: Bench>(bench: &B) {
    let http2 = Http2Limits { keep_alive_interval: None, ..Http2Limits::default() };
    let limits = Limits { connection_age_max: Some(SHORT), http2, ..limits() };
    let (server, shared) = begin_with(bench, limits);
    let mut client = Streams::new(server.connect());
    let id = client.get("/wait");
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    client.listen(2 * SHORT).await;
    assert!(!client.go_away.is_empty());
    shared.open(1);
    assert_eq!(client.answer(id).await.status(), 200);
    client.ended().await;
    end(server).await;
}

/// Trailers follow content of known length, and empty content.
pub async fn trailers_follow_any_content<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    for (path, length, text) in [("/trailers", Some("5"), "hello"), ("/trailers-only", None, "")] {
        let id = client.get(path);
        let response = client.answer(id).await;
        assert_eq!((response.text(), response.field("content-length")), (text, length));
        let trailers = response.heads.last().expect("the response has a head");
        assert_eq!(trailers, &[("x-checksum".to_owned(), "abc".to_owned())], "{path}");
        let head = client.open("HEAD", path, &[], true);
        assert_eq!(client.answer(head).await.heads.len(), 1, "{path}");
    }
    close(server, client).await;
}

/// A request for `*` may name its host in `:authority`, in Host, or in both.
pub async fn the_host_may_be_sent_twice<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    for path in ["*", "/hello"] {
        let id = client.open("OPTIONS", path, &[("host", "localhost")], true);
        assert!(client.answer(id).await.status() < 300, "{path}");
    }
    close(server, client).await;
}

/// A task that reads the body after the response is stopped by the exchange timeout, and a response
/// that reports that timeout gets its own timeout.
pub async fn an_exchange_has_a_timeout_after_its_response_too<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { exchange_timeout: Some(SHORT), ..limits() });
    let mut client = Streams::new(server.connect());
    let upload = client.open("POST", "/keep", &[], false);
    assert_eq!(client.answer(upload).await.text(), "kept");
    let mut other = Streams::new(server.connect());
    for _ in 0..8 {
        bench.sleep(SHORT / 4).await;
        client.data(upload, &[7; 100], false);
    }
    let reader = other.get("/read-kept");
    assert_eq!(other.answer(reader).await.text(), "Disconnected");
    other.keep_windows_shut();
    // The connection's window is used up when the second exchange times out.
    let large = other.get("/large/65000");
    other.answer(large).await;
    let late = other.get("/wait");
    bench.sleep(2 * SHORT).await;
    other.open_window();
    assert_eq!(other.answer(late).await.status(), 503);
    assert!(other.so_far(late).is_complete, "{:?}", other.so_far(late));
    close(server, client).await;
    drop(other);
}

/// A body that arrived completely, but did not fit into its pipe, ends its stream when the task
/// that was to read it after the response drops it. So the connection is idle from then on.
pub async fn a_complete_body_that_is_dropped_after_the_response_ends_its_stream(
    bench: &SimulatedBench,
) {
    bench.calm();
    let time = Duration::from_secs(10);
    let limits = Limits { body_buffer_bytes_max: 1_000, idle_timeout: time, ..limits() };
    let (server, _) = begin_with(bench, limits);
    let mut client = Streams::new(server.connect());
    let upload = client.open("POST", "/keep", &[], false);
    client.data(upload, &[7; 5_000], false);
    assert_eq!(client.answer(upload).await.text(), "kept");
    client.data(upload, &[7; 5_000], true);
    let mut other = Streams::new(server.connect());
    bench.sleep(SHORT).await;
    let drop_request = other.get("/drop-kept");
    assert_eq!(other.answer(drop_request).await.text(), "dropped");
    drop(other);
    let dropped_at = bench.now();
    client.ended().await;
    let idle_for = bench.now() - dropped_at;
    assert!(idle_for < time * 3 / 2, "{idle_for:?}");
    server.shut_down();
    assert_eq!(server.ended().await.ended("idle-timeout"), 1);
}

/// A client that violates the protocol of the connection gets GOAWAY, and the report names its
/// requests.
pub async fn a_protocol_error_ends_the_connection<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    client.get("/wait");
    bench.wait_until("the handler has started", || shared.started.get() == 1).await;
    client.frame(FrameType::Data, 0, 0, b"on stream 0");
    client.ended().await;
    assert_eq!(client.go_away.last(), Some(&(1, 1)));
    bench.wait_until("the handler was dropped", || shared.dropped.get() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.ended("http2-rejected"), 1);
}

/// A client that does not read its responses is disconnected.
pub async fn a_client_that_does_not_read_is_disconnected<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { transfer_rate_grace: SHORT, ..limits() });
    let mut client =
        Streams::with_settings(server.connect(), &[(setting_id::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    let mut window_update = Vec::new();
    frame::write_window_update(0, 0x7fff_0000, &mut window_update);
    client.send(&window_update);
    client.get("/endless");
    bench.wait_until("the stream was dropped", || shared.dropped.get() == 1).await;
    drop(client);
    server.shut_down();
    assert_eq!(server.ended().await.ended("write-stalled"), 1);
}

/// TLS negotiates HTTP/2 by default.
pub async fn tls_negotiates_http2<B: Bench>(bench: &B) {
    bench.calm();
    let shared = Shared::default();
    let server = bench.start(limits(), Some(server_tls()), shared.app());
    let mut config = (*client_config(&version::TLS13)).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let mut wire = Secure::new(server.connect_secure(), &Arc::new(config));
    wire.shake_hands(Duration::from_secs(20)).await;
    let mut client = Streams::new(wire);
    let all: Vec<_> = (0..5).map(|_| client.get("/large/100000")).collect();
    let expected = pattern(100_000);
    for id in all {
        assert!(client.answer(id).await.body == expected);
    }
    let id = client.open("POST", "/echo-large", &[], false);
    client.upload(id, &pattern(200_000)).await;
    assert_eq!(client.answer(id).await.body.len(), 200_000);
    server.shut_down();
    assert_eq!(client.ended().await, Got::End);
}
