//! Mounted tower services: the requests that they see, and how their responses are converted.

use axum::Router;
use axum::extract::{ConnectInfo, OriginalUri as AxumOriginalUri, Path, State};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use axum::{Extension, Json};
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use http_body::Frame;
use peregrine_tower::{Mount, OriginalUri, SendBody, into_tower, tower};
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo};
use peregrine_web::extract::OriginalPath;
use peregrine_web::{App, Body, BodyError, HandlerExt, Next, Request, TrailingSlash};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

async fn show_target(method: Method, uri: Uri) -> String {
    format!("{method} {uri}")
}

#[test]
fn a_router_with_state_responds_as_under_axum() {
    let router = Router::new()
        .route(
            "/{name}",
            get(async |State(count): State<u8>, Path(name): Path<String>| Json((name, count))),
        )
        .with_state(7);
    let client = App::new().subtree("/", tower(router)).test();
    let response = client.get("/a").send_blocking();
    assert_eq!(response.field("content-type"), Some("application/json"));
    assert_eq!(response.text(), r#"["a",7]"#);
    assert_eq!(client.post("/a").send_blocking().status(), 405);
    assert_eq!(client.get("/a/b").send_blocking().status(), 404);
}

#[test]
fn the_original_path_in_a_mounted_application_includes_the_prefix() {
    let inner = App::new().get("/x", async |OriginalPath(path): OriginalPath| path);
    let inner = tower(into_tower(inner).expect("the application is valid"));
    let client = App::new().mount("/below", inner).test();
    assert_eq!(client.get("/below/x?a=b").send_blocking().text(), "/below/x");
}

#[test]
fn a_mounted_application_sees_fields_named_in_connection_only_if_the_service_sets_them() {
    async fn show(request: Request) -> String {
        let head = &request.parts.head;
        ["x-user", "x-mine", "x-kept"].map(|name| head.header(name).unwrap_or("none")).join(" ")
    }
    let nested = into_tower(App::new().get("/", show)).expect("the application is valid");
    let set_user = |mut request: http::Request<SendBody>| {
        request.headers_mut().insert("x-user", HeaderValue::from_static("guest"));
        request
    };
    let service = ::tower::util::MapRequest::new(nested, set_user);
    let client = App::new().mount("/", tower(service)).test();
    let request = client.get("/").header("connection", "X-User, x-mine").header("x-user", "root");
    let response = request.header("x-mine", "1").header("x-kept", "1").send_blocking();
    assert_eq!(response.text(), "guest none 1");
}

#[test]
fn a_mounted_service_sees_the_path_below_its_prefix() {
    let router = Router::new().fallback(any(show_target));
    let app = App::new()
        .get("/", || "ours")
        .get("/api/ours", || "ours")
        .mount("/api", router.clone())
        .scope("/v1/{tenant}", |scope| scope.mount("/deep/", router.clone()))
        .mount("/with%20space", router);
    let client = app.test();
    let rows = [
        ("/", "ours"),
        ("/api/ours", "ours"),
        ("/api", "GET /"),
        ("/api/", "GET /"),
        ("/api?a=b", "GET /?a=b"),
        ("/api/?a=b", "GET /?a=b"),
        ("/api/x", "GET /x"),
        ("/api/x/", "GET /x/"),
        ("/api/x//y?z", "GET /x//y?z"),
        ("/api/%2Fx", "GET /%2Fx"),
        ("/v1/acme/deep", "GET /"),
        ("/v1/acme/deep/er", "GET /er"),
        ("/with%20space/x", "GET /x"),
        ("http://example.com/api/x?y", "GET http://example.com/x?y"),
    ];
    for (target, expected) in rows {
        assert_eq!(client.get(target).send_blocking().text(), expected, "{target}");
    }
    assert_eq!(client.get("/apix").send_blocking().status(), 404);
    assert_eq!(client.get("/other").send_blocking().status(), 404);
}

#[test]
fn a_service_at_the_root_gets_every_method_and_path_that_has_no_route() {
    let router = Router::new().fallback(any(show_target));
    let client = App::new().get("/ours", || "ours").mount("/", router).test();
    for method in ["GET", "POST", "OPTIONS", "PURGE", "TRACE"] {
        let method = Method::from_bytes(method.as_bytes()).expect("a token");
        for target in ["/", "/x", "/x/y/", "//", "//x", "/%ff"] {
            let response = client.request(method.clone(), target).send_blocking();
            assert_eq!(response.text(), format!("{method} {target}"));
        }
    }
    assert_eq!(client.get("/ours").send_blocking().text(), "ours");
    assert_eq!(client.post("/ours").send_blocking().text(), "POST /ours");
}

#[test]
fn a_mount_ignores_the_trailing_slash_policy() {
    for policy in [TrailingSlash::Strict, TrailingSlash::Redirect, TrailingSlash::Ignore] {
        let router = Router::new().fallback(any(show_target));
        let client = App::new().trailing_slash(policy).mount("/api", router).test();
        assert_eq!(client.get("/api").send_blocking().text(), "GET /", "{policy:?}");
        assert_eq!(client.get("/api/").send_blocking().text(), "GET /", "{policy:?}");
    }
}

#[test]
fn the_original_target_is_in_the_extensions() {
    async fn both(Extension(OriginalUri(original)): Extension<OriginalUri>, uri: Uri) -> String {
        format!("{original} {uri}")
    }
    let client = App::new().mount("/api", Router::new().route("/x", get(both))).test();
    assert_eq!(client.get("/api/x?y").send_blocking().text(), "/api/x?y /x?y");
    // axum's own extractor returns the target that axum received.
    let axum = async |AxumOriginalUri(uri): AxumOriginalUri| uri.to_string();
    let client = App::new().mount("/api", Router::new().route("/x", get(axum))).test();
    assert_eq!(client.get("/api/x").send_blocking().text(), "/x");
}

#[test]
fn header_fields_are_preserved_in_both_directions() {
    async fn fields(headers: HeaderMap) -> impl IntoResponse {
        let values: Vec<_> = headers.get_all("x-many").iter().collect();
        let text = format!("{} {} {values:?}", headers["x-one"].len(), headers["host"].len());
        ([("set-cookie", "a=1"), ("x-same", "1")], [("x-other", "3")], text)
    }
    async fn twice() -> impl IntoResponse {
        let mut headers = HeaderMap::new();
        for value in ["a=1", "b=2", "c=3"] {
            headers.append("set-cookie", value.parse().expect("a value"));
        }
        headers.append("x-last", "1".parse().expect("a value"));
        (StatusCode::CREATED, headers)
    }
    let router = Router::new().route("/", get(fields)).route("/twice", get(twice));
    let client = App::new().mount("/", router).test();
    let request = client.get("/").header("x-many", "1").header("X-One", b"\xff\xfe".to_vec());
    let response = request.header("X-Many", "2").send_blocking();
    assert_eq!(response.text(), r#"2 12 ["1", "2"]"#);
    assert_eq!(response.field("x-other"), Some("3"));
    let response = client.get("/twice").send_blocking();
    assert_eq!(response.status(), 201);
    let cookies: Vec<_> = response.header_values("set-cookie").collect();
    assert_eq!(cookies, ["a=1", "b=2", "c=3"]);
    assert_eq!(response.field("x-last"), Some("1"));
}

#[test]
fn extensions_pass_in_both_directions() {
    #[derive(Clone)]
    struct FromOutside(u8);
    #[derive(Clone)]
    struct FromInside(u8);
    let outer = async |mut request: Request, next: peregrine_web::Next<'_>| {
        request.parts.extensions_mut().insert(FromOutside(1));
        let response = next.run(request).await;
        let value = response
            .extensions()
            .and_then(|extensions| extensions.get::<FromInside>())
            .map(|from_inside| from_inside.0);
        response.with_field(
            http::HeaderName::from_static("x-seen"),
            http::HeaderValue::from(u16::from(value.unwrap_or(0))),
        )
    };
    let inner = async |Extension(FromOutside(value)): Extension<FromOutside>| {
        (Extension(FromInside(value + 1)), "ok")
    };
    let app = App::new().wrap(outer).mount("/", Router::new().route("/", get(inner)));
    assert_eq!(app.test().get("/").send_blocking().field("x-seen"), Some("2"));
}

#[test]
fn axum_gets_connect_info_from_a_handler_or_a_make_service() {
    async fn who(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
        peer.to_string()
    }
    let router = Router::new().route("/", get(who));
    let peer = ConnectionAddr::Tcp("192.0.2.1:99".parse().expect("an address"));
    let connection = || ConnectionInfo { peer: peer.clone(), ..ConnectionInfo::default() };
    let app = App::new().mount("/", tower(router.clone()).connect_info(ConnectInfo));
    assert_eq!(
        app.test().with_connection(connection()).get("/").send_blocking().text(),
        "192.0.2.1:99"
    );
    let make = router.into_make_service_with_connect_info::<SocketAddr>();
    let app = App::new().mount("/", make);
    assert_eq!(
        app.test().with_connection(connection()).get("/").send_blocking().text(),
        "192.0.2.1:99"
    );
}

#[test]
fn a_make_service_is_called_once_per_connection() {
    let (services_made, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(()));
    let make = ::tower::service_fn({
        let (services_made, alive) = (Arc::clone(&services_made), Arc::clone(&alive));
        move |_: SocketAddr| {
            let index = services_made.fetch_add(1, Ordering::Relaxed);
            let alive = Arc::clone(&alive);
            let service = ::tower::service_fn(move |_: http::Request<SendBody>| {
                let _alive = &alive;
                let body = http_body_util::Full::new(Bytes::from(index.to_string()));
                async { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            async { Ok::<_, Infallible>(service) }
        }
    });
    let mut client = App::new().mount("/", make).test();
    let idle = Arc::strong_count(&alive);
    for connection in 0..50 {
        for _ in 0..3 {
            assert_eq!(client.get("/").send_blocking().text(), connection.to_string());
        }
        assert!(Arc::strong_count(&alive) > idle, "the connection keeps its service");
        client = client.with_connection(ConnectionInfo::default());
        assert_eq!(Arc::strong_count(&alive), idle, "the service is dropped with its connection");
    }
    assert_eq!(services_made.load(Ordering::Relaxed), 50);
}

#[test]
fn concurrent_first_requests_of_a_connection_share_a_service() {
    let services_made = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&services_made);
    let make = ::tower::service_fn(move |_: SocketAddr| {
        let index = counter.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::task::yield_now().await;
            let service = move |_: http::Request<SendBody>| async move {
                let body = http_body_util::Full::new(Bytes::from(index.to_string()));
                Ok::<_, Infallible>(http::Response::new(body))
            };
            Ok::<_, Infallible>(::tower::service_fn(service))
        }
    });
    let client = App::new().mount("/", make).test();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let both = async { tokio::join!(client.get("/").send(), client.get("/").send()) };
    let (first, second) = runtime.block_on(both);
    assert_eq!(services_made.load(Ordering::Relaxed), 2);
    assert_eq!(first.text(), second.text());
    assert_eq!(client.get("/").send_blocking().text(), first.text());
}

#[test]
fn each_make_service_has_its_own_service_per_connection() {
    let alive = Arc::new(());
    let make = |name: &'static str| {
        let alive = Arc::clone(&alive);
        ::tower::service_fn(move |_: SocketAddr| {
            let alive = Arc::clone(&alive);
            let service = ::tower::service_fn(move |_: http::Request<SendBody>| {
                let _alive = &alive;
                let body = http_body_util::Full::new(Bytes::from(name));
                async { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            async { Ok::<_, Infallible>(service) }
        })
    };
    let client = App::new().mount("/a", make("a")).mount("/b", make("b")).test();
    for _ in 0..2 {
        assert_eq!(client.get("/a").send_blocking().text(), "a");
        assert_eq!(client.get("/b").send_blocking().text(), "b");
    }
    drop(client);
    assert_eq!(Arc::strong_count(&alive), 1, "the services are dropped with the application");
}

/// Serves a request on a new connection on this thread, through a make-service.
fn serve_another_request() {
    let make = ::tower::service_fn(async |_: SocketAddr| {
        Ok::<_, Infallible>(::tower::service_fn(async |_: http::Request<SendBody>| {
            let body = http_body_util::Full::new(Bytes::from("another"));
            Ok::<_, Infallible>(http::Response::new(body))
        }))
    });
    assert_eq!(App::new().mount("/", make).test().get("/").send_blocking().text(), "another");
}

/// A service that serves another request when it is cloned or dropped.
struct NestedCalls;

impl Clone for NestedCalls {
    fn clone(&self) -> Self {
        serve_another_request();
        Self
    }
}

impl Drop for NestedCalls {
    fn drop(&mut self) {
        serve_another_request();
    }
}

impl ::tower::Service<http::Request<SendBody>> for NestedCalls {
    type Response = http::Response<http_body_util::Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<SendBody>) -> Self::Future {
        std::future::ready(Ok(http::Response::new(http_body_util::Full::default())))
    }
}

#[test]
fn a_service_can_serve_other_requests_when_it_is_cloned_or_dropped() {
    let make = ::tower::service_fn(async |_: SocketAddr| Ok::<_, Infallible>(NestedCalls));
    let mut client = App::new().mount("/", make).test();
    for _ in 0..3 {
        assert_eq!(client.get("/").send_blocking().status(), 200);
        assert_eq!(client.get("/").send_blocking().status(), 200);
        client = client.with_connection(ConnectionInfo::default());
    }
}

#[test]
fn a_compressed_response_has_the_same_coding_for_head_as_for_get() {
    let router = Router::new()
        .route("/short", get(async || "short"))
        .route("/long", get(async || "long ".repeat(1000)));
    let compression = peregrine::compression::Compression::new();
    let client = App::new().wrap(compression).mount("/", router).test();
    for (path, coding, length) in [("/short", None, Some("5")), ("/long", Some("gzip"), None)] {
        let [full, head] = [Method::GET, Method::HEAD].map(|method| {
            client.request(method, path).header("accept-encoding", "gzip").send_blocking()
        });
        assert_eq!(full.field("content-encoding"), coding, "{path}");
        for name in ["content-encoding", "content-type", "vary"] {
            assert_eq!(head.field(name), full.field(name), "{path} {name}");
        }
        assert_eq!(head.field("content-length"), length, "{path}");
    }
}

#[test]
fn complete_bodies_arrive_and_leave_complete() {
    let router = Router::new().route("/echo", post(async |body: Bytes| body)).route(
        "/length",
        post(async |body: axum::body::Body| {
            use http_body::Body as _;
            format!("{:?} {}", body.size_hint().exact(), body.is_end_stream())
        }),
    );
    let client = App::new().mount("/", router).test();
    for length in [0, 1, 8 * 1024, 8 * 1024 + 1, 1_000_000] {
        let body = Bytes::from(vec![b'x'; length]);
        let response = client.post("/echo").body(body.clone()).send_blocking();
        assert_eq!(response.bytes(), body);
        assert_eq!(response.into_response().body.length(), Some(length as u64));
    }
    assert_eq!(client.post("/length").body("abc").send_blocking().text(), "Some(3) false");
    assert_eq!(client.post("/length").send_blocking().text(), "Some(0) true");
}

#[test]
fn chunked_bodies_stream_in_both_directions() {
    let echo = async |body: axum::body::Body| body;
    let client = App::new().mount("/", Router::new().route("/echo", post(echo))).test();
    let chunks: Vec<Bytes> = (0..100).map(|index| format!("{index};").into()).collect();
    let body = chunks.concat();
    let response = client.post("/echo").chunks(chunks).send_blocking();
    assert_eq!(response.bytes(), body);
}

/// A body that does not know its length, like that of a file.
struct UnknownLength(Vec<&'static str>);

impl http_body::Body for UnknownLength {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let piece = (!self.0.is_empty()).then(|| self.0.remove(0));
        Poll::Ready(piece.map(|piece| Ok(http_body::Frame::data(piece.into()))))
    }
}

#[test]
fn a_body_of_unknown_length_has_the_length_in_content_length() {
    let service = tower::service_fn(async |request: http::Request<SendBody>| {
        let mut response = http::Response::new(UnknownLength(vec!["abc", "", "de"]));
        for (name, value) in request.headers() {
            let name = match name.as_str() {
                "x-length" => CONTENT_LENGTH,
                "x-coding" => TRANSFER_ENCODING,
                _ => continue,
            };
            response.headers_mut().append(name, value.clone());
        }
        Ok::<_, Infallible>(response)
    });
    let client = App::new().mount("/", service).test();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
    for (headers, length) in [
        (&[("x-length", "5")][..], Some(5)),
        (&[("x-length", "+5")], None),
        (&[("x-length", "")], None),
        (&[("x-length", "99999999999999999999999")], None),
        (&[("x-length", "5"), ("x-length", "5")], None),
        (&[("x-length", "5"), ("x-coding", "chunked")], None),
        (&[], None),
    ] {
        let mut request = client.get("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        runtime.block_on(async {
            let body = request.send().await.into_response().body;
            assert_eq!(body.length(), length, "{headers:?}");
            assert_eq!(body.collect(10).await.expect("a whole body"), b"abcde");
        });
    }
}

#[test]
fn a_service_that_is_not_a_router_can_be_mounted() {
    let echo = tower::service_fn(async |request: http::Request<SendBody>| {
        Ok::<_, std::convert::Infallible>(http::Response::new(request.into_body()))
    });
    let client = App::new().mount("/", echo).test();
    assert_eq!(client.post("/").body("abc").send_blocking().text(), "abc");
    assert_eq!(client.post("/").chunks(["a", "b"]).send_blocking().text(), "ab");
}

#[test]
fn a_connection_whose_services_panic_on_drop_ends_normally() {
    #[derive(Clone)]
    struct Fragile {
        _last: Arc<PanicsInDrop>,
    }
    struct PanicsInDrop(Arc<AtomicUsize>);
    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("on purpose");
        }
    }
    impl tower::Service<http::Request<SendBody>> for Fragile {
        type Response = http::Response<axum::body::Body>;
        type Error = Infallible;
        type Future = std::future::Ready<Result<Self::Response, Infallible>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: http::Request<SendBody>) -> Self::Future {
            std::future::ready(Ok("served".into_response()))
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let make = || {
        let drop_count = Arc::clone(&dropped);
        tower::service_fn(move |_: SocketAddr| {
            let _last = Arc::new(PanicsInDrop(Arc::clone(&drop_count)));
            std::future::ready(Ok::<_, Infallible>(Fragile { _last }))
        })
    };
    let app = App::new().mount("/one", tower(make())).mount("/two", tower(make()));
    let client = app.test();
    for path in ["/one", "/two"] {
        assert_eq!(client.get(path).send_blocking().text(), "served");
    }
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    // The connection ends with its client. The other client keeps the application.
    let other = client.clone().with_connection(ConnectionInfo::default());
    drop(client);
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
    drop(other);
}

#[test]
fn grpc_deadlines_use_the_timers_of_the_test_client() {
    async fn never() -> &'static str {
        std::future::pending().await
    }
    async fn soon() -> &'static str {
        tokio::task::yield_now().await;
        "soon"
    }
    let router = Router::new().route("/a.B/Never", post(never)).route("/a.B/Soon", post(soon));
    for (path, expected) in [("/a.B/Never", (Some("4"), "")), ("/a.B/Soon", (None, "soon"))] {
        for is_nested in [false, true] {
            let mut app = App::new().mount("/", router.clone());
            if is_nested {
                app = App::new().mount("/", into_tower(app).expect("the application is valid"));
            }
            let client = app.test().with_timer(|duration| {
                assert_eq!(duration, Duration::from_secs(100_000));
                let mut polls_left = 2;
                std::future::poll_fn(move |cx| {
                    polls_left -= 1;
                    cx.waker().wake_by_ref();
                    if polls_left == 0 { Poll::Ready(()) } else { Poll::Pending }
                })
            });
            let call = client.post(path).header("content-type", "application/grpc");
            let response = call.header("grpc-timeout", "100000S").body("").send_blocking();
            assert_eq!(response.status(), 200);
            assert_eq!((response.field("grpc-status"), response.text().as_str()), expected);
        }
    }
}

#[test]
fn timeouts_of_a_nested_application_use_the_timers_of_the_test_client() {
    let never = (async || std::future::pending::<&'static str>().await).timeout(Duration::MAX);
    let nested = into_tower(App::new().get("/", never)).expect("the application is valid");
    let client = App::new().mount("/", nested).test().with_timer(|_| std::future::ready(()));
    assert_eq!(client.get("/").send_blocking().status(), 503);
}

#[test]
fn a_decompression_bomb_yields_a_413() {
    /// The result of `Decompression` for a decompression bomb.
    struct Bomb;
    impl http_body::Body for Bomb {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            Poll::Ready(Some(Err(BodyError::DecompressedTooLarge { ratio_max: 100 })))
        }
    }
    let replace_body = async |mut request: Request, next: Next<'_>| {
        request.body = Body::new(Bomb);
        next.run(request).await
    };
    let router = Router::new().route("/", post(async |body: Bytes| body));
    let client = App::new().wrap(replace_body).subtree("/", tower(router)).test();
    assert_eq!(client.post("/").body("packed").send_blocking().status(), 413);
}

#[test]
fn a_mounted_application_redirects_below_its_prefix() {
    let inner =
        App::new().trailing_slash(TrailingSlash::Redirect).get("/a/", || "a").get("/b", || "b");
    let inner = into_tower(inner).expect("the application is valid");
    let client = App::new().scope("/outer", |scope| scope.mount("/inner", inner)).test();
    for (path, location) in [("a?x=1", "a/?x=1"), ("b/", "b")] {
        let response = client.get(&format!("/outer/inner/{path}")).send_blocking();
        let expected = format!("/outer/inner/{location}");
        assert_eq!(response.status(), 308);
        assert_eq!(response.header("location"), Some(&*expected));
    }
}
