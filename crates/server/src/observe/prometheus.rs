//! Writes the counters of workers in the Prometheus text format.

use super::metrics::{
    Agreed, Counts, DURATION_BOUNDS, Key, Measured, Rule, SIZE_BOUNDS, TlsFailure, method_name,
};
use peregrine_driver::TURN_BOUNDS;
use peregrine_metrics::{Buckets, Count, Family, Few, Kind, Level, Page};
use std::collections::BTreeMap;

/// Nanoseconds per second.
const NANOSECONDS: f64 = 1e9;

const fn family(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    help: &'static str,
) -> Family<'static> {
    Family { name, kind, unit, help }
}

const REQUEST_DURATION: Family<'_> = family(
    "http_server_request_duration_seconds",
    Kind::Histogram,
    "seconds",
    "From a request's head to the end of its response.",
);
const REQUEST_SIZE: Family<'_> = family(
    "http_server_request_body_size_bytes",
    Kind::Histogram,
    "bytes",
    "Request content received before the response was complete.",
);
const RESPONSE_SIZE: Family<'_> = family(
    "http_server_response_body_size_bytes",
    Kind::Histogram,
    "bytes",
    "Response content, without framing.",
);
const ACTIVE: Family<'_> = family(
    "http_server_active_requests",
    Kind::Gauge,
    "",
    "Requests whose response is not complete.",
);
const CONNECTIONS: Family<'_> =
    family("peregrine_connections", Kind::Gauge, "", "Open connections by protocol and state.");
const WORKER_CONNECTIONS: Family<'_> =
    family("peregrine_worker_connections", Kind::Gauge, "", "Open connections of each worker.");
const IMBALANCE: Family<'_> = family(
    "peregrine_worker_imbalance_ratio",
    Kind::Gauge,
    "ratio",
    "Open connections of the busiest worker, divided by the mean of all workers; 1 is even.",
);
const PASSED: Family<'_> = family(
    "peregrine_worker_connections_passed",
    Kind::Counter,
    "",
    "Connections that a worker accepted and handed to a worker with fewer connections.",
);
const TAKEN: Family<'_> = family(
    "peregrine_worker_connections_taken",
    Kind::Counter,
    "",
    "Connections that a worker took over from the worker that accepted them.",
);
const ACCEPTED: Family<'_> =
    family("peregrine_connections_accepted", Kind::Counter, "", "Accepted connections.");
const REFUSED: Family<'_> = family(
    "peregrine_connections_refused",
    Kind::Counter,
    "",
    "How often accepting failed because the process was out of descriptors or memory.",
);
const ENDED: Family<'_> = family(
    "peregrine_connections_ended",
    Kind::Counter,
    "",
    "Connections that have ended, by reason.",
);
const LIMITS: Family<'_> = family(
    "peregrine_limits_hit",
    Kind::Counter,
    "",
    "How often a limit had an effect, by its name in Limits.",
);
const RULES: Family<'_> = family(
    "peregrine_rules_broken",
    Kind::Counter,
    "",
    "Requests, streams and connections rejected because they broke a rule of HTTP.",
);
const RECEIVED: Family<'_> = family(
    "peregrine_received_bytes",
    Kind::Counter,
    "bytes",
    "Bytes received on all connections, including TLS and framing.",
);
const SENT: Family<'_> = family(
    "peregrine_sent_bytes",
    Kind::Counter,
    "bytes",
    "Bytes passed to the kernel to be sent, including TLS and framing.",
);
const SENDS: Family<'_> = family(
    "peregrine_sends",
    Kind::Counter,
    "",
    "How often data was passed to the kernel to be sent.",
);
const HANDSHAKES: Family<'_> = family(
    "peregrine_tls_handshakes",
    Kind::Counter,
    "",
    "Completed TLS handshakes, by version, cipher suite and resumption.",
);
const HANDSHAKE_DURATION: Family<'_> = family(
    "peregrine_tls_handshake_duration_seconds",
    Kind::Histogram,
    "seconds",
    "From accepting a connection to the end of its TLS handshake.",
);
const TLS_FAILURES: Family<'_> = family(
    "peregrine_tls_failures",
    Kind::Counter,
    "",
    "Failed TLS sessions, by reason and by the alert that the peer sent.",
);

const IN_FLIGHT: Family<'_> = family(
    "peregrine_worker_requests",
    Kind::Gauge,
    "",
    "Requests of each worker whose response is not complete, including WebSockets.",
);
const SHED: Family<'_> = family(
    "peregrine_requests_shed",
    Kind::Counter,
    "",
    "Requests rejected because of overload, by the limit that was reached.",
);
const QUEUE_DELAY: Family<'_> = family(
    "peregrine_queue_delay_seconds",
    Kind::Histogram,
    "seconds",
    "How long requests waited for their worker's thread after it had polled the kernel. Without \
     queue_delay_target, one request in 16 is measured.",
);
const REFUSING: Family<'_> = family(
    "peregrine_worker_overloaded",
    Kind::Gauge,
    "",
    "1 while a worker rejects requests that have waited too long.",
);
const MEMORY: Family<'_> = family(
    "peregrine_worker_memory_bytes",
    Kind::Gauge,
    "bytes",
    "Memory that each worker uses for connections: buffers, bodies, responses, TLS, HTTP/2.",
);
const MEMORY_MAX: Family<'_> = family(
    "peregrine_worker_memory_max_bytes",
    Kind::Gauge,
    "bytes",
    "Limit of the memory that each worker uses for connections; 0 if there is none.",
);

/// The families that [`write()`] writes, in order.
pub const FAMILIES: &[Family<'static>] = &[
    REQUEST_DURATION,
    REQUEST_SIZE,
    RESPONSE_SIZE,
    ACTIVE,
    CONNECTIONS,
    WORKER_CONNECTIONS,
    IMBALANCE,
    PASSED,
    TAKEN,
    ACCEPTED,
    REFUSED,
    ENDED,
    LIMITS,
    RULES,
    RECEIVED,
    SENT,
    SENDS,
    HANDSHAKES,
    HANDSHAKE_DURATION,
    TLS_FAILURES,
    IN_FLIGHT,
    SHED,
    QUEUE_DELAY,
    REFUSING,
    MEMORY,
    MEMORY_MAX,
];

/// Writes the sums of the counters of these workers.
pub fn write(page: &mut Page, workers: &[&Counts]) {
    write_requests(page, workers);
    write_sizes(page, workers);
    write_active(page, workers);
    write_connections(page, workers);
    write_named(page, &ENDED, "reason", workers, |counts| &counts.ended);
    write_named(page, &LIMITS, "limit", workers, |counts| &counts.limits);
    write_rules(page, workers);
    write_sum(page, &RECEIVED, workers, |counts| &counts.received_bytes);
    write_sum(page, &SENT, workers, |counts| &counts.sent_bytes);
    write_sum(page, &SENDS, workers, |counts| &counts.sends);
    write_tls(page, workers);
    write_overload(page, workers);
}

fn measured<'a>(workers: &'a [&Counts]) -> impl Iterator<Item = &'a Measured> {
    workers.iter().filter_map(|counts| counts.measured.get())
}

/// The pattern of a request's route; empty if no route matched.
fn route(measured: &Measured, key: &Key) -> String {
    let pattern = key.route.and_then(|route| measured.routes.get(route as usize));
    pattern.cloned().unwrap_or_default()
}

/// The label of values for which a table had no room. The name is OpenTelemetry's.
const OVERFLOW: (&str, &str) = ("otel_metric_overflow", "true");

fn write_requests(page: &mut Page, workers: &[&Counts]) {
    let mut all = BTreeMap::<[String; 6], Buckets>::new();
    let mut others = Buckets::default();
    for measured in measured(workers) {
        for (packed, histogram) in measured.durations.entries() {
            let key = Key::unpack(packed);
            let status = if key.status == 0 { String::new() } else { key.status.to_string() };
            let labels = [
                method_name(key.method as usize).to_owned(),
                route(measured, &key),
                status,
                key.version_name().to_owned(),
                scheme(key.is_secure).to_owned(),
                key.error_type(),
            ];
            histogram.read(all.entry(labels).or_default());
        }
        measured.durations.others().read(&mut others);
    }
    page.family(&REQUEST_DURATION);
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

fn write_sizes(page: &mut Page, workers: &[&Counts]) {
    let mut all = BTreeMap::<(String, String), [Buckets; 2]>::new();
    let mut others = <[Buckets; 2]>::default();
    for measured in measured(workers) {
        for (packed, sizes) in measured.sizes.entries() {
            let key = Key::unpack(packed);
            let labels = (method_name(key.method as usize).to_owned(), route(measured, &key));
            let [received, sent] = all.entry(labels).or_default();
            sizes.received.read(received);
            sizes.sent.read(sent);
        }
        measured.sizes.others().received.read(&mut others[0]);
        measured.sizes.others().sent.read(&mut others[1]);
    }
    for (at, family) in [REQUEST_SIZE, RESPONSE_SIZE].iter().enumerate() {
        page.family(family);
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

fn write_active(page: &mut Page, workers: &[&Counts]) {
    page.family(&ACTIVE);
    let has_any = measured(workers).next().is_some();
    for is_secure in [false, true] {
        let of = |counts: &&Counts, method: usize| {
            counts.active[usize::from(is_secure)].get(method).map_or(0, |level| level.get())
        };
        for method in 0..workers.first().map_or(0, |counts| counts.active[0].len()) {
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

fn write_connections(page: &mut Page, workers: &[&Counts]) {
    let mut all = Vec::<((&str, &str), u64)>::new();
    for counts in workers {
        for (at, (names, connections)) in counts.connections().enumerate() {
            match all.get_mut(at) {
                Some((_, sum)) => *sum += connections,
                None => all.push((names, connections)),
            }
        }
    }
    page.family(&CONNECTIONS);
    for ((protocol, state), connections) in all {
        page.sample(&[("protocol", protocol), ("state", state)], connections);
    }
    page.family(&WORKER_CONNECTIONS);
    let open = |counts: &&Counts| counts.connections().map(|(_, open)| open).sum::<u64>();
    let open: Vec<u64> = workers.iter().map(open).collect();
    for (number, connections) in open.iter().enumerate() {
        page.sample(&[("worker", &number.to_string())], *connections);
    }
    page.family(&IMBALANCE);
    page.sample(&[], imbalance(&open));
    write_each(page, &PASSED, workers, |counts| &counts.passed);
    write_each(page, &TAKEN, workers, |counts| &counts.taken);
    write_sum(page, &ACCEPTED, workers, |counts| &counts.accepted);
    write_sum(page, &REFUSED, workers, |counts| &counts.refused);
}

/// The maximum divided by the mean.
fn imbalance(numbers: &[u64]) -> f64 {
    let (most, all) = (numbers.iter().copied().max().unwrap_or(0), numbers.iter().sum::<u64>());
    if all == 0 { 1.0 } else { most as f64 * numbers.len() as f64 / all as f64 }
}

fn write_each(
    page: &mut Page,
    family: &Family<'_>,
    workers: &[&Counts],
    count: impl Fn(&Counts) -> &Count,
) {
    page.family(family);
    for (number, counts) in workers.iter().enumerate() {
        page.sample(&[("worker", &number.to_string())], count(counts).get());
    }
}

fn write_sum(
    page: &mut Page,
    family: &Family<'_>,
    workers: &[&Counts],
    count: impl Fn(&Counts) -> &Count,
) {
    page.family(family);
    page.sample(&[], workers.iter().map(|counts| count(counts).get()).sum::<u64>());
}

/// Adds up the counts of several workers, under the labels that `show` returns.
fn merge<'a, K: PartialEq + 'a, const MAX: usize, L: Ord>(
    few: impl Iterator<Item = &'a Few<K, MAX>>,
    show: impl Fn(&K) -> L,
) -> (BTreeMap<L, u64>, u64) {
    let (mut all, mut others) = (BTreeMap::new(), 0);
    for few in few {
        for (kind, count) in few.counts() {
            *all.entry(show(kind)).or_default() += count;
        }
        others += few.others();
    }
    (all, others)
}

fn write_named<const MAX: usize>(
    page: &mut Page,
    family: &Family<'_>,
    label: &str,
    workers: &[&Counts],
    of: impl Fn(&Counts) -> &Few<&'static str, MAX>,
) {
    page.family(family);
    let (all, others) = merge(workers.iter().map(|counts| of(counts)), |name| *name);
    for (name, count) in all {
        page.sample(&[(label, name)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
}

fn write_rules(page: &mut Page, workers: &[&Counts]) {
    page.family(&RULES);
    let show = |rule: &Rule| match rule {
        Rule::Http(reject) => ("http", format!("{reject:?}")),
        Rule::Http2(reject) => ("http/2", format!("{reject:?}")),
    };
    let (all, others) = merge(workers.iter().map(|counts| &counts.rules), show);
    for ((standard, rule), count) in all {
        page.sample(&[("standard", standard), ("rule", &rule)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
}

fn write_overload(page: &mut Page, workers: &[&Counts]) {
    write_levels(page, &IN_FLIGHT, workers, |counts| &counts.in_flight);
    write_named(page, &SHED, "reason", workers, |counts| &counts.shed);
    page.family(&QUEUE_DELAY);
    let mut delays = Buckets::default();
    workers.iter().for_each(|counts| counts.queue_delays.read(&mut delays));
    page.histogram(&[], &TURN_BOUNDS, &delays, NANOSECONDS);
    write_levels(page, &REFUSING, workers, |counts| &counts.is_refusing);
    write_levels(page, &MEMORY, workers, |counts| &counts.memory_bytes);
    write_levels(page, &MEMORY_MAX, workers, |counts| &counts.memory_bytes_max);
}

fn write_levels(
    page: &mut Page,
    family: &Family<'_>,
    workers: &[&Counts],
    level: impl Fn(&Counts) -> &Level,
) {
    page.family(family);
    for (number, counts) in workers.iter().enumerate() {
        let level = level(counts).get().max(0).cast_unsigned();
        page.sample(&[("worker", &number.to_string())], level);
    }
}

fn write_tls(page: &mut Page, workers: &[&Counts]) {
    page.family(&HANDSHAKES);
    let show = |agreed: &Agreed| (agreed.version, agreed.cipher, agreed.resumed);
    let (all, others) = merge(workers.iter().map(|counts| &counts.handshakes), show);
    for ((version, cipher, resumed), count) in all {
        let resumed = if resumed { "true" } else { "false" };
        page.sample(&[("version", version), ("cipher", cipher), ("resumed", resumed)], count);
    }
    if others > 0 {
        page.sample(&[OVERFLOW], others);
    }
    page.family(&HANDSHAKE_DURATION);
    let mut times = Buckets::default();
    workers.iter().for_each(|counts| counts.handshake_times.read(&mut times));
    page.histogram(&[], &DURATION_BOUNDS, &times, NANOSECONDS);
    page.family(&TLS_FAILURES);
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
