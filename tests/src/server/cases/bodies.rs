//! Request bodies.

use super::{begin, begin_with, limits};
use crate::server::app::pattern;
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::reply::Framing;
use std::time::Duration;

const POST_ECHO: &str = "POST /echo HTTP/1.1\r\nHost: a\r\n";

/// `body` in chunks of sizes that the bench chooses.
fn chunked<B: Bench>(bench: &B, mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !body.is_empty() {
        let size = 1 + bench.choose(body.len());
        out.extend_from_slice(format!("{size:x}\r\n").as_bytes());
        out.extend_from_slice(&body[..size]);
        out.extend_from_slice(b"\r\n");
        body = &body[size..];
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

/// A body of known length is echoed unchanged, whatever pieces it arrives in.
pub async fn a_body_of_known_length_is_echoed<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for (path, length) in
        [("/echo", 0), ("/echo", 1), ("/echo", 3_000), ("/echo", 70_000), ("/echo-stream", 50_000)]
    {
        let body = pattern(bench.large(length));
        peer.post(path, &body);
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.framing), (200, Framing::Length), "{path} {length}");
        assert!(reply.body == body, "{path} {length}");
    }
    for _ in 0..3 {
        let body = pattern(500);
        let request =
            [format!("{POST_ECHO}Content-Length: 500\r\n\r\n").as_bytes(), &body].concat();
        let split_at = 1 + bench.choose(request.len() - 1);
        peer.send(&request[..split_at]);
        bench.sleep(Duration::from_millis(2)).await;
        peer.send(&request[split_at..]);
        assert!(peer.reply().await.body == body, "split at {split_at}");
    }
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A chunked body is echoed unchanged, whatever chunks and pieces it arrives in.
pub async fn a_chunked_body_is_echoed<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for length in [0, 1, 3_000, 70_000] {
        let body = pattern(bench.large(length));
        peer.send(format!("{POST_ECHO}Transfer-Encoding: chunked\r\n\r\n"));
        peer.send(chunked(bench, &body));
        let reply = peer.reply().await;
        assert_eq!(reply.status, 200);
        assert!(reply.body == body, "{length}");
    }
    let body = pattern(bench.large(20_000));
    let head = "POST /echo-stream HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut request = [head.as_bytes(), &chunked(bench, &body)].concat();
    request.extend_from_slice(b"GET /numbers/4 HTTP/1.1\r\nHost: a\r\n\r\n");
    let split_at = 1 + bench.choose(request.len() - 1);
    peer.send(&request[..split_at]);
    bench.sleep(Duration::from_millis(2)).await;
    peer.send(&request[split_at..]);
    assert!(peer.reply().await.body == body, "split at {split_at}");
    assert_eq!(peer.reply().await.text(), "4");
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A body larger than all buffers flows through a handler that reads and writes concurrently.
pub async fn a_large_body_flows_through<B: Bench>(bench: &B) {
    let length = bench.large(if bench.is_virtual() { 150_000 } else { 4_000_000 });
    let mut limits = limits();
    limits.body_bytes_max = 1 << 30;
    let (server, _) = begin_with(bench, limits);
    let mut peer = Peer::new(server.connect());
    let body = pattern(length);
    for path in ["/echo-stream", "/echo-large"] {
        peer.post(path, &body);
        let reply = peer.reply().await;
        assert!(reply.body == body, "{path} {} {}", reply.status, reply.body.len());
    }
    peer.post("/count", &body);
    assert_eq!(peer.reply().await.text(), length.to_string());
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A handler that pauses between pieces gets all of them in order, and nothing is lost when the
/// client pauses meanwhile.
pub async fn a_slow_handler_receives_a_complete_large_body<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let body = pattern(bench.large(if bench.is_virtual() { 150_000 } else { 1_500_000 }));
    let mut peer = Peer::new(server.connect());
    peer.post("/echo-slowly", &body);
    assert!(peer.reply().await.body == body, "known length");
    peer.send("POST /echo-slowly HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    peer.send(chunked(bench, &body));
    assert!(peer.reply().await.body == body, "chunked");
    peer.send(format!(
        "POST /echo-slowly HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    ));
    for part in body.chunks(body.len() / 7 + 1) {
        peer.send(part);
        bench.sleep(Duration::from_millis(5)).await;
    }
    assert!(peer.reply().await.body == body, "with pauses");
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// Bytes that follow a large body in the same write are the next request.
pub async fn a_request_behind_a_large_body_is_answered<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let mut lengths = Vec::new();
    for length in [60_000, 65_536, 131_072, 200_000] {
        let length = bench.large(length) + bench.choose(100);
        lengths.push(length);
        peer.post("/count", &pattern(length));
        peer.get(&format!("/numbers/{length}"));
    }
    for length in lengths {
        assert_eq!(peer.reply().await.text(), length.to_string());
        assert_eq!(peer.reply().await.text(), length.to_string());
    }
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A client that disconnects in the middle of a large body is noticed, however much was received.
pub async fn a_truncated_large_body_is_noticed<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let length = bench.large(400_000);
    let head = format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    let part = pattern(length - 1 - bench.choose(length / 2));
    let mut peer = Peer::new(server.connect());
    peer.send(&head);
    peer.send(&part);
    peer.half_close();
    let received = peer.rest().await;
    assert!(!received.starts_with(b"HTTP/1.1 200"), "{}", received.escape_ascii());
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
    let consumed_before = shared.consumed.get();
    assert!(consumed_before <= part.len(), "{consumed_before} of {} bytes were read", part.len());

    let mut peer = Peer::new(server.connect());
    peer.send(&head);
    peer.send(&part);
    bench
        .wait_until("the part is read", || shared.consumed.get() == consumed_before + part.len())
        .await;
    peer.reset();
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 2).await;
    assert_eq!(shared.finished.get(), 0);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 2)]);
}

/// Large bodies on some connections do not delay small requests on others.
pub async fn small_requests_are_answered_during_large_uploads<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let body = pattern(bench.large(if bench.is_virtual() { 50_000 } else { 8_000_000 }));
    let mut uploads = Vec::new();
    for _ in 0..4 {
        let mut peer = Peer::new(server.connect());
        peer.post("/count", &body);
        uploads.push(peer);
    }
    bench.wait_until("the uploads have started", || shared.started.get() > 0).await;
    let mut peer = Peer::new(server.connect());
    for _ in 0..10 {
        peer.expect_alive().await;
    }
    for mut upload in uploads {
        assert_eq!(upload.reply().await.text(), body.len().to_string());
        upload.expect_alive().await;
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// The interim 100 is sent when the handler starts to read the body, and only then.
pub async fn the_100_is_sent_when_the_handler_reads<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let expect = "Content-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    peer.send(format!("{POST_ECHO}{expect}"));
    let interim = peer.expect("\r\n\r\n").await;
    assert_eq!(interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    peer.send("hello");
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len()), ("hello", 0));

    // A client that sends its body at once gets no 100.
    peer.send(format!("{POST_ECHO}{expect}hello"));
    let reply = peer.reply().await;
    assert_eq!(reply.text(), "hello");
    assert!(!bench.is_calm() || reply.interim.is_empty(), "{reply:?}");

    // A handler that waits before it reads the body leaves the client waiting.
    peer.send(format!("POST /ignore-after-wait HTTP/1.1\r\nHost: a\r\n{expect}"));
    peer.expect_nothing(Duration::from_millis(50)).await;
    shared.open(1);
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len(), reply.closes()), ("waited", 0, true));
    peer.expect_end().await;

    // Nor is one sent to HTTP/1.0 clients, which do not understand it.
    let mut peer = Peer::new(server.connect());
    peer.send("POST /echo HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello");
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len()), ("hello", 0));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 2)]);
}

/// A handler that does not read the body responds at once, and the connection ends.
pub async fn a_final_status_instead_of_the_100_ends_the_connection<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let head = "POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n";
    peer.send(format!("{head}Expect: 100-continue\r\n\r\n"));
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.interim.len(), reply.closes()), ("ignored", 0, true));
    peer.expect_end().await;
    let mut peer = Peer::new(server.connect());
    peer.send(format!("{head}Expect: a-miracle\r\n\r\n"));
    assert_eq!(peer.reply().await.status, 417);
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.ended("connection-close"), 1);
}

/// The unread rest of a small body is discarded, and the connection stays open.
pub async fn a_small_unread_body_is_discarded<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    for length in [5, 3_000, 100_000] {
        let length = bench.large(length);
        let head = format!("POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let body = pattern(length);
        peer.send(head);
        peer.send(&body[..length / 2]);
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.closes()), ("ignored", false), "{length}");
        peer.send(&body[length / 2..]);
        peer.expect_alive().await;
    }
    // The remaining size of a chunked body is unknown, so the connection ends, and the response
    // says so.
    peer.send("POST /ignore HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.closes()), ("ignored", true));
    peer.send(chunked(bench, &pattern(bench.large(40_000))));
    peer.expect_end().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 1)]);
}

/// The unread rest of a large body is not received, and the response is not lost to a reset.
pub async fn a_large_unread_body_ends_the_connection<B: Bench>(bench: &B) {
    let mut limits = limits();
    limits.drain_bytes_max = 1_000;
    let (server, _) = begin_with(bench, limits);
    let mut peer = Peer::new(server.connect());
    let length = bench.large(100_000);
    peer.send(format!("POST /ignore HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.closes()), ("ignored", true));
    peer.send(pattern(length));
    peer.expect_end().await;
    drop(peer);

    // With a chunked body, the excess is detected only as it arrives.
    let mut peer = Peer::new(server.connect());
    peer.send("POST /ignore HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(peer.reply().await.text(), "ignored");
    peer.send(chunked(bench, &pattern(length)));
    peer.expect_end().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 2)]);
}

/// A body beyond its limit gets a 413, whether or not its length is known in advance.
pub async fn a_body_beyond_its_limit_is_a_413<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.post("/echo-limited", &pattern(1000));
    assert!(peer.reply().await.body == pattern(1000));
    peer.post("/echo-limited", &pattern(1001));
    let reply = peer.reply().await;
    assert_eq!(reply.status, 413);
    assert_eq!(reply.field("content-type"), Some("application/problem+json"));
    peer.expect_alive().await;
    peer.send("POST /echo-limited HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    peer.send(chunked(bench, &pattern(bench.large(5_000))));
    let reply = peer.reply().await;
    assert_eq!(reply.status, 413);
    // If the server did not see the end of the body, the connection ends, and the response says so.
    if reply.closes() {
        peer.expect_end().await;
        peer = Peer::new(server.connect());
    } else {
        peer.expect_alive().await;
    }
    let ends = usize::from(reply.closes()) + 1;
    // A client that sends `Expect: 100-continue` need not send the body.
    let head = "POST /echo-limited HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n";
    peer.send(format!("{head}Expect: 100-continue\r\n\r\n"));
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.interim.len(), reply.closes()), (413, 0, true));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", ends as u64)]);
}

/// Trailers of a chunked body reach the handler.
pub async fn trailers_reach_the_handler<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let head = "POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    peer.send(format!("{head}5\r\nhello\r\n0\r\nX-Checksum: 17\r\n\r\n"));
    assert_eq!(peer.reply().await.text(), "5 17");
    peer.send(format!("{head}5\r\nhello\r\n"));
    bench.sleep(Duration::from_millis(2)).await;
    peer.send("0\r\nX-Check");
    bench.sleep(Duration::from_millis(2)).await;
    peer.send("sum: 18\r\n\r\n");
    assert_eq!(peer.reply().await.text(), "5 18");
    peer.send(format!("{head}0\r\n\r\n"));
    assert_eq!(peer.reply().await.text(), "0 none");
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

/// A client that disconnects in the middle of its body is noticed, and gets no response that treats
/// the body as complete.
pub async fn a_truncated_body_never_looks_complete<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for framing in
        ["Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"]
    {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("POST /count HTTP/1.1\r\nHost: a\r\n{framing}"));
        peer.half_close();
        let remaining = peer.rest().await;
        assert!(!remaining.starts_with(b"HTTP/1.1 200"), "{}", remaining.escape_ascii());
    }
    assert_eq!(shared.finished.get(), 0);
    let before = shared.consumed.get();
    let mut peer = Peer::new(server.connect());
    peer.send("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    bench.wait_until("the handler has read", || shared.consumed.get() == before + 5).await;
    peer.reset();
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 3).await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("peer-aborted", 3)]);
}

/// A malformed chunk in the middle of a body gets a 400, and ends the connection.
pub async fn a_malformed_chunk_is_a_400<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let head = "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for remaining in ["oh no\r\n", "5\r\nhello!!", "-5\r\nhello\r\n", "ffffffffffffffffff\r\n"] {
        // Both sent at once, and while a handler is already reading the body.
        for pause in [false, true] {
            let before = shared.consumed.get();
            let mut peer = Peer::new(server.connect());
            peer.send(format!("{head}3\r\nabc\r\n"));
            if pause {
                bench.wait_until("the part is read", || shared.consumed.get() > before).await;
            }
            peer.send(format!("{remaining}GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"));
            let reply = peer.reply().await;
            assert_eq!((reply.status, reply.closes()), (400, true), "{remaining:?}: {reply:?}");
            peer.expect_end().await;
        }
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("rejected", 8)]);
}

/// A handler that does not read stalls the client: the server does not buffer the whole body.
pub async fn a_handler_that_does_not_read_blocks_its_client<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(60_000));
    peer.post("/read-after-wait", &body);
    peer.expect_nothing(Duration::from_millis(50)).await;
    // The extractor reads before the handler waits, so the whole body is read here.
    bench.wait_until("the handler waits", || shared.started.get() == 1).await;
    shared.open(1);
    assert!(peer.reply().await.body == body);
    drop(peer);

    let mut peer = Peer::new(server.connect());
    peer.post("/ignore-after-wait", &body);
    bench.wait_until("the handler waits", || shared.started.get() == 2).await;
    shared.open(1);
    assert_eq!(peer.reply().await.text(), "waited");
    peer.expect_alive().await;
    assert_eq!(peer.last(), None::<&Got>);
    drop(peer);
    server.shut_down();
    server.ended().await;
}
