//! Requests one after the other, pipelined, and in every form.

use super::{begin, begin_with, half_close, limits};
use crate::server::app::Shared;
use crate::server::bench::{Bench, Got, Served};
use crate::server::peer::Peer;
use crate::server::reply::Framing;
use std::fmt::Write;
use std::time::Duration;

/// Sixteen requests in one write get sixteen responses, in order and in one send.
pub async fn pipelined_requests_are_answered_in_order_and_at_once<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let mut requests = String::new();
    for number in 0..16 {
        write!(requests, "GET /numbers/{number} HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("writing to a string cannot fail");
    }
    peer.send(requests);
    for number in 0..16 {
        assert_eq!(peer.reply().await.text(), number.to_string());
    }
    drop(peer);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.requests, 16);
    if bench.is_calm() {
        assert_eq!(outcome.snapshot.sends, 1, "all responses were sent together");
    } else {
        assert!(outcome.snapshot.sends <= 16, "no response is sent in parts: {outcome:?}");
    }
}

/// Finished responses are sent before the server waits for a handler.
pub async fn replies_do_not_wait_for_a_later_handler<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let get = |path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    peer.send([get("/hello"), get("/numbers/1"), get("/wait"), get("/numbers/2")].concat());
    assert_eq!(peer.reply().await.text(), "hello");
    assert_eq!(peer.reply().await.text(), "1");
    peer.expect_nothing(Duration::from_millis(30)).await;
    assert_eq!(shared.finished.get(), 0);
    shared.open(1);
    assert_eq!(peer.reply().await.text(), "waited");
    assert_eq!(peer.reply().await.text(), "2");
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// With `half_close`, a client that ends its side after pipelining still gets every response.
pub async fn a_half_closed_pipeline_is_answered_to_its_end<B: Bench>(bench: &B) {
    let (server, _) = begin_with(bench, half_close());
    for paths in [
        &["/hello", "/numbers/1", "/numbers/2"][..],
        &["/numbers/1", "/sleep/30", "/hello", "/sleep/700", "/numbers/2"][..],
        &["/stream/3", "/slow/3", "/hello"][..],
    ] {
        let mut peer = Peer::new(server.connect());
        for path in paths {
            peer.get(path);
        }
        peer.half_close();
        for path in paths {
            let reply = peer.reply().await;
            assert_eq!(reply.status, 200, "{path}");
            let (_, segment) = path.rsplit_once('/').expect("paths have slashes");
            match segment.parse::<u64>() {
                Ok(milliseconds) if path.starts_with("/sleep") => {
                    assert_eq!(reply.text(), format!("slept {milliseconds}"));
                }
                Ok(_) if reply.framing == Framing::Chunked => {
                    assert_eq!(reply.text(), "piece 0\npiece 1\npiece 2\n");
                }
                Ok(number) => assert_eq!(reply.text(), number.to_string()),
                Err(_) => assert_eq!(reply.text(), "hello"),
            }
            // RFC 9110 §15.2: only 1xx responses may precede the final one. The only one the server
            // sends here is the 102 that probes a peer that may have disconnected.
            assert!(reply.interim.iter().all(|status| *status == 102), "{reply:?}");
        }
        peer.expect_end().await;
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), []);
    assert_eq!(outcome.ended("peer-closed"), 3);
}

/// Requests that arrived completely before the client ended its side are answered in order as long
/// as their handlers are ready at once. The first handler that waits is cancelled, and the
/// connection ends.
pub async fn ready_handlers_answer_a_half_closed_pipeline<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let large = bench.large(200_000);
    let send_requests = |peer: &mut Peer<B::Wire>| {
        peer.get("/numbers/1");
        peer.get("/stream/100");
        peer.get(&format!("/large/{large}"));
        peer.get(&format!("/mixed/{large}"));
        peer.post("/echo", b"known");
        peer.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        peer.send("3\r\nabc\r\n3\r\ndef\r\n0\r\nX-Sum: 6\r\n\r\n");
    };
    for waits in [false, true] {
        let mut peer = Peer::new(server.connect());
        send_requests(&mut peer);
        peer.get(if waits { "/wait" } else { "/numbers/2" });
        peer.get("/hello");
        peer.half_close();
        assert_eq!(peer.reply().await.text(), "1");
        let stream: String = (0..100).map(|number| format!("piece {number}\n")).collect();
        assert_eq!(peer.reply().await.text(), stream);
        assert_eq!(peer.reply().await.body.len(), large);
        assert_eq!(peer.reply().await.body.len(), large);
        assert_eq!(peer.reply().await.text(), "known");
        assert_eq!(peer.reply().await.text(), "abcdef");
        if waits {
            bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
        } else {
            assert_eq!(peer.reply().await.text(), "2");
            assert_eq!(peer.reply().await.text(), "hello");
        }
        peer.expect_end().await;
        assert_eq!(peer.last(), Some(&Got::End));
    }
    assert_eq!((shared.started.get(), shared.dropped.get()), (1, 1));
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("peer-aborted", 1)]);
    assert_eq!(outcome.ended("peer-closed"), 1);
}

/// Many pipelined responses arrive in order despite the output limit.
pub async fn pipelining_beyond_the_output_limit_loses_nothing<B: Bench>(bench: &B) {
    let mut small = limits();
    small.write_buffer_bytes_max = 300;
    let (server, _) = begin_with(bench, small);
    let mut peer = Peer::new(server.connect());
    let mut requests = String::new();
    for number in 0..100 {
        write!(requests, "GET /numbers/{number} HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("writing to a string cannot fail");
    }
    peer.send(requests);
    for number in 0..100 {
        assert_eq!(peer.reply().await.text(), number.to_string());
    }
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.requests, 101);
}

/// An HTTP/1.0 connection ends after one response unless the client asks otherwise.
pub async fn http_1_0_persists_only_if_asked<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /hello HTTP/1.0\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.text(), reply.closes()), (200, "hello", true));
    peer.expect_end().await;

    let mut peer = Peer::new(server.connect());
    peer.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!(reply.field("connection"), Some("keep-alive"));
    peer.send("GET /numbers/7 HTTP/1.0\r\n\r\n");
    assert_eq!(peer.reply().await.text(), "7");
    peer.expect_end().await;

    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.endings(), [("connection-close", 2)]);
}

/// A stream to an HTTP/1.0 client ends with the connection, even if the client asked to keep it.
pub async fn a_stream_to_http_1_0_ends_with_the_connection<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    for fields in ["", "Connection: keep-alive\r\n"] {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("GET /stream/3 HTTP/1.0\r\n{fields}\r\n"));
        let reply = peer.reply().await;
        assert_eq!(reply.framing, Framing::UntilClose);
        assert_eq!(reply.text(), "piece 0\npiece 1\npiece 2\n");
        peer.expect_end().await;
    }
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("connection-close", 2)]);
}

/// After `Connection: close` from either side, no further request is answered.
pub async fn no_request_is_answered_after_connection_close<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let client_closes = "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let server_closes = "GET /close HTTP/1.1\r\nHost: a\r\n\r\n";
    for request in [client_closes, server_closes] {
        let mut peer = Peer::new(server.connect());
        peer.send(format!("{request}GET /numbers/1 HTTP/1.1\r\nHost: a\r\n\r\n"));
        let reply = peer.reply().await;
        assert!(reply.status == 200 && reply.closes(), "{reply:?}");
        // A client that sends more after `Connection: close` may get a reset.
        assert_eq!(peer.rest().await, b"");
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.requests, 2);
    assert_eq!(outcome.endings(), [("connection-close", 2)]);
}

/// `OPTIONS *` and absolute targets are answered, and the connection stays open.
pub async fn every_form_of_request_target_is_accepted<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.framing), (204, Framing::None));
    peer.send("GET http://example.org/numbers/3?x=1 HTTP/1.1\r\nHost: example.org\r\n\r\n");
    assert_eq!(peer.reply().await.text(), "3");
    // RFC 9112 §3.2.2: the target's authority replaces the Host field.
    peer.send("GET http://example.org/host HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(peer.reply().await.text(), "example.org");
    peer.send("OPTIONS /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!(reply.status, 204);
    let allow = reply.field("allow").expect("a 405 has an Allow field");
    assert!(allow.split(", ").any(|method| method == "GET"), "{allow}");
    peer.send("DELETE /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(peer.reply().await.status, 405);
    peer.get("/no/such/path");
    assert_eq!(peer.reply().await.status, 404);
    peer.get("/empty");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.body.len()), (204, 0));
    peer.expect_alive().await;
    drop(peer);
    // RFC 9110 §7.4: an https request on a plain connection is misdirected.
    let mut peer = Peer::new(server.connect());
    peer.send("GET https://example.org/hello HTTP/1.1\r\nHost: example.org\r\n\r\n");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (421, true));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("rejected", 1)]);
}

/// A malformed request gets its status and a problem, and ends the connection. Earlier
/// responses are not lost, and later requests are not answered.
pub async fn a_malformed_request_gets_an_error_and_closes_the_connection<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let malformed = [
        ("GET  /hello HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\nHost: a\n\n", 400),
        ("GET /hello HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n", 400),
        ("GET /hello HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400),
        ("GET /hello#part HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /hello HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        ("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n", 501),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx", 400),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx", 400),
        (
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
        (
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\
             \r\n0\r\n\r\n",
            400,
        ),
        ("POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        ("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n", 400),
    ];
    for (request, status) in malformed {
        let mut peer = Peer::new(server.connect());
        let valid = "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n";
        peer.send(format!("{valid}{request}{valid}"));
        assert_eq!(peer.reply().await.text(), "hello");
        let reply = peer.reply().await;
        assert_eq!(reply.status, status, "{request:?}: {reply:?}");
        assert!(reply.closes(), "{request:?}: {reply:?}");
        assert_eq!(reply.field("content-type"), Some("application/problem+json"), "{request:?}");
        let length = reply.field("content-length").and_then(|length| length.parse().ok());
        assert_eq!(length, Some(reply.body.len()), "{request:?}");
        peer.expect_end().await;
    }
    server.shut_down();
    let outcome = server.ended().await;
    let count = u64::try_from(malformed.len()).expect("the count is small");
    assert_eq!(outcome.endings(), [("rejected", count)]);
}

/// A head may arrive in pieces of any size.
pub async fn a_head_may_arrive_in_any_pieces<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let request = b"GET /numbers/12 HTTP/1.1\r\nHost: example.org\r\nX-Filler: some text\r\n\r\n";
    let mut peer = Peer::new(server.connect());
    for byte in request {
        peer.send([*byte]);
    }
    assert_eq!(peer.reply().await.text(), "12");
    for _ in 0..5 {
        let split_at = 1 + bench.choose(request.len() - 1);
        peer.send(&request[..split_at]);
        bench.sleep(Duration::from_millis(2)).await;
        peer.send(&request[split_at..]);
        assert_eq!(peer.reply().await.text(), "12");
    }
    peer.send([&b"\r\n"[..], request].concat());
    assert_eq!(peer.reply().await.text(), "12", "one empty line before a request is ignored");
    drop(peer);
    server.shut_down();
    server.ended().await;
}

/// A client that disconnects in the middle of a head gets a response that explains it, if it reads.
pub async fn a_truncated_head_is_answered<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send("GET /hello HTTP/1.1\r\nHos");
    peer.half_close();
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (400, true));
    peer.expect_end().await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("rejected", 1)]);
}

/// Many concurrent connections do not mix.
pub async fn connections_do_not_mix<B: Bench>(bench: &B) {
    let (server, _): (_, Shared) = begin(bench);
    let mut peers: Vec<_> = (0..20).map(|_| Peer::new(server.connect())).collect();
    for round in 0..3 {
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.get(&format!("/numbers/{}", 100 * round + number));
        }
        for (number, peer) in peers.iter_mut().enumerate() {
            assert_eq!(peer.reply().await.text(), (100 * round + number).to_string());
        }
    }
    drop(peers);
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!((outcome.snapshot.accepted, outcome.snapshot.requests), (20, 60));
}
