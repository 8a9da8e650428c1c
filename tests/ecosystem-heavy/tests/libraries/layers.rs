//! tower-http 0.7: each of its layers around our handlers, and around a mounted axum router.

use axum::Router;
use axum::routing::{get, post};
use http::{HeaderName, HeaderValue, Method, header};
use peregrine::DriverChoice;
use peregrine::prelude::*;
use peregrine::tower::{Mount, layer};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, on_both_drivers, start};
use reqwest::Response as Answer;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::{Layer, ServiceBuilder};
use tower_http::add_extension::AddExtensionLayer;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::csrf::CsrfLayer;
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::normalize_path::NormalizePathLayer;
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::sensitive_headers::SetSensitiveRequestHeadersLayer;
use tower_http::set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer};
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::{OnRequest, OnResponse, TraceLayer};

on_both_drivers! {
    compression_makes_a_response_smaller,
    decompression_gives_the_handler_what_was_meant,
    cors_answers_preflights_and_marks_responses,
    csrf_refuses_what_other_sites_send,
    a_request_id_reaches_the_handler_and_the_client,
    a_timeout_ends_a_handler,
    header_fields_are_set_both_ways,
    an_extension_is_there_for_the_handler,
    a_body_that_is_too_large_is_refused,
    a_panic_is_caught_and_the_connection_goes_on,
    the_trace_tells_of_each_request_and_no_secret,
    paths_are_normalized_before_a_router_only,
}

const ID: HeaderName = HeaderName::from_static("x-request-id");
const STAMP: HeaderName = HeaderName::from_static("x-stamp");

/// The extension that `AddExtensionLayer` adds.
#[derive(Clone)]
struct Added(&'static str);

fn text() -> String {
    "a hobby is no kestrel. ".repeat(500)
}

/// The value of this field, or an empty string.
fn field(headers: &http::HeaderMap, name: &HeaderName) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

/// Our routes, below the application's existing middleware. Handlers are not `Send`.
fn ours(app: App) -> App {
    app.state(Rc::new("local"))
        .get("/text", async |local: State<Rc<&'static str>>| {
            tokio::task::yield_now().await;
            assert_eq!(*local.0, "local");
            text()
        })
        .post("/echo", async |body: Vec<u8>| body)
        .get("/slow", async || std::future::pending::<()>().await)
        .get("/panic", async || -> String { panic!("as it was asked for") })
        .get("/id", async |headers: http::HeaderMap| field(&headers, &ID))
        .get("/stamp", async |headers: http::HeaderMap| field(&headers, &STAMP))
        .get("/added", async |Extension(added): Extension<Added>| added.0)
}

/// The same as an axum router.
fn theirs() -> Router {
    Router::new()
        .route("/text", get(async || text()))
        .route("/echo", post(async |body: axum::body::Bytes| body))
        .route("/slow", get(async || std::future::pending::<()>().await))
        .route("/panic", get(async || -> String { panic!("as it was asked for") }))
        .route("/id", get(async |headers: http::HeaderMap| field(&headers, &ID)))
        .route("/stamp", get(async |headers: http::HeaderMap| field(&headers, &STAMP)))
        .route("/added", get(async |added: axum::Extension<Added>| added.0.0))
}

/// Tests both forms with the layer that `make` returns: `check` gets the form's name and the
/// server's URL.
macro_rules! around_both {
    ($choice:ident, $make:expr, $check:expr) => {
        let make = $make;
        for form in ["ours", "axum"] {
            let make = make.clone();
            let running = if form == "ours" {
                start($choice, 1, move || ours(App::new().wrap(layer(make()))))
            } else {
                start($choice, 1, move || App::new().mount("/", theirs().layer(make())))
            };
            let Some(running) = running else { return };
            let check = $check;
            in_runtime(check(form, base_url(&running)));
            end(running);
        }
    };
}

async fn answer(request: reqwest::RequestBuilder) -> Answer {
    request.send().await.expect("the server responds")
}

async fn body(answer: Answer) -> String {
    answer.text().await.expect("a body")
}

fn compression_makes_a_response_smaller(choice: DriverChoice) {
    around_both!(choice, CompressionLayer::new, async |form, base: String| {
        let ask = client(None).get(format!("{base}/text"));
        let plain = answer(ask.try_clone().expect("a request without a body can be cloned")).await;
        assert!(!plain.headers().contains_key("content-encoding"), "{form}");
        assert_eq!(body(plain).await, text(), "{form}");
        let packed = answer(ask.header("accept-encoding", "gzip")).await;
        assert_eq!(packed.headers()["content-encoding"], "gzip", "{form}");
        assert_eq!(packed.headers()["vary"], "accept-encoding", "{form}");
        let packed = packed.bytes().await.expect("a body");
        assert!(packed.starts_with(&[0x1f, 0x8b]), "{form}: it is gzip");
        assert!(packed.len() * 10 < text().len(), "{form}: {}", packed.len());
        let ask = client(None).get(format!("{base}/text")).header("accept-encoding", "*;q=0");
        assert_eq!(answer(ask).await.status(), 406, "{form}: new in 0.7");
    });
}

fn decompression_gives_the_handler_what_was_meant(choice: DriverChoice) {
    // `hello`, compressed with gzip.
    const PACKED: [u8; 25] = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 7, 0, 0x86, 0xa6, 0x10,
        0x36, 5, 0, 0, 0,
    ];
    around_both!(choice, RequestDecompressionLayer::new, async |form, base: String| {
        let ask = client(None).post(format!("{base}/echo")).header("content-encoding", "gzip");
        let echo = answer(ask.body(PACKED.to_vec())).await;
        assert_eq!((echo.status().as_u16(), body(echo).await), (200, "hello".to_owned()), "{form}");
        let ask = client(None).post(format!("{base}/echo")).header("content-encoding", "lzma");
        assert_eq!(answer(ask.body("a")).await.status(), 415, "{form}");
    });
}

fn cors_answers_preflights_and_marks_responses(choice: DriverChoice) {
    let cors = || CorsLayer::new().allow_origin(Any).allow_methods([Method::GET]);
    around_both!(choice, cors, async |form, base: String| {
        let url = format!("{base}/text");
        let ask = client(None).request(Method::OPTIONS, &url).header("origin", "http://a.example");
        let ask = ask.header("access-control-request-method", "GET");
        let preflight = answer(ask).await;
        assert_eq!(preflight.status(), 200, "{form}");
        assert_eq!(preflight.headers()["access-control-allow-methods"], "GET", "{form}");
        let marked = answer(client(None).get(&url).header("origin", "http://a.example")).await;
        assert_eq!(marked.headers()["access-control-allow-origin"], "*", "{form}");
        assert_eq!(body(marked).await, text(), "{form}");
    });
}

fn csrf_refuses_what_other_sites_send(choice: DriverChoice) {
    around_both!(choice, CsrfLayer::new, async |form, base: String| {
        let ask = |site| {
            let ask = client(None).post(format!("{base}/echo")).header("sec-fetch-site", site);
            answer(ask.body("hello"))
        };
        assert_eq!(ask("cross-site").await.status(), 403, "{form}");
        assert_eq!(body(ask("same-origin").await).await, "hello", "{form}");
    });
}

fn a_request_id_reaches_the_handler_and_the_client(choice: DriverChoice) {
    let ids = || {
        ServiceBuilder::new()
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(PropagateRequestIdLayer::x_request_id())
            .into_inner()
    };
    around_both!(choice, ids, async |form, base: String| {
        let url = format!("{base}/id");
        let made = answer(client(None).get(&url)).await;
        let id = field(made.headers(), &ID);
        assert_eq!(id.len(), 36, "{form}: {id}");
        assert_eq!(body(made).await, id, "{form}");
        let kept = answer(client(None).get(&url).header(ID, "a-client's")).await;
        assert_eq!(field(kept.headers(), &ID), "a-client's", "{form}");
        assert_eq!(body(kept).await, "a-client's", "{form}");
    });
}

fn a_timeout_ends_a_handler(choice: DriverChoice) {
    let limit = || {
        let limit = Duration::from_millis(50);
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, limit)
    };
    around_both!(choice, limit, async |form, base: String| {
        let late = answer(client(None).get(format!("{base}/slow"))).await;
        assert_eq!(late.status(), 408, "{form}");
    });
}

fn header_fields_are_set_both_ways(choice: DriverChoice) {
    let value = HeaderValue::from_static;
    let stamps = move || {
        ServiceBuilder::new()
            .layer(SetRequestHeaderLayer::if_not_present(STAMP, value("for the handler")))
            .layer(SetResponseHeaderLayer::overriding(STAMP, value("for the client")))
            .into_inner()
    };
    around_both!(choice, stamps, async |form, base: String| {
        let stamped = answer(client(None).get(format!("{base}/stamp"))).await;
        assert_eq!(field(stamped.headers(), &STAMP), "for the client", "{form}");
        assert_eq!(body(stamped).await, "for the handler", "{form}");
    });
}

fn an_extension_is_there_for_the_handler(choice: DriverChoice) {
    let add = || AddExtensionLayer::new(Added("by a layer"));
    around_both!(choice, add, async |form, base: String| {
        let added = answer(client(None).get(format!("{base}/added"))).await;
        assert_eq!(body(added).await, "by a layer", "{form}");
    });
}

fn a_body_that_is_too_large_is_refused(choice: DriverChoice) {
    let limit = || RequestBodyLimitLayer::new(1_000);
    around_both!(choice, limit, async |form, base: String| {
        for (length, status) in [(1_000, 200), (1_001, 413)] {
            let ask = client(None).post(format!("{base}/echo")).body(vec![b'x'; length]);
            assert_eq!(answer(ask).await.status(), status, "{form}: {length}");
        }
    });
}

fn a_panic_is_caught_and_the_connection_goes_on(choice: DriverChoice) {
    around_both!(choice, CatchPanicLayer::new, async |form, base: String| {
        // One client keeps one connection as long as neither side closes it.
        let client = client(None);
        let first = answer(client.get(format!("{base}/id"))).await;
        assert!(!first.headers().contains_key("connection"), "{form}");
        let caught = answer(client.get(format!("{base}/panic"))).await;
        assert_eq!(caught.status(), 500, "{form}");
        assert!(!caught.headers().contains_key("connection"), "{form}: the connection stays open");
        assert_eq!(body(caught).await, "Service panicked", "{form}");
        assert_eq!(answer(client.get(format!("{base}/text"))).await.status(), 200, "{form}");
    });
}

/// Collects the lines of a trace, whatever the types of bodies.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    fn record(&self, line: String) {
        self.0.lock().expect("the mutex is not poisoned").push(line);
    }
}

impl<B> OnRequest<B> for Recorder {
    fn on_request(&mut self, request: &http::Request<B>, _: &tracing::Span) {
        let secret = &request.headers()[header::AUTHORIZATION];
        self.record(format!("{} {secret:?}", request.uri()));
    }
}

impl<B> OnResponse<B> for Recorder {
    fn on_response(self, response: &http::Response<B>, _: Duration, _: &tracing::Span) {
        self.record(response.status().as_str().to_owned());
    }
}

/// Secrets are marked before the trace sees them.
fn the_trace_tells_of_each_request_and_no_secret(choice: DriverChoice) {
    let recorder = Recorder::default();
    let Recorder(recorded) = recorder.clone();
    let trace = move || {
        let traces = TraceLayer::new_for_http().on_request(recorder.clone());
        ServiceBuilder::new()
            .layer(SetSensitiveRequestHeadersLayer::new([header::AUTHORIZATION]))
            .layer(traces.on_response(recorder.clone()))
            .into_inner()
    };
    around_both!(choice, trace, async |form, base: String| {
        for path in ["/id", "/text"] {
            let ask = client(None).get(format!("{base}{path}")).header("authorization", "sesame");
            assert_eq!(answer(ask).await.status(), 200, "{form}");
        }
        let recorded = std::mem::take(&mut *recorded.lock().expect("the mutex is not poisoned"));
        assert_eq!(recorded, ["/id Sensitive", "200", "/text Sensitive", "200"], "{form}");
    });
}

/// A layer wraps routes that were already selected, as in axum. Around a whole service it runs
/// first.
fn paths_are_normalized_before_a_router_only(choice: DriverChoice) {
    around_both!(choice, NormalizePathLayer::trim_trailing_slash, async |form, base: String| {
        let late = answer(client(None).get(format!("{base}/text/"))).await;
        assert_eq!(late.status(), 404, "{form}: the route was already selected");
    });
    let around = || {
        let theirs = NormalizePathLayer::trim_trailing_slash().layer(theirs());
        App::new().mount("/", theirs)
    };
    let Some(running) = start(choice, 1, around) else { return };
    in_runtime(async {
        let url = format!("{}/text/", base_url(&running));
        let found = answer(client(None).get(url)).await;
        assert_eq!(found.status(), 200);
        assert_eq!(body(found).await, text());
    });
    end(running);
}
