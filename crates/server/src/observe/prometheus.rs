//! Writes the counters of workers in the Prometheus text format.

use super::metrics::{
    DURATION_BOUNDS, HandshakeParams, RequestHistograms, RequestKey, SIZE_BOUNDS, TlsFailure,
    Violation, WorkerMetrics, method_name,
};
use peregrine_driver::ITERATION_BOUNDS;
use peregrine_metrics::{
    Counter, CounterSet, Exposition, Gauge, HistogramSnapshot, MetricFamily, MetricType,
};
use std::collections::BTreeMap;

/// Nanoseconds per second.
const NANOSECONDS: f64 = 1e9;

const fn family(
    name: &'static str,
    kind: MetricType,
    unit: &'static str,
    help: &'static str,
) -> MetricFamily<'static> {
    MetricFamily { name, metric_type: kind, unit, help }
}

const REQUEST_DURATION: MetricFamily<'_> = family(
    "http_server_request_duration_seconds",
    MetricType::Histogram,
    "seconds",
    "From a request's head to the end of its response.",
);
const REQUEST_SIZE: MetricFamily<'_> = family(
    "http_server_request_body_size_bytes",
    MetricType::Histogram,
    "bytes",
    "Request content received before the response was complete.",
);
const RESPONSE_SIZE: MetricFamily<'_> = family(
    "http_server_response_body_size_bytes",
    MetricType::Histogram,
    "bytes",
    "Response content, without framing.",
);
const ACTIVE: MetricFamily<'_> = family(
    "http_server_active_requests",
    MetricType::Gauge,
    "",
    "Requests whose response is not complete.",
);
const CONNECTIONS: MetricFamily<'_> = family(
    "peregrine_connections",
    MetricType::Gauge,
    "",
    "Open connections by protocol and state.",
);
const WORKER_CONNECTIONS: MetricFamily<'_> = family(
    "peregrine_worker_connections",
    MetricType::Gauge,
    "",
    "Open connections of each worker.",
);
const IMBALANCE: MetricFamily<'_> = family(
    "peregrine_worker_imbalance_ratio",
    MetricType::Gauge,
    "ratio",
    "Open connections of the busiest worker, divided by the mean of all workers; 1 is even.",
);
const HANDOFFS_SENT: MetricFamily<'_> = family(
    "peregrine_worker_handoffs_sent",
    MetricType::Counter,
    "",
    "Connections that a worker accepted and handed to a worker with fewer connections.",
);
const HANDOFFS_RECEIVED: MetricFamily<'_> = family(
    "peregrine_worker_handoffs_received",
    MetricType::Counter,
    "",
    "Connections that a worker took over from the worker that accepted them.",
);
const ACCEPTED: MetricFamily<'_> =
    family("peregrine_connections_accepted", MetricType::Counter, "", "Accepted connections.");
const ACCEPT_ERRORS: MetricFamily<'_> = family(
    "peregrine_accept_errors",
    MetricType::Counter,
    "",
    "How often accepting failed because the process was out of descriptors or memory.",
);
const CLOSED: MetricFamily<'_> = family(
    "peregrine_connections_closed",
    MetricType::Counter,
    "",
    "Connections that have ended, by reason.",
);
const LIMITS: MetricFamily<'_> = family(
    "peregrine_limits_hit",
    MetricType::Counter,
    "",
    "How often a limit had an effect, by its name in Limits.",
);
const VIOLATIONS: MetricFamily<'_> = family(
    "peregrine_protocol_violations",
    MetricType::Counter,
    "",
    "Requests, streams and connections rejected because they broke a rule of HTTP.",
);
const RECEIVED: MetricFamily<'_> = family(
    "peregrine_received_bytes",
    MetricType::Counter,
    "bytes",
    "Bytes received on all connections, including TLS and framing.",
);
const SENT: MetricFamily<'_> = family(
    "peregrine_sent_bytes",
    MetricType::Counter,
    "bytes",
    "Bytes passed to the kernel to be sent, including TLS and framing.",
);
const SENDS: MetricFamily<'_> = family(
    "peregrine_sends",
    MetricType::Counter,
    "",
    "How often data was passed to the kernel to be sent.",
);
const HANDSHAKES: MetricFamily<'_> = family(
    "peregrine_tls_handshakes",
    MetricType::Counter,
    "",
    "Completed TLS handshakes, by version, cipher suite and resumption.",
);
const HANDSHAKE_DURATION: MetricFamily<'_> = family(
    "peregrine_tls_handshake_duration_seconds",
    MetricType::Histogram,
    "seconds",
    "From accepting a connection to the end of its TLS handshake.",
);
const TLS_FAILURES: MetricFamily<'_> = family(
    "peregrine_tls_failures",
    MetricType::Counter,
    "",
    "Failed TLS sessions, by reason and by the alert that the peer sent.",
);

const IN_FLIGHT: MetricFamily<'_> = family(
    "peregrine_worker_requests",
    MetricType::Gauge,
    "",
    "Requests of each worker whose response is not complete, including WebSockets.",
);
const SHED: MetricFamily<'_> = family(
    "peregrine_requests_shed",
    MetricType::Counter,
    "",
    "Requests rejected because of overload, by the limit that was reached.",
);
const QUEUE_DELAY: MetricFamily<'_> = family(
    "peregrine_queue_delay_seconds",
    MetricType::Histogram,
    "seconds",
    "How long requests waited for their worker's thread after it had polled the kernel. Without \
     queue_delay_target, one request in 16 is measured.",
);
const SHEDDING: MetricFamily<'_> = family(
    "peregrine_worker_shedding",
    MetricType::Gauge,
    "",
    "1 while a worker rejects requests that have waited too long.",
);
const MEMORY: MetricFamily<'_> = family(
    "peregrine_worker_memory_bytes",
    MetricType::Gauge,
    "bytes",
    "Memory that each worker uses for connections: buffers, bodies, responses, TLS, HTTP/2.",
);
const MEMORY_MAX: MetricFamily<'_> = family(
    "peregrine_worker_memory_max_bytes",
    MetricType::Gauge,
    "bytes",
    "Limit of the memory that each worker uses for connections; 0 if there is none.",
);

/// The families that [`write_metrics()`] writes, in order.
pub const METRIC_FAMILIES: &[MetricFamily<'static>] = &[
    REQUEST_DURATION,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    ACTIVE,
    CONNECTIONS,
    WORKER_CONNECTIONS,
    IMBALANCE,
    HANDOFFS_SENT,
    HANDOFFS_RECEIVED,
    ACCEPTED,
    ACCEPT_ERRORS,
    CLOSED,
    LIMITS,
    VIOLATIONS,
    RECEIVED,
    SENT,
    SENDS,
    HANDSHAKES,
    HANDSHAKE_DURATION,
    TLS_FAILURES,
    IN_FLIGHT,
    SHED,
    QUEUE_DELAY,
    SHEDDING,
    MEMORY,
    MEMORY_MAX,
];

/// Writes the sums of the counters of these workers.
pub fn write_metrics(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    write_requests(page, workers);
    write_sizes(page, workers);
    write_active(page, workers);
    write_connections(page, workers);
    write_labeled(page, &CLOSED, "reason", workers, |counts| &counts.closed);
    write_labeled(page, &LIMITS, "limit", workers, |counts| &counts.limits_hit);
    write_violations(page, workers);
    write_sum(page, &RECEIVED, workers, |counts| &counts.received_bytes);
    write_sum(page, &SENT, workers, |counts| &counts.sent_bytes);
    write_sum(page, &SENDS, workers, |counts| &counts.sends);
    write_tls(page, workers);
    write_overload(page, workers);
}

fn request_histograms<'a>(
    workers: &'a [&WorkerMetrics],
) -> impl Iterator<Item = &'a RequestHistograms> {
    workers.iter().filter_map(|counts| counts.request_histograms.get())
}

/// The pattern of a request's route; empty if no route matched.
fn route(measured: &RequestHistograms, key: &RequestKey) -> String {
    let pattern = key.route.and_then(|route| measured.routes.get(route as usize));
    pattern.cloned().unwrap_or_default()
}

/// The label of values for which a table had no room. The name is OpenTelemetry's.
const OVERFLOW: (&str, &str) = ("otel_metric_overflow", "true");

fn write_requests(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = BTreeMap::<[String; 6], HistogramSnapshot>::new();
    let mut others = HistogramSnapshot::default();
    for measured in request_histograms(workers) {
        for (packed, histogram) in measured.durations.entries() {
            let key = RequestKey::unpack(packed);
            let status = if key.status == 0 { String::new() } else { key.status.to_string() };
            let labels = [
                method_name(key.method as usize).to_owned(),
                route(measured, &key),
                status,
                key.version_name().to_owned(),
                scheme(key.is_secure).to_owned(),
                key.error_type(),
            ];
            histogram.read_into(all.entry(labels).or_default());
        }
        measured.durations.overflow().read_into(&mut others);
    }
    page.begin_family(&REQUEST_DURATION);
    for ([method, route, status, version, scheme, error], buckets) in &all {
        let labels = [
            ("http_request_method", &**method),
            ("http_route", route),
            ("http_response_status_code", status),
            ("network_protocol_version", version),
            ("url_scheme", scheme),
            ("error_type", error),
        ];
        page.histogram(&labels, &DURATION_BOUNDS, buckets, NANOSECONDS);
    }
    if others.count() > 0 {
        page.histogram(&[OVERFLOW], &DURATION_BOUNDS, &others, NANOSECONDS);
    }
}

fn write_sizes(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = BTreeMap::<(String, String), [HistogramSnapshot; 2]>::new();
    let mut others = <[HistogramSnapshot; 2]>::default();
    for measured in request_histograms(workers) {
        for (packed, sizes) in measured.sizes.entries() {
            let key = RequestKey::unpack(packed);
            let labels = (method_name(key.method as usize).to_owned(), route(measured, &key));
            let [received, sent] = all.entry(labels).or_default();
            sizes.received.read_into(received);
            sizes.sent.read_into(sent);
        }
        measured.sizes.overflow().received.read_into(&mut others[0]);
        measured.sizes.overflow().sent.read_into(&mut others[1]);
    }
    for (at, family) in [REQUEST_SIZE, RESPONSE_SIZE].iter().enumerate() {
        page.begin_family(family);
        for ((method, route), buckets) in &all {
            let labels = [("http_request_method", &**method), ("http_route", route)];
            page.histogram(&labels, &SIZE_BOUNDS, &buckets[at], 1.0);
        }
        if others[at].count() > 0 {
            page.histogram(&[OVERFLOW], &SIZE_BOUNDS, &others[at], 1.0);
        }
    }
}

fn scheme(is_secure: bool) -> &'static str {
    if is_secure { "https" } else { "http" }
}

fn write_active(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    page.begin_family(&ACTIVE);
    let has_any = request_histograms(workers).next().is_some();
    for is_secure in [false, true] {
        let of = |counts: &&WorkerMetrics, method: usize| {
            counts.active_requests[usize::from(is_secure)]
                .get(method)
                .map_or(0, |level| level.get())
        };
        for method in 0..workers.first().map_or(0, |counts| counts.active_requests[0].len()) {
            let active: i64 = workers.iter().map(|counts| of(counts, method)).sum();
            // Most methods are rarely used, so a series is written only while it is not zero,
            // except for one.
            if has_any && (active > 0 || method == 0 && !is_secure) {
                let labels = [
                    ("http_request_method", method_name(method)),
                    ("url_scheme", scheme(is_secure)),
                ];
                page.sample(&labels, active.max(0).cast_unsigned());
            }
        }
    }
}

fn write_connections(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = Vec::<((&str, &str), u64)>::new();
    for counts in workers {
        for (at, (names, connections)) in counts.connections().enumerate() {
            match all.get_mut(at) {
                Some((_, sum)) => *sum += connections,
                None => all.push((names, connections)),
            }
        }
    }
    page.begin_family(&CONNECTIONS);
    for ((protocol, state), connections) in all {
        page.sample(&[("protocol", protocol), ("state", state)], connections);
    }
    page.begin_family(&WORKER_CONNECTIONS);
    let open = |counts: &&WorkerMetrics| counts.connections().map(|(_, open)| open).sum::<u64>();
    let open: Vec<u64> = workers.iter().map(open).collect();
    for (number, connections) in open.iter().enumerate() {
        page.sample(&[("worker", &number.to_string())], *connections);
    }
    page.begin_family(&IMBALANCE);
    page.sample(&[], max_over_mean(&open));
    write_per_worker(page, &HANDOFFS_SENT, workers, |counts| &counts.handoffs_sent);
    write_per_worker(page, &HANDOFFS_RECEIVED, workers, |counts| &counts.handoffs_received);
    write_sum(page, &ACCEPTED, workers, |counts| &counts.accepted);
    write_sum(page, &ACCEPT_ERRORS, workers, |counts| &counts.accept_errors);
}

/// The maximum divided by the mean.
fn max_over_mean(numbers: &[u64]) -> f64 {
    let (most, all) = (numbers.iter().copied().max().unwrap_or(0), numbers.iter().sum::<u64>());
    if all == 0 { 1.0 } else { most as f64 * numbers.len() as f64 / all as f64 }
}

fn write_per_worker(
    page: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    count: impl Fn(&WorkerMetrics) -> &Counter,
) {
    page.begin_family(family);
    for (number, counts) in workers.iter().enumerate() {
        page.sample(&[("worker", &number.to_string())], count(counts).get());
    }
}

fn write_sum(
    page: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    count: impl Fn(&WorkerMetrics) -> &Counter,
) {
    page.begin_family(family);
    page.sample(&[], workers.iter().map(|counts| count(counts).get()).sum::<u64>());
}

/// Adds up the counts of several workers, under the labels that `show` returns.
fn merge<'a, K: PartialEq + 'a, const MAX: usize, L: Ord>(
    few: impl Iterator<Item = &'a CounterSet<K, MAX>>,
    show: impl Fn(&K) -> L,
) -> (BTreeMap<L, u64>, u64) {
    let (mut all, mut others) = (BTreeMap::new(), 0);
    for few in few {
        for (kind, count) in few.iter() {
            *all.entry(show(kind)).or_default() += count;
        }
        others += few.overflow();
    }
    (all, others)
}

fn write_labeled<const MAX: usize>(
    page: &mut Exposition,
    family: &MetricFamily<'_>,
    label: &str,
    workers: &[&WorkerMetrics],
    of: impl Fn(&WorkerMetrics) -> &CounterSet<&'static str, MAX>,
) {
    page.begin_family(family);
    let (all, others) = merge(workers.iter().map(|counts| of(counts)), |name| *name);
    for (name, count) in all {
        page.sample(&[(label, name)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
}

fn write_violations(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    page.begin_family(&VIOLATIONS);
    let show = |rule: &Violation| match rule {
        Violation::Http(reject) => ("http", format!("{reject:?}")),
        Violation::Http2(reject) => ("http/2", format!("{reject:?}")),
    };
    let (all, others) = merge(workers.iter().map(|counts| &counts.violations), show);
    for ((standard, rule), count) in all {
        page.sample(&[("standard", standard), ("rule", &rule)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
}

fn write_overload(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    write_gauges(page, &IN_FLIGHT, workers, |counts| &counts.in_flight);
    write_labeled(page, &SHED, "reason", workers, |counts| &counts.shed);
    page.begin_family(&QUEUE_DELAY);
    let mut delays = HistogramSnapshot::default();
    workers.iter().for_each(|counts| counts.queue_delays.read_into(&mut delays));
    page.histogram(&[], &ITERATION_BOUNDS, &delays, NANOSECONDS);
    write_gauges(page, &SHEDDING, workers, |counts| &counts.is_shedding);
    write_gauges(page, &MEMORY, workers, |counts| &counts.memory_bytes);
    write_gauges(page, &MEMORY_MAX, workers, |counts| &counts.memory_bytes_max);
}

fn write_gauges(
    page: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    level: impl Fn(&WorkerMetrics) -> &Gauge,
) {
    page.begin_family(family);
    for (number, counts) in workers.iter().enumerate() {
        let level = level(counts).get().max(0).cast_unsigned();
        page.sample(&[("worker", &number.to_string())], level);
    }
}

fn write_tls(page: &mut Exposition, workers: &[&WorkerMetrics]) {
    page.begin_family(&HANDSHAKES);
    let show = |agreed: &HandshakeParams| (agreed.version, agreed.cipher, agreed.resumed);
    let (all, others) = merge(workers.iter().map(|counts| &counts.handshakes), show);
    for ((version, cipher, resumed), count) in all {
        let resumed = if resumed { "true" } else { "false" };
        page.sample(&[("version", version), ("cipher", cipher), ("resumed", resumed)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
    page.begin_family(&HANDSHAKE_DURATION);
    let mut times = HistogramSnapshot::default();
    workers.iter().for_each(|counts| counts.handshake_durations.read_into(&mut times));
    page.histogram(&[], &DURATION_BOUNDS, &times, NANOSECONDS);
    page.begin_family(&TLS_FAILURES);
    let show = |failure: &TlsFailure| (failure.in_handshake, failure.reason, failure.alert);
    let (all, others) = merge(workers.iter().map(|counts| &counts.tls_failures), show);
    for ((in_handshake, reason, alert), count) in all {
        let phase = if in_handshake { "handshake" } else { "traffic" };
        page.sample(&[("phase", phase), ("reason", reason), ("alert", alert)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
}
