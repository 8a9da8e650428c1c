//! The counters of a worker, which other threads can read.
//!
//! Each worker has its own [`WorkerMetrics`], which no other thread writes to. Counters that cost
//! almost nothing are always maintained. Counters with a noticeable cost per request are maintained
//! only if metrics are enabled.

use super::close_reason::{CloseReason, limit_name_for};
use peregrine_driver::ITERATION_BOUNDS;
use peregrine_metrics::{Counter, CounterSet, Gauge, Histogram, MetricMap};
use peregrine_proto::{Method, RequestError, Version, h2};
use peregrine_web::built::BuiltApp;
use peregrine_web::route::display_pattern;
use std::sync::OnceLock;
use std::time::Duration;

/// Histogram bounds of durations in nanoseconds, as OpenTelemetry recommends for
/// `http.server.request.duration`.
pub(crate) const DURATION_BOUNDS: [u64; 14] = [
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    7_500_000_000,
    10_000_000_000,
];

/// Histogram bounds of sizes in bytes. The first bucket counts requests or responses without
/// content.
pub(crate) const SIZE_BOUNDS: [u64; 11] =
    [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];

/// The number of methods that are distinguished: each method that the protocol knows, and one for
/// all others.
const METHOD_COUNT: usize = Method::Extension as usize + 1;

/// The counters of a worker. Any thread can read them at any time, even after the worker has ended.
#[derive(Debug, Default)]
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs.
#[repr(C, align(128))]
pub struct WorkerMetrics {
    pub(crate) requests: Counter,
    pub(crate) sends: Counter,
    pub(crate) received_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    /// Requests in progress, as the overload limits count them: including upgraded protocols, and
    /// handlers that continue without their connection.
    pub(crate) in_flight: Gauge,
    /// Requests in progress, until their response is complete, by scheme (`https` second) and
    /// method. Maintained only if the worker has a `RequestRecorder`.
    pub(crate) active_requests: [[Gauge; METHOD_COUNT]; 2],
    pub(crate) connection_states: [Gauge; ConnectionState::ALL.len()],
    /// Connections that this worker accepted and did not hand to another worker, and those that
    /// another worker handed to this one.
    pub(crate) accepted: Counter,
    /// Connections that this worker accepted and handed to another worker.
    pub(crate) handoffs_sent: Counter,
    /// Connections that other workers accepted and handed to this worker.
    pub(crate) handoffs_received: Counter,
    pub(crate) accept_errors: Counter,
    pub(crate) closed: CounterSet<&'static str, 32>,
    pub(crate) limits_hit: CounterSet<&'static str, 32>,
    pub(crate) violations: CounterSet<Violation, 96>,
    pub(crate) handshakes: CounterSet<HandshakeParams, 32>,
    pub(crate) handshake_durations: Histogram<{ DURATION_BOUNDS.len() }>,
    pub(crate) tls_failures: CounterSet<TlsFailure, 64>,
    /// Requests rejected because of overload, by the limit that they exceeded.
    pub(crate) shed: CounterSet<&'static str, 8>,
    /// How long requests had waited for the worker's thread.
    pub(crate) queue_delays: Histogram<{ ITERATION_BOUNDS.len() }>,
    /// 1 while the worker rejects requests that have waited too long; otherwise 0.
    pub(crate) is_shedding: Gauge,
    /// Bytes of memory that the worker's connections use.
    pub(crate) memory_bytes: Gauge,
    /// The limit of `memory_bytes`; 0 if there is none.
    pub(crate) memory_bytes_max: Gauge,
    /// Whether each request is measured individually.
    has_request_histograms: bool,
    /// Set when the worker starts, if `has_request_histograms`.
    pub(crate) request_histograms: OnceLock<RequestHistograms>,
}

/// The state and the protocol by which an open connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// The protocol is not known yet, or the TLS handshake is in progress.
    Opening,
    Http1Idle,
    Http1Active,
    Http2Idle,
    Http2Active,
    /// An upgraded protocol uses the connection.
    Upgraded,
    Closing,
}

impl ConnectionState {
    const ALL: [Self; 7] = [
        Self::Opening,
        Self::Http1Idle,
        Self::Http1Active,
        Self::Http2Idle,
        Self::Http2Active,
        Self::Upgraded,
        Self::Closing,
    ];

    /// The protocol and the state, as named in metrics.
    fn labels(self) -> (&'static str, &'static str) {
        match self {
            Self::Opening => ("", "opening"),
            Self::Http1Idle => ("http/1", "idle"),
            Self::Http1Active => ("http/1", "active"),
            Self::Http2Idle => ("http/2", "idle"),
            Self::Http2Active => ("http/2", "active"),
            Self::Upgraded => ("upgraded", "active"),
            Self::Closing => ("", "closing"),
        }
    }
}

/// A rule of HTTP that a peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    Http(RequestError),
    Http2(h2::Http2Error),
}

/// The parameters that a TLS handshake negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandshakeParams {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) resumed: bool,
}

/// A failure of TLS, as counted in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsFailure {
    pub(crate) in_handshake: bool,
    pub(crate) reason: &'static str,
    /// The alert that the peer sent. Empty if it sent none.
    pub(crate) alert: &'static str,
}

/// Histograms of requests that are measured individually.
#[derive(Debug)]
pub(crate) struct RequestHistograms {
    /// The route patterns, by route number.
    pub(crate) routes: Vec<String>,
    pub(crate) durations: MetricMap<Histogram<{ DURATION_BOUNDS.len() }>>,
    pub(crate) sizes: MetricMap<BodySizes>,
}

/// The sizes of the content of requests and responses.
#[derive(Debug, Default)]
// In this order, the counters of small responses and of requests without content, which most
// requests increment, lie in two adjacent cache lines.
#[repr(C)]
pub(crate) struct BodySizes {
    pub(crate) sent: Histogram<{ SIZE_BOUNDS.len() }>,
    pub(crate) received: Histogram<{ SIZE_BOUNDS.len() }>,
}

impl WorkerMetrics {
    /// Creates the counters of a worker that measures each request individually.
    #[must_use]
    pub fn with_request_histograms() -> Self {
        Self { has_request_histograms: true, ..Self::default() }
    }

    /// The current number of connections, by protocol and state.
    pub fn connections(&self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> {
        let counts =
            self.connection_states.iter().map(|gauge| u64::try_from(gauge.get()).unwrap_or(0));
        ConnectionState::ALL.into_iter().map(ConnectionState::labels).zip(counts)
    }

    /// Returns whether the worker's connections use so much memory that the worker rejects all
    /// requests, except those for routes with `never_shed()`.
    pub fn is_memory_low(&self) -> bool {
        let bytes_max = self.memory_bytes_max.get();
        // At seven eighths, `MemoryPressure::High` begins.
        bytes_max > 0 && self.memory_bytes.get() >= bytes_max - bytes_max / 8
    }

    /// Checks invariants that hold after a worker has ended: nothing is in progress, and each
    /// accepted connection was counted as ended exactly once.
    ///
    /// # Panics
    /// An invariant is violated.
    #[doc(hidden)]
    pub fn assert_idle(&self) {
        for state in ConnectionState::ALL {
            assert_eq!(self.connection_states[state as usize].get(), 0, "{state:?}");
        }
        let active: Vec<_> = self.active_requests.iter().flatten().map(Gauge::get).collect();
        assert!(active.iter().all(|active| *active == 0), "requests in progress: {active:?}");
        assert_eq!(self.in_flight.get(), 0, "requests in progress");
        let closed: u64 = self.closed.iter().map(|(_, count)| count).sum();
        assert_eq!(self.accepted.get(), closed + self.closed.overflow(), "{:?}", self.closed);
    }

    /// Returns whether each request is measured individually.
    pub(crate) fn has_request_histograms(&self) -> bool {
        self.has_request_histograms
    }

    /// Counts how long a request had waited for the worker's thread.
    pub(crate) fn record_queue_delay(&self, delay: Duration) {
        let delay = delay.as_secs().saturating_mul(1_000_000_000) + u64::from(delay.subsec_nanos());
        self.queue_delays.observe(delay, &ITERATION_BOUNDS);
    }

    /// Creates the histograms for requests to `application`, if each request is measured
    /// individually.
    pub(crate) fn init_request_histograms(&self, application: &BuiltApp) {
        if !self.has_request_histograms {
            return;
        }
        self.request_histograms.get_or_init(|| {
            let routes =
                application.routes().map(|route| display_pattern(route.pattern).into_owned());
            let routes: Vec<_> = routes.collect();
            // Most routes are used with one method and respond with few statuses. Routes and
            // statuses come from the application, and unknown methods share one key, so peers
            // cannot create arbitrarily many keys.
            let (durations, sizes) = (
                MetricMap::with_capacity(routes.len() * 8 + 256),
                MetricMap::with_capacity(routes.len() * 2 + 16),
            );
            RequestHistograms { routes, durations, sizes }
        });
    }

    /// Counts the end of a connection.
    pub(crate) fn record_close(&self, reason: &CloseReason) {
        self.closed.increment(reason.label());
        if let Some(limit) = reason.limit_name() {
            self.limits_hit.increment(limit);
        }
        match reason {
            CloseReason::Rejected(error) => self.violations.increment(Violation::Http(*error)),
            CloseReason::Http2Rejected(error) => {
                self.violations.increment(Violation::Http2(*error))
            }
            _ => {}
        }
    }

    /// Counts an HTTP/2 request that was rejected while its connection continues.
    pub(crate) fn record_violation(&self, violation: Violation) {
        let limit = match violation {
            Violation::Http(error) => limit_name_for(error),
            Violation::Http2(h2::Http2Error::StreamsTooMany) => {
                Some("http2.concurrent_streams_max")
            }
            Violation::Http2(_) => None,
        };
        if let Some(limit) = limit {
            self.limits_hit.increment(limit);
        }
        self.violations.increment(violation);
    }
}

/// The attributes by which requests are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestAttributes {
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) is_secure: bool,
    /// The route's number in the application.
    pub(crate) route: Option<u32>,
    /// Zero if no response began.
    pub(crate) status: u16,
    pub(crate) error: ErrorType,
}

/// Why a request failed, if its status alone does not show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ErrorType {
    #[default]
    None,
    /// The handler panicked.
    Panic,
    /// The handler exceeded the timeout of its route or `exchange_timeout`.
    Timeout,
    /// The request ended before its response began, usually because the client disconnected.
    Cancelled,
    /// The response began, but ended before it was complete: its body failed, the server closed the
    /// connection or the client disconnected.
    Aborted,
    /// The request was rejected because the server was overloaded.
    Overloaded,
}

const ERROR_TYPES: [(ErrorType, &str); 6] = [
    (ErrorType::None, ""),
    (ErrorType::Panic, "panic"),
    (ErrorType::Timeout, "timeout"),
    (ErrorType::Cancelled, "cancelled"),
    (ErrorType::Aborted, "aborted"),
    (ErrorType::Overloaded, "overloaded"),
];

const METHODS: [Method; METHOD_COUNT] = [
    Method::Get,
    Method::Head,
    Method::Post,
    Method::Put,
    Method::Delete,
    Method::Connect,
    Method::Options,
    Method::Trace,
    Method::Patch,
    Method::Query,
    Method::Extension,
];

/// The name of the method with this discriminant. Unknown methods share one name, so that peers
/// cannot create many metrics.
pub(crate) fn method_name(index: usize) -> &'static str {
    METHODS.get(index).and_then(|method| method.name()).unwrap_or("_OTHER")
}

impl RequestAttributes {
    /// Packs the attributes into a key of a [`MetricMap`]. Bit 20 is always set, because a key must
    /// not be zero.
    #[inline]
    pub(crate) fn pack(&self) -> u64 {
        u64::from(self.status & 0x3ff)
            | (self.method as u64) << 10
            | (self.version as u64) << 14
            | u64::from(self.is_secure) << 16
            | (self.error as u64) << 17
            | 1 << 20
            | self.route.map_or(0, |route| u64::from(route) + 1) << 32
    }

    /// Like [`RequestAttributes::pack`], but with only the route and the method.
    #[inline]
    pub(crate) fn pack_route(&self) -> u64 {
        let Self { method, route, .. } = *self;
        Self { method, route, ..Self::default() }.pack()
    }

    pub(crate) fn unpack(packed: u64) -> Self {
        let bits = |start: u32, count: u32| (packed >> start) as usize & ((1 << count) - 1);
        Self {
            status: bits(0, 10) as u16,
            method: METHODS.get(bits(10, 4)).copied().unwrap_or(Method::Extension),
            version: match bits(14, 2) {
                0 => Version::Http10,
                1 => Version::Http11,
                _ => Version::Http2,
            },
            is_secure: bits(16, 1) == 1,
            error: ERROR_TYPES.get(bits(17, 3)).map_or(ErrorType::None, |(error, _)| *error),
            route: ((packed >> 32) as u32).checked_sub(1),
        }
    }

    /// The HTTP version, as in OpenTelemetry's `network.protocol.version`.
    pub(crate) fn version_name(&self) -> &'static str {
        match self.version {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2",
        }
    }

    /// Why the request failed, as in OpenTelemetry's `error.type`; empty if it did not.
    pub(crate) fn error_type(&self) -> String {
        match ERROR_TYPES[self.error as usize].1 {
            "" if self.status >= 500 => self.status.to_string(),
            name => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_attributes_round_trip() {
        for (index, method) in METHODS.into_iter().enumerate() {
            assert_eq!(method as usize, index);
            for (version, is_secure) in
                [(Version::Http10, false), (Version::Http11, true), (Version::Http2, true)]
            {
                for (index, (error, _)) in ERROR_TYPES.into_iter().enumerate() {
                    assert_eq!(error as usize, index);
                    for route in [None, Some(0), Some(7), Some(u32::MAX - 1)] {
                        for status in [0, 100, 200, 599, 999] {
                            let attributes = RequestAttributes {
                                method,
                                version,
                                is_secure,
                                route,
                                status,
                                error,
                            };
                            assert_eq!(RequestAttributes::unpack(attributes.pack()), attributes);
                        }
                    }
                }
            }
        }
        assert_ne!(RequestAttributes::default().pack(), 0);
    }

    #[test]
    fn unknown_methods_share_one_name() {
        assert_eq!(method_name(Method::Get as usize), "GET");
        assert_eq!(method_name(Method::Extension as usize), "_OTHER");
        assert_eq!(method_name(99), "_OTHER");
    }
}
