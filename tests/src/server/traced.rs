//! Traces of requests on every driver: a sampled request has one span with the attributes that
//! OpenTelemetry requires, an unsampled one has none, and requests sent by handlers continue the
//! trace.

use crate::server::bench::{Bench, Served, ServerOptions};
use crate::server::client::{Length, Way};
use crate::server::secure::server_tls;
use bytes::Bytes;
use futures_core::Stream;
use peregrine::Limits;
use peregrine::prelude::*;
use peregrine::trace::{TRACEPARENT, TRACESTATE, TraceConfig, TraceContext};
use peregrine::web::HandlerExt;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The fields of a span, as text.
pub type Fields = BTreeMap<&'static str, String>;

/// All request spans created in this process, by their IDs.
static SPANS: Mutex<BTreeMap<u64, Span>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Debug, Default)]
struct Span {
    fields: Fields,
    is_closed: bool,
}

fn spans() -> std::sync::MutexGuard<'static, BTreeMap<u64, Span>> {
    SPANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The spans of requests to this path.
fn spans_of(path: &str) -> Vec<Span> {
    let has_path =
        |span: &&Span| span.fields.get("url.path").is_some_and(|span_path| span_path == path);
    spans().values().filter(has_path).cloned().collect()
}

struct Listener;

struct Read<'f>(&'f mut Fields);

impl Visit for Read<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target() == "peregrine::request"
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::SeqCst);
        let mut span = Span::default();
        attributes.record(&mut Read(&mut span.fields));
        spans().insert(id, span);
        Id::from_u64(id)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        if let Some(span) = spans().get_mut(&id.into_u64()) {
            values.record(&mut Read(&mut span.fields));
        }
    }

    fn try_close(&self, id: Id) -> bool {
        if let Some(span) = spans().get_mut(&id.into_u64()) {
            span.is_closed = true;
        }
        true
    }

    fn event(&self, _: &Event<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

fn limits() -> Limits {
    Limits { shutdown_timeout: Duration::from_secs(20), ..Limits::default() }
}

/// Responds with the trace fields that outgoing requests of the handler carry.
async fn trace_fields() -> String {
    let fields = peregrine::trace::headers();
    let text = |name| fields.get(name).map_or("-", |value| value.to_str().expect("text"));
    // The fields do not change while the handler waits and other tasks use the thread.
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(fields, peregrine::trace::headers());
    format!("{} {}", text(TRACEPARENT), text(TRACESTATE))
}

/// Some pieces; when dropped, it records the trace fields of an outgoing request.
struct RecordsTraceOnDrop {
    pieces: usize,
    recorded: Arc<Mutex<String>>,
}

impl Stream for RecordsTraceOnDrop {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = self.pieces.checked_sub(1).map(|left| {
            self.pieces = left;
            Ok(Bytes::from_static(b"piece"))
        });
        Poll::Ready(piece)
    }
}

impl Drop for RecordsTraceOnDrop {
    fn drop(&mut self) {
        let fields = peregrine::trace::headers();
        let traceparent =
            fields.get(TRACEPARENT).map_or("nothing", |value| value.to_str().expect("text"));
        traceparent.clone_into(&mut self.recorded.lock().expect("the mutex is not poisoned"));
    }
}

fn app(waiting: &Arc<AtomicUsize>, at_end: &Arc<Mutex<String>>) -> App {
    let recorded = Arc::clone(at_end);
    let streams = move |Path(_): Path<String>| {
        Body::from_stream(RecordsTraceOnDrop { pieces: 2, recorded: Arc::clone(&recorded) })
    };
    let late = async |Path(_): Path<String>| std::future::pending::<&str>().await;
    let waiting = Arc::clone(waiting);
    App::new()
        .get("/hello", || "hello")
        .get("/birds/{run}", |Path(_): Path<String>| "bird")
        .get("/tells/{run}", |Path(_): Path<String>| trace_fields())
        .get("/takes/{run}", async |Path(_): Path<String>, trace: TraceContext| trace.traceparent())
        .get("/panic/{run}", |Path(_): Path<String>| -> &'static str { panic!("on purpose") })
        .get("/late/{run}", late.timeout(Duration::from_millis(200)))
        .get("/streams/{run}", streams)
        .get("/never/{run}", move |Path(_): Path<String>| {
            waiting.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<&str>()
        })
        .post("/count/{run}", async |Path(_): Path<String>, body: Bytes| body.len().to_string())
}

struct Site<B: Bench> {
    server: B::Server,
    waiting: Arc<AtomicUsize>,
    /// The trace fields that the last stream recorded when it was dropped.
    at_end: Arc<Mutex<String>>,
    /// Makes the paths of this run unique.
    run: usize,
}

fn begin<B: Bench>(bench: &B, way: Way, traces: TraceConfig) -> Site<B> {
    static LISTENER: Once = Once::new();
    static RUN: AtomicUsize = AtomicUsize::new(0);
    LISTENER.call_once(|| {
        tracing::subscriber::set_global_default(Listener).expect("no other test sets a subscriber");
    });
    let (waiting, at_end) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<String>>::default());
    let (handler_waiting, handler_at_end) = (Arc::clone(&waiting), Arc::clone(&at_end));
    let tls = way.is_secure().then(server_tls);
    let server_options = ServerOptions { traces: Some(traces), ..ServerOptions::default() };
    let server = bench.start_behind(server_options, limits(), tls, move || {
        app(&handler_waiting, &handler_at_end)
    });
    Site { server, waiting, at_end, run: RUN.fetch_add(1, Ordering::SeqCst) }
}

impl<B: Bench> Site<B> {
    async fn end(self) {
        self.server.shut_down();
        self.server.ended().await;
    }
}

/// A sampled request has one span, with the attributes of OpenTelemetry's conventions, and the span
/// is closed.
pub async fn a_sampled_request_has_one_span<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way, TraceConfig::new());
    let run = site.run;
    let requests = [
        ("GET", "birds", 0, Some("200"), None, None),
        ("POST", "count", 5, Some("200"), None, None),
        ("DELETE", "birds", 1, Some("405"), None, None),
        ("GET", "panic", 0, Some("500"), Some("panic"), Some("ERROR")),
        ("GET", "late", 0, Some("503"), Some("timeout"), Some("ERROR")),
        ("GET", "never", 0, None, Some("cancelled"), None),
    ];
    for (number, (method, route, length, status, error, outcome)) in
        requests.into_iter().enumerate()
    {
        let path = format!("/{route}/{run}-{number}");
        let mut client = way.connect(&site.server).await;
        client.set_host("birds.example:8080");
        if way.is_secure() {
            client.set_host("localhost:8080");
        }
        let content = if length > 0 { Length::Declared(length) } else { Length::None };
        let id =
            client.begin(method, &format!("{path}?secret"), &[("user-agent", "it/1")], content);
        if length > 0 {
            client.upload(id, &vec![7; length]).await;
        }
        if status.is_some() {
            client.answer(id).await;
        } else {
            client
                .wait_until(bench, "the handler waits", || site.waiting.load(Ordering::SeqCst) == 1)
                .await;
            client.cancel(id);
        }
        let is_closed = || spans_of(&path).first().is_some_and(|span| span.is_closed);
        bench.wait_until("the span is closed", is_closed).await;
        let found = spans_of(&path);
        let [span] = &found[..] else { panic!("{way:?} {path}: {found:?}") };
        let pattern = format!("/{route}/{{run}}");
        let matched_route = (status != Some("405")).then_some(&*pattern);
        let name =
            matched_route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
        let host = if way.is_secure() { "localhost" } else { "birds.example" };
        let scheme = if way.is_secure() { "https" } else { "http" };
        for (field, value) in [
            ("otel.name", Some(&*name)),
            ("otel.kind", Some("server")),
            ("http.request.method", Some(method)),
            ("http.route", matched_route),
            ("url.path", Some(&*path)),
            ("url.scheme", Some(scheme)),
            ("network.protocol.version", Some(way.differs("1.1", "2"))),
            ("server.address", Some(host)),
            ("server.port", Some("8080")),
            ("user_agent.original", Some("it/1")),
            ("http.response.status_code", status),
            ("error.type", error),
            ("otel.status_code", outcome),
        ] {
            let found = span.fields.get(field).map(String::as_str);
            assert_eq!(found, value, "{path} {field}: {span:?}");
        }
        if status == Some("200") && length > 0 {
            assert_eq!(span.fields["http.request.body.size"], length.to_string());
        }
        assert!(!format!("{span:?}").contains("secret"), "{span:?}");
    }
    site.end().await;
}

/// An unsampled request creates no span, and the handler's outgoing requests say so.
pub async fn an_unsampled_request_creates_no_span<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
    let sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for (traces, parent, is_sampled) in [
        (TraceConfig::new().sample_ratio(0.0), None, false),
        (TraceConfig::new().sample_ratio(0.0), Some(sampled), true),
        (TraceConfig::new(), Some(unsampled), false),
        (TraceConfig::new().route_sample_ratio("/tells/{run}", 0.0), Some(sampled), false),
        (TraceConfig::new().sample_ratio(0.0).route_sample_ratio("/tells/{run}", 1.0), None, true),
        (TraceConfig::new().ignore_remote_parents(), Some(unsampled), true),
        (TraceConfig::new().sample_ratio(0.0).ignore_remote_parents(), Some(sampled), false),
    ] {
        let site = begin(bench, way, traces);
        let path = format!("/tells/{}", site.run);
        let mut client = way.connect(&site.server).await;
        let fields: Vec<_> = parent.into_iter().map(|parent| ("traceparent", parent)).collect();
        for _ in 0..3 {
            let id = client.ask("GET", &path, &fields);
            let response = client.answer(id).await;
            let traceparent = response.text().split(' ').next().unwrap_or_default().to_owned();
            let flags =
                traceparent.rsplit('-').next().and_then(|flags| u8::from_str_radix(flags, 16).ok());
            assert_eq!(flags.map(|flags| flags & 1 == 1), Some(is_sampled), "{traceparent}");
        }
        client.close().await;
        site.end().await;
        assert_eq!(spans_of(&path).len(), if is_sampled { 3 } else { 0 }, "{way:?} {parent:?}");
    }
}

/// The trace of a valid `traceparent` continues with a span of the server; an invalid one is
/// ignored.
pub async fn a_trace_continues_through_the_server<B: Bench>(bench: &B, way: Way) {
    bench.calm();
    let site = begin(bench, way, TraceConfig::new());
    let (tells_path, takes_path) = (format!("/tells/{}", site.run), format!("/takes/{}", site.run));
    let mut client = way.connect(&site.server).await;
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let valid = format!("00-{trace}-{span}-01");
    let parent = ("traceparent", &*valid);
    for (fields, is_continued, state) in [
        (&[parent][..], true, "-"),
        (&[parent, ("tracestate", "a=1,b=2"), ("tracestate", "c=3")], true, "a=1,b=2,c=3"),
        (&[parent, ("tracestate", "no state")], true, "-"),
        (&[parent, parent], false, "-"),
        (&[("traceparent", "00-no-no-01"), ("tracestate", "a=1")], false, "-"),
        (&[("tracestate", "a=1")], false, "-"),
        (&[], false, "-"),
    ] {
        let id = client.ask("GET", &tells_path, fields);
        let response = client.answer(id).await;
        let (traceparent, tracestate) =
            response.text().split_once(' ').expect("the response has two values");
        assert_eq!(
            (traceparent.contains(trace), tracestate),
            (is_continued, state),
            "{way:?} {fields:?}: {traceparent}"
        );
        assert!(!traceparent.contains(span), "the server's span differs: {traceparent}");
        assert_eq!(traceparent.len(), 55, "{traceparent}");
    }
    let id = client.ask("GET", &takes_path, &[parent]);
    assert!(client.answer(id).await.text().contains(trace));
    let id = client.ask("GET", &format!("/streams/{}", site.run), &[parent]);
    assert_eq!(client.answer(id).await.text(), "piecepiece");
    let recorded = || site.at_end.lock().expect("the mutex is not poisoned").clone();
    bench.wait_until("the stream is dropped", || !recorded().is_empty()).await;
    assert!(recorded().contains(trace), "{way:?}: {}", recorded());
    client.close().await;
    site.end().await;
}

/// Tests traces on a driver: `traced!(name, benches)` generates the module `name`. Each case runs
/// in its own process, because its subscriber is global and records the spans of all requests.
#[macro_export]
macro_rules! traced {
    ($name:ident, $benches:expr) => {
        mod $name {
            use super::*;

            $crate::traced!(@over http1, HTTP1, $benches);
            $crate::traced!(@over http1_tls, HTTP1_TLS, $benches);
            $crate::traced!(@over http2, HTTP2, $benches);
            $crate::traced!(@over http2_tls, HTTP2_TLS, $benches);
        }
    };
    (@over $over:ident, $way:ident, $benches:expr) => {
        mod $over {
            use super::*;
            use $crate::server::client::Way;

            $crate::traced!(@cases $way, $benches, [
                a_sampled_request_has_one_span,
                an_unsampled_request_creates_no_span,
                a_trace_continues_through_the_server,
            ]);
        }
    };
    (@cases $way:ident, $benches:expr, [$($case:ident,)*]) => {
        $(
            #[test]
            fn $case() {
                $crate::isolated(|| {
                    $benches.check(async |bench| {
                        $crate::server::traced::$case(bench, Way::$way).await;
                    });
                });
            }
        )*
    };
}
