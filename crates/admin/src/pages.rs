//! The pages of the admin listener.

use crate::access_log as log;
use crate::process;
use crate::state::{AdminState, WorkerView};
use http::{HeaderMap, StatusCode, header};
use peregrine_driver::ITERATION_BOUNDS;
use peregrine_metrics::{Exposition, ExpositionFormat, MetricFamily, MetricType, SampleValue};
use peregrine_server::{Lifecycle, WorkerMetrics};
use peregrine_web::extract::{RawQuery, StateRef};
use peregrine_web::{App, HandlerExt};
use std::fmt::{self, Write as _};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

type PageResponse = (StatusCode, [(&'static str, &'static str); 2], String);
type StateParam = StateRef<Arc<AdminState>>;

/// The application of the admin listener.
pub(crate) fn app(views: &Arc<AdminState>) -> App {
    App::new()
        .state(Arc::clone(views))
        .get("/metrics", metrics)
        // In an application's own scope, probes matter most during overload.
        .get("/livez", livez.never_shed())
        .get("/readyz", readyz.never_shed())
        .get("/startupz", startupz.never_shed())
        .get("/routes", routes)
        .get("/connections", connections)
        .get("/config", config)
}

fn response(status: StatusCode, media_type: &'static str, text: String) -> PageResponse {
    (status, [("content-type", media_type), ("cache-control", "no-store")], text)
}

/// A probe's response: the status is for the prober, the text for people.
fn probe_response(is_well: bool, text: impl Into<String>) -> PageResponse {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    response(status, "text/plain; charset=utf-8", format!("{}\n", text.into()))
}

/// The query that makes the probe fail during overload.
const OVERLOAD_UNREADY_QUERY: &str = "overload=unready";

fn livez(views: StateParam) -> PageResponse {
    let stuck = views.blocked_workers(Instant::now());
    if stuck.is_empty() {
        return probe_response(true, "alive");
    }
    let tell = |stuck: crate::state::BlockedWorker| {
        let crate::state::BlockedWorker { worker, route, blocked_for: time } = stuck;
        format!("worker {worker}: {route} has blocked its thread for {:.1} s", time.as_secs_f64())
    };
    probe_response(false, stuck.into_iter().map(tell).collect::<Vec<_>>().join("\n"))
}

fn readyz(views: StateParam, RawQuery(query): RawQuery) -> PageResponse {
    let asks_for_load =
        query.is_some_and(|query| query.split('&').any(|pair| pair == OVERLOAD_UNREADY_QUERY));
    match views.lifecycle() {
        Lifecycle::Serving if asks_for_load && views.all_low_on_memory() => {
            probe_response(false, "overloaded")
        }
        Lifecycle::Serving if views.all_serving() => probe_response(true, "ready"),
        // Another process serves at these addresses, and the probe is meant for it.
        Lifecycle::HandingOver => probe_response(true, "served by the next process"),
        Lifecycle::Standby | Lifecycle::Serving => probe_response(false, "starting"),
        _ => probe_response(false, "shutting down"),
    }
}

fn startupz(views: StateParam) -> PageResponse {
    let is_serving = views.all_serving();
    probe_response(is_serving, if is_serving { "started" } else { "starting" })
}

/// All workers build the same application, so any of them has the routes.
fn routes(views: StateParam) -> PageResponse {
    let routes = views.workers.iter().find_map(|worker| worker.routes()).unwrap_or_default();
    let route = |(methods, pattern): &(String, String)| {
        // Programs get `*` in place of the text for people.
        let method = if methods == "any method" { "*" } else { methods };
        format!("{{\"method\":{},\"pattern\":{}}}", JsonString(method), JsonString(pattern))
    };
    let routes: Vec<_> = routes.iter().map(route).collect();
    json(format!("{{\"routes\":[{}]}}", routes.join(",")))
}

fn connections(views: StateParam) -> PageResponse {
    let (mut text, mut all) = (String::new(), 0);
    for (number, worker) in views.workers.iter().enumerate() {
        let open: u64 = worker.metrics.connections().map(|(_, count)| count).sum();
        all += open;
        let separator = if number == 0 { "" } else { "," };
        let kind = |((protocol, state), count): ((&str, &str), u64)| {
            let (protocol, state) = (JsonString(protocol), JsonString(state));
            format!("{{\"protocol\":{protocol},\"state\":{state},\"count\":{count}}}")
        };
        let kinds: Vec<_> = worker.metrics.connections().map(kind).collect();
        let kinds = kinds.join(",");
        // Writing to a string never fails.
        let _ = write!(
            text,
            "{separator}{{\"worker\":{number},\"open\":{open},\"connections\":[{kinds}]}}"
        );
    }
    json(format!("{{\"open\":{all},\"workers\":[{text}]}}"))
}

/// Shows the paths of files, but not their contents.
fn config(views: StateParam) -> PageResponse {
    match views.config.get() {
        Some(text) => {
            let text = text.lock().unwrap_or_else(PoisonError::into_inner).clone();
            response(StatusCode::OK, "application/toml", text)
        }
        None => response(
            StatusCode::NOT_FOUND,
            "text/plain; charset=utf-8",
            "this server was not built from a configuration (`Server::from_config`)\n".to_owned(),
        ),
    }
}

fn json(text: String) -> PageResponse {
    response(StatusCode::OK, "application/json", text + "\n")
}

/// A JSON string.
struct JsonString<'a>(&'a str);

impl fmt::Display for JsonString<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

fn metrics(views: StateParam, fields: HeaderMap) -> PageResponse {
    let accept = fields.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(accept);
    let mut page = Exposition::new(format);
    write(&mut page, &views);
    response(StatusCode::OK, format.content_type(), page.finish())
}

/// Writes all metrics.
fn write(page: &mut Exposition, views: &AdminState) {
    let counts: Vec<&WorkerMetrics> = views.workers.iter().map(|worker| &*worker.metrics).collect();
    peregrine_server::write_metrics(page, &counts);
    for WorkerFamily { family, value: of } in WORKER_FAMILIES {
        page.begin_family(family);
        for (number, worker) in views.workers.iter().enumerate() {
            if let Some(value) = of(worker) {
                page.sample(&[("worker", &number.to_string())], value);
            }
        }
    }
    page.begin_family(&LOOP_ITERATIONS);
    for (number, worker) in views.workers.iter().enumerate() {
        let times = worker.driver_metrics.iteration_durations();
        page.histogram(&[("worker", &number.to_string())], &ITERATION_BOUNDS, &times, 1e9);
    }
    page.begin_family(&BUILD_INFO);
    page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    log::write(page, views.access_log());
    #[cfg(feature = "tls")]
    crate::certificates::write(page, views.certificates());
    #[cfg(feature = "config")]
    peregrine_settings::internal::write(page, views.reload_metrics.get().map(|figures| &**figures));
    #[cfg(feature = "otlp")]
    crate::otlp::write(page);
    process::write(page);
    #[cfg(feature = "metrics")]
    crate::recorder::write(page);
}

const BUILD_INFO: MetricFamily<'_> = MetricFamily {
    name: "peregrine_build",
    metric_type: MetricType::Info,
    unit: "",
    help: "The server's version.",
};

const LOOP_ITERATIONS: MetricFamily<'_> = MetricFamily {
    name: "peregrine_worker_iteration_duration_seconds",
    metric_type: MetricType::Histogram,
    unit: "seconds",
    help: "Busy time of a worker between two kernel polls (io_uring) or two sleeps (tokio).",
};

/// A family with one sample per worker for which the value is available.
struct WorkerFamily {
    family: &'static MetricFamily<'static>,
    value: fn(&WorkerView) -> Option<SampleValue>,
}

const fn worker_family(
    family: &'static MetricFamily<'static>,
    of: fn(&WorkerView) -> Option<SampleValue>,
) -> WorkerFamily {
    WorkerFamily { family, value: of }
}

macro_rules! family {
    ($kind:ident $name:literal $unit:literal $help:literal) => {
        &MetricFamily { name: $name, metric_type: MetricType::$kind, unit: $unit, help: $help }
    };
}

const WORKER_FAMILIES: &[WorkerFamily] = &[
    worker_family(
        family!(Counter "peregrine_worker_blocking_polls" ""
            "Times that a handler blocked its thread for longer than blocking_poll_threshold."),
        |worker| Some(worker.blocking_polls().into()),
    ),
    worker_family(
        family!(Counter "peregrine_worker_cpu_seconds" "seconds" "CPU time of each worker's thread."),
        |worker| Some(process::schedstat(worker.tid()?)?.0.into()),
    ),
    worker_family(
        family!(Counter "peregrine_worker_run_queue_seconds" "seconds"
            "How long each worker's thread was ready to run but waited for a CPU."),
        |worker| Some(process::schedstat(worker.tid()?)?.1.into()),
    ),
    worker_family(
        family!(Counter "peregrine_driver_syscalls" ""
            "System calls to submit or wait (io_uring), or to read, write or accept (tokio)."),
        |worker| Some(worker.driver_metrics.enters.get().into()),
    ),
    worker_family(
        family!(Gauge "peregrine_driver_operations_in_flight" ""
            "Operations in the kernel (io_uring), or connections with unsent bytes (tokio)."),
        |worker| Some((worker.driver_metrics.in_flight.get() as f64).into()),
    ),
    worker_family(
        family!(Counter "peregrine_driver_cq_overflows" ""
            "Times that completions did not fit into the ring and the kernel kept some."),
        |worker| Some(worker.driver_metrics.cq_overflows.get().into()),
    ),
    worker_family(
        family!(Gauge "peregrine_driver_receive_buffer_bytes" "bytes"
            "Memory of the receive buffers that have been used so far."),
        |worker| Some((worker.driver_metrics.buffer_bytes.get() as f64).into()),
    ),
    worker_family(
        family!(Counter "peregrine_driver_buffers_exhausted" ""
            "Times that a receive found no free buffer."),
        |worker| Some(worker.driver_metrics.buffers_exhausted.get().into()),
    ),
    worker_family(
        family!(Gauge "peregrine_tokio_tasks" ""
            "Live tasks on a worker's tokio runtime, including connections on the tokio driver."),
        |worker| Some((worker.runtime()?.num_alive_tasks() as u64).into()),
    ),
    worker_family(
        family!(Gauge "peregrine_tokio_queue_depth" ""
            "Tasks that other threads have woken and that wait to be polled."),
        |worker| Some((worker.runtime()?.global_queue_depth() as u64).into()),
    ),
    worker_family(
        family!(Counter "peregrine_tokio_busy_seconds" "seconds"
            "How long a worker's tokio runtime was busy."),
        |worker| Some(worker.runtime()?.worker_total_busy_duration(0).as_secs_f64().into()),
    ),
    worker_family(
        family!(Gauge "peregrine_tokio_blocking_threads" ""
            "Threads for blocking functions, including idle ones."),
        |worker| Some((worker.driver_metrics.blocking_threads() as u64).into()),
    ),
];

/// All families that are always on the page, which are those in the guide's table.
#[cfg(test)]
fn families() -> impl Iterator<Item = MetricFamily<'static>> {
    let workers = WORKER_FAMILIES.iter().map(|shows| *shows.family);
    let own = peregrine_server::METRIC_FAMILIES.iter().copied();
    let rest = log::FAMILIES.iter().chain(process::FAMILIES).copied();
    let own = own.chain(workers).chain([LOOP_ITERATIONS, BUILD_INFO]).chain(rest);
    #[cfg(feature = "tls")]
    let own = own.chain(crate::certificates::families());
    #[cfg(feature = "config")]
    let own = own.chain(peregrine_settings::internal::FAMILIES.iter().copied());
    #[cfg(feature = "otlp")]
    let own = own.chain(crate::otlp::FAMILIES.iter().copied());
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_server::Lifecycle;
    use std::collections::BTreeSet;

    fn views(workers: usize) -> Arc<AdminState> {
        let (_, orders) = tokio::sync::watch::channel(Lifecycle::Serving);
        Arc::new(AdminState::new(workers, orders, std::time::Duration::MAX))
    }

    /// The names in the page's `TYPE` lines.
    fn on_page(page: &str) -> BTreeSet<String> {
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|rest| rest.split(' ').next().unwrap_or_default().to_owned()).collect()
    }

    /// Table rows that start with a name in backticks: the name, and the rest of the row. Rows of
    /// features that are not enabled are skipped.
    fn rows(page: &str) -> impl Iterator<Item = (&str, &str)> {
        page.lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .filter(|(name, _)| cfg!(feature = "acme") || !name.starts_with("peregrine_acme_"))
            .filter(|(name, _)| cfg!(feature = "config") || !name.starts_with("peregrine_config_"))
            .filter(|(name, _)| cfg!(feature = "otlp") || !name.starts_with("peregrine_trace_"))
            .filter(|(name, _)| {
                cfg!(feature = "tls")
                    || !["certificate_expiry", "tls_reload"].iter().any(|part| name.contains(part))
            })
    }

    #[test]
    fn the_runbook_says_of_every_metric_and_no_other_what_it_is_looked_at_for() {
        let runbook = include_str!("../../../docs/operations.md");
        let (_, metrics) = runbook.split_once("\n## Metrics\n").expect("a section `Metrics`");
        let metrics = metrics.split("\n## ").next().expect("`split` yields at least one part");
        let told: Vec<_> = rows(metrics).map(|(name, _)| name.to_owned()).collect();
        let once: BTreeSet<_> = told.iter().cloned().collect();
        assert_eq!(told.len(), once.len(), "a metric is listed twice: {told:?}");
        assert_eq!(once, families().map(|family| family.sample_name()).collect());
    }

    #[test]
    fn the_guide_has_every_metric_with_its_kind_and_no_other() {
        let guide = include_str!("../../../docs/guide/observability.md");
        let told: BTreeSet<_> = rows(guide)
            .filter_map(|(name, rest)| {
                Some((name.to_owned(), rest.split_once(" | ")?.0.to_owned()))
            })
            .filter(|(name, _)| !name.starts_with('/'))
            .collect();
        let kind = |kind| match kind {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
        };
        let written: BTreeSet<_> = families()
            .map(|family| (family.sample_name(), kind(family.metric_type).to_owned()))
            .collect();
        assert_eq!(told, written);
    }

    #[test]
    fn every_family_is_on_the_page_before_anything_was_counted() {
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        write(&mut page, &views(2));
        let expected: BTreeSet<_> = families().map(|family| family.sample_name()).collect();
        let found = on_page(&page.finish());
        assert!(expected.is_subset(&found), "{:?}", expected.difference(&found));
    }

    #[test]
    fn names_end_with_their_unit() {
        for family in families() {
            assert!(family.name.ends_with(family.unit), "{family:?}");
            assert!(family.help.ends_with('.') && family.help.len() > 10, "{family:?}");
        }
    }

    #[test]
    fn paths_are_quoted_as_json_wants() {
        assert_eq!(JsonString("/a\"b\\c\n").to_string(), r#""/a\"b\\c\u000a""#);
    }

    #[test]
    fn a_server_that_starts_is_alive_and_neither_started_nor_ready() {
        let client = app(&views(1)).test();
        for (path, status) in [("/livez", 200), ("/readyz", 503), ("/startupz", 503)] {
            assert_eq!(client.get(path).send_blocking().status(), status, "{path}");
        }
    }
}
