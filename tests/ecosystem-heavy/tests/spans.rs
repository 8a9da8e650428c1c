//! tracing-opentelemetry: requests in an OpenTelemetry pipeline created by the application, instead
//! of `peregrine::otlp`'s.
//!
//! A separate test program, because the subscriber is process-wide.
#![cfg(unix)]

use opentelemetry::trace::{SpanId, SpanKind, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use peregrine::prelude::*;
use peregrine::trace::{TraceConfig, TraceContext};
use peregrine::{DriverChoice, Error, Limits, RunningServer, trace};
use peregrine_ecosystem_tests::{base_url, client, end, in_runtime, pause};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Whether the pipeline omits spans of unsampled requests.
static FILTERS: AtomicBool = AtomicBool::new(false);

/// A handler with its own span, which responds with the trace context of its outgoing requests.
fn app() -> App {
    App::new().get("/birds/{id}", async |Path(id): Path<u32>| {
        let lookup = tracing::info_span!("lookup", id);
        let _entered = lookup.enter();
        let fields = trace::headers();
        let place = fields.get("traceparent").and_then(|value| value.to_str().ok());
        place.unwrap_or("none").to_owned()
    })
}

fn start(choice: DriverChoice, traces: Option<TraceConfig>) -> Option<RunningServer> {
    // The client's tasks outlive the first of several servers.
    let limits = Limits { background_task_timeout: Duration::ZERO, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN);
    let server = server.limits(limits).quiet();
    let server = match traces {
        Some(traces) => server.traces(traces),
        None => server,
    };
    match server.start(app) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

async fn ask(running: &RunningServer, flags: &str) -> String {
    let request = client(None).get(format!("{}/birds/7", base_url(running)));
    let request = request.header("traceparent", format!("00-{TRACE}-{PARENT}-{flags}"));
    let response = request.send().await.expect("the server responds");
    response.text().await.expect("a body")
}

/// Waits for `count` finished spans.
async fn spans(exporter: &InMemorySpanExporter, count: usize) -> Vec<SpanData> {
    loop {
        let spans = exporter.get_finished_spans().expect("the exporter keeps its spans");
        if spans.len() >= count {
            exporter.reset();
            return spans;
        }
        pause().await;
    }
}

fn find<'s>(spans: &'s [SpanData], name: &str) -> &'s SpanData {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no span `{name}` in {spans:?}"))
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.as_str().into_owned())
}

#[test]
fn requests_are_in_a_pipeline_of_the_users_own() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let is_sent = dynamic_filter_fn(|_, _| {
        let is_unsampled = TraceContext::current().is_some_and(|cx| !cx.is_sampled());
        !(is_unsampled && FILTERS.load(Ordering::Relaxed))
    });
    let sends = tracing_opentelemetry::layer().with_tracer(provider.tracer("birds"));
    let sends = sends.with_filter(is_sent);
    tracing_subscriber::registry().with(sends).init();
    let trace_id = TraceId::from_hex(TRACE).expect("the ID is valid");
    for choice in [DriverChoice::Tokio, DriverChoice::Uring] {
        let Some(running) = start(choice, Some(TraceConfig::new())) else { continue };
        in_runtime(async {
            let sent = ask(&running, "01").await;
            let spans = spans(&exporter, 2).await;
            let (request, lookup) = (find(&spans, "GET /birds/{id}"), find(&spans, "lookup"));
            assert_eq!(request.span_kind, SpanKind::Server);
            assert_eq!(request.span_context.trace_id(), trace_id);
            assert_eq!(request.parent_span_id, SpanId::from_hex(PARENT).expect("the ID is valid"));
            assert_eq!(attribute(request, "http.route").as_deref(), Some("/birds/{id}"));
            assert_eq!(attribute(request, "url.path").as_deref(), Some("/birds/7"));
            assert_eq!(attribute(request, "http.response.status_code").as_deref(), Some("200"));
            assert_eq!(lookup.parent_span_id, request.span_context.span_id());
            // Outgoing requests of the handler belong to its own span.
            let own = lookup.span_context.span_id();
            assert_eq!(sent, format!("00-{TRACE}-{own}-01"));

            // An unsampled request has no span; the handler's own span starts a new trace there,
            // where `Otlp::layer` would omit it.
            let sent = ask(&running, "00").await;
            assert!(sent.starts_with(&format!("00-{TRACE}-")) && sent.ends_with("-00"), "{sent}");
            let spans = self::spans(&exporter, 1).await;
            let lookup = find(&spans, "lookup");
            assert_eq!(lookup.parent_span_id, SpanId::INVALID);
            assert_ne!(lookup.span_context.trace_id(), trace_id);
            FILTERS.store(true, Ordering::Relaxed);
            ask(&running, "00").await;
            ask(&running, "01").await;
            let spans = self::spans(&exporter, 2).await;
            assert!(spans.iter().all(|span| span.span_context.trace_id() == trace_id), "{spans:?}");
            FILTERS.store(false, Ordering::Relaxed);
        });
        end(running);

        // Without `Server::traces` there is a minimal span, which does not know the trace.
        let Some(running) = start(choice, None) else { continue };
        in_runtime(async {
            assert_ne!(ask(&running, "01").await, "");
            let spans = spans(&exporter, 2).await;
            let (request, lookup) = (find(&spans, "request"), find(&spans, "lookup"));
            assert_eq!(attribute(request, "route").as_deref(), Some("/birds/{id}"));
            assert_eq!(request.span_kind, SpanKind::Internal);
            assert_eq!(request.parent_span_id, SpanId::INVALID);
            assert_ne!(request.span_context.trace_id(), trace_id);
            assert_eq!(lookup.parent_span_id, request.span_context.span_id());
        });
        end(running);
    }
}
