//! Writes the metrics of workers in the Prometheus text format.

use super::metrics::{
    DURATION_BOUNDS, HandshakeParams, RequestAttributes, RequestHistograms, SIZE_BOUNDS,
    TlsFailure, Violation, WorkerMetrics, method_name,
};
use peregrine_driver::ITERATION_BOUNDS;
use peregrine_metrics::{
    Counter, CounterSet, Exposition, Gauge, HistogramSnapshot, MetricFamily, MetricType,
};
use std::collections::BTreeMap;

/// Nanoseconds per second.
const NANOS_PER_SECOND: f64 = 1e9;

/// Describes a metric family.
const fn family(
    name: &'static str,
    metric_type: MetricType,
    unit: &'static str,
    help: &'static str,
) -> MetricFamily<'static> {
    MetricFamily { name, metric_type, unit, help }
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
    "How long requests waited for their worker's thread after it had polled the kernel. One \
     request in 16 is measured.",
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

/// Writes the metrics of `workers`. Most are sums over all workers; some have a `worker` label.
pub fn write_metrics(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    write_requests(exposition, workers);
    write_sizes(exposition, workers);
    write_active(exposition, workers);
    write_connections(exposition, workers);
    write_labeled(exposition, &CLOSED, "reason", workers, |metrics| &metrics.closed);
    write_labeled(exposition, &LIMITS, "limit", workers, |metrics| &metrics.limits_hit);
    write_violations(exposition, workers);
    write_sum(exposition, &RECEIVED, workers, |metrics| &metrics.received_bytes);
    write_sum(exposition, &SENT, workers, |metrics| &metrics.sent_bytes);
    write_sum(exposition, &SENDS, workers, |metrics| &metrics.sends);
    write_tls(exposition, workers);
    write_overload(exposition, workers);
}

fn request_histograms<'a>(
    workers: &'a [&WorkerMetrics],
) -> impl Iterator<Item = &'a RequestHistograms> {
    workers.iter().filter_map(|metrics| metrics.request_histograms.get())
}

/// The pattern of a request's route; empty if no route matched.
fn route_pattern(histograms: &RequestHistograms, attributes: &RequestAttributes) -> String {
    let pattern = attributes.route.and_then(|route| histograms.routes.get(route as usize));
    pattern.cloned().unwrap_or_default()
}

/// The label of the sum of all values that did not fit into a table, as named by OpenTelemetry.
const OVERFLOW: (&str, &str) = ("otel_metric_overflow", "true");

fn write_requests(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = BTreeMap::<[String; 6], HistogramSnapshot>::new();
    let mut overflow = HistogramSnapshot::default();
    for histograms in request_histograms(workers) {
        for (packed, histogram) in histograms.durations.entries() {
            let attributes = RequestAttributes::unpack(packed);
            let status = match attributes.status {
                0 => String::new(),
                status => status.to_string(),
            };
            let labels = [
                method_name(attributes.method as usize).to_owned(),
                route_pattern(histograms, &attributes),
                status,
                attributes.version_name().to_owned(),
                scheme(attributes.is_secure).to_owned(),
                attributes.error_type(),
            ];
            histogram.read_into(all.entry(labels).or_default());
        }
        histograms.durations.overflow().read_into(&mut overflow);
    }
    exposition.begin_family(&REQUEST_DURATION);
    for ([method, route, status, version, scheme, error], buckets) in &all {
        let labels = [
            ("http_request_method", &**method),
            ("http_route", route),
            ("http_response_status_code", status),
            ("network_protocol_version", version),
            ("url_scheme", scheme),
            ("error_type", error),
        ];
        exposition.histogram(&labels, &DURATION_BOUNDS, buckets, NANOS_PER_SECOND);
    }
    if overflow.count() > 0 {
        exposition.histogram(&[OVERFLOW], &DURATION_BOUNDS, &overflow, NANOS_PER_SECOND);
    }
}

fn write_sizes(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = BTreeMap::<(String, String), [HistogramSnapshot; 2]>::new();
    let mut overflow = <[HistogramSnapshot; 2]>::default();
    for histograms in request_histograms(workers) {
        for (packed, sizes) in histograms.sizes.entries() {
            let attributes = RequestAttributes::unpack(packed);
            let method = method_name(attributes.method as usize).to_owned();
            let labels = (method, route_pattern(histograms, &attributes));
            let [received, sent] = all.entry(labels).or_default();
            sizes.received.read_into(received);
            sizes.sent.read_into(sent);
        }
        histograms.sizes.overflow().received.read_into(&mut overflow[0]);
        histograms.sizes.overflow().sent.read_into(&mut overflow[1]);
    }
    for (index, family) in [REQUEST_SIZE, RESPONSE_SIZE].iter().enumerate() {
        exposition.begin_family(family);
        for ((method, route), buckets) in &all {
            let labels = [("http_request_method", &**method), ("http_route", route)];
            exposition.histogram(&labels, &SIZE_BOUNDS, &buckets[index], 1.0);
        }
        if overflow[index].count() > 0 {
            exposition.histogram(&[OVERFLOW], &SIZE_BOUNDS, &overflow[index], 1.0);
        }
    }
}

fn scheme(is_secure: bool) -> &'static str {
    if is_secure { "https" } else { "http" }
}

fn write_active(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    exposition.begin_family(&ACTIVE);
    let is_measured = request_histograms(workers).next().is_some();
    for is_secure in [false, true] {
        let active_requests = |metrics: &&WorkerMetrics, method: usize| {
            metrics.active_requests[usize::from(is_secure)]
                .get(method)
                .map_or(0, |gauge| gauge.get())
        };
        for method in 0..workers.first().map_or(0, |metrics| metrics.active_requests[0].len()) {
            let active: i64 = workers.iter().map(|metrics| active_requests(metrics, method)).sum();
            // Most methods are rarely used, so a series is written only while it is not zero. If
            // requests are measured, GET over plain HTTP is always written, so that the family is
            // not empty.
            if is_measured && (active > 0 || method == 0 && !is_secure) {
                let labels = [
                    ("http_request_method", method_name(method)),
                    ("url_scheme", scheme(is_secure)),
                ];
                exposition.sample(&labels, active.max(0).cast_unsigned());
            }
        }
    }
}

fn write_connections(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    let mut all = Vec::<((&str, &str), u64)>::new();
    for metrics in workers {
        for (index, (labels, connections)) in metrics.connections().enumerate() {
            match all.get_mut(index) {
                Some((_, sum)) => *sum += connections,
                None => all.push((labels, connections)),
            }
        }
    }
    exposition.begin_family(&CONNECTIONS);
    for ((protocol, state), connections) in all {
        exposition.sample(&[("protocol", protocol), ("state", state)], connections);
    }
    exposition.begin_family(&WORKER_CONNECTIONS);
    let count_open =
        |metrics: &&WorkerMetrics| metrics.connections().map(|(_, count)| count).sum::<u64>();
    let open: Vec<u64> = workers.iter().map(count_open).collect();
    for (index, connections) in open.iter().enumerate() {
        exposition.sample(&[("worker", &index.to_string())], *connections);
    }
    exposition.begin_family(&IMBALANCE);
    exposition.sample(&[], max_over_mean(&open));
    write_per_worker(exposition, &HANDOFFS_SENT, workers, |metrics| &metrics.handoffs_sent);
    write_per_worker(exposition, &HANDOFFS_RECEIVED, workers, |metrics| &metrics.handoffs_received);
    write_sum(exposition, &ACCEPTED, workers, |metrics| &metrics.accepted);
    write_sum(exposition, &ACCEPT_ERRORS, workers, |metrics| &metrics.accept_errors);
}

/// The maximum divided by the mean.
fn max_over_mean(numbers: &[u64]) -> f64 {
    let (max, sum) = (numbers.iter().copied().max().unwrap_or(0), numbers.iter().sum::<u64>());
    if sum == 0 { 1.0 } else { max as f64 * numbers.len() as f64 / sum as f64 }
}

fn write_per_worker(
    exposition: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    counter: impl Fn(&WorkerMetrics) -> &Counter,
) {
    exposition.begin_family(family);
    for (index, metrics) in workers.iter().enumerate() {
        exposition.sample(&[("worker", &index.to_string())], counter(metrics).get());
    }
}

fn write_sum(
    exposition: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    counter: impl Fn(&WorkerMetrics) -> &Counter,
) {
    exposition.begin_family(family);
    exposition.sample(&[], workers.iter().map(|metrics| counter(metrics).get()).sum::<u64>());
}

/// Adds up the counters of several workers by the labels that `labels_of` returns. Also returns the
/// sum of the counts that did not fit into their sets.
fn merge<'a, K: PartialEq + 'a, const MAX: usize, L: Ord>(
    sets: impl Iterator<Item = &'a CounterSet<K, MAX>>,
    labels_of: impl Fn(&K) -> L,
) -> (BTreeMap<L, u64>, u64) {
    let (mut all, mut overflow) = (BTreeMap::new(), 0);
    for set in sets {
        for (key, count) in set.iter() {
            *all.entry(labels_of(key)).or_default() += count;
        }
        overflow += set.overflow();
    }
    (all, overflow)
}

fn write_labeled<const MAX: usize>(
    exposition: &mut Exposition,
    family: &MetricFamily<'_>,
    label: &str,
    workers: &[&WorkerMetrics],
    select: impl Fn(&WorkerMetrics) -> &CounterSet<&'static str, MAX>,
) {
    exposition.begin_family(family);
    let (all, overflow) = merge(workers.iter().map(|metrics| select(metrics)), |name| *name);
    for (name, count) in all {
        exposition.sample(&[(label, name)], count);
    }
    if overflow > 0 {
        exposition.sample(&[OVERFLOW], overflow);
    }
}

fn write_violations(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    exposition.begin_family(&VIOLATIONS);
    let labels_of = |violation: &Violation| match violation {
        Violation::Http(error) => ("http", format!("{error:?}")),
        Violation::Http2(error) => ("http/2", format!("{error:?}")),
    };
    let (all, overflow) = merge(workers.iter().map(|metrics| &metrics.violations), labels_of);
    for ((standard, rule), count) in all {
        exposition.sample(&[("standard", standard), ("rule", &rule)], count);
    }
    if overflow > 0 {
        exposition.sample(&[OVERFLOW], overflow);
    }
}

fn write_overload(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    write_gauges(exposition, &IN_FLIGHT, workers, |metrics| &metrics.in_flight);
    write_labeled(exposition, &SHED, "reason", workers, |metrics| &metrics.shed);
    exposition.begin_family(&QUEUE_DELAY);
    let mut delays = HistogramSnapshot::default();
    workers.iter().for_each(|metrics| metrics.queue_delays.read_into(&mut delays));
    exposition.histogram(&[], &ITERATION_BOUNDS, &delays, NANOS_PER_SECOND);
    write_gauges(exposition, &SHEDDING, workers, |metrics| &metrics.is_shedding);
    write_gauges(exposition, &MEMORY, workers, |metrics| &metrics.memory_bytes);
    write_gauges(exposition, &MEMORY_MAX, workers, |metrics| &metrics.memory_bytes_max);
}

fn write_gauges(
    exposition: &mut Exposition,
    family: &MetricFamily<'_>,
    workers: &[&WorkerMetrics],
    gauge: impl Fn(&WorkerMetrics) -> &Gauge,
) {
    exposition.begin_family(family);
    for (index, metrics) in workers.iter().enumerate() {
        let value = gauge(metrics).get().max(0).cast_unsigned();
        exposition.sample(&[("worker", &index.to_string())], value);
    }
}

fn write_tls(exposition: &mut Exposition, workers: &[&WorkerMetrics]) {
    exposition.begin_family(&HANDSHAKES);
    let labels_of = |params: &HandshakeParams| (params.version, params.cipher, params.resumed);
    let (all, overflow) = merge(workers.iter().map(|metrics| &metrics.handshakes), labels_of);
    for ((version, cipher, resumed), count) in all {
        let resumed = if resumed { "true" } else { "false" };
        exposition.sample(&[("version", version), ("cipher", cipher), ("resumed", resumed)], count);
    }
    if overflow > 0 {
        exposition.sample(&[OVERFLOW], overflow);
    }
    exposition.begin_family(&HANDSHAKE_DURATION);
    let mut durations = HistogramSnapshot::default();
    workers.iter().for_each(|metrics| metrics.handshake_durations.read_into(&mut durations));
    exposition.histogram(&[], &DURATION_BOUNDS, &durations, NANOS_PER_SECOND);
    exposition.begin_family(&TLS_FAILURES);
    let labels_of = |failure: &TlsFailure| (failure.in_handshake, failure.reason, failure.alert);
    let (all, overflow) = merge(workers.iter().map(|metrics| &metrics.tls_failures), labels_of);
    for ((in_handshake, reason, alert), count) in all {
        let phase = if in_handshake { "handshake" } else { "traffic" };
        exposition.sample(&[("phase", phase), ("reason", reason), ("alert", alert)], count);
    }
    if overflow > 0 {
        exposition.sample(&[OVERFLOW], overflow);
    }
}
