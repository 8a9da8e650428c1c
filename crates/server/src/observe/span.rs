//! The tracing span of a request.

use super::metrics::{ErrorType, RequestAttributes};
use peregrine_proto::Version;
use peregrine_web::Request;
use peregrine_web::panic::catch_subscriber_panic;
use peregrine_web::route::display_pattern;
use std::cell::Cell;
use tracing::field::{self, Empty};
use tracing::{Span, error_span};

/// The target of each request's span, for filters. The span has the level ERROR, so that every
/// level filter that enables an event of a request also enables its span.
const TARGET: &str = "peregrine::request";

/// Creates the span of a request on a server without a `TraceConfig`. The span only identifies the
/// request in logs. Middleware that assigns request IDs fills in `request_id`.
pub(crate) fn minimal_span(request: &Request, pattern: Option<&str>) -> Span {
    build_span(|| {
        error_span!(
            target: TARGET,
            "request",
            method = request.parts.head.method_str(),
            route = pattern.map(display_pattern).as_deref(),
            request_id = Empty,
        )
    })
}

/// If the subscriber panics while it creates or closes a span, this many following requests get no
/// span, because the subscriber may leak memory each time it panics.
const SPANS_SKIPPED_AFTER_PANIC: u32 = 1000;

thread_local! {
    /// How many of the next requests get no span.
    static SPANS_TO_SKIP: Cell<u32> = const { Cell::new(0) };
}

/// Builds a span. If the subscriber panics, returns a disabled span.
fn build_span(build: impl FnOnce() -> Span) -> Span {
    let remaining = SPANS_TO_SKIP.get();
    if remaining > 0 {
        SPANS_TO_SKIP.set(remaining - 1);
        return Span::none();
    }
    let mut span = Span::none();
    catch_span_panic(|| span = build());
    span
}

/// Closes the span of a request.
pub(crate) fn close(span: Span) {
    catch_span_panic(|| drop(span));
}

/// Runs `call_subscriber`, which creates or closes a span. If the subscriber panics, the next
/// [`SPANS_SKIPPED_AFTER_PANIC`] requests get no span.
fn catch_span_panic(call_subscriber: impl FnOnce()) {
    let mut has_completed = false;
    catch_subscriber_panic(|| {
        call_subscriber();
        has_completed = true;
    });
    if !has_completed {
        SPANS_TO_SKIP.set(SPANS_SKIPPED_AFTER_PANIC);
    }
}

/// Creates the span of a sampled request, with the attributes of OpenTelemetry's conventions for
/// HTTP servers. [`record_end`] fills in the empty fields, and middleware fills in `request_id`.
pub(crate) fn otel_span(request: &Request, pattern: Option<&str>) -> Span {
    let (head, connection) = (&request.parts.head, request.parts.connection_untracked());
    let method = head.index().method.name();
    let pattern = pattern.map(display_pattern);
    let name = || {
        let method = method.unwrap_or("HTTP");
        pattern.as_deref().map_or_else(|| method.to_owned(), |route| format!("{method} {route}"))
    };
    let client = request.client();
    let host = client.host();
    let (address, port) = split_host_port(&host);
    let peer = connection.peer.socket_addr();
    let is_unix =
        || matches!(connection.peer, peregrine_web::connection::ConnectionAddr::Unix { .. });
    build_span(|| {
        error_span!(
            target: TARGET,
            "request",
            otel.name = name(),
            otel.kind = "server",
            otel.status_code = Empty,
            http.request.method = method.unwrap_or("_OTHER"),
            http.request.method_original = method.is_none().then(|| head.method_str()),
            http.route = pattern.as_deref(),
            http.response.status_code = Empty,
            http.request.body.size = Empty,
            http.response.body.size = Empty,
            "error.type" = Empty,
            url.path = head.path(),
            url.scheme = client.scheme(),
            server.address = Some(address).filter(|address| !address.is_empty()),
            server.port = port,
            client.address = client.ip().map(field::display),
            network.peer.address = peer.map(|peer| field::display(peer.ip().to_canonical())),
            network.peer.port = peer.map(|peer| peer.port()),
            network.transport = if is_unix() { "unix" } else { "tcp" },
            network.protocol.name = "http",
            network.protocol.version = match head.index().version {
                Version::Http10 => "1.0",
                Version::Http11 => "1.1",
                Version::Http2 => "2",
            },
            user_agent.original = head.header("user-agent"),
            request_id = Empty,
        )
    })
}

/// Records in the span how its request ended. `summary` is that of `RequestMetrics::summary`.
pub(crate) fn record_end(span: &Span, summary: (&RequestAttributes, u64, u64)) {
    catch_subscriber_panic(|| record_fields(span, summary));
}

fn record_fields(span: &Span, (attributes, received, sent): (&RequestAttributes, u64, u64)) {
    if attributes.status != 0 {
        span.record("http.response.status_code", attributes.status);
    }
    span.record("http.request.body.size", received);
    span.record("http.response.body.size", sent);
    let error = attributes.error_type();
    if !error.is_empty() {
        span.record("error.type", &*error);
    }
    // A client error (4xx) is not a server error. OpenTelemetry's conventions require an error for
    // a response that ends early (`Aborted`), whatever its status. They recommend one for a
    // disconnect before the response (`Cancelled`) too, but clients often cancel on purpose.
    if attributes.status >= 500
        || matches!(attributes.error, ErrorType::Panic | ErrorType::Timeout | ErrorType::Aborted)
    {
        span.record("otel.status_code", "ERROR");
    }
}

/// Splits a host from its port, which is `None` if it is missing or invalid.
pub(crate) fn split_host_port(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        // A colon within brackets is part of an address.
        Some((address, port)) if !port.contains(']') => (address, port.parse().ok()),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_the_port_from_the_host() {
        for (host, address, port) in [
            ("birds.example", "birds.example", None),
            ("birds.example:8080", "birds.example", Some(8080)),
            ("[::1]", "[::1]", None),
            ("[::1]:80", "[::1]", Some(80)),
            ("birds.example:", "birds.example", None),
            ("", "", None),
        ] {
            assert_eq!(split_host_port(host), (address, port), "{host}");
        }
    }
}
