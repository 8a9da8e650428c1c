//! Tower layers around native handlers.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::BodyExt;
use peregrine_tower::{NextService, SendBody, layer};
use peregrine_web::connection::{ConnectionAddr, ConnectionInfo, TlsInfo};
use peregrine_web::extract::{Extension, Interim, Path, State};
use peregrine_web::middleware::{Next, optional};
use peregrine_web::upgrade::UpgradeHandler;
use peregrine_web::{App, HandlerExt, Request, Response};
use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tower::layer::layer_fn;
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
use tower::load_shed::LoadShedLayer;
use tower::util::MapRequestLayer;
use tower::{Service, ServiceBuilder, service_fn};
use tower_http::compression::CompressionLayer;
use tower_http::cors::CorsLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::request_id::{MakeRequestUuid, SetRequestIdLayer};
use tower_http::set_header::SetRequestHeaderLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

const NAME: HeaderName = HeaderName::from_static("x-name");

fn in_runtime<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().start_paused(true).build();
    runtime.expect("a runtime starts").block_on(future)
}

#[test]
fn tower_http_layers_wrap_handlers_that_are_not_send() {
    let count = Rc::new(Cell::new(0));
    let handler_count = Rc::clone(&count);
    let handler = move |Path(name): Path<String>| {
        handler_count.set(handler_count.get() + 1);
        async move { name.repeat(1000) }
    };
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CorsLayer::permissive())
        .layer(CompressionLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(5)));
    let client = App::new().wrap(layer(layers)).get("/{name}", handler).test();
    in_runtime(async {
        let mut response = client
            .get("/abc")
            .header("origin", "http://a.example")
            .header("accept-encoding", "gzip")
            .send()
            .await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.field("access-control-allow-origin"), Some("*"));
        assert_eq!(response.field("content-encoding"), Some("gzip"));
        let body = response.collect().await.expect("a whole body");
        assert!(body.starts_with(&[0x1f, 0x8b]) && body.len() < 200, "{} bytes", body.len());
        assert_eq!(count.get(), 1);
        let preflight = client
            .options("/abc")
            .header("origin", "http://a.example")
            .header("access-control-request-method", "PUT")
            .send()
            .await;
        assert_eq!(preflight.status(), 200);
        assert!(preflight.field("access-control-allow-methods").is_some());
        assert_eq!(count.get(), 1, "CorsLayer answers a preflight itself");
    });
}

#[test]
fn a_layer_applies_to_later_routes_and_to_the_fallback() {
    let stamp = |value| SetRequestHeaderLayer::appending(NAME, HeaderValue::from_static(value));
    let show_names = |request: Request| {
        let values = request.parts.head.header_values("x-name");
        let values: Vec<_> =
            values.map(|value| String::from_utf8_lossy(value).into_owned()).collect();
        values.join(",")
    };
    let app = App::new()
        .get("/before", show_names)
        .wrap(layer(stamp("outer")))
        .get("/after", show_names)
        .scope("/scope", |scope| scope.wrap(layer(stamp("inner"))).get("/{id}", show_names))
        .get("/beside", show_names)
        .fallback(show_names);
    let client = app.test();
    for (path, expected) in [
        ("/before", ""),
        ("/after", "outer"),
        ("/scope/1", "outer,inner"),
        ("/beside", "outer"),
        ("/nowhere", "outer"),
    ] {
        assert_eq!(client.get(path).send_blocking().text(), expected, "{path}");
    }
}

#[test]
fn a_layer_preserves_path_parameters_state_and_target() {
    async fn describe(
        Path(id): Path<u8>,
        State(state): State<Rc<str>>,
        request: Request,
    ) -> String {
        let parts = &request.parts;
        let pattern = parts.pattern().unwrap_or("none").to_owned();
        format!("{id} {state} {pattern} {} {:?}", parts.head.path(), parts.head.query())
    }
    let state: Rc<str> = "state".into();
    let app = App::new()
        .state(state)
        .wrap(layer(TraceLayer::new_for_http()))
        .wrap(layer(SetRequestHeaderLayer::overriding(NAME, HeaderValue::from_static("long"))))
        .get("/items/{id}", describe);
    let client = app.test();
    let expected = r#"7 state /items/{id} /items/7 Some("x=y")"#;
    assert_eq!(client.get("/items/7?x=y").send_blocking().text(), expected);
    let repeated = client.get("/items/7?x=y").header("a", "1").header("b", "2").header("a", "3");
    assert_eq!(repeated.send_blocking().text(), expected);
}

#[test]
fn interim_responses_bypass_layers() {
    async fn handler(interim: Interim) -> &'static str {
        interim.early_hints(["</a.css>; rel=preload"]).expect("the response has not begun");
        "page"
    }
    let changes_field =
        SetRequestHeaderLayer::overriding(NAME, HeaderValue::from_static("changed"));
    let keeps_field = SetRequestHeaderLayer::overriding(NAME, HeaderValue::from_static("same"));
    for app in [App::new().wrap(layer(changes_field)), App::new().wrap(layer(keeps_field))] {
        let client = app.get("/", handler).test();
        let response = client.get("/").header("x-name", "same").send_blocking();
        let statuses: Vec<_> = response.interim().iter().map(|(status, _)| *status).collect();
        assert_eq!((statuses, response.text()), (vec![StatusCode::EARLY_HINTS], "page".into()));
    }
}

#[test]
fn extensions_and_bodies_pass_through_a_layer() {
    use tower_http::request_id::RequestId;
    async fn echo(Extension(id): Extension<RequestId>, body: Bytes) -> (StatusCode, Bytes) {
        let is_uuid = id.header_value().len() == 36;
        (if is_uuid { StatusCode::CREATED } else { StatusCode::BAD_REQUEST }, body)
    }
    let id = SetRequestIdLayer::new(NAME, MakeRequestUuid);
    let client = App::new().wrap(layer(id)).post("/", echo).test();
    let response = client.post("/").body("abc").send_blocking();
    assert_eq!((response.status().as_u16(), response.text().as_str()), (201, "abc"));
    let response = client.post("/").chunks(["a", "b", "c"]).send_blocking();
    assert_eq!((response.status().as_u16(), response.text().as_str()), (201, "abc"));
}

#[test]
fn the_limits_of_a_layer_and_of_a_route_both_apply() {
    let echo = async |body: Bytes| body;
    let app = App::new()
        .post("/route", echo.body_limit(3))
        .wrap(layer(RequestBodyLimitLayer::new(10)))
        .post("/layer", echo.body_limit(100))
        .post("/both", echo.body_limit(3));
    let client = app.test();
    for (path, length, status) in [
        ("/route", 3, 200),
        ("/route", 4, 413),
        ("/layer", 10, 200),
        ("/layer", 11, 413),
        ("/both", 3, 200),
        ("/both", 4, 413),
    ] {
        let body = "x".repeat(length);
        let response = client.post(path).body(body.clone()).send_blocking();
        assert_eq!(response.status(), status, "{path} {length}");
    }
    // A stream over the route's limit is rejected too, although the layer changed the body's type.
    let response = client.post("/both").chunks(["xx", "xx"]).send_blocking();
    assert_eq!(response.status(), 413);
    // A stream over the layer's limit causes a 413 too, not a 500.
    let response = client.post("/layer").chunks(["x".repeat(9), "xx".to_owned()]).send_blocking();
    assert_eq!(response.status(), 413);
}

#[test]
fn a_full_concurrency_limit_delays_or_sheds_requests() {
    async fn sleep() -> &'static str {
        tokio::time::sleep(Duration::from_secs(1)).await;
        "slept"
    }
    in_runtime(async {
        let waiting = App::new().wrap(layer(ConcurrencyLimitLayer::new(2))).get("/", sleep).test();
        let start = tokio::time::Instant::now();
        let calls: Vec<_> = (0..6).map(|_| waiting.get("/").send()).collect();
        for response in join_all(calls).await {
            assert_eq!(response.status(), 200);
        }
        assert_eq!(start.elapsed().as_secs(), 3, "two run at a time");

        let load_shed = ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .layer(GlobalConcurrencyLimitLayer::new(2));
        let shedding = App::new().wrap(layer(load_shed)).get("/", sleep).test();
        let calls: Vec<_> = (0..6).map(|_| shedding.get("/").send()).collect();
        let responses = join_all(calls).await;
        let rejected = responses.iter().filter(|response| response.status() == 500);
        assert_eq!(rejected.count(), 4);
        assert_eq!(shedding.get("/").send().await.status(), 200);
    });
}

/// Polls all of `futures` concurrently.
async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<_> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *output = Some(value);
            }
        }
        if outputs.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

#[test]
fn a_layer_can_be_optional_or_run_by_another_middleware() {
    let stamp = || {
        let value = HeaderValue::from_static("1");
        layer(tower_http::set_header::SetResponseHeaderLayer::appending(NAME, value))
    };
    let app = App::new()
        .wrap(optional(Some(stamp())))
        .get("/one", || "")
        .wrap(RunInside(stamp()))
        .get("/two", || "");
    let client = app.test();
    assert_eq!(client.get("/one").send_blocking().header_values("x-name").count(), 1);
    assert_eq!(client.get("/two").send_blocking().header_values("x-name").count(), 2);
    let none = optional((false).then(stamp));
    let client = App::new().wrap(none).get("/", || "").test();
    assert_eq!(client.get("/").send_blocking().field("x-name"), None);
}

#[test]
fn a_middleware_and_a_layer_nest_in_the_order_of_wrap() {
    let ours = async |request: Request, next: Next<'_>| {
        let response = next.run(request).await;
        let order = response.headers.get(&NAME).map_or("none", |_| "layer first");
        response.with_field(header::VIA, HeaderValue::from_static(order))
    };
    let stamp = HeaderValue::from_static("1");
    let stamp = tower_http::set_header::SetResponseHeaderLayer::overriding(NAME, stamp);
    let client = App::new().wrap(ours).wrap(layer(stamp)).get("/", || "").test();
    assert_eq!(client.get("/").send_blocking().field("via"), Some("layer first"));
}

#[test]
fn an_upgrade_passes_through_a_layer() {
    let upgrade = || {
        let echo = UpgradeHandler::new(|_| async {});
        Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(echo)
    };
    let app = App::new().wrap(layer(TraceLayer::new_for_http())).get("/", upgrade);
    let mut response = app.test().get("/").send_blocking().into_response();
    assert!(response.take_upgrade().is_some());
}

#[test]
fn a_layer_that_rewrites_the_path_clears_the_path_parameters() {
    fn show(request: Request) -> String {
        let parts = &request.parts;
        let values = parts.path_parameters().map(|values| {
            let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
            values.iter().map(|(name, value)| format!("{name}={}", text(value))).collect()
        });
        let values: Vec<String> = values.unwrap_or_default();
        format!("{} {}", parts.head.path(), values.join(","))
    }
    let rewrite = MapRequestLayer::new(|mut request: http::Request<SendBody>| {
        match request.uri().path() {
            "/acct/bob/doc/1" => {
                *request.uri_mut() = http::Uri::from_static("/acct/mallory/doc/99")
            }
            "/static" => *request.uri_mut() = http::Uri::from_static("/0123456789/0123456789"),
            _ => {}
        }
        request
    });
    // Retains heads, so that the pool has several when they are released.
    let retained: Rc<RefCell<Vec<peregrine_web::RequestHead>>> = Rc::default();
    let retained_by_handler = Rc::clone(&retained);
    let retain =
        move |request: Request| retained_by_handler.borrow_mut().push(request.parts.head.share());
    let app = App::new()
        .get("/keep/{name}/{id}", retain)
        .wrap(layer(rewrite))
        .get("/acct/{name}/doc/{id}", show)
        .get("/static", show);
    let client = app.test();
    let get = |path: &str| client.get(path).send_blocking().text();
    for _ in 0..3 {
        for _ in 0..5 {
            get("/keep/alice/7");
        }
        retained.borrow_mut().clear();
        let long = "/acct/alice/doc/123456789";
        assert_eq!(get(long), format!("{long} name=alice,id=123456789"));
        assert_eq!(get("/acct/bob/doc/1"), "/acct/mallory/doc/99 ");
        assert_eq!(get("/static"), "/0123456789/0123456789 ");
    }
}

#[test]
fn a_layer_can_add_a_field_to_the_largest_accepted_head() {
    let limits = peregrine_proto::Limits::DEFAULT;
    let show = |request: Request| {
        let head = &request.parts.head;
        let name = head.header("x-name").unwrap_or("none");
        format!("{name} {}", head.headers().count())
    };
    let stamp = SetRequestHeaderLayer::appending(NAME, HeaderValue::from_static("added"));
    let client = App::new().wrap(layer(stamp)).get("/", show).test();
    // One of the fields is Host.
    let mut many = client.get("/");
    for number in 0..limits.fields_max - 1 {
        many = many.header("x-other", number.to_string());
    }
    assert_eq!(many.send_blocking().text(), format!("added {}", limits.fields_max + 1));
    let long = "v".repeat(limits.field_bytes_max - 100);
    let response = client
        .get("/")
        .header("x-one", long.as_str())
        .header("x-two", long.as_str())
        .send_blocking();
    assert_eq!(response.text(), "added 4");
}

#[test]
fn a_head_that_becomes_too_long_yields_a_431_and_an_invalid_one_a_500() {
    let (long, value) = ("v".repeat(16_000), HeaderValue::from_str(&"v".repeat(40_000)));
    let stamp = SetRequestHeaderLayer::appending(NAME, value.expect("a value"));
    let client = App::new().wrap(layer(stamp)).get("/", || "").test();
    assert_eq!(client.get("/").send_blocking().status(), 200);
    let response = client
        .get("/")
        .header("x-one", long.as_str())
        .header("x-two", &long[100..])
        .send_blocking();
    assert_eq!(response.status(), 431);

    let stamp = SetRequestHeaderLayer::overriding(header::HOST, HeaderValue::from_static("a b"));
    let client = App::new().wrap(layer(stamp)).get("/", || "").test();
    assert_eq!(client.get("/").send_blocking().status(), 500);
}

#[test]
fn a_layer_that_adds_a_field_preserves_the_form_of_the_target() {
    let show = |request: Request| {
        let head = &request.parts.head;
        format!("{} {} {}", head.authority(), head.uri(), head.path())
    };
    let stamp = SetRequestHeaderLayer::appending(NAME, HeaderValue::from_static("added"));
    let client = App::new().get("/plain", show).wrap(layer(stamp)).get("/layer", show).test();
    for path in ["/plain", "/layer"] {
        let target = format!("http://a.example{path}?query");
        let response = client.get(&target).header("host", "b.example").send_blocking();
        assert_eq!(response.text(), format!("a.example {target} {path}"));
    }
}

/// Calls another middleware from its own `run`, so that the other is set up for each request.
struct RunInside<M>(M);

impl<M: peregrine_web::Middleware> peregrine_web::Middleware for RunInside<M> {
    async fn run<S: peregrine_web::Service>(&self, request: Request, next: &S) -> Response {
        self.0.run(request, next).await
    }
}

type TowerRequest = http::Request<SendBody>;

/// Duplicates the request; the second one has the body.
fn duplicate(request: TowerRequest) -> (TowerRequest, TowerRequest) {
    let (parts, body) = request.into_parts();
    (
        TowerRequest::from_parts(parts.clone(), SendBody::default()),
        TowerRequest::from_parts(parts, body),
    )
}

/// Responds to the first attempt after 10 seconds and to each later attempt one second sooner.
/// Counts the attempts whose handler was dropped.
fn slow_attempts(app: App) -> (App, Rc<Cell<u64>>) {
    struct Dropped(Rc<Cell<u64>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let (attempts, dropped) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let dropped_by_guard = Rc::clone(&dropped);
    let handler = move || {
        let attempt = attempts.get() + 1;
        attempts.set(attempt);
        let guard = Dropped(Rc::clone(&dropped_by_guard));
        async move {
            let _guard = guard;
            tokio::time::sleep(Duration::from_secs(11 - attempt)).await;
            attempt.to_string()
        }
    };
    (app.get("/", handler), dropped)
}

async fn text(result: Result<http::Response<SendBody>, Infallible>) -> String {
    let Ok(response) = result;
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("a number")
}

fn text_response(text: String) -> Result<http::Response<SendBody>, Infallible> {
    Ok(http::Response::new(SendBody::from(text)))
}

/// Cancels the first attempt after a second, and responds with the text of the second attempt.
async fn try_twice(
    mut inner: NextService,
    request: TowerRequest,
) -> Result<http::Response<SendBody>, Infallible> {
    let (first, second) = duplicate(request);
    let timed_out = tokio::time::timeout(Duration::from_secs(1), inner.call(first)).await;
    assert!(timed_out.is_err(), "the first attempt takes longer");
    text_response(text(inner.call(second).await).await)
}

/// Makes three attempts concurrently, each in its own task, and responds with their texts.
async fn try_concurrently(
    mut inner: NextService,
    request: TowerRequest,
) -> Result<http::Response<SendBody>, Infallible> {
    let (first, remaining) = duplicate(request);
    let (second, third) = duplicate(remaining);
    let [first, second, third] = [first, second, third].map(|request| {
        let call = inner.call(request);
        tokio::task::spawn_local(async move { text(call.await).await })
    });
    let texts = [first.await, second.await, third.await];
    text_response(texts.map(|text| text.expect("no panic")).join(","))
}

#[test]
fn each_attempt_of_a_retrying_layer_gets_its_own_response() {
    let retry_layer =
        || layer(layer_fn(|inner: NextService| service_fn(move |r| try_twice(inner.clone(), r))));
    let (in_app, dropped_in_app) = slow_attempts(App::new().wrap(retry_layer()));
    let (in_middleware, dropped_in_middleware) =
        slow_attempts(App::new().wrap(RunInside(retry_layer())));
    in_runtime(async {
        assert_eq!(in_app.test().get("/").send().await.text(), "2");
        assert_eq!(dropped_in_app.get(), 2);
        assert_eq!(in_middleware.test().get("/").send().await.text(), "2");
        assert_eq!(dropped_in_middleware.get(), 2);
    });
}

#[test]
fn attempts_of_a_layer_run_concurrently() {
    let concurrent_layer = || {
        layer(layer_fn(|inner: NextService| {
            service_fn(move |r| try_concurrently(inner.clone(), r))
        }))
    };
    let (in_app, _) = slow_attempts(App::new().wrap(concurrent_layer()));
    let (in_middleware, _) = slow_attempts(App::new().wrap(RunInside(concurrent_layer())));
    let local = tokio::task::LocalSet::new();
    in_runtime(local.run_until(async {
        let start = tokio::time::Instant::now();
        assert_eq!(in_app.test().get("/").send().await.text(), "1,2,3");
        assert_eq!(in_middleware.test().get("/").send().await.text(), "1,2,3");
        assert_eq!(start.elapsed().as_secs(), 20, "10 seconds for three attempts, twice");
    }));
}

#[test]
fn a_call_polled_after_its_request_has_ended_yields_a_500() {
    let stored_call = Rc::new(RefCell::new(None));
    let storing_layer = {
        let stored_call = Rc::clone(&stored_call);
        layer(layer_fn(move |inner: NextService| {
            let stored_call = Rc::clone(&stored_call);
            service_fn(move |request: TowerRequest| {
                let mut inner = inner.clone();
                let call = inner.call(request);
                let stored_call = Rc::clone(&stored_call);
                async move {
                    *stored_call.borrow_mut() = Some(call);
                    text_response("kept".to_owned())
                }
            })
        }))
    };
    let (app, _) = slow_attempts(App::new().wrap(RunInside(storing_layer)));
    in_runtime(async {
        assert_eq!(app.test().get("/").send().await.text(), "kept");
        let call = stored_call.take().expect("the layer kept its call");
        let Ok(response) = call.await;
        assert_eq!(response.status(), 500);
    });
}

#[test]
fn a_layer_gets_the_connection_info() {
    #[derive(Clone)]
    struct Address(SocketAddr);
    let describing_layer = || {
        layer(layer_fn(|_: NextService| {
            service_fn(|request: TowerRequest| {
                let extensions = request.extensions();
                let info = extensions.get::<ConnectionInfo>().cloned().unwrap_or_default();
                let address = extensions.get::<Address>().map(|address| address.0);
                let name = info.tls.as_ref().and_then(|tls| tls.server_name.clone());
                async move { text_response(format!("{} {address:?} {name:?}", info.peer)) }
            })
        }))
        .connect_info(Address)
        .extension(ConnectionInfo::clone)
    };
    let peer = SocketAddr::from(([192, 0, 2, 7], 4711));
    let tls = TlsInfo { server_name: Some("a.test".to_owned()), ..TlsInfo::default() };
    let over_tls = ConnectionInfo {
        peer: ConnectionAddr::Tcp(peer),
        tls: Some(Arc::new(tls)),
        ..ConnectionInfo::default()
    };
    let unix = ConnectionInfo {
        peer: ConnectionAddr::Unix { path: None, credentials: None },
        ..ConnectionInfo::default()
    };
    for (info, expected) in [
        (over_tls, r#"192.0.2.7:4711 Some(192.0.2.7:4711) Some("a.test")"#),
        (unix, "unix:(unnamed) None None"),
    ] {
        let in_app = App::new()
            .wrap(describing_layer())
            .get("/", || "")
            .test()
            .with_connection(info.clone());
        assert_eq!(in_app.get("/").send_blocking().text(), expected);
        let in_middleware = App::new()
            .wrap(RunInside(describing_layer()))
            .get("/", || "")
            .test()
            .with_connection(info);
        assert_eq!(in_middleware.get("/").send_blocking().text(), expected);
    }
}

#[test]
fn connect_info_does_not_replace_an_existing_extension() {
    #[derive(Clone)]
    struct Address(SocketAddr);
    let set_address = async |mut request: Request, next: Next<'_>| {
        let address = SocketAddr::from(([203, 0, 113, 1], 1));
        request.parts.extensions_mut().insert(Address(address));
        next.run(request).await
    };
    let identity = layer(tower::layer::util::Identity::new()).connect_info(Address);
    let handler = async |Extension(address): Extension<Address>| address.0.to_string();
    let app = App::new().wrap(set_address).wrap(identity).get("/", handler);
    let peer = ConnectionAddr::Tcp(SocketAddr::from(([192, 0, 2, 7], 4711)));
    let client = app.test().with_connection(ConnectionInfo { peer, ..ConnectionInfo::default() });
    assert_eq!(client.get("/").send_blocking().text(), "203.0.113.1:1");
}

#[test]
fn the_response_that_a_layer_returns_has_its_own_upgrade() {
    struct Dropped(u64, Rc<RefCell<Vec<u64>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.1.borrow_mut().push(self.0);
        }
    }
    async fn return_first_response(
        mut inner: NextService,
        request: TowerRequest,
    ) -> Result<http::Response<SendBody>, Infallible> {
        let (first, second) = duplicate(request);
        let first = inner.call(first).await;
        let _second = inner.call(second).await;
        first
    }
    let (attempts, dropped) = (Cell::new(0), Rc::new(RefCell::new(Vec::new())));
    let dropped_by_guard = Rc::clone(&dropped);
    let upgrade = move || {
        attempts.set(attempts.get() + 1);
        let guard = Dropped(attempts.get(), Rc::clone(&dropped_by_guard));
        let protocol = UpgradeHandler::new(async move |_| drop(guard));
        Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(protocol)
    };
    let first_response_layer = layer(layer_fn(|inner: NextService| {
        service_fn(move |r| return_first_response(inner.clone(), r))
    }));
    let client = App::new().wrap(first_response_layer).get("/", upgrade).test();
    let mut response = client.get("/").send_blocking().into_response();
    let upgrade_of_first = response.take_upgrade();
    assert_eq!(*dropped.borrow(), [2]);
    drop(upgrade_of_first);
    assert_eq!(*dropped.borrow(), [2, 1]);
}
