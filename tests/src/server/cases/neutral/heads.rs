//! Requests and the heads of their responses.

use super::{PROBLEM, SHORT, begin, begin_app, begin_with};
use crate::server::app::stream;
use crate::server::bench::{Bench, Got, PATIENCE};
use crate::server::cases::limits;
use crate::server::client::{Length, Way};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use peregrine::prelude::*;
use peregrine::{App, Limits};
use std::task::Poll;

/// One connection serves many requests, one after the other and concurrently.
pub async fn a_connection_serves_many_requests<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for number in 0..5 {
        let id = client.get(&format!("/numbers/{number}"));
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.text()), (200, &*number.to_string()));
        assert_eq!(response.field("connection"), None);
        assert!(response.field("date").is_some(), "{response:?}");
    }
    let all: Vec<_> = (0..16).map(|number| client.get(&format!("/numbers/{number}"))).collect();
    for (number, id) in all.into_iter().enumerate() {
        assert_eq!(client.answer(id).await.text(), number.to_string());
    }
    client.settle().await;
    client.close().await;
    let outcome = site.end().await;
    assert_eq!((outcome.snapshot.accepted, outcome.snapshot.requests), (1, 21));
    assert_eq!(outcome.endings(), []);
}

/// A waiting handler delays the responses behind it over HTTP/1.1, and none over HTTP/2.
pub async fn a_pending_handler_delays_later_responses_only_over_http_1<B: Bench>(
    bench: &B,
    way: Way,
) {
    let site = begin(bench, way);
    let shared = &site.shared;
    let mut client = site.client().await;
    let waiting = client.get("/wait");
    client.wait_until(bench, "the handler waits", || shared.started.get() == 1).await;
    let behind = client.get("/hello");
    if way.differs(true, false) {
        client.expect_nothing(behind, SHORT / 10).await;
    } else {
        assert_eq!(client.answer(behind).await.text(), "hello");
    }
    assert_eq!(shared.finished.get(), 0);
    shared.open(1);
    assert_eq!(client.answer(waiting).await.text(), "waited");
    assert_eq!(client.answer(behind).await.text(), "hello");
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// Many concurrent connections do not mix.
pub async fn connections_do_not_mix<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(site.client().await);
    }
    for round in 0..3 {
        let mut ids = Vec::new();
        for (number, client) in clients.iter_mut().enumerate() {
            ids.push(client.get(&format!("/numbers/{}", 100 * round + number)));
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let response = client.answer(ids[number]).await;
            assert_eq!(response.text(), (100 * round + number).to_string());
        }
    }
    for client in clients {
        client.close().await;
    }
    let outcome = site.end().await;
    assert_eq!((outcome.snapshot.accepted, outcome.snapshot.requests), (5, 15));
}

/// A response to HEAD has the head of GET and no content; 204 and 304 have no content either.
pub async fn responses_without_content_have_none<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for (path, status, length) in [
        ("/hello", 200, Some("5")),
        ("/stream/3", 200, None),
        ("/large/100000", 200, Some("100000")),
        ("/trailers", 200, Some("5")),
        ("/empty", 204, None),
        ("/nowhere", 404, Some("")),
    ] {
        let id = client.ask("HEAD", path, &[]);
        let response = client.answer(id).await;
        assert_eq!((response.status(), response.body.len()), (status, 0), "{path}");
        assert!(response.is_complete && response.reset.is_none(), "{path}");
        let actual_length = response.field("content-length");
        match length {
            Some("") => assert!(actual_length.is_some(), "{path}"),
            // HTTP/1.1 has a Content-Length only if the content is sent in one piece.
            length if path != "/trailers" => assert_eq!(actual_length, length, "{path}"),
            _ => {}
        }
        client.expect_alive().await;
    }
    let id = client.get("/empty");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.body.len(), response.heads.len()), (204, 0, 1));
    assert_eq!(response.field("content-length"), None);
    client.expect_alive().await;
    client.close().await;
    site.end().await;
    let site = begin_app(bench, way, limits(), || {
        App::new()
            .get("/hello", || "hello")
            .get("/same", || (StatusCode::NOT_MODIFIED, [("etag", "\"1\"")], "not to be sent"))
            .get("/reset", || (StatusCode::RESET_CONTENT, "not to be sent"))
            .get("/reset-14", || {
                (StatusCode::RESET_CONTENT, [("content-length", "14")], "not to be sent")
            })
    });
    let mut client = site.client().await;
    let id = client.get("/same");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.body.len()), (304, 0));
    assert_eq!(response.field("etag"), Some("\"1\""));
    for path in ["/reset", "/reset-14"] {
        let [get, head] = ["GET", "HEAD"].map(|method| client.ask(method, path, &[]));
        let (get, head) = (client.answer(get).await, client.answer(head).await);
        assert_eq!((get.status(), get.body.len(), head.body.len()), (205, 0, 0));
        assert_eq!(get.field("content-length"), head.field("content-length"), "{path}");
    }
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// Requests without a route get an error response, and the connection stays open: unknown paths and
/// methods, `OPTIONS` and `OPTIONS *`.
pub async fn requests_without_a_route_get_an_error<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    for (method, path, status) in [
        ("GET", "/no/such/path", 404),
        ("DELETE", "/hello", 405),
        ("PROPFIND", "/hello", 405),
        ("BREW", "/hello", 405),
        ("OPTIONS", "/hello", 204),
        ("OPTIONS", "*", 204),
    ] {
        let id = client.ask(method, path, &[]);
        let response = client.answer(id).await;
        assert_eq!(response.status(), status, "{method} {path}");
        if path == "/hello" {
            let allow = response.field("allow").expect("a 405 has an Allow field");
            assert!(allow.split(", ").any(|method| method == "GET"), "{allow}");
        }
        if status > 400 {
            assert_eq!(response.field("content-type"), PROBLEM);
        }
        client.expect_alive().await;
    }
    client.close().await;
    assert_eq!(site.end().await.endings(), []);
}

/// CONNECT gets a 501. HTTP/1.1 then ends the connection, on which the client may have started to
/// send other data; HTTP/2 ends the stream.
pub async fn connect_is_refused<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let id = client.connect_to("example.org:443");
    let response = client.answer(id).await;
    assert_eq!((response.status(), response.field("content-type")), (501, PROBLEM));
    if way.differs(true, false) {
        client.expect_goodbye().await;
    } else {
        client.expect_alive().await;
    }
    client.close().await;
    let ended = site.end().await.ended("rejected");
    assert_eq!(ended, way.differs(1, 0));
}

/// A target that is too long gets a 414, a head that is too large a 431. HTTP/1.1 then does not
/// know where the next request begins, and ends the connection.
pub async fn too_long_heads_are_refused<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let limits = Limits {
        request_line_bytes_max: 200,
        field_bytes_max: 300,
        fields_max: 20,
        head_bytes_max: 1_000,
        ..limits()
    };
    let site = begin_with(bench, way, limits);
    let long = "x".repeat(400);
    let many_fields: Vec<_> = (0..30).map(|_| ("x", "y")).collect();
    let large_fields: Vec<_> = (0..6).map(|_| ("x", &long[..250])).collect();
    let path = format!("/{}", &long[..250]);
    for (path, fields, status) in [
        (&path[..150], &[][..], 404),
        (&path, &[], 414),
        ("/hello", &[("x", &long[..200])], 200),
        ("/hello", &[("x", &long)], 431),
        ("/hello", &many_fields[..], 431),
        ("/hello", &large_fields[..], 431),
    ] {
        let mut client = site.client().await;
        let id = client.ask("GET", path, fields);
        let response = client.answer(id).await;
        assert_eq!(response.status(), status, "{} {} fields", path.len(), fields.len());
        if status > 404 && way.differs(true, false) {
            assert_eq!(response.field("content-type"), PROBLEM);
            client.expect_goodbye().await;
        } else {
            client.expect_alive().await;
        }
    }
    assert_eq!(site.end().await.ended("rejected"), way.differs(4, 0));
}

/// An application that echoes what it received.
fn reporting_app() -> App {
    let hello = || "hello";
    let fields = async |request: Request| {
        let parts = &request.parts;
        let values = |name: &str| {
            let values = parts.head.header_values(name);
            values.map(String::from_utf8_lossy).collect::<Vec<_>>().join(" + ")
        };
        let head = &parts.head;
        let (method, path) = (head.method_str(), head.path());
        let (authority, query) = (head.authority(), head.query().unwrap_or("-"));
        let all = [values("cookie"), values("x-twice"), values("host"), values("connection")];
        format!("{method} {path} {query} {authority} | {}", all.join(" | "))
    };
    App::new().get("/hello", hello).any("/report/{*rest}", fields)
}

/// Fields reach the handler as they were sent, including repeated ones. Several `Cookie` fields are
/// joined into one field. `Host` is an HTTP/1.1 field; with both, the head has the authority.
pub async fn fields_reach_the_handler<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), reporting_app);
    let mut client = site.client().await;
    let twice = [("x-twice", "a"), ("x-other", "-"), ("x-twice", "b, c")];
    let cookies =
        way.differs(vec![("cookie", "a=1; b=2")], vec![("cookie", "a=1"), ("cookie", "b=2")]);
    let all: Vec<_> = twice.into_iter().chain(cookies).collect();
    let id = client.ask("BREW", "/report/it?x=%20y", &all);
    let response = client.answer(id).await;
    let host = way.differs("localhost", "");
    assert_eq!(
        response.text(),
        format!("BREW /report/it x=%20y localhost | a=1; b=2 | a + b, c | {host} | ")
    );
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// Connection fields belong to HTTP/1.1. An HTTP/2 request that has them is malformed, and its
/// stream is reset.
pub async fn connection_fields_are_only_for_http_1<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), reporting_app);
    let mut client = site.client().await;
    for field in [("connection", "keep-alive"), ("keep-alive", "5"), ("upgrade", "h2c")] {
        let id = client.ask("GET", "/report/it", &[field]);
        let response = client.answer(id).await;
        let (status, reset) = way.differs((200, None), (0, Some(1)));
        assert_eq!((response.status(), response.reset), (status, reset), "{field:?}");
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}

/// Two different hosts in one request are refused, whatever fields name them.
pub async fn a_request_has_one_host<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), reporting_app);
    let mut client = site.client().await;
    let id = client.ask("GET", "/report/it", &[("host", "elsewhere")]);
    let response = client.answer(id).await;
    let (status, reset) = way.differs((400, None), (0, Some(1)));
    assert_eq!((response.status(), response.reset), (status, reset), "{response:?}");
    if way.differs(false, true) {
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}

/// Interim responses sent by the handler or its task arrive while the handler waits, before its
/// response.
pub async fn interim_responses_come_before_the_response<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let id = client.ask("GET", "/hints", &[]);
    let mut all = vec![103, 102];
    for more in [vec![102], vec![102; 8]] {
        while client.so_far(id).statuses().len() < all.len() {
            assert!(client.fill(PATIENCE).await, "{:?}", client.last());
        }
        client.expect_nothing(id, SHORT / 10).await;
        assert_eq!(client.so_far(id).statuses(), all);
        site.shared.open(1);
        all.extend(more);
    }
    let response = client.answer(id).await;
    all.push(200);
    assert_eq!((response.statuses(), response.text()), (all, "Err(NotInterim(200)), Err(TooMany)"));
    let fields = |number: usize| -> Vec<String> {
        let fields = response.heads[number].iter().filter(|(name, _)| !name.starts_with(':'));
        fields.map(|(name, value)| format!("{name}: {value}")).collect()
    };
    assert_eq!(fields(0), ["link: </a.css>; rel=preload", "link: </b.js>; rel=preload"]);
    assert_eq!(fields(1), ["x-progress: 1 of 2"]);
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// The interim 100 is sent when the handler starts to read the body, and only then. A client that
/// gets a final status instead need not send the body.
pub async fn the_100_is_sent_when_the_handler_reads<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let expect = [("expect", "100-continue")];
    for length in [Length::Declared(5), Length::Undeclared] {
        let mut client = site.client().await;
        let id = client.begin("POST", "/echo", &expect, length);
        while client.so_far(id).statuses().is_empty() {
            assert!(client.fill(PATIENCE).await, "{:?}", client.last());
        }
        assert_eq!(client.so_far(id).statuses(), [100]);
        client.upload(id, b"hello").await;
        let response = client.answer(id).await;
        assert_eq!((response.statuses(), response.text()), (vec![100, 200], "hello"));
        client.expect_alive().await;

        // A handler that waits before it reads the body leaves the client waiting.
        let started = site.shared.started.get();
        let id = client.begin("POST", "/ignore-after-wait", &expect, length);
        client.wait_until(bench, "the handler waits", || site.shared.started.get() > started).await;
        client.expect_nothing(id, SHORT / 10).await;
        site.shared.open(1);
        let response = client.answer(id).await;
        assert_eq!((response.statuses(), response.text()), (vec![200], "waited"));
    }
    for (path, expectation, status) in [
        ("/ignore", "100-continue", 200),
        ("/nowhere", "100-continue", 404),
        ("/echo", "magic", 417),
    ] {
        let mut client = site.client().await;
        let fields = [("expect", expectation)];
        let id = client.begin("POST", path, &fields, Length::Declared(5));
        let response = client.answer(id).await;
        assert_eq!(response.statuses(), [status], "{path} {expectation}");
    }
    site.end().await;
}

/// A response that switches protocols exists only in HTTP/1.1; over HTTP/2 such a response becomes
/// a 500. So does one that the client did not ask for.
pub async fn an_upgrade_works_only_over_http_1<B: Bench>(bench: &B, way: Way) {
    let site = begin(bench, way);
    let mut client = site.client().await;
    let id = client.get("/upgrade");
    assert_eq!(client.answer(id).await.status(), 500);
    client.close().await;
    let mut client = site.client().await;
    let wishes = [("connection", "upgrade"), ("upgrade", "echo")];
    let id = client.ask("GET", "/upgrade", way.differs(&wishes[..], &[]));
    let response = client.answer(id).await;
    assert_eq!(response.statuses(), [way.differs(101, 500)]);
    if way.differs(false, true) {
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}

/// A response keeps its own fields, in order, including repeated ones. Connection fields are not
/// forwarded over HTTP/2.
pub async fn response_fields_arrive<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), || {
        App::new().get("/hello", || "hello").get("/fields", || {
            let mut pieces = Some("text");
            let body = stream(move |_| {
                Poll::Ready(pieces.take().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
            });
            let mut response = Response::new(StatusCode::OK).with_body(body);
            for (name, value) in [("x-twice", "a"), ("set-cookie", "a=1"), ("set-cookie", "b=2")] {
                let name = HeaderName::from_static(name);
                response.headers.append(name, HeaderValue::from_static(value));
            }
            response.headers.append(HeaderName::from_static("x-twice"), "b".parse().expect("text"));
            response
        })
    });
    let mut client = site.client().await;
    let id = client.get("/fields");
    let response = client.answer(id).await;
    let of = |name: &str| {
        let fields = response.heads[0].iter().filter(|field| field.0 == name);
        fields.map(|field| &*field.1).collect::<Vec<_>>()
    };
    assert_eq!((of("x-twice"), of("set-cookie")), (vec!["a", "b"], vec!["a=1", "b=2"]));
    assert_eq!(response.text(), "text");
    assert_eq!(of("transfer-encoding"), way.differs(vec!["chunked"], vec![]));
    client.expect_alive().await;
    client.close().await;
    site.end().await;
    let site = begin(bench, way);
    let mut client = site.client().await;
    let id = client.get("/close");
    let response = client.answer(id).await;
    let connection = way.differs(Some("close"), None);
    assert_eq!((response.text(), response.field("connection")), ("bye", connection));
    if way.differs(true, false) {
        assert_eq!(client.ended().await, Got::End);
    } else {
        client.expect_alive().await;
    }
    client.close().await;
    site.end().await;
}
