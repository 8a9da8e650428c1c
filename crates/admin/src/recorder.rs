//! The application's own metrics, recorded with the `metrics` facade and shown on the server's
//! metrics page.
//!
//! The facade has one recorder per process. The server installs its own unless the application has
//! already installed another. Counters and histograms consist of several shards, so that threads
//! that update the same metric rarely contend. Each thread caches the handles that it has looked
//! up.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use peregrine_metrics::{Exposition, MetricFamily, MetricType};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The number of shards of a counter or histogram.
const SHARDS: usize = 8;

/// The bucket bounds of histograms, except those whose name ends with `bytes`. They suit durations
/// in seconds or milliseconds.
const DEFAULT_BUCKETS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0,
    250.0, 1_000.0, 10_000.0, 100_000.0,
];
/// The bucket bounds of histograms whose name ends with `bytes`.
const BYTE_BUCKETS: [f64; 19] = [
    0.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
    1_073_741_824.0,
    4_294_967_296.0,
    17_179_869_184.0,
    68_719_476_736.0,
    274_877_906_944.0,
    1_099_511_627_776.0,
];

static RECORDER: OnceLock<AppMetrics> = OnceLock::new();

/// Installs the recorder, unless the process already has one.
pub(crate) fn install_recorder() {
    RECORDER.get_or_init(|| {
        if metrics::set_global_recorder(MetricsRecorder).is_err() {
            tracing::warn!(target: "peregrine",
                "another recorder of the crate `metrics` is installed, so the application's \
                 metrics are not on the admin listener's page: remove that recorder, or disable \
                 the feature `metrics`");
        }
        AppMetrics::default()
    });
}

/// Writes the application's metrics.
pub(crate) fn write(page: &mut Exposition) {
    if let Some(app_metrics) = RECORDER.get() {
        app_metrics.write(page);
    }
}

/// The application's metrics.
#[derive(Default)]
struct AppMetrics {
    counters: MetricCells<CounterCell>,
    gauges: MetricCells<GaugeCell>,
    histograms: MetricCells<HistogramCell>,
    /// The unit and the help text of each name that the application has described.
    described: RwLock<HashMap<String, (Option<Unit>, SharedString)>>,
}

/// The cells of all metrics of one kind. A cell holds the value of one metric with one set of
/// labels.
struct MetricCells<C>(RwLock<HashMap<Key, Arc<C>>>);

impl<C> Default for MetricCells<C> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<C> MetricCells<C> {
    fn get_or_insert(&self, key: &Key, make: impl FnOnce() -> C) -> Arc<C> {
        if let Some(cell) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Arc::clone(cell);
        }
        let mut cells = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(cells.entry(key.clone()).or_insert_with(|| Arc::new(make())))
    }

    /// Returns all keys and their cells, grouped by name and sorted.
    fn by_name(&self) -> BTreeMap<String, Vec<(Key, Arc<C>)>> {
        let mut names = BTreeMap::<String, Vec<_>>::new();
        for (key, cell) in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            let entry = (key.clone(), Arc::clone(cell));
            names.entry(key.name().to_owned()).or_default().push(entry);
        }
        names.values_mut().for_each(|keys| keys.sort_by(|(a, _), (b, _)| a.cmp(b)));
        names
    }
}

/// A shard of a counter. The alignment keeps shards on separate cache lines.
#[derive(Default)]
#[repr(align(64))]
struct Shard(AtomicU64);

#[derive(Default)]
struct CounterCell {
    shards: [Shard; SHARDS],
    /// The highest value passed to `absolute`. The counter's value is this plus the increments.
    absolute: AtomicU64,
}

/// The value of a gauge, as the bits of an `f64`.
#[derive(Default)]
struct GaugeCell(AtomicU64);

struct HistogramCell {
    bounds: &'static [f64; 19],
    shards: [HistogramShard; SHARDS],
}

#[derive(Default)]
#[repr(align(64))]
struct HistogramShard {
    /// One count per bound, and a last one for values above all bounds.
    counts: [AtomicU64; 20],
    /// The bits of an `f64`.
    sum: AtomicU64,
}

/// A thread's handle to a cell, and the shard of it that the thread updates. Each thread has its
/// own handle, because threads would contend for the reference count of a shared one.
struct ThreadHandle<C> {
    cell: Arc<C>,
    shard: usize,
}

impl CounterFn for ThreadHandle<CounterCell> {
    fn increment(&self, value: u64) {
        // Atomic, because the handle may have been passed to another thread.
        self.cell.shards[self.shard].0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.cell.absolute.fetch_max(value, Ordering::Relaxed);
    }
}

impl GaugeFn for ThreadHandle<GaugeCell> {
    fn increment(&self, value: f64) {
        atomic_add_f64(&self.cell.0, value);
    }

    fn decrement(&self, value: f64) {
        atomic_add_f64(&self.cell.0, -value);
    }

    fn set(&self, value: f64) {
        self.cell.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl HistogramFn for ThreadHandle<HistogramCell> {
    fn record(&self, value: f64) {
        let shard = &self.cell.shards[self.shard];
        let bucket = self.cell.bounds.iter().position(|bound| value <= *bound);
        shard.counts[bucket.unwrap_or(self.cell.bounds.len())].fetch_add(1, Ordering::Relaxed);
        atomic_add_f64(&shard.sum, value);
    }
}

/// Adds to a floating-point number stored as its bits.
fn atomic_add_f64(bits: &AtomicU64, addend: f64) {
    let sum = |bits| Some((f64::from_bits(bits) + addend).to_bits());
    // Cannot fail, since `sum` never returns `None`.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

thread_local! {
    /// The index of the shard that this thread updates. `None` until its first update.
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    static THREAD_CACHE: RefCell<ThreadCache> = RefCell::default();
}

/// The handles that this thread has looked up.
#[derive(Default)]
struct ThreadCache {
    counters: HashMap<Key, Arc<ThreadHandle<CounterCell>>>,
    gauges: HashMap<Key, Arc<ThreadHandle<GaugeCell>>>,
    histograms: HashMap<Key, Arc<ThreadHandle<HistogramCell>>>,
}

/// The maximum number of cached handles of each kind; beyond it the cache is cleared.
const THREAD_CACHE_MAX: usize = 1024;

/// Returns the index of the shard that this thread updates.
fn current_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    SHARD.get().unwrap_or_else(|| {
        let shard = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
        SHARD.set(Some(shard));
        shard
    })
}

/// Returns this thread's handle to the cell of `key`. Creates both on first use.
fn cached_handle<C>(
    select: impl FnOnce(&mut ThreadCache) -> &mut HashMap<Key, Arc<ThreadHandle<C>>>,
    key: &Key,
    cells: &MetricCells<C>,
    make: impl Fn() -> C,
) -> Arc<ThreadHandle<C>> {
    let handle = THREAD_CACHE.try_with(|cache| {
        let mut cache = cache.borrow_mut();
        let handles = select(&mut cache);
        if let Some(handle) = handles.get(key) {
            return Arc::clone(handle);
        }
        let handle = Arc::new(ThreadHandle {
            cell: cells.get_or_insert(key, &make),
            shard: current_shard(),
        });
        if handles.len() >= THREAD_CACHE_MAX {
            handles.clear();
        }
        handles.insert(key.clone(), Arc::clone(&handle));
        handle
    });
    // A thread that exits may update metrics after its cache has been destroyed.
    handle.unwrap_or_else(|_| {
        Arc::new(ThreadHandle { cell: cells.get_or_insert(key, &make), shard: 0 })
    })
}

/// The recorder that is installed in the facade.
struct MetricsRecorder;

impl MetricsRecorder {
    fn describe(key: &KeyName, unit: Option<Unit>, text: SharedString) {
        if let Some(app_metrics) = RECORDER.get() {
            let mut described =
                app_metrics.described.write().unwrap_or_else(PoisonError::into_inner);
            described.insert(key.as_str().to_owned(), (unit, text));
        }
    }
}

impl Recorder for MetricsRecorder {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        Self::describe(&key, unit, text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        Self::describe(&key, unit, text);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        Self::describe(&key, unit, text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let Some(app_metrics) = RECORDER.get() else { return Counter::noop() };
        let cells = &app_metrics.counters;
        cached_handle(|cache| &mut cache.counters, key, cells, CounterCell::default).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let Some(app_metrics) = RECORDER.get() else { return Gauge::noop() };
        cached_handle(|cache| &mut cache.gauges, key, &app_metrics.gauges, GaugeCell::default)
            .into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let Some(app_metrics) = RECORDER.get() else { return Histogram::noop() };
        let make = || {
            let is_bytes = key.name().ends_with("bytes");
            let bounds = if is_bytes { &BYTE_BUCKETS } else { &DEFAULT_BUCKETS };
            HistogramCell { bounds, shards: Default::default() }
        };
        cached_handle(|cache| &mut cache.histograms, key, &app_metrics.histograms, make).into()
    }
}

impl AppMetrics {
    fn write(&self, page: &mut Exposition) {
        for (name, keys) in self.counters.by_name() {
            self.begin_family(page, &name, MetricType::Counter);
            for (key, cell) in keys {
                let shards = cell.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed));
                let count = shards.sum::<u64>() + cell.absolute.load(Ordering::Relaxed);
                with_labels(&key, |labels| page.sample(labels, count));
            }
        }
        for (name, keys) in self.gauges.by_name() {
            self.begin_family(page, &name, MetricType::Gauge);
            for (key, cell) in keys {
                let value = f64::from_bits(cell.0.load(Ordering::Relaxed));
                with_labels(&key, |labels| page.sample(labels, value));
            }
        }
        for (name, keys) in self.histograms.by_name() {
            self.begin_family(page, &name, MetricType::Histogram);
            for (key, cell) in keys {
                let (mut counts, mut sum) = ([0; 20], 0.0);
                for shard in &cell.shards {
                    for (count, shard_count) in counts.iter_mut().zip(&shard.counts) {
                        *count += shard_count.load(Ordering::Relaxed);
                    }
                    sum += f64::from_bits(shard.sum.load(Ordering::Relaxed));
                }
                with_labels(&key, |labels| page.float_histogram(labels, cell.bounds, &counts, sum));
            }
        }
    }

    /// Begins a family. A name that the server or another kind of metric already uses gets a
    /// prefix.
    fn begin_family(&self, page: &mut Exposition, name: &str, kind: MetricType) {
        let described = self.described.read().unwrap_or_else(PoisonError::into_inner);
        let help = described.get(name).map_or("Recorded by the application.", |(_, help)| help);
        let mut name = sanitize(name, true);
        // The page appends `_total` to the names of counters.
        if kind == MetricType::Counter
            && let Some(short) = name.strip_suffix("_total")
        {
            name = short.to_owned();
        }
        loop {
            let family = MetricFamily { name: &name, metric_type: kind, unit: "", help };
            if !page.has_name_conflict(&family) {
                return page.begin_family(&family);
            }
            name = format!("app_{name}");
        }
    }
}

/// Calls `write` with the labels of `key`.
fn with_labels(key: &Key, write: impl FnOnce(&peregrine_metrics::Labels<'_>)) {
    let mut names = BTreeMap::new();
    for label in key.labels() {
        // `le` is reserved for histograms, and duplicate labels would make the page invalid.
        let mut name = sanitize(label.key(), false);
        while name == "le" || names.contains_key(&name) {
            name.insert_str(0, "app_");
        }
        names.insert(name, label.value());
    }
    let labels: Vec<_> = names.iter().map(|(name, value)| (&**name, *value)).collect();
    write(&labels);
}

/// Replaces characters that Prometheus does not allow in names. `is_metric_name` allows colons,
/// which names of metrics may contain and names of labels may not.
fn sanitize(name: &str, is_metric_name: bool) -> String {
    let is_allowed = |character: char| {
        character.is_ascii_alphanumeric() || character == '_' || is_metric_name && character == ':'
    };
    let name: String =
        name.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect();
    let needs_prefix = name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit());
    if needs_prefix { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_metrics::ExpositionFormat;

    #[test]
    fn invalid_names_are_sanitized() {
        for (name, is_metric_name, expected) in [
            ("birds.seen", true, "birds_seen"),
            ("a:b", true, "a:b"),
            ("a:b", false, "a_b"),
            ("1st", true, "_1st"),
            ("", true, "_"),
            ("gr\u{fc}n", true, "gr_n"),
        ] {
            assert_eq!(sanitize(name, is_metric_name), expected);
        }
    }

    #[test]
    fn names_in_use_get_a_prefix() {
        let app_metrics = AppMetrics::default();
        let make = CounterCell::default;
        app_metrics.counters.get_or_insert(&Key::from_name("taken"), make).shards[0]
            .0
            .store(1, Ordering::Relaxed);
        app_metrics.counters.get_or_insert(&Key::from_name("twice_total"), make);
        app_metrics.gauges.get_or_insert(&Key::from_name("twice"), GaugeCell::default);
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        page.begin_family(&MetricFamily {
            name: "taken",
            metric_type: MetricType::Gauge,
            unit: "",
            help: "Ours.",
        });
        app_metrics.write(&mut page);
        let page = page.finish();
        for line in ["app_taken_total 1", "twice_total 0", "app_twice 0"] {
            assert!(page.lines().any(|page_line| page_line == line), "{line}: {page}");
        }
    }

    #[test]
    fn sanitized_labels_do_not_collide() {
        let labels = [("a.b", "1"), ("a_b", "2"), ("le", "3")];
        with_labels(&Key::from_parts("x", &labels), |labels| {
            assert_eq!(labels, [("a_b", "1"), ("app_a_b", "2"), ("app_le", "3")]);
        });
    }

    #[test]
    fn counts_of_all_threads_are_summed() {
        let app_metrics = AppMetrics::default();
        let (counter, histogram) = (Key::from_name("n"), Key::from_name("seconds"));
        let make = || HistogramCell { bounds: &DEFAULT_BUCKETS, shards: Default::default() };
        std::thread::scope(|scope| {
            for shard in 0..SHARDS {
                let (app_metrics, counter, histogram) = (&app_metrics, &counter, &histogram);
                scope.spawn(move || {
                    let cell = app_metrics.counters.get_or_insert(counter, CounterCell::default);
                    (0..100)
                        .for_each(|_| ThreadHandle { cell: Arc::clone(&cell), shard }.increment(2));
                    let cell = app_metrics.histograms.get_or_insert(histogram, make);
                    ThreadHandle { cell, shard }.record(0.5);
                });
            }
        });
        let mut page = Exposition::new(ExpositionFormat::PrometheusText);
        app_metrics.write(&mut page);
        let page = page.finish();
        for line in
            ["n_total 1600", "seconds_bucket{le=\"0.5\"} 8", "seconds_count 8", "seconds_sum 4"]
        {
            assert!(page.lines().any(|page_line| page_line == line), "{line}: {page}");
        }
    }
}
