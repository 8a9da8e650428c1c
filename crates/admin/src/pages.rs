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

/// Creates the admin listener's application.
pub(crate) fn app(state: &Arc<AdminState>) -> App {
    App::new()
        .state(Arc::clone(state))
        .get("/metrics", metrics)
        // If the application serves the pages itself, probes must respond even during overload.
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

/// Creates a probe's response. Programs read the status, and people read the text.
fn probe_response(is_ok: bool, text: impl Into<String>) -> PageResponse {
    let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    response(status, "text/plain; charset=utf-8", format!("{}\n", text.into()))
}

/// The query parameter that makes `/readyz` fail while memory is short.
const OVERLOAD_UNREADY_QUERY: &str = "overload=unready";

fn livez(state: StateParam) -> PageResponse {
    let blocked = state.blocked_workers(Instant::now());
    if blocked.is_empty() {
        return probe_response(true, "alive");
    }
    let describe = |blocked_worker: crate::state::BlockedWorker| {
        let crate::state::BlockedWorker { worker, route, blocked_for } = blocked_worker;
        format!(
            "worker {worker}: {route} has blocked its thread for {:.1} s",
            blocked_for.as_secs_f64()
        )
    };
    probe_response(false, blocked.into_iter().map(describe).collect::<Vec<_>>().join("\n"))
}

fn readyz(state: StateParam, RawQuery(query): RawQuery) -> PageResponse {
    let checks_overload =
        query.is_some_and(|query| query.split('&').any(|pair| pair == OVERLOAD_UNREADY_QUERY));
    match state.lifecycle() {
        Lifecycle::Serving if checks_overload && state.all_low_on_memory() => {
            probe_response(false, "overloaded")
        }
        Lifecycle::Serving if state.all_serving() => probe_response(true, "ready"),
        // Another process serves at these addresses, and the probe is meant for it.
        Lifecycle::HandingOver => probe_response(true, "served by the next process"),
        Lifecycle::Standby | Lifecycle::Serving => probe_response(false, "starting"),
        _ => probe_response(false, "shutting down"),
    }
}

fn startupz(state: StateParam) -> PageResponse {
    let is_serving = state.all_serving();
    probe_response(is_serving, if is_serving { "started" } else { "starting" })
}

/// Lists the routes of the first worker that has built its application. All workers build the same
/// one.
fn routes(state: StateParam) -> PageResponse {
    let routes = state.workers.iter().find_map(|worker| worker.routes()).unwrap_or_default();
    let to_json = |(methods, pattern): &(String, String)| {
        // `any method` is meant for people. Programs get `*` instead.
        let method = if methods == "any method" { "*" } else { methods };
        format!("{{\"method\":{},\"pattern\":{}}}", JsonString(method), JsonString(pattern))
    };
    let routes: Vec<_> = routes.iter().map(to_json).collect();
    json(format!("{{\"routes\":[{}]}}", routes.join(",")))
}

fn connections(state: StateParam) -> PageResponse {
    let (mut text, mut total) = (String::new(), 0);
    for (id, worker) in state.workers.iter().enumerate() {
        let open: u64 = worker.metrics.connections().map(|(_, count)| count).sum();
        total += open;
        let separator = if id == 0 { "" } else { "," };
        let to_json = |((protocol, state), count): ((&str, &str), u64)| {
            let (protocol, state) = (JsonString(protocol), JsonString(state));
            format!("{{\"protocol\":{protocol},\"state\":{state},\"count\":{count}}}")
        };
        let counts: Vec<_> = worker.metrics.connections().map(to_json).collect();
        let counts = counts.join(",");
        // Writing to a string never fails.
        let _ = write!(
            text,
            "{separator}{{\"worker\":{id},\"open\":{open},\"connections\":[{counts}]}}"
        );
    }
    json(format!("{{\"open\":{total},\"workers\":[{text}]}}"))
}

/// Shows the settings in effect. They include the paths of files, but not their contents.
fn config(state: StateParam) -> PageResponse {
    match state.config.get() {
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

/// Formats a string as a JSON string.
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

fn metrics(state: StateParam, headers: HeaderMap) -> PageResponse {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(accept);
    let mut page = Exposition::new(format);
    write(&mut page, &state);
    response(StatusCode::OK, format.content_type(), page.finish())
}

/// Writes all metrics.
fn write(page: &mut Exposition, state: &AdminState) {
    let worker_metrics: Vec<&WorkerMetrics> =
        state.workers.iter().map(|worker| &*worker.metrics).collect();
    peregrine_server::write_metrics(page, &worker_metrics);
    for WorkerFamily { family, value: value_of } in WORKER_FAMILIES {
        page.begin_family(family);
        for (id, worker) in state.workers.iter().enumerate() {
            if let Some(value) = value_of(worker) {
                page.sample(&[("worker", &id.to_string())], value);
            }
        }
    }
    page.begin_family(&ITERATION_DURATIONS);
    for (id, worker) in state.workers.iter().enumerate() {
        // Measured in nanoseconds, and shown in seconds.
        let durations = worker.driver_metrics.iteration_durations();
        page.histogram(&[("worker", &id.to_string())], &ITERATION_BOUNDS, &durations, 1e9);
    }
    page.begin_family(&BUILD_INFO);
    page.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    log::write(page, state.access_log());
    #[cfg(feature = "tls")]
    crate::certificates::write(page, state.certificates());
    #[cfg(feature = "config")]
    peregrine_settings::internal::write(page, state.reload_metrics.get().map(|metrics| &**metrics));
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

const ITERATION_DURATIONS: MetricFamily<'_> = MetricFamily {
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
    value: fn(&WorkerView) -> Option<SampleValue>,
) -> WorkerFamily {
    WorkerFamily { family, value }
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
        |worker| Some(worker.driver_metrics.syscalls.get().into()),
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

/// Returns the families that are always on the page. They must match the table in the guide.
#[cfg(test)]
fn families() -> impl Iterator<Item = MetricFamily<'static>> {
    let workers = WORKER_FAMILIES.iter().map(|worker_family| *worker_family.family);
    let families = peregrine_server::METRIC_FAMILIES.iter().copied();
    let log_and_process = log::FAMILIES.iter().chain(process::FAMILIES).copied();
    let families =
        families.chain(workers).chain([ITERATION_DURATIONS, BUILD_INFO]).chain(log_and_process);
    #[cfg(feature = "tls")]
    let families = families.chain(crate::certificates::families());
    #[cfg(feature = "config")]
    let families = families.chain(peregrine_settings::internal::FAMILIES.iter().copied());
    #[cfg(feature = "otlp")]
    let families = families.chain(crate::otlp::FAMILIES.iter().copied());
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_server::Lifecycle;
    use std::collections::BTreeSet;

    fn admin_state(workers: usize) -> Arc<AdminState> {
        let (_, lifecycle) = tokio::sync::watch::channel(Lifecycle::Serving);
        Arc::new(AdminState::new(workers, lifecycle, std::time::Duration::MAX))
    }

    /// Returns the names in the page's `TYPE` lines.
    fn type_lines(page: &str) -> BTreeSet<String> {
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.map(|family| family.split(' ').next().unwrap_or_default().to_owned()).collect()
    }

    /// Returns the table rows that start with a name in backticks, each as the name and the rest of
    /// the row. Skips rows of features that are not enabled.
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
    fn the_runbook_lists_exactly_the_metrics_of_the_page() {
        let runbook = include_str!("../../../docs/operations.md");
        let (_, metrics) = runbook.split_once("\n## Metrics\n").expect("a section `Metrics`");
        let metrics = metrics.split("\n## ").next().expect("`split` yields at least one part");
        let listed: Vec<_> = rows(metrics).map(|(name, _)| name.to_owned()).collect();
        let distinct: BTreeSet<_> = listed.iter().cloned().collect();
        assert_eq!(listed.len(), distinct.len(), "a metric is listed twice: {listed:?}");
        assert_eq!(distinct, families().map(|family| family.sample_name()).collect());
    }

    #[test]
    fn the_guide_lists_exactly_the_metrics_with_their_types() {
        let guide = include_str!("../../../docs/guide/observability.md");
        let documented: BTreeSet<_> = rows(guide)
            .filter_map(|(name, columns)| {
                Some((name.to_owned(), columns.split_once(" | ")?.0.to_owned()))
            })
            .filter(|(name, _)| !name.starts_with('/'))
            .collect();
        let type_name = |metric_type| match metric_type {
            MetricType::Counter => "counter",
            MetricType::Gauge => "gauge",
            MetricType::Histogram => "histogram",
            MetricType::Info => "info",
        };
        let actual: BTreeSet<_> = families()
            .map(|family| (family.sample_name(), type_name(family.metric_type).to_owned()))
            .collect();
        assert_eq!(documented, actual);
    }

    #[test]
    fn every_family_is_on_the_page_before_the_first_sample() {
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        write(&mut page, &admin_state(2));
        let expected: BTreeSet<_> = families().map(|family| family.sample_name()).collect();
        let actual = type_lines(&page.finish());
        assert!(expected.is_subset(&actual), "{:?}", expected.difference(&actual));
    }

    #[test]
    fn metric_names_end_with_their_unit() {
        for family in families() {
            assert!(family.name.ends_with(family.unit), "{family:?}");
            assert!(family.help.ends_with('.') && family.help.len() > 10, "{family:?}");
        }
    }

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(JsonString("/a\"b\\c\n").to_string(), r#""/a\"b\\c\u000a""#);
    }

    #[test]
    fn a_starting_server_is_live_but_not_started_or_ready() {
        let client = app(&admin_state(1)).test();
        for (path, status) in [("/livez", 200), ("/readyz", 503), ("/startupz", 503)] {
            assert_eq!(client.get(path).send_blocking().status(), status, "{path}");
        }
    }
}
