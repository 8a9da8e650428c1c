//! Axum routers on every driver, including the simulated network with its faults.
//!
//! The simulator's clock is that of a tokio runtime with paused time, so tokio timers in axum,
//! tower and handlers run on the same virtual time as the network.

use axum::body::{Body, BodyDataStream};
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{ConnectInfo, Path, State};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use futures_core::Stream;
use http::{HeaderMap, StatusCode};
use http_body::{Body as _, Frame};
use peregrine::middleware::BodyLimit;
use peregrine::tower::{Mount, tower};
use peregrine::web::App;
use peregrine::{DriverChoice, Limits, Shutdown};
use peregrine_proto::h2::frame::{FrameType, flags};
use peregrine_tests::server::app::pattern;
use peregrine_tests::server::bench::{Bench, Served};
use peregrine_tests::server::peer::Peer;
use peregrine_tests::server::streams::Streams;
use peregrine_tests::server::{KernelBenches, SimulatedBenches};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Semaphore;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

/// Generates a test of each case on each driver.
macro_rules! on_every_driver {
    ($($case:ident,)*) => {
        mod on_sim {
            $(
                #[test]
                fn $case() {
                    super::SimulatedBenches::seeds(0..20)
                        .check(async |bench| super::$case(bench).await);
                }
            )*
        }
        mod on_tokio {
            $(
                #[test]
                fn $case() {
                    super::KernelBenches::tcp(super::DriverChoice::Tokio)
                        .check(async |bench| super::$case(bench).await);
                }
            )*
        }
        mod on_uring {
            $(
                #[test]
                fn $case() {
                    super::KernelBenches::tcp(super::DriverChoice::Uring)
                        .check(async |bench| super::$case(bench).await);
                }
            )*
        }
    };
}

on_every_driver! {
    a_router_answers_as_under_axum,
    a_router_stands_beside_routes_of_ours,
    bodies_stream_both_ways,
    a_handler_that_does_not_read_holds_its_client_back,
    a_body_may_be_read_by_a_task,
    a_task_may_read_on_after_the_response,
    a_body_that_breaks_off_is_an_error_for_its_reader,
    a_body_over_a_limit_of_ours_is_a_413,
    a_body_over_a_limit_of_ours_is_a_413_over_http2,
    trailers_pass_both_ways,
    a_router_is_served_over_http2,
    a_promised_length_is_kept,
    a_promise_of_more_than_comes_ends_the_connection,
    events_arrive_one_by_one,
    an_endless_body_waits_for_its_reader_and_ends_with_it,
    a_panic_is_a_500_and_harms_nobody_else,
    a_panic_in_a_body_cuts_its_connection_only,
    a_handler_ends_when_its_peer_leaves,
    a_late_handler_is_a_503,
    a_service_that_is_not_ready_is_waited_for,
    a_request_that_waits_for_a_service_may_time_out_and_loses_nobody_s_place,
    a_service_whose_readiness_fails_is_a_503,
    a_web_socket_talks_both_ways,
    a_web_socket_talks_both_ways_over_http2,
    a_web_socket_request_that_is_refused_leaves_the_connection_alive,
    a_web_socket_ends_with_its_peer,
    web_sockets_that_push_end_with_peers_that_never_read,
    web_sockets_that_push_do_not_hold_up_a_shutdown,
    web_sockets_and_events_may_await_the_order,
}

/// State shared by a case and its handlers.
#[derive(Clone)]
struct Shared {
    gate: Arc<Semaphore>,
    started: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
    bytes: Arc<AtomicUsize>,
}

impl Shared {
    fn new() -> Self {
        let (started, dropped, bytes) = <_>::default();
        Self { gate: Arc::new(Semaphore::new(0)), started, dropped, bytes }
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }

    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        let _watch = self.watch();
        self.gate.acquire().await.expect("the semaphore is never closed").forget();
    }

    fn watch(&self) -> Watch {
        self.started.fetch_add(1, Ordering::SeqCst);
        Watch(self.clone())
    }
}

/// Counts its drop.
struct Watch(Shared);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// A stream produced by a function.
struct Produced<F>(F);

impl<T, F: FnMut(&mut Context<'_>) -> Poll<Option<T>> + Unpin> Stream for Produced<F> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        (self.0)(cx)
    }
}

async fn count(State(shared): State<Shared>, body: Body) -> Response {
    match count_of(&shared, body).await {
        Ok(count) => count.to_string().into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn count_of(shared: &Shared, body: Body) -> Result<usize, axum::Error> {
    let mut stream: BodyDataStream = body.into_data_stream();
    let mut count = 0;
    while let Some(piece) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
        let piece = piece?;
        count += piece.len();
        shared.bytes.fetch_add(piece.len(), Ordering::SeqCst);
    }
    Ok(count)
}

fn endless(shared: &Shared) -> Body {
    let (piece, watch) = (Bytes::from(pattern(1000)), shared.watch());
    Body::from_stream(Produced(move |_: &mut Context<'_>| {
        watch.0.bytes.fetch_add(piece.len(), Ordering::SeqCst);
        Poll::Ready(Some(Ok::<_, Infallible>(piece.clone())))
    }))
}

fn router(shared: &Shared) -> Router {
    Router::new()
        .route("/hello", get(async || "hello"))
        .route("/json/{name}", get(async |Path(name): Path<String>| Json((name, 7))))
        .route("/echo", post(async |body: Body| body))
        .route("/count", post(count))
        .route("/count-in-task", post(count_in_task))
        .route("/count-later", post(count_later))
        .route("/trailers", post(trailers))
        .route("/events", get(events))
        .route(
            "/version",
            get(async |version: http::Version, uri: http::Uri| {
                let (scheme, authority) = (uri.scheme_str(), uri.authority());
                let authority = authority.map_or("", |authority| authority.as_str());
                format!("{version:?} {} {authority}", scheme.unwrap_or_default())
            }),
        )
        .route("/endless", get(async |State(shared): State<Shared>| endless(&shared)))
        .route("/wait", get(wait))
        .route("/panic", get(async || -> &'static str { panic!("on purpose") }))
        .route("/panic-in-body", get(panic_in_body))
        .route("/socket", any(socket))
        .route("/push", any(push))
        .route("/obedient", any(obedient))
        .route("/obedient-events", get(obedient_events))
        .route("/read-on", post(read_on))
        .route("/tasks", get(async || tokio_tasks().to_string()))
        .with_state(shared.clone())
}

async fn wait(State(shared): State<Shared>) -> &'static str {
    shared.wait().await;
    "waited"
}

async fn count_later(state: State<Shared>, body: Body) -> Response {
    state.wait().await;
    count(state, body).await
}

async fn count_in_task(State(shared): State<Shared>, body: Body) -> Response {
    let task = tokio::spawn(async move { count(State(shared), body).await });
    task.await.expect("the task does not panic")
}

async fn trailers(body: Body) -> Response {
    let mut body = body;
    let (mut length, mut seen) = (0, HeaderMap::new());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.expect("a complete body").into_data() {
            Ok(data) => length += data.len(),
            Err(frame) => seen.extend(frame.into_trailers().unwrap_or_default()),
        }
    }
    let mut frames = vec![Frame::trailers(seen), Frame::data(Bytes::from(length.to_string()))];
    struct Frames<F>(F);
    impl<F> http_body::Body for Frames<F>
    where
        F: FnMut() -> Option<Frame<Bytes>> + Unpin,
    {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready((self.0)().map(Ok))
        }
    }
    Body::new(Frames(move || frames.pop())).into_response()
}

async fn events() -> impl IntoResponse {
    let mut number = 0;
    let mut pause = Box::pin(tokio::time::sleep(Duration::ZERO));
    Sse::new(Produced(move |cx: &mut Context<'_>| {
        if number == 3 {
            return Poll::Ready(None);
        }
        if pause.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        pause = Box::pin(tokio::time::sleep(Duration::from_millis(50)));
        number += 1;
        Poll::Ready(Some(Ok::<_, Infallible>(Event::default().data(number.to_string()))))
    }))
}

async fn panic_in_body() -> Body {
    let mut left = 2;
    Body::from_stream(Produced(move |_: &mut Context<'_>| {
        left -= 1;
        assert!(left > 0, "on purpose");
        Poll::Ready(Some(Ok::<_, Infallible>(Bytes::from_static(b"a piece"))))
    }))
}

async fn socket(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket: WebSocket| {
        let _watch = shared.watch();
        while let Some(Ok(message)) = socket.recv().await {
            let is_data = matches!(message, Message::Text(_) | Message::Binary(_));
            if is_data && socket.send(message).await.is_err() {
                return;
            }
        }
    })
}

/// Sends a message when the server starts to shut down.
async fn obedient(upgrade: WebSocketUpgrade) -> Response {
    let shutdown = Shutdown::current();
    upgrade.on_upgrade(async move |mut socket: WebSocket| {
        loop {
            let received = ::tokio::select! {
                received = socket.recv() => received,
                () = shutdown.requested() => break,
            };
            let Some(Ok(message)) = received else { return };
            if socket.send(message).await.is_err() {
                return;
            }
        }
        let _ = socket.send(Message::Text("goodbye".into())).await;
    })
}

/// Events that end when the server starts to shut down.
async fn obedient_events() -> impl IntoResponse {
    let shutdown = Shutdown::current();
    let mut ordered = Some(Box::pin(async move { shutdown.requested().await }));
    Sse::new(Produced(move |cx: &mut Context<'_>| {
        let Some(waiting) = &mut ordered else { return Poll::Ready(None) };
        if waiting.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        ordered = None;
        Poll::Ready(Some(Ok::<_, Infallible>(Event::default().data("goodbye"))))
    }))
}

/// Responds at once, and leaves the body to a task.
async fn read_on(State(shared): State<Shared>, body: Body) -> &'static str {
    ::tokio::spawn(async move {
        let watch = shared.watch();
        let mut body = body;
        while let Some(Ok(frame)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            watch.0.bytes.fetch_add(bytes, Ordering::SeqCst);
        }
    });
    "answered"
}

/// Sends for as long as it can.
async fn push(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |mut socket: WebSocket| {
        let watch = shared.watch();
        let message = Bytes::from(pattern(8_000));
        while socket.send(Message::Binary(message.clone())).await.is_ok() {
            watch.0.bytes.fetch_add(message.len(), Ordering::SeqCst);
        }
    })
}

/// The number of tasks on the worker's runtime.
fn tokio_tasks() -> usize {
    ::tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn begin<B: Bench>(bench: &B) -> (B::Server, Shared) {
    let shared = Shared::new();
    let router = router(&shared);
    (bench.start(Limits::default(), None, move || tower(router.clone())), shared)
}

async fn a_router_answers_as_under_axum<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/json/Ada");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.text()), (200, r#"["Ada",7]"#));
    assert_eq!(reply.field("content-type"), Some("application/json"));
    assert_eq!(reply.field("content-length"), Some("9"));
    peer.get("/nowhere");
    assert_eq!(peer.reply().await.status, 404);
    peer.post("/hello", b"");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.field("allow")), (405, Some("GET,HEAD")));
    peer.send("HEAD /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    let reply = peer.reply_to_head().await;
    assert_eq!((reply.status, reply.field("content-length")), (200, Some("5")));
    peer.expect_alive().await;
    server.cut();
}

async fn a_router_stands_beside_routes_of_ours<B: Bench>(bench: &B) {
    let router = router(&Shared::new());
    let make = move || App::new().get("/hello", || "hello").mount("/axum", router.clone());
    let server = bench.start(Limits::default(), None, make);
    let mut peer = Peer::new(server.connect());
    for (path, status) in [("/hello", 200), ("/axum/hello", 200), ("/axum", 404), ("/json/a", 404)]
    {
        peer.get(path);
        assert_eq!(peer.reply().await.status, status, "{path}");
    }
    server.cut();
}

async fn bodies_stream_both_ways<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(if bench.is_virtual() { 150_000 } else { 4_000_000 }));
    for _ in 0..2 {
        peer.post("/echo", &body);
        assert!(peer.reply().await.body == body);
        peer.post("/count", &body);
        assert_eq!(peer.reply().await.text(), body.len().to_string());
    }
    peer.expect_alive().await;
    server.cut();
}

async fn a_handler_that_does_not_read_holds_its_client_back<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(if bench.is_virtual() { 150_000 } else { 16_000_000 }));
    peer.post("/count-later", &body);
    bench.wait_until("the handler waits", || shared.started() == 1).await;
    peer.expect_nothing(Duration::from_millis(50)).await;
    assert_eq!(shared.bytes(), 0);
    shared.gate.add_permits(1);
    assert_eq!(peer.reply().await.text(), body.len().to_string());
    server.cut();
}

async fn a_body_may_be_read_by_a_task<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(if bench.is_virtual() { 150_000 } else { 2_000_000 }));
    for _ in 0..2 {
        peer.post("/count-in-task", &body);
        assert_eq!(peer.reply().await.text(), body.len().to_string());
    }
    server.cut();
}

async fn a_body_that_breaks_off_is_an_error_for_its_reader<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    for path in ["/count", "/count-in-task"] {
        let before = shared.bytes();
        let mut peer = Peer::new(server.connect());
        peer.send(format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc"));
        bench.wait_until("a part was read", || shared.bytes() == before + 3).await;
        peer.reset();
    }
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.snapshot.requests, 2);
    assert_eq!(outcome.ended("force-closed"), 0, "{outcome:?}");
}

async fn trailers_pass_both_ways<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(
        "POST /trailers HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0\r\nX-Checksum: 42\r\n\r\n",
    );
    let reply = peer.expect("0\r\nx-checksum: 42\r\n\r\n").await;
    assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n"));
    peer.expect_alive().await;
    server.cut();
}

async fn a_router_is_served_over_http2<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let waiting: Vec<_> = (0..10).map(|_| client.get("/wait")).collect();
    bench.wait_until("all handlers wait", || shared.started() == 10).await;
    let version = client.get("/version");
    assert_eq!(client.answer(version).await.text(), "HTTP/2.0 http localhost");
    let id = client.open("POST", "/trailers", &[("te", "trailers")], false);
    client.data(id, b"abc", false);
    let mut block = vec![0, 10];
    block.extend_from_slice(b"x-checksum\x0242");
    client.frame(FrameType::Headers, flags::END_HEADERS | flags::END_STREAM, id, &block);
    let answer = client.answer(id).await;
    assert_eq!((answer.heads.len(), answer.status()), (2, 200));
    assert_eq!(answer.heads[1], [("x-checksum".to_owned(), "42".to_owned())]);
    shared.gate.add_permits(10);
    for id in waiting {
        assert_eq!(client.answer(id).await.status(), 200);
    }
    client.round_trip().await;
    server.cut();
}

/// A router inside our own limits, as a middleware and as the mount's own.
fn begin_limited<B: Bench>(bench: &B) -> B::Server {
    let router = Router::new().route("/", post(async |body: Bytes| body.len().to_string()));
    let app = move || {
        App::new()
            .mount("/own", tower(router.clone()).body_limit(10))
            .wrap(BodyLimit::new(10))
            .mount("/inside", router.clone())
    };
    bench.start(Limits::default(), None, app)
}

async fn a_body_over_a_limit_of_ours_is_a_413<B: Bench>(bench: &B) {
    let server = begin_limited(bench);
    for path in ["/own", "/inside"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\n");
        for (fields, body, status) in [
            ("Content-Length: 10\r\n", "0123456789", 200),
            ("Content-Length: 11\r\n", "0123456789a", 413),
            ("Content-Length: 11\r\nExpect: 100-continue\r\n", "", 413),
            ("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n0\r\n\r\n", 200),
            ("Transfer-Encoding: chunked\r\n", "a\r\n0123456789\r\n1\r\na\r\n0\r\n\r\n", 413),
        ] {
            let mut whole = Peer::new(server.connect());
            whole.send(format!("{head}{fields}\r\n{body}"));
            assert_eq!(whole.reply().await.status, status, "{path} {fields}");
            let mut pieces = Peer::new(server.connect());
            pieces.send(format!("{head}{fields}\r\n"));
            for piece in body.as_bytes().chunks(4) {
                bench.sleep(Duration::from_millis(10)).await;
                pieces.send(piece);
            }
            assert_eq!(pieces.reply().await.status, status, "{path} {fields} in pieces");
        }
    }
    server.cut();
}

async fn a_body_over_a_limit_of_ours_is_a_413_over_http2<B: Bench>(bench: &B) {
    let server = begin_limited(bench);
    let mut client = Streams::new(server.connect());
    for path in ["/own", "/inside"] {
        for (fields, body, status) in [
            (&[("content-length", "10")][..], "0123456789", 200),
            (&[("content-length", "11")], "0123456789a", 413),
            (&[("content-length", "11"), ("expect", "100-continue")], "", 413),
            (&[], "0123456789", 200),
            (&[], "0123456789a", 413),
        ] {
            let id = client.open("POST", path, fields, false);
            client.data(id, body.as_bytes(), !body.is_empty());
            assert_eq!(client.answer(id).await.status(), status, "{path} {fields:?}");
            let id = client.open("POST", path, fields, false);
            for piece in body.as_bytes().chunks(4) {
                client.round_trip().await;
                client.data(id, piece, false);
            }
            if !body.is_empty() {
                client.data(id, b"", true);
            }
            assert_eq!(client.answer(id).await.status(), status, "{path} {fields:?} in pieces");
        }
    }
    server.cut();
}

/// A router whose bodies do not know their length; a field declares it.
fn begin_promising<B: Bench>(bench: &B) -> B::Server {
    async fn promise(Path((promised, pieces)): Path<(String, usize)>) -> Response {
        let mut left = pieces;
        let body = Body::from_stream(Produced(move |_: &mut Context<'_>| {
            let is_left = left > 0;
            left = left.saturating_sub(1);
            Poll::Ready(is_left.then_some(Ok::<_, Infallible>("piece")))
        }));
        ([(http::header::CONTENT_LENGTH, promised)], body).into_response()
    }
    let router = Router::new().route("/promise/{promised}/{pieces}", get(promise));
    bench.start(Limits::default(), None, move || tower(router.clone()))
}

async fn a_promised_length_is_kept<B: Bench>(bench: &B) {
    let server = begin_promising(bench);
    let mut peer = Peer::new(server.connect());
    for (promised, pieces, text) in
        [("15", 3, "piecepiecepiece"), ("0", 0, ""), ("12", 3, "piecepiecepi")]
    {
        peer.get(&format!("/promise/{promised}/{pieces}"));
        let reply = peer.reply().await;
        assert_eq!((reply.status, reply.text()), (200, text));
        assert_eq!(reply.field("content-length"), Some(promised));
        assert_eq!(reply.field("transfer-encoding"), None);
    }
    // An invalid number declares nothing.
    peer.get("/promise/+15/3");
    let reply = peer.reply().await;
    assert_eq!((reply.text(), reply.field("content-length")), ("piecepiecepiece", None));
    assert!(!reply.closes(), "{reply:?}");
    peer.get("/promise/5/1");
    assert_eq!(peer.reply().await.text(), "piece");
    server.cut();
}

async fn a_promise_of_more_than_comes_ends_the_connection<B: Bench>(bench: &B) {
    let server = begin_promising(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/promise/20/3");
    peer.expect("content-length: 20\r\n").await;
    peer.expect("piecepiecepiece").await;
    peer.expect_end().await;
    let mut peer = Peer::new(server.connect());
    peer.get("/promise/5/1");
    assert_eq!(peer.reply().await.text(), "piece");
    server.cut();
}

async fn events_arrive_one_by_one<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/events");
    let start = bench.now();
    for number in 1..=3 {
        peer.expect(format!("data: {number}\n\n")).await;
    }
    assert!(bench.now() >= start + Duration::from_millis(90), "the second waits for the first");
    peer.expect("0\r\n\r\n").await;
    peer.expect_alive().await;
    server.cut();
}

async fn an_endless_body_waits_for_its_reader_and_ends_with_it<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/endless");
    bench.wait_until("the body begins", || shared.bytes() > 0).await;
    bench.sleep(Duration::from_millis(300)).await;
    let made = shared.bytes();
    bench.sleep(Duration::from_millis(300)).await;
    assert_eq!(shared.bytes(), made, "nothing is produced without a reader");
    peer.reset();
    bench.wait_until("the body is dropped", || shared.dropped() == 1).await;
    server.cut();
}

async fn a_panic_is_a_500_and_harms_nobody_else<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut bystander = Peer::new(server.connect());
    bystander.get("/wait");
    bench.wait_until("the bystander waits", || shared.started() == 1).await;
    let mut peer = Peer::new(server.connect());
    peer.get("/panic");
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.closes()), (500, true));
    peer.expect_end().await;
    shared.gate.add_permits(1);
    assert_eq!(bystander.reply().await.text(), "waited");
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("handler-panicked", 1)]);
}

async fn a_panic_in_a_body_cuts_its_connection_only<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/panic-in-body");
    peer.expect("a piece").await;
    let rest = peer.rest().await;
    assert!(!rest.ends_with(b"0\r\n\r\n"), "a broken body must not look complete");
    let mut peer = Peer::new(server.connect());
    peer.expect_alive().await;
    server.cut();
}

async fn a_handler_ends_when_its_peer_leaves<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    bench.wait_until("the handler waits", || shared.started() == 1).await;
    peer.reset();
    bench.wait_until("the handler is dropped", || shared.dropped() == 1).await;
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("peer-aborted", 1)]);
}

async fn a_late_handler_is_a_503<B: Bench>(bench: &B) {
    let shared = Shared::new();
    let router = router(&shared);
    let make = move || tower(router.clone()).timeout(Duration::from_millis(500));
    let server = bench.start(Limits::default(), None, make);
    let mut peer = Peer::new(server.connect());
    peer.get("/wait");
    assert_eq!(peer.reply().await.status, 503);
    assert_eq!(shared.dropped(), 1);
    peer.expect_alive().await;
    server.cut();
}

/// Starts a router that handles one request at a time.
fn begin_narrow<B: Bench>(bench: &B) -> (B::Server, Shared) {
    let shared = Shared::new();
    let limit = GlobalConcurrencyLimitLayer::new(1);
    let service = ServiceBuilder::new().layer(limit).service(router(&shared));
    let make = move || tower(service.clone()).timeout(Duration::from_secs(2));
    (bench.start(Limits::default(), None, make), shared)
}

async fn a_service_that_is_not_ready_is_waited_for<B: Bench>(bench: &B) {
    let (server, shared) = begin_narrow(bench);
    let mut peers: Vec<_> = (0..5).map(|_| Peer::new(server.connect())).collect();
    for peer in &mut peers {
        peer.get("/wait");
    }
    for count in 1..=5 {
        bench.wait_until("the next one waits", || shared.started() == count).await;
        bench.sleep(Duration::from_millis(20)).await;
        assert_eq!(shared.started(), count, "one at a time");
        shared.gate.add_permits(1);
    }
    for peer in &mut peers {
        assert_eq!(peer.reply().await.text(), "waited");
    }
    server.cut();
}

async fn a_request_that_waits_for_a_service_may_time_out_and_loses_nobody_s_place<B: Bench>(
    bench: &B,
) {
    let (server, shared) = begin_narrow(bench);
    let mut first = Peer::new(server.connect());
    first.get("/wait");
    bench.wait_until("the first waits", || shared.started() == 1).await;
    // One request waits too long for the service, another client disconnects while it waits.
    let mut second = Peer::new(server.connect());
    second.get("/hello");
    let mut third = Peer::new(server.connect());
    third.get("/hello");
    bench.sleep(Duration::from_millis(100)).await;
    third.reset();
    assert_eq!(first.reply().await.status, 503);
    let reply = second.reply().await;
    assert!(reply.status == 503 || reply.text() == "hello", "{reply:?}");
    // Later requests are served: no permit was lost.
    for _ in 0..3 {
        Peer::new(server.connect()).expect_alive().await;
    }
    server.cut();
}

async fn a_service_whose_readiness_fails_is_a_503<B: Bench>(bench: &B) {
    #[derive(Clone)]
    struct Broken;
    impl<B> tower::Service<http::Request<B>> for Broken {
        type Response = http::Response<Body>;
        type Error = io::Error;
        type Future = std::future::Ready<io::Result<http::Response<Body>>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::Error::other("on purpose")))
        }
        fn call(&mut self, _: http::Request<B>) -> Self::Future {
            unreachable!("the service is never ready")
        }
    }
    let make = || App::new().get("/hello", || "hello").mount("/broken", Broken);
    let server = bench.start(Limits::default(), None, make);
    let mut peer = Peer::new(server.connect());
    for _ in 0..2 {
        peer.get("/broken");
        let reply = peer.reply().await;
        assert_eq!(reply.status, 503);
        assert!(!reply.text().contains("purpose"));
    }
    peer.expect_alive().await;
    server.cut();
}

const HANDSHAKE: &str = "GET /socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A client's frame, whose mask is zero.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80 | opcode];
    match u16::try_from(payload.len()) {
        Ok(length) if length < 126 => frame.push(0x80 | payload.len() as u8),
        Ok(length) => {
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
        Err(_) => panic!("longer frames are not needed here"),
    }
    frame.extend([0; 4]);
    frame.extend(payload);
    frame
}

async fn a_web_socket_talks_both_ways<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.expect_alive().await;
    // The first frame arrives with the handshake.
    peer.send([HANDSHAKE.as_bytes(), &frame(1, b"hello")].concat());
    let reply = peer.reply().await;
    assert_eq!((reply.status, reply.field("upgrade")), (101, Some("websocket")));
    // This key and its accept value are from RFC 6455 §1.3.
    assert_eq!(reply.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    peer.expect(b"\x81\x05hello").await;
    let payload = pattern(bench.large(60_000));
    for _ in 0..3 {
        peer.send(frame(2, &payload));
        peer.expect(&payload).await;
    }
    peer.send(frame(9, b"?"));
    peer.expect(b"\x8a\x01?").await;
    peer.send(frame(8, &1000_u16.to_be_bytes()));
    peer.expect(b"\x88\x02\x03\xe8").await;
    peer.expect_end().await;
    assert_eq!(shared.dropped(), 1);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), [("upgraded", 1)]);
}

/// The router is the same, a `get` with axum's extractor, and axum's HTTP/2 feature is not enabled.
async fn a_web_socket_talks_both_ways_over_http2<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut client = Streams::new(server.connect());
    let fields = [(":protocol", "websocket"), ("sec-websocket-version", "13")];
    let id = client.open("CONNECT", "/socket", &fields, false);
    client.upload_part(id, &frame(1, b"hello"), false).await;
    client.expect(id, b"\x81\x05hello".len()).await;
    let mut expected = b"\x81\x05hello".to_vec();
    let answer = client.so_far(id);
    assert_eq!((answer.status(), &answer.body), (200, &expected));
    assert_eq!(answer.field("sec-websocket-accept"), None);
    let refused = client.open("CONNECT", "/hello", &fields, true);
    assert_eq!(client.answer(refused).await.status(), 501);
    let payload = pattern(bench.large(60_000));
    client.upload_part(id, &frame(2, &payload), false).await;
    // A server's frame is the client's without the mask.
    expected.extend(&frame(2, &payload)[..4]);
    expected[8] &= 0x7f;
    expected.extend(&payload);
    client.upload_part(id, &frame(8, &1000_u16.to_be_bytes()), false).await;
    expected.extend(b"\x88\x02\x03\xe8");
    let answer = client.answer(id).await;
    assert!(answer.body == expected, "{:?} instead of {:?}", answer.body.len(), expected.len());
    assert_eq!(shared.dropped(), 1);
    drop(client);
    server.shut_down();
    server.ended().await;
}

async fn a_task_may_read_on_after_the_response<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    let body = pattern(bench.large(700_000));
    let length = body.len();
    for round in 1..=2 {
        peer.send(format!("POST /read-on HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        peer.send(&body[..10]);
        let reply = peer.reply().await;
        assert_eq!((reply.text(), reply.field("connection")), ("answered", None));
        peer.send(&body[10..]);
        bench.wait_until("the whole body was read", || shared.bytes() == round * length).await;
        bench.wait_until("the task has ended", || shared.dropped() == round).await;
        peer.expect_alive().await;
    }
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

async fn web_sockets_and_events_may_await_the_order<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut socket = Peer::new(server.connect());
    socket.send(HANDSHAKE.replace("/socket", "/obedient"));
    assert_eq!(socket.reply().await.status, 101);
    socket.send(frame(1, b"hello"));
    socket.expect(b"\x81\x05hello").await;
    let mut events = Peer::new(server.connect());
    events.get("/obedient-events");
    events.expect("\r\n\r\n").await;
    server.shut_down();
    assert!(socket.rest().await.starts_with(b"\x81\x07goodbye"));
    assert!(String::from_utf8_lossy(&events.rest().await).contains("data: goodbye"));
    assert!(server.ended().await.cut.is_empty());
}

async fn a_web_socket_request_that_is_refused_leaves_the_connection_alive<B: Bench>(bench: &B) {
    let (server, _) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(HANDSHAKE.replace("Version: 13", "Version: 12"));
    assert_eq!(peer.reply().await.status, 400);
    peer.send(HANDSHAKE.replace("/socket", "/hello"));
    assert_eq!(peer.reply().await.text(), "hello");
    peer.expect_alive().await;
    drop(peer);
    server.shut_down();
    assert_eq!(server.ended().await.endings(), []);
}

async fn a_web_socket_ends_with_its_peer<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut peer = Peer::new(server.connect());
    peer.send(HANDSHAKE);
    assert_eq!(peer.reply().await.status, 101);
    bench.wait_until("the socket is open", || shared.started() == 1).await;
    peer.reset();
    bench.wait_until("the socket is dropped", || shared.dropped() == 1).await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.ended("upgraded") + outcome.ended("io-error"), 1, "{outcome:?}");
}

/// Sockets that push to peers that never read, until nothing more can be sent.
async fn stuck_sockets<B: Bench>(
    bench: &B,
    server: &B::Server,
    shared: &Shared,
) -> Vec<Peer<B::Wire>> {
    let count = if bench.is_virtual() { 4 } else { 200 };
    let mut peers = Vec::new();
    for _ in 0..count {
        let mut peer = Peer::new(server.connect());
        peer.send(HANDSHAKE.replace("/socket", "/push"));
        assert_eq!(peer.reply().await.status, 101);
        peers.push(peer);
    }
    bench.wait_until("all sockets are open", || shared.started() == count).await;
    let mut sent = usize::MAX;
    while sent != shared.bytes() {
        sent = shared.bytes();
        bench.sleep(Duration::from_millis(300)).await;
    }
    peers
}

async fn web_sockets_that_push_end_with_peers_that_never_read<B: Bench>(bench: &B) {
    let (server, shared) = begin(bench);
    let mut bystander = Peer::new(server.connect());
    bystander.get("/tasks");
    let before = bystander.reply().await;
    let peers = stuck_sockets(bench, &server, &shared).await;
    let count = peers.len();
    peers.into_iter().for_each(Peer::reset);
    bench.wait_until("all sockets are dropped", || shared.dropped() == count).await;
    bench.sleep(Duration::from_millis(100)).await;
    bystander.get("/tasks");
    assert_eq!(bystander.reply().await.text(), before.text(), "no task is left");
    server.shut_down();
    assert_eq!(server.ended().await.snapshot.aborted_tasks, 0);
}

async fn web_sockets_that_push_do_not_hold_up_a_shutdown<B: Bench>(bench: &B) {
    let shared = Shared::new();
    let router = router(&shared);
    let limits = Limits { shutdown_timeout: Duration::from_millis(500), ..Limits::default() };
    let server = bench.start(limits, None, move || tower(router.clone()));
    let peers = stuck_sockets(bench, &server, &shared).await;
    server.shut_down();
    let outcome = server.ended().await;
    assert_eq!(outcome.cut.len(), peers.len());
    assert_eq!((shared.dropped(), outcome.snapshot.aborted_tasks), (peers.len(), 0));
}

/// Cases that need a client of the ecosystem, or the machine's sockets.
mod real {
    use super::*;
    use peregrine::testing::TestServer;
    use std::time::Instant;
    use tokio::net::{TcpListener, TcpStream};

    fn in_runtime<F: Future>(future: F) -> F::Output {
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime starts").block_on(future)
    }

    #[test]
    fn a_client_of_the_ecosystem_uses_web_sockets() {
        use tokio_tungstenite::tungstenite::Message;
        let router = router(&Shared::new());
        let server = TestServer::start(move || tower(router.clone())).expect("the server starts");
        in_runtime(async {
            let mut sockets = Vec::new();
            for _ in 0..3 {
                let stream = TcpStream::connect(server.address())
                    .await
                    .expect("the server accepts connections");
                let url = format!("ws://{}/socket", server.address());
                let (socket, _) = tokio_tungstenite::client_async(url, stream)
                    .await
                    .expect("the server upgrades the connection");
                sockets.push(socket);
            }
            let large = Bytes::from(pattern(3_000_000));
            for socket in &mut sockets {
                for message in [Message::text("hello"), Message::binary(large.clone())] {
                    send(socket, message.clone()).await;
                    assert!(receive(socket).await == Some(message));
                }
            }
            for mut socket in sockets {
                socket.close(None).await.expect("the connection is open");
                while let Some(message) = receive(&mut socket).await {
                    assert!(message.is_close(), "{message:?}");
                }
            }
        });
    }

    type Socket = tokio_tungstenite::WebSocketStream<TcpStream>;
    use tokio_tungstenite::tungstenite::Message as Sent;

    async fn send(socket: &mut Socket, message: Sent) {
        use futures_sink::Sink;
        poll_fn(|cx| Pin::new(&mut *socket).poll_ready(cx))
            .await
            .expect("the stream is still open");
        Pin::new(&mut *socket).start_send(message).expect("the stream is still open");
        poll_fn(|cx| Pin::new(&mut *socket).poll_flush(cx))
            .await
            .expect("the stream is still open");
    }

    async fn receive(socket: &mut Socket) -> Option<Sent> {
        let next = poll_fn(|cx| Pin::new(&mut *socket).poll_next(cx)).await?;
        next.ok()
    }

    #[test]
    fn a_program_of_axum_changes_the_line_that_serves() {
        async fn who(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
            peer.to_string()
        }
        in_runtime(async {
            let app = Router::new().route("/", get(who));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("the socket is bound");
            let (stop, stopped) = ::tokio::sync::oneshot::channel::<()>();
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            let serving = peregrine::tower::serve(listener, app)
                .configure(|server| server.quiet())
                .with_graceful_shutdown(async { drop(stopped.await) });
            let serving = ::tokio::spawn(serving.into_future());
            let client = ::tokio::task::spawn_blocking(move || {
                use std::io::{Read, Write};
                let start = Instant::now();
                let mut stream =
                    std::net::TcpStream::connect(address).expect("the server accepts connections");
                let own = stream.local_addr().expect("the socket is connected");
                stream
                    .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                    .expect("the socket is connected");
                let mut text = String::new();
                stream.read_to_string(&mut text).expect("the server closes the connection cleanly");
                assert!(text.ends_with(&own.to_string()), "{text} after {:?}", start.elapsed());
            });
            client.await.expect("the client does not panic");
            stop.send(()).expect("the server runs");
            serving.await.expect("the task does not panic").expect("the server shuts down cleanly");
        });
    }

    #[test]
    fn a_server_whose_future_is_dropped_ends() {
        in_runtime(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("the socket is bound");
            let serving = peregrine::tower::serve(listener, Router::new())
                .configure(|server| server.quiet())
                .with_graceful_shutdown(std::future::pending());
            let serving = ::tokio::spawn(serving.into_future());
            while TcpStream::connect(address).await.is_err() {
                ::tokio::time::sleep(Duration::from_millis(10)).await;
            }
            serving.abort();
            while TcpStream::connect(address).await.is_ok() {
                ::tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }
}
