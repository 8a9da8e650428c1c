//! Request tracing: samples requests ([`TraceConfig`]), and propagates the trace context to the
//! requests that a handler sends ([`headers`]).
//!
//! Spans are `tracing` spans, which any subscriber can record. With the feature `otlp`,
//! `peregrine::otlp` exports them to OpenTelemetry collectors.

pub use peregrine_server::TraceConfig;
pub use peregrine_web::trace::{TRACEPARENT, TRACESTATE, TraceContext};

use http::HeaderMap;

/// Returns the header fields that make an outgoing request part of the current request's trace, for
/// example for `reqwest::RequestBuilder::headers`. Empty if there is no current trace.
///
/// Tasks that a handler spawns have no current request. Call this function in the handler, and pass
/// the result to the task.
///
/// ```ignore
/// async fn birds(client: reqwest::Client) -> reqwest::Result<String> {
///     let request = client.get("http://birds.example/").headers(peregrine::trace::headers());
///     request.send().await?.text().await
/// }
/// ```
#[must_use]
pub fn headers() -> HeaderMap {
    let mut fields = HeaderMap::new();
    inject(&mut fields);
    fields
}

/// Like [`headers`], but adds the fields to those of an existing request.
pub fn inject(fields: &mut HeaderMap) {
    #[cfg(feature = "otlp")]
    if peregrine_admin::internal::inject(fields) {
        return;
    }
    if let Some(context) = TraceContext::current() {
        context.inject(fields);
    }
}

/// With the feature `otlp`, makes `traces` use OpenTelemetry's span ids.
pub(crate) fn with_recorder(traces: TraceConfig) -> TraceConfig {
    #[cfg(feature = "otlp")]
    let traces = peregrine_admin::internal::with_otel_recorder(traces);
    traces
}
