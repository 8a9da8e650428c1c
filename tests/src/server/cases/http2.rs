//! HTTP/2: many exchanges on one connection.

use super::{begin, begin_with, limits};
use crate::server::app::{Shared, pattern};
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::secure::{Secure, client_config, server_tls};
use crate::server::streams::Streams;
use peregrine::{Http2Limits, Limits};
use peregrine_proto::h2::frame::{self, Kind, flag, setting};
use peregrine_tls::rustls::version;
use std::sync::Arc;
use std::time::Duration;

const SHORT: Duration = Duration::from_millis(700);
const ENHANCE_YOUR_CALM: u32 = 11;

/// Ends a case whose client has a connection that lives.
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

/// Requests are answered by the same application, HEAD and 204 without content.
pub async fn requests_are_answered<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let hello = client.get("/hello");
    let head = client.open("HEAD", "/hello", &[], true);
    let empty = client.get("/empty");
    let missing = client.get("/nowhere");
    let answer = client.answer(hello).await;
    assert_eq!((answer.status(), answer.text()), (200, "hello"));
    assert_eq!(answer.field("connection"), None);
    let answer = client.answer(head).await;
    assert_eq!((answer.status(), answer.field("content-length")), (200, Some("5")));
    assert_eq!((answer.text(), client.answer(empty).await.status()), ("", 204));
    assert_eq!(client.answer(missing).await.status(), 404);
    let closes = client.get("/close");
    let answer = client.answer(closes).await;
    assert_eq!((answer.text(), answer.field("connection")), ("bye", None));
    client.round_trip().await;
    close(server, client).await;
}

/// The preface may come in pieces, and a request of HTTP/1.1 may begin like it.
pub async fn the_preface_may_come_in_pieces<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for cut in [1, 3, 14, 23, 24, 30] {
        let mut client = Streams::silent(server.connect());
        let mut bytes = frame::PREFACE.to_vec();
        frame::write_settings([], &mut bytes);
        client.send(&bytes[..cut]);
        bench.sleep(Duration::from_millis(5)).await;
        client.send(&bytes[cut..]);
        let id = client.get("/hello");
        assert_eq!(client.answer(id).await.text(), "hello", "after {cut} bytes");
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

/// Where prior knowledge is switched off, the preface is answered by HTTP/1.1.
pub async fn prior_knowledge_can_be_switched_off<B: Bench>(bench: &B) {
    let http2 = Http2Limits { prior_knowledge: false, ..Http2Limits::default() };
    let (server, _) = begin_with(bench, Limits { http2, ..limits() });
    let mut peer = Peer::new(server.connect());
    peer.send(frame::PREFACE);
    assert_eq!(peer.reply().await.status, 505);
    end(server).await;
}

/// Handlers of one connection wait beside each other, and do not hold ready ones up.
pub async fn streams_do_not_wait_for_each_other<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let waiting: Vec<_> = (0..20).map(|_| client.get("/wait")).collect();
    bench.until("all handlers wait", || shared.started.get() == 20).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    shared.open(20);
    for id in waiting {
        assert_eq!(client.answer(id).await.text(), "waited");
    }
    close(server, client).await;
}

/// One stream too many is refused, and the others live.
pub async fn one_stream_too_many_is_refused<B: Bench>(bench: &B) {
    let http2 = Http2Limits { streams_max: 3, ..Http2Limits::default() };
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

/// Responses larger than all windows arrive whole, several at a time.
pub async fn large_responses_arrive_whole<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let all: Vec<_> = (0..5).map(|_| client.get("/large/300000")).collect();
    let stream = client.get("/stream/2000");
    let whole = pattern(300_000);
    for id in all {
        let answer = client.answer(id).await;
        assert!(answer.body == whole, "{} bytes of {id}", answer.body.len());
    }
    let answer = client.answer(stream).await;
    assert_eq!(answer.text().lines().count(), 2000);
    assert_eq!(answer.text().lines().last(), Some("piece 1999"));
    close(server, client).await;
}

/// Bodies larger than all windows arrive whole, several at a time, also at slow handlers.
pub async fn large_bodies_arrive_whole<B: Bench>(bench: &B) {
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
            let answer = client.answer(id).await;
            assert!(answer.body == body, "{path}: {} {}", answer.status(), answer.body.len());
        }
    }
    close(server, client).await;
}

/// A body may come byte by byte, and as no more than its end.
pub async fn small_pieces_of_a_body_are_one_body<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/echo", &[], false);
    for byte in b"byte by byte" {
        client.data(id, &[*byte], false);
    }
    client.data(id, b"", true);
    assert_eq!(client.answer(id).await.text(), "byte by byte");
    let id = client.open("POST", "/echo", &[("content-length", "4")], false);
    client.data(id, b"four", true);
    assert_eq!(client.answer(id).await.text(), "four");
    close(server, client).await;
}

/// Trailers of a request reach the handler.
pub async fn trailers_reach_the_handler<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/trailers", &[], false);
    client.data(id, b"hello", false);
    // A literal that no table keeps.
    let mut block = vec![0, 10];
    block.extend_from_slice(b"x-checksum\x03abc");
    client.frame(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, id, &block);
    assert_eq!(client.answer(id).await.text(), "5 abc");
    close(server, client).await;
}

/// The interim response comes when the handler reads.
pub async fn the_100_comes_if_the_handler_reads<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let expect = [("expect", "100-continue")];
    let id = client.open("POST", "/echo", &expect, false);
    client.round_trip().await;
    bench.sleep(Duration::from_millis(20)).await;
    client.round_trip().await;
    assert_eq!(client.so_far(id).statuses(), [100]);
    client.data(id, b"now", true);
    let answer = client.answer(id).await;
    assert_eq!((answer.statuses(), answer.text()), (vec![100, 200], "now"));
    let id = client.open("POST", "/ignore", &expect, false);
    assert_eq!(client.answer(id).await.statuses(), [200]);
    close(server, client).await;
}

/// An answer may come before its request is complete: the client is asked to send no more.
pub async fn an_early_answer_ends_its_request<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/ignore", &[("content-length", "300000")], false);
    client.data(id, &pattern(10_000), false);
    let answer = client.answer(id).await;
    assert_eq!((answer.status(), answer.text(), answer.is_complete), (200, "ignored", true));
    bench.sleep(Duration::from_millis(20)).await;
    client.round_trip().await;
    client.round_trip().await;
    assert_eq!(client.so_far(id).reset, Some(0));
    let id = client.get("/hello");
    assert_eq!(client.answer(id).await.text(), "hello");
    close(server, client).await;
}

/// A body may be left to somebody who reads it after the response.
pub async fn a_body_may_be_read_after_the_response<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/keep", &[], false);
    assert_eq!(client.answer(id).await.text(), "kept");
    let reader = client.get("/read-kept");
    client.upload(id, &pattern(300_000)).await;
    assert_eq!(client.answer(reader).await.text(), "300000 bytes");
    close(server, client).await;
}

/// Limits are answered as over HTTP/1.1, and the connection lives.
pub async fn limits_are_answered<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/echo-limited", &[], false);
    client.data(id, &pattern(1001), true);
    assert_eq!(client.answer(id).await.status(), 413);
    let long = "x".repeat(9_000);
    let id = client.open(
        "GET",
        "/hello",
        &[("a", &long), ("b", &long), ("c", &long), ("d", &long)],
        true,
    );
    assert_eq!(client.answer(id).await.reset, None);
    assert_eq!(client.so_far(id).status(), 431);
    let id = client.open("CONNECT", "/hello", &[], true);
    assert!(client.answer(id).await.reset.is_some());
    let id = client.get("/upgrade");
    assert_eq!(client.answer(id).await.status(), 500);
    let id = client.get("/hello");
    assert_eq!(client.answer(id).await.text(), "hello");
    close(server, client).await;
}

/// Panics are answered on their streams, and late handlers as well.
pub async fn panics_and_timeouts_are_told_on_their_stream<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let late = client.get("/wait-a-moment");
    let panics = [client.get("/panic"), client.get("/panic-late")];
    for id in panics {
        assert_eq!(client.answer(id).await.status(), 500);
    }
    assert_eq!(client.answer(late).await.status(), 503);
    assert_eq!((shared.dropped.get(), shared.finished.get()), (1, 0));
    let broken = client.get("/broken");
    let answer = client.answer(broken).await;
    assert_eq!((answer.status(), answer.reset, answer.is_complete), (200, Some(2), false));
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A reset drops the handler, unless that was promised to run to its end.
pub async fn a_reset_ends_the_handler<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let dropped =
        [client.get("/wait"), client.open("POST", "/count", &[], false), client.get("/gated/3")];
    let kept = client.get("/wait-to-end");
    bench.until("all began", || shared.started.get() == 4).await;
    for id in dropped {
        client.reset(id);
    }
    client.reset(kept);
    bench.until("three were dropped", || shared.dropped.get() == 3).await;
    assert_eq!(shared.finished.get(), 0);
    shared.open(1);
    bench.until("the promise is kept", || shared.finished.get() == 1).await;
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A connection that breaks ends all its handlers.
pub async fn a_broken_connection_ends_all_handlers<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for breaks in [true, false] {
        let (started, dropped) = (shared.started.get(), shared.dropped.get());
        let mut client = Streams::new(server.connect());
        for path in ["/wait", "/wait", "/gated/3"] {
            client.get(path);
        }
        client.open("POST", "/count", &[], false);
        client.round_trip().await;
        bench.until("all began", || shared.started.get() == started + 4).await;
        if breaks {
            client.break_off();
        } else {
            drop(client);
        }
        bench.until("all were dropped", || shared.dropped.get() == dropped + 4).await;
    }
    end(server).await;
}

/// A drain finishes what is under way, in two steps.
pub async fn a_drain_finishes_streams<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let mut idle = Streams::new(server.connect());
    idle.round_trip().await;
    let waiting = client.get("/wait");
    let upload = client.open("POST", "/count", &[], false);
    let stream = client.get("/gated/1");
    bench.until("all began", || shared.started.get() == 3).await;
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

/// What is cut is named, stream by stream.
pub async fn a_cut_names_all_streams<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    client.get("/wait");
    client.get("/gated/1");
    bench.until("both began", || shared.started.get() == 2).await;
    server.cut();
    client.ended().await;
    let outcome = server.ended().await;
    let mut names: Vec<_> = outcome.cut.iter().filter_map(|cut| cut.request.clone()).collect();
    names.sort();
    assert_eq!(names, ["GET /gated/{pieces}", "GET /wait"]);
}

/// Connections without streams are closed in time, whatever they sent.
pub async fn idle_connections_are_closed<B: Bench>(bench: &B) {
    let times =
        Limits { idle_timeout: SHORT, first_byte_timeout: SHORT, head_timeout: SHORT, ..limits() };
    let (server, _) = begin_with(bench, times);
    let mut used = Streams::new(server.connect());
    let id = used.get("/hello");
    assert_eq!(used.answer(id).await.text(), "hello");
    let mut unused = Streams::new(server.connect());
    let mut half = Streams::new(server.connect());
    half.send(&[0, 0, 10, 1]);
    let mut partial = Streams::silent(server.connect());
    partial.send(&frame::PREFACE[..10]);
    used.ended().await;
    unused.ended().await;
    half.ended().await;
    assert_eq!(used.go_away.last().map(|(last, code)| (*last, *code)), Some((1, 0)));
    server.shut_down();
    drop(partial);
    let outcome = server.ended().await;
    assert_eq!((outcome.ended("idle"), outcome.ended("first-byte-late")), (2, 0), "{outcome:?}");
}

/// A connection may be no older than its limit.
pub async fn an_old_connection_is_closed<B: Bench>(bench: &B) {
    let (server, shared) = begin_with(bench, Limits { lifetime_max: Some(SHORT), ..limits() });
    let mut client = Streams::new(server.connect());
    let id = client.get("/wait");
    bench.until("it began", || shared.started.get() == 1).await;
    bench.sleep(SHORT * 2).await;
    client.round_trip().await;
    shared.open(1);
    assert_eq!(client.answer(id).await.text(), "waited");
    client.ended().await;
    assert_eq!(client.go_away.first().map(|(_, code)| *code), Some(0));
    end(server).await;
}

/// A body that comes too slowly is a 408 on its stream, and the connection lives.
pub async fn a_slow_body_is_a_408<B: Bench>(bench: &B) {
    let (server, _) = begin_with(bench, Limits { rate_slack: SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    let id = client.open("POST", "/echo", &[], false);
    client.data(id, b"so far", false);
    assert_eq!(client.answer(id).await.status(), 408);
    let hello = client.get("/hello");
    assert_eq!(client.answer(hello).await.text(), "hello");
    close(server, client).await;
}

/// A stream whose window stays shut is reset, and the connection lives.
pub async fn a_window_that_stays_shut_is_a_reset<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { rate_slack: SHORT, ..limits() });
    let shut = [(setting::INITIAL_WINDOW_SIZE, 0)];
    let mut client = Streams::with_settings(server.connect(), &shut);
    let all = [client.get("/hello"), client.get("/large/100000"), client.get("/gated/1")];
    shared.open(1);
    for id in all {
        let answer = client.answer(id).await;
        assert_eq!((answer.status(), answer.reset), (200, Some(8)), "{id}");
    }
    let empty = client.get("/empty");
    assert_eq!(client.answer(empty).await.status(), 204);
    bench.until("the stream was dropped", || shared.dropped.get() == 1).await;
    close(server, client).await;
}

/// The window of the connection is watched like those of streams.
pub async fn a_connection_s_window_that_stays_shut_ends_its_streams<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { rate_slack: SHORT, ..limits() });
    let mut client = Streams::new(server.connect());
    client.keep_windows_shut();
    let all = [client.get("/endless"), client.get("/large/100000")];
    for id in all {
        assert_eq!(client.answer(id).await.reset, Some(8), "{id}");
    }
    bench.until("the stream was dropped", || shared.dropped.get() == 1).await;
    assert!(shared.produced.get() < 200_000, "{}", shared.produced.get());
    close(server, client).await;
}

/// An exchange may take no longer than its limit.
pub async fn an_exchange_has_its_time<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin_with(bench, Limits { exchange_timeout: Some(SHORT), ..limits() });
    let mut client = Streams::new(server.connect());
    let waiting = client.get("/wait");
    let endless = client.get("/gated/2");
    assert_eq!(client.answer(waiting).await.status(), 503);
    assert_eq!(client.answer(endless).await.reset, Some(8));
    client.round_trip().await;
    close(server, client).await;
}

/// Floods end their connection, and no other.
pub async fn floods_are_answered_with_calm<B: Bench>(bench: &B) {
    bench.calm();
    let (server, _) = begin(bench);
    let mut neighbour = Streams::new(server.connect());
    let floods: [fn(&mut Vec<u8>, u32, &[u8]); 5] = [
        |out, id, block| {
            frame::write(Kind::Headers, flag::END_HEADERS | flag::END_STREAM, id, block, out);
            frame::write_reset(id, frame::Code::CANCEL, out);
        },
        |out, _, _| frame::write(Kind::Ping, 0, 0, b"12345678", out),
        |out, _, _| frame::write_settings([(setting::ENABLE_PUSH, 0)], out),
        |out, id, block| match id {
            1 => frame::write(Kind::Headers, 0, 1, block, out),
            _ => frame::write(Kind::Continuation, 0, 1, b"", out),
        },
        |out, id, block| match id {
            1 => frame::write(Kind::Headers, flag::END_HEADERS, 1, block, out),
            _ => frame::write(Kind::Data, 0, 1, b"", out),
        },
    ];
    for (number, flood) in floods.into_iter().enumerate() {
        let mut client = Streams::new(server.connect());
        let block = client.block(if number == 4 { "POST" } else { "GET" }, "/hold", &[]);
        // A block that no table has to know of.
        let mut out = Vec::new();
        let mut fresh = Streams::silent(server.connect());
        let plain = fresh.block("GET", "/hold", &[]);
        drop(fresh);
        for id in (1..10_000).step_by(2) {
            flood(&mut out, id, if id == 1 { &block } else { &plain });
        }
        client.send(&out);
        client.ended().await;
        let calm = client.go_away.last().map(|(_, code)| *code);
        assert_eq!(calm, Some(ENHANCE_YOUR_CALM), "flood {number}");
    }
    let id = neighbour.get("/hello");
    assert_eq!(neighbour.answer(id).await.text(), "hello");
    drop(neighbour);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("http2-excess"), 5, "{outcome:?}");
}

/// Who breaks a rule of the connection is told, and named.
pub async fn a_broken_rule_ends_the_connection<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    client.get("/wait");
    bench.until("it began", || shared.started.get() == 1).await;
    client.frame(Kind::Data, 0, 0, b"of no stream");
    client.ended().await;
    assert_eq!(client.go_away.last(), Some(&(1, 1)));
    bench.until("the handler was dropped", || shared.dropped.get() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.ended("http2-rejected"), 1);
}

/// Who reads nothing of what it asks for is cut off.
pub async fn who_reads_nothing_is_cut_off<B: Bench>(bench: &B) {
    bench.calm();
    let (server, shared) = begin_with(bench, Limits { rate_slack: SHORT, ..limits() });
    let mut client =
        Streams::with_settings(server.connect(), &[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
    let mut more = Vec::new();
    frame::write_window_update(0, 0x7fff_0000, &mut more);
    client.send(&more);
    client.get("/endless");
    bench.until("the stream was dropped", || shared.dropped.get() == 1).await;
    drop(client);
    server.shut_down();
    assert_eq!(server.ended().await.ended("write-stalled"), 1);
}

/// TLS agrees on HTTP/2 by default.
pub async fn tls_agrees_on_http2<B: Bench>(bench: &B) {
    bench.calm();
    let shared = Shared::default();
    let server = bench.start(limits(), Some(server_tls()), shared.app());
    let mut config = (*client_config(&version::TLS13)).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let mut wire = Secure::new(server.connect_secure(), &Arc::new(config));
    wire.shake_hands(Duration::from_secs(20)).await;
    let mut client = Streams::new(wire);
    let all: Vec<_> = (0..5).map(|_| client.get("/large/100000")).collect();
    let whole = pattern(100_000);
    for id in all {
        assert!(client.answer(id).await.body == whole);
    }
    let id = client.open("POST", "/echo-large", &[], false);
    client.upload(id, &pattern(200_000)).await;
    assert_eq!(client.answer(id).await.body.len(), 200_000);
    server.shut_down();
    assert_eq!(client.ended().await, Got::End);
}
