//! Content in both directions.

use super::{PROBLEM, SHORT, begin, begin_with};
use crate::server::app::pattern;
use crate::server::bench::Bench;
use crate::server::cases::limits;
use crate::server::client::{Length, Way};
use peregrine::Limits;

const BOTH: fn(usize) -> [Length; 2] = |length| [Length::Declared(length), Length::Undeclared];

/// A body arrives complete however it is sent: at once, byte by byte, with its end apart, with a
/// declared length or without.
pub async fn a_body_may_arrive_in_any_pieces<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let text = b"byte by byte";
    for path in ["/echo", "/echo-stream"] {
        for length in BOTH(text.len()) {
            for piece in [1, 5, text.len()] {
                let id = client.begin("POST", path, &[], length);
                for piece in text.chunks(piece) {
                    client.part(id, piece).await;
                }
                client.end(id, &[]);
                let response = client.answer(id).await;
                assert_eq!(
                    (response.status(), response.body.as_slice()),
                    (200, &text[..]),
                    "{path}"
                );
            }
        }
        let id = client.begin("POST", path, &[], Length::Undeclared);
        client.end(id, &[]);
        assert_eq!(client.answer(id).await.text(), "");
        let id = client.begin("POST", path, &[], Length::None);
        assert_eq!(client.answer(id).await.text(), "");
    }
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// Bodies larger than all buffers and windows are echoed complete, even by slow handlers.
pub async fn large_bodies_flow_both_ways<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let mut client = site.client().await;
    let body = pattern(300_000);
    for path in ["/echo-large", "/echo-stream", "/echo-slowly"] {
        for length in BOTH(body.len()) {
            let id = client.begin("POST", path, &[], length);
            for piece in body.chunks(60_000) {
                client.part(id, piece).await;
            }
            client.end(id, &[]);
            let response = client.answer(id).await;
            assert!(response.body == body, "{path}: {} {}", response.status(), response.body.len());
        }
    }
    let all =
        [client.get("/large/300000"), client.get("/large/300000"), client.get("/stream/2000")];
    assert!(client.answer(all[0]).await.body == body && client.answer(all[1]).await.body == body);
    let response = client.answer(all[2]).await;
    assert_eq!(response.text().lines().last(), Some("piece 1999"));
    client.expect_alive().await;
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// A body beyond its limit gets a 413, whether or not its length was declared. HTTP/1.1 must read
/// the rest or close; HTTP/2 resets the stream.
pub async fn a_body_beyond_its_limit_is_a_413<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let mut client = site.client().await;
    for length in BOTH(1_000) {
        let id = client.begin("POST", "/echo-limited", &[], length);
        client.upload(id, &pattern(1_000)).await;
        assert!(client.answer(id).await.body == pattern(1_000));
    }
    for length in BOTH(1_001) {
        let mut client = site.client().await;
        let id = client.begin("POST", "/echo-limited", &[], length);
        client.upload(id, &pattern(1_001)).await;
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.field("content-type")), (413, PROBLEM));
        // All of it arrived, and is discarded.
        if !client.is_told_to_go() {
            client.expect_alive().await;
        }
    }
    // A client that declares far too much gets the response before it sends the body.
    let id = client.begin("POST", "/echo-limited", &[], Length::Declared(1_000_000));
    client.part(id, &pattern(2_000)).await;
    let response = client.answer(id).await;
    assert_eq!(response.status(), 413);
    if way.differs(true, false) {
        client.expect_goodbye().await;
    } else {
        while client.so_far(id).reset.is_none() {
            client.settle().await;
        }
        assert_eq!(client.so_far(id).reset, Some(0));
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}

/// The innermost limit applies, whether larger or smaller, and however the body arrives.
pub async fn the_innermost_body_limit_applies<B: Bench>(bench: &B, way: Way) {
    let site = begin_with(bench, way, Limits { body_bytes_max: 100, ..limits() });
    for (path, limit) in [
        ("/echo", 100),
        ("/lowered", 50),
        ("/lowered/tight", 10),
        ("/lowered/wide", 300),
        ("/raised", 200),
        ("/raised/tight", 10),
    ] {
        for bytes in [limit, limit + 1] {
            for length in BOTH(bytes) {
                for pieces in [1, 2] {
                    let mut client = site.client().await;
                    let id = client.begin("POST", path, &[], length);
                    for part in pattern(bytes).chunks(bytes.div_ceil(pieces)) {
                        client.part(id, part).await;
                    }
                    client.end(id, &[]);
                    let expected = if bytes > limit { 413 } else { 200 };
                    let status = client.answer(id).await.status();
                    assert_eq!(status, expected, "{path} {length:?} in {pieces}");
                }
            }
        }
    }
    site.end().await;
}

/// Request trailers reach the handler.
pub async fn trailers_reach_the_handler<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for (fields, checksum) in [
        (&[][..], "none"),
        (&[("x-checksum", "17")], "17"),
        (&[("x-other", "1"), ("x-checksum", "18")], "18"),
    ] {
        let id = client.begin("POST", "/trailers", &[], Length::Undeclared);
        client.part(id, b"hello").await;
        client.end(id, fields);
        assert_eq!(client.answer(id).await.text(), format!("5 {checksum}"));
    }
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// Trailers follow a response of unknown length. With a known length, HTTP/1.1 cannot send them and
/// omits them; HTTP/2 sends them.
pub async fn trailers_follow_a_response<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let trailer = Some("abc");
    for (path, text, expected) in [
        ("/trailers", "hello", way.differs(None, trailer)),
        ("/stream-with-trailers", "streamed", trailer),
    ] {
        let id = client.ask("GET", path, &[("te", "trailers")]);
        let response = client.answer(id).await;
        assert_eq!((response.text(), response.trailer("x-checksum")), (text, expected), "{path}");
        client.expect_alive().await;
    }
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// A response may be sent before its request is complete. HTTP/1.1 then announces the close if much
/// of the body is missing; HTTP/2 sends RST_STREAM (NO_ERROR) to stop the upload.
pub async fn an_early_response_ends_its_request<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    for path in ["/ignore", "/nowhere"] {
        let mut client = site.client().await;
        let id = client.begin("POST", path, &[], Length::Declared(1_000_000));
        client.part(id, &pattern(10_000)).await;
        let response = client.answer(id).await;
        assert!(response.is_complete && response.status() > 0, "{response:?}");
        assert_eq!(client.is_told_to_go(), way.differs(true, false));
        if way.differs(true, false) {
            client.expect_goodbye().await;
        } else {
            while client.so_far(id).reset.is_none() {
                client.settle().await;
            }
            assert_eq!(client.so_far(id).reset, Some(0));
            client.expect_alive().await;
        }
    }
    site.end().await;
}

/// The short unread rest of a body is discarded, and the connection stays open.
pub async fn a_short_body_remainder_is_discarded<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for length in [5, 3_000, bench.large(100_000)] {
        let body = pattern(length);
        let id = client.begin("POST", "/ignore", &[], Length::Declared(length));
        client.part(id, &body[..length / 2]).await;
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.text()), (200, "ignored"));
        client.part(id, &body[length / 2..]).await;
        client.end(id, &[]);
        client.expect_alive().await;
    }
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// A task that reads after the response gets the whole body, and the connection stays open.
pub async fn a_body_may_be_read_after_the_response<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let (mut client, mut reader) = (site.client().await, site.client().await);
    for path in ["/keep", "/keep-streaming"] {
        for (bytes, length) in [
            (10, Length::Declared(10)),
            (300_000, Length::Declared(300_000)),
            (9_000, Length::Undeclared),
        ] {
            let body = pattern(bytes);
            let id = client.begin("POST", path, &[], length);
            let (first_part, second_part) = body.split_at((bytes / 3).min(30_000));
            client.part(id, first_part).await;
            assert_eq!(client.answer(id).await.text(), "kept");
            let read_id = reader.get("/read-kept");
            client.part(id, second_part).await;
            client.end(id, &[]);
            assert_eq!(reader.answer(read_id).await.text(), format!("{bytes} bytes"), "{path}");
            client.expect_alive().await;
        }
    }
    client.close().await;
    reader.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// A handler that does not read stalls its client, and gets everything when it reads again.
pub async fn a_handler_that_does_not_read_blocks_its_client<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way);
    let shared = &site.shared;
    let mut client = site.client().await;
    let id = client.begin("POST", "/sip", &[], Length::Declared(60_000));
    client.part(id, &pattern(60_000)).await;
    client.end(id, &[]);
    client.wait_until(bench, "the handler has read a piece", || shared.started.get() == 1).await;
    client.expect_nothing(id, SHORT / 10).await;
    shared.open(1);
    assert_eq!(client.answer(id).await.text(), "60000");
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// A stream arrives piece by piece, not all at its end.
pub async fn a_slow_stream_arrives_piece_by_piece<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let id = client.get("/gated/3");
    assert_eq!(client.head(id).await.status(), 200, "the head does not wait for the first piece");
    for number in 1..=3 {
        client.expect_nothing(id, SHORT / 20).await;
        site.shared.open(1);
        assert_eq!(client.expect(id, 8 * number).await.body.len(), 8 * number);
    }
    assert_eq!(client.answer(id).await.text(), "piece 0\npiece 1\npiece 2\n");
    client.expect_alive().await;
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// An endless stream is not produced while the client does not read.
pub async fn an_endless_stream_waits_for_its_reader<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin_with(bench, way, Limits { transfer_rate_grace: 2 * SHORT, ..limits() });
    let shared = &site.shared;
    let mut client = site.client().await;
    client.take_no_more();
    let id = client.get("/endless");
    client.head(id).await;
    client.wait_until(bench, "the stream was dropped", || shared.dropped.get() == 1).await;
    // The kernels' buffers plus the server's limit.
    let produced_max = if bench.is_virtual() { 4 * 64 * 1024 } else { 32 << 20 };
    assert!(shared.produced.get() <= produced_max, "{} bytes were produced", shared.produced.get());
    client.close().await;
    site.end().await;
}
