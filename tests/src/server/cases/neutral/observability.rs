//! Information about an exchange for applications and operators.

use super::{SHORT, Site, begin_app, begin_with};
use crate::server::access_log_events;
use crate::server::app::Shared;
use crate::server::bench::Bench;
use crate::server::cases::limits;
use crate::server::client::{Length, Way};
use crate::server::secure::server_tls;
use bytes::Bytes;
use http::HeaderValue;
use http::header::X_FRAME_OPTIONS;
use peregrine::middleware::{AccessLog, CatchPanic, ResponseHeaders, SetRequestId, Timeout};
use peregrine::prelude::*;
use peregrine::tower::{AppService, Mount, tower};
use peregrine::web::HandlerExt;
use peregrine::web::connection::ConnectionInfo;
use peregrine::{App, IntoBuiltApp, Limits};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Problems are rendered by the application, whether the server or a route produced them: 404, 405,
/// 408, 413, 500, 503. HEAD gets the same head.
pub async fn error_responses_have_the_format_of_the_application<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let limits = Limits { transfer_rate_grace: SHORT, ..limits() };
    let site = begin_app(bench, way, limits, || {
        let render = |problem: Problem, head: &RequestHead| {
            (problem.status, format!("{} {}", problem.kind, head.path()))
        };
        let late = async || std::future::pending::<&str>().await;
        App::new()
            .get("/hello", || "hello")
            .get("/panic", || -> &'static str { panic!("on purpose") })
            .get("/late", late.timeout(Duration::from_millis(300)))
            .post("/small", (async |body: Bytes| body).body_limit(10))
            .post("/echo", async |body: Bytes| body)
            .on_problem(render)
    });
    let requests = [
        ("GET", "/nowhere", None, 404, "unknown-route /nowhere"),
        ("HEAD", "/nowhere", None, 404, ""),
        ("POST", "/hello", None, 405, "method-not-allowed /hello"),
        ("GET", "/late", None, 503, "handler-timeout /late"),
        ("POST", "/small", Some((11, 11)), 413, "body-too-large /small"),
        ("POST", "/echo", Some((10, 5)), 408, "body-too-slow /echo"),
        ("GET", "/panic", None, 500, "handler-panicked /panic"),
    ];
    for (method, path, content, status, text) in requests {
        let mut client = site.client().await;
        let length = content.map_or(Length::None, |(length, _)| Length::Declared(length));
        let id = client.begin(method, path, &[], length);
        if let Some((length, sent)) = content {
            client.part(id, &vec![b'x'; sent]).await;
            if sent == length {
                client.end(id, &[]);
            }
        }
        let response = client.answer(id).await;
        let (kind, path) = response.text().split_once(' ').unwrap_or_default();
        assert_eq!((response.status(), path), (status, text.split_once(' ').unwrap_or_default().1));
        assert_eq!(kind.is_empty(), method == "HEAD", "{response:?}");
    }
    site.end().await;
}

/// A request's ID is taken from its field, or generated, and returned in the response; other
/// middleware fields are added too, whatever the response.
pub async fn middleware_wraps_every_exchange<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), || {
        let headers =
            ResponseHeaders::new().insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        App::new()
            .wrap(SetRequestId::new())
            .wrap(headers)
            .wrap(CatchPanic::new())
            .wrap(Timeout::new(Duration::from_millis(500)))
            .get("/hello", || "hello")
            .get("/panic", || -> &'static str { panic!("on purpose") })
            .get("/never", async || std::future::pending::<&str>().await)
    });
    let mut client = site.client().await;
    for (path, status) in [("/hello", 200), ("/nowhere", 404), ("/panic", 500), ("/never", 503)] {
        let id = client.ask("GET", path, &[("x-request-id", "it-1")]);
        let response = client.answer(id).await;
        assert_eq!(
            (response.status(), response.field("x-request-id")),
            (status, Some("it-1")),
            "{path}"
        );
        assert_eq!(response.field("x-frame-options"), Some("DENY"), "{path}");
    }
    let ids = [client.get("/hello"), client.get("/hello")];
    let mut generated = Vec::new();
    for id in ids {
        generated.push(
            client
                .answer(id)
                .await
                .field("x-request-id")
                .expect("the server generates an ID")
                .to_owned(),
        );
    }
    assert_ne!(generated[0], generated[1]);
    // A panic that middleware caught does not end the connection.
    client.expect_alive().await;
    client.close().await;
    site.end().await;
}

/// The access log has one line per exchange, with the same fields on every protocol.
pub async fn the_access_log_contains_each_exchange<B: Bench>(bench: &B, way: Way) {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    access_log_events::listen();
    let run = RUN.fetch_add(1, Ordering::SeqCst);
    let started = Arc::new(AtomicUsize::new(0));
    let started_count = Arc::clone(&started);
    let site = begin_app(bench, way, limits(), move || {
        let started_count = Arc::clone(&started_count);
        App::new().wrap(SetRequestId::new()).wrap(AccessLog::new()).scope("/", |scope| {
            scope
                .get("/hello", || "hello")
                .get("/panic", || -> &'static str { panic!("on purpose") })
                .get("/never/{id}", move || {
                    started_count.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<&str>()
                })
                .post("/small", (async |body: Bytes| body).body_limit(10))
        })
    });
    let requests = [
        ("HEAD", "/hello", 0, "completed", Some("200"), "INFO", Some("/hello")),
        ("GET", "/hello", 0, "completed", Some("200"), "INFO", Some("/hello")),
        ("POST", "/small", 11, "completed", Some("413"), "WARN", Some("/small")),
        ("GET", "/nowhere", 0, "completed", Some("404"), "WARN", None),
        ("GET", "/never/7", 0, "cancelled", None, "WARN", Some("/never/{id}")),
        ("GET", "/panic", 0, "panicked", Some("500"), "ERROR", Some("/panic")),
    ];
    for (number, (method, path, length, text, status, level, route)) in
        requests.into_iter().enumerate()
    {
        let mut client = site.client().await;
        let request_id = format!("{run}-{number}");
        let fields = [("x-request-id", &*request_id)];
        let content = if length > 0 { Length::Declared(length) } else { Length::None };
        let target = format!("{path}?secret");
        let id = client.begin(method, &target, &fields, content);
        if length > 0 {
            client.upload(id, &vec![7; length]).await;
        }
        if text == "cancelled" {
            // The request waits, and is cancelled.
            client
                .wait_until(bench, "the handler waits", || started.load(Ordering::SeqCst) == 1)
                .await;
            client.cancel(id);
        } else {
            client.answer(id).await;
        }
        let mut events = Vec::new();
        let start = bench.now();
        while events.is_empty() && bench.now() < start + crate::server::bench::PATIENCE {
            bench.sleep(Duration::from_millis(2)).await;
            events = access_log_events::take(&request_id);
        }
        let [events] = &events[..] else { panic!("{request_id} {path}: {events:?}") };
        let field_of = |field: &str| events.get(field).map(String::as_str);
        assert_eq!(
            (field_of("message"), field_of("status"), field_of("level")),
            (Some(text), status, Some(level))
        );
        assert_eq!(
            (field_of("method"), field_of("path"), field_of("route")),
            (Some(method), Some(path), route)
        );
        assert!(field_of("peer").is_some_and(|peer| !peer.is_empty()), "{events:?}");
        if path == "/hello" {
            assert_eq!(field_of("bytes"), Some("5"));
        }
    }
    site.end().await;
}

/// Handlers see their connection: both addresses, what TLS negotiated, and the HTTP version.
pub async fn handlers_see_their_connection<B: Bench>(bench: &B, way: Way) {
    let site = begin_app(bench, way, limits(), || {
        App::new().get("/hello", || "hello").get("/connection", async |request: Request| {
            let info: &ConnectionInfo = request.parts.connection();
            let tls = info.tls.as_ref().map_or("plain".to_owned(), |tls| {
                let protocol = tls.alpn_protocol.as_deref().map(String::from_utf8_lossy);
                let name = tls.server_name.as_deref();
                format!("{} {} {}", tls.version, protocol.unwrap_or_default(), name.unwrap_or("-"))
            });
            let version = request.parts.head.version();
            format!("{tls} | {version:?} | {} | {}", info.peer, info.local)
        })
    });
    let mut client = site.client().await;
    let id = client.get("/connection");
    let first = client.answer(id).await;
    let facts: Vec<_> = first.text().split(" | ").collect();
    let tls = format!("TLSv1.3 {} localhost", way.name());
    assert_eq!(facts[0], if way.is_secure() { &tls } else { "plain" });
    assert_eq!(facts[1], way.differs("HTTP/1.1", "HTTP/2.0"));
    assert!(facts[2..].iter().all(|end| !end.is_empty()), "{facts:?}");
    let id = client.get("/connection");
    assert_eq!(client.answer(id).await.text(), first.text());
    client.close().await;
    site.end().await;
}

/// An https request on a plain connection gets a 421 (RFC 9110, section 7.4), unless a gateway used
/// TLS with the client. HTTP/1.1 ends the connection.
pub async fn https_on_a_plain_connection_is_misdirected<B: Bench>(bench: &B, way: Way) {
    for behind_gateway in [false, true] {
        let site = begin_with(bench, way, Limits { behind_gateway, ..limits() });
        let mut client = site.client().await;
        let id = client.get_by("https", "/hello");
        let status = client.answer(id).await.status();
        if behind_gateway || way.is_secure() {
            assert_eq!(status, 200);
            client.expect_alive().await;
        } else {
            assert_eq!(status, 421);
            if way.differs(true, false) {
                client.expect_goodbye().await;
            } else {
                client.expect_alive().await;
            }
        }
        client.close().await;
        site.end().await;
    }
}

/// If TLS is configured so, a request for a host that the certificate does not name gets a 421.
/// HTTP/1.1 ends the connection.
pub async fn a_host_without_a_certificate_is_misdirected<B: Bench>(bench: &B, way: Way) {
    let shared = Shared::default();
    let tls = way.is_secure().then(|| server_tls().with_host_check());
    let server = bench.start(limits(), tls, shared.app());
    let site: Site<B> = Site { server, way, shared };
    for (host, is_named) in [
        ("LOCALHOST:8443", true),
        ("localhost.", true),
        ("other.test", false),
        ("127.0.0.1", false),
        ("[::1]:80", false),
    ] {
        let mut client = site.client().await;
        client.expect_alive().await;
        client.set_host(host);
        let id = client.get("/hello");
        let status = client.answer(id).await.status();
        client.set_host("localhost");
        if is_named || !way.is_secure() {
            assert_eq!(status, 200, "{host}");
            client.expect_alive().await;
        } else {
            assert_eq!(status, 421, "{host}");
            if way.differs(true, false) {
                client.expect_goodbye().await;
            } else {
                client.expect_alive().await;
            }
        }
    }
    site.end().await;
}

/// A tower service mounted below a prefix gets the same requests, and its responses are returned.
pub async fn a_mounted_service_is_served<B: Bench>(bench: &B, way: Way) {
    let shared = Shared::default();
    let make = {
        let shared = shared.clone();
        move || {
            let inner = shared.app()().into_built_app().expect("the application is valid");
            let service = AppService::new(inner).body_limit(64 << 20);
            App::new().get("/hello", || "hello").mount("/below", tower(service))
        }
    };
    let site = begin_app(bench, way, limits(), make);
    let mut client = site.client().await;
    for (path, text) in [("/below/hello", "hello"), ("/below/stream/2", "piece 0\npiece 1\n")] {
        let id = client.get(path);
        assert_eq!(client.answer(id).await.text(), text);
    }
    // Short on a slow network: over HTTP/2, each frame of a byte is acknowledged with 26 bytes.
    let body = crate::server::app::pattern(if bench.is_calm() { 40_000 } else { 1_000 });
    let id = client.begin("POST", "/below/echo-stream", &[], Length::Undeclared);
    for piece in body.chunks(9_000) {
        client.part(id, piece).await;
    }
    client.end(id, &[]);
    assert!(client.answer(id).await.body == body);
    let id = client.begin("POST", "/below/trailers", &[], Length::Undeclared);
    client.part(id, b"hello").await;
    client.end(id, &[("x-checksum", "9")]);
    assert_eq!(client.answer(id).await.text(), "5 9");
    let id = client.get("/below/stream-with-trailers");
    assert_eq!(client.answer(id).await.trailer("x-checksum"), Some("abc"));
    for (path, status) in [("/below/nowhere", 404), ("/nowhere", 404), ("/below/upgrade", 500)] {
        let id = client.get(path);
        assert_eq!(client.answer(id).await.status(), status, "{path}");
    }
    client.close().await;
    let mut client = site.client().await;
    let id = client.get("/below/wait");
    client.wait_until(bench, "the handler waits", || shared.started.get() == 1).await;
    client.cancel(id);
    bench.wait_until("the handler is dropped", || shared.dropped.get() == 1).await;
    client.close().await;
    site.end().await;
}
