//! Traces of requests: which are sampled ([`Traces`]), and the way to requests that a handler sends.
//!
//! The span is one of `tracing`, so that any of its subscribers may have it; with the feature `otlp`,
//! `peregrine::otlp` sends it to OpenTelemetry's collectors.

pub use peregrine_server::Traces;
pub use peregrine_web::trace::{TRACEPARENT, TRACESTATE, TraceContext};

use http::HeaderMap;

/// The fields with which a request that is sent from here belongs to the trace of the request that is worked on: for
/// `reqwest::RequestBuilder::headers`, say. Empty where there is none.
///
/// Tasks that a handler spawns have to be given what they need.
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

/// The same in the fields of a request that exists.
pub fn inject(fields: &mut HeaderMap) {
    #[cfg(feature = "otlp")]
    if peregrine_admin::internal::inject(fields) {
        return;
    }
    if let Some(context) = TraceContext::current() {
        context.inject(fields);
    }
}

/// Lets the ids of spans be those of the system that records them, where there is one.
pub(crate) fn recorded(traces: Traces) -> Traces {
    #[cfg(feature = "otlp")]
    let traces = peregrine_admin::internal::recorded(traces);
    traces
}
