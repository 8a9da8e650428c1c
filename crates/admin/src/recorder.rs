//! The application's own metrics, recorded with the `metrics` facade and shown on the server's
//! metrics page.
//!
//! The facade has one recorder per process. The server installs its own unless the application has
//! already installed another. Counters and histograms consist of several parts, so that threads
//! that update the same metric rarely contend; each thread caches the handles that it has looked
//! up.

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use peregrine_metrics::{Family, Kind, Page};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The number of parts of a counter or histogram.
const PARTS: usize = 8;

/// The bucket bounds of histograms, except those whose name ends with `bytes`.
const BOUNDS: [f64; 19] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 100.0,
    250.0, 1_000.0, 10_000.0, 100_000.0,
];
const BYTE_BOUNDS: [f64; 19] = [
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

static RECORDER: OnceLock<Own> = OnceLock::new();

/// Installs the recorder, unless the process already has one.
pub(crate) fn install() {
    RECORDER.get_or_init(|| {
        if metrics::set_global_recorder(Facade).is_err() {
            tracing::warn!(target: "peregrine",
                "another recorder of the crate `metrics` is installed, so the application's \
                 metrics are not on the admin listener's page: remove that recorder, or disable \
                 the feature `metrics`");
        }
        Own::default()
    });
}

/// Writes the application's metrics.
pub(crate) fn write(page: &mut Page) {
    if let Some(own) = RECORDER.get() {
        own.write(page);
    }
}

/// The application's metrics.
#[derive(Default)]
struct Own {
    counters: Cells<CounterCell>,
    gauges: Cells<GaugeCell>,
    histograms: Cells<HistogramCell>,
    described: RwLock<HashMap<String, (Option<Unit>, SharedString)>>,
}

struct Cells<C>(RwLock<HashMap<Key, Arc<C>>>);

impl<C> Default for Cells<C> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<C> Cells<C> {
    fn find(&self, key: &Key, make: impl FnOnce() -> C) -> Arc<C> {
        if let Some(cell) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Arc::clone(cell);
        }
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(key.clone()).or_insert_with(|| Arc::new(make())))
    }

    /// All keys, grouped by name and sorted.
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

/// A part of a counter. The alignment keeps parts on separate cache lines.
#[derive(Default)]
#[repr(align(64))]
struct Part(AtomicU64);

#[derive(Default)]
struct CounterCell {
    parts: [Part; PARTS],
    /// The highest value passed to `absolute`. It is added to the increments.
    absolute: AtomicU64,
}

#[derive(Default)]
struct GaugeCell(AtomicU64);

struct HistogramCell {
    bounds: &'static [f64; 19],
    parts: [HistogramPart; PARTS],
}

#[derive(Default)]
#[repr(align(64))]
struct HistogramPart {
    counts: [AtomicU64; 20],
    sum: AtomicU64,
}

/// A thread's handle to a cell. Each thread has its own, because threads would contend for the
/// reference count of a shared one.
struct Handle<C> {
    cell: Arc<C>,
    part: usize,
}

impl CounterFn for Handle<CounterCell> {
    fn increment(&self, value: u64) {
        // Atomic, because the handle may have been passed to another thread.
        self.cell.parts[self.part].0.fetch_add(value, Ordering::Relaxed);
    }

    fn absolute(&self, value: u64) {
        self.cell.absolute.fetch_max(value, Ordering::Relaxed);
    }
}

impl GaugeFn for Handle<GaugeCell> {
    fn increment(&self, value: f64) {
        add(&self.cell.0, value);
    }

    fn decrement(&self, value: f64) {
        add(&self.cell.0, -value);
    }

    fn set(&self, value: f64) {
        self.cell.0.store(value.to_bits(), Ordering::Relaxed);
    }
}

impl HistogramFn for Handle<HistogramCell> {
    fn record(&self, value: f64) {
        let part = &self.cell.parts[self.part];
        let at = self.cell.bounds.iter().position(|bound| value <= *bound);
        part.counts[at.unwrap_or(self.cell.bounds.len())].fetch_add(1, Ordering::Relaxed);
        add(&part.sum, value);
    }
}

/// Adds to a floating-point number stored as its bits.
fn add(bits: &AtomicU64, more: f64) {
    let sum = |bits| Some((f64::from_bits(bits) + more).to_bits());
    // Cannot fail, since `sum` never returns `None`.
    let _ = bits.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

thread_local! {
    static PART: Cell<Option<usize>> = const { Cell::new(None) };
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// The handles that this thread has looked up.
#[derive(Default)]
struct Known {
    counters: HashMap<Key, Arc<Handle<CounterCell>>>,
    gauges: HashMap<Key, Arc<Handle<GaugeCell>>>,
    histograms: HashMap<Key, Arc<Handle<HistogramCell>>>,
}

/// The maximum number of cached handles of each kind; beyond it the cache is cleared.
const KNOWN_MAX: usize = 1024;

/// The part that this thread updates.
fn part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    PART.get().unwrap_or_else(|| {
        let part = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
        PART.set(Some(part));
        part
    })
}

/// Returns this thread's handle, and creates it on first use.
fn known<C>(
    of: impl FnOnce(&mut Known) -> &mut HashMap<Key, Arc<Handle<C>>>,
    key: &Key,
    cells: &Cells<C>,
    make: impl Fn() -> C,
) -> Arc<Handle<C>> {
    let found = KNOWN.try_with(|all| {
        let mut all = all.borrow_mut();
        let handles = of(&mut all);
        if let Some(handle) = handles.get(key) {
            return Arc::clone(handle);
        }
        let handle = Arc::new(Handle { cell: cells.find(key, &make), part: part() });
        if handles.len() >= KNOWN_MAX {
            handles.clear();
        }
        handles.insert(key.clone(), Arc::clone(&handle));
        handle
    });
    // While a thread exits, it may update metrics after its cache has been destroyed.
    found.unwrap_or_else(|_| Arc::new(Handle { cell: cells.find(key, &make), part: 0 }))
}

/// The recorder that is installed in the facade.
struct Facade;

impl Facade {
    fn describe(key: &KeyName, unit: Option<Unit>, text: SharedString) {
        if let Some(own) = RECORDER.get() {
            let mut all = own.described.write().unwrap_or_else(PoisonError::into_inner);
            all.insert(key.as_str().to_owned(), (unit, text));
        }
    }
}

impl Recorder for Facade {
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
        let Some(own) = RECORDER.get() else { return Counter::noop() };
        let cells = &own.counters;
        known(|known| &mut known.counters, key, cells, CounterCell::default).into()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let Some(own) = RECORDER.get() else { return Gauge::noop() };
        known(|known| &mut known.gauges, key, &own.gauges, GaugeCell::default).into()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let Some(own) = RECORDER.get() else { return Histogram::noop() };
        let make = || {
            let is_bytes = key.name().ends_with("bytes");
            let bounds = if is_bytes { &BYTE_BOUNDS } else { &BOUNDS };
            HistogramCell { bounds, parts: Default::default() }
        };
        known(|known| &mut known.histograms, key, &own.histograms, make).into()
    }
}

impl Own {
    fn write(&self, page: &mut Page) {
        for (name, keys) in self.counters.by_name() {
            self.family(page, &name, Kind::Counter);
            for (key, cell) in keys {
                let parts = cell.parts.iter().map(|part| part.0.load(Ordering::Relaxed));
                let count = parts.sum::<u64>() + cell.absolute.load(Ordering::Relaxed);
                labelled(&key, |labels| page.sample(labels, count));
            }
        }
        for (name, keys) in self.gauges.by_name() {
            self.family(page, &name, Kind::Gauge);
            for (key, cell) in keys {
                let value = f64::from_bits(cell.0.load(Ordering::Relaxed));
                labelled(&key, |labels| page.sample(labels, value));
            }
        }
        for (name, keys) in self.histograms.by_name() {
            self.family(page, &name, Kind::Histogram);
            for (key, cell) in keys {
                let (mut counts, mut sum) = ([0; 20], 0.0);
                for part in &cell.parts {
                    for (count, more) in counts.iter_mut().zip(&part.counts) {
                        *count += more.load(Ordering::Relaxed);
                    }
                    sum += f64::from_bits(part.sum.load(Ordering::Relaxed));
                }
                labelled(&key, |labels| page.histogram_of(labels, cell.bounds, &counts, sum));
            }
        }
    }

    /// Starts a family. A name already used by the server or by another kind of metric gets a
    /// prefix.
    fn family(&self, page: &mut Page, name: &str, kind: Kind) {
        let described = self.described.read().unwrap_or_else(PoisonError::into_inner);
        let help = described.get(name).map_or("Recorded by the application.", |(_, help)| help);
        let mut name = sound(name, true);
        if kind == Kind::Counter
            && let Some(short) = name.strip_suffix("_total")
        {
            name = short.to_owned();
        }
        loop {
            let family = Family { name: &name, kind, unit: "", help };
            if !page.is_taken(&family) {
                return page.family(&family);
            }
            name = format!("app_{name}");
        }
    }
}

/// Calls `write` with the labels of `key`.
fn labelled(key: &Key, write: impl FnOnce(&peregrine_metrics::Labels<'_>)) {
    let mut names = BTreeMap::new();
    for label in key.labels() {
        // `le` is reserved for histograms, and duplicate labels would make the page invalid.
        let mut name = sound(label.key(), false);
        while name == "le" || names.contains_key(&name) {
            name.insert_str(0, "app_");
        }
        names.insert(name, label.value());
    }
    let labels: Vec<_> = names.iter().map(|(name, value)| (&**name, *value)).collect();
    write(&labels);
}

/// Replaces characters that Prometheus does not allow in names.
fn sound(name: &str, is_metric: bool) -> String {
    let is_good = |character: char| {
        character.is_ascii_alphanumeric() || character == '_' || is_metric && character == ':'
    };
    let name: String =
        name.chars().map(|character| if is_good(character) { character } else { '_' }).collect();
    let needs_start = name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit());
    if needs_start { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peregrine_metrics::Format;

    #[test]
    fn names_are_made_sound() {
        for (name, is_metric, expected) in [
            ("birds.seen", true, "birds_seen"),
            ("a:b", true, "a:b"),
            ("a:b", false, "a_b"),
            ("1st", true, "_1st"),
            ("", true, "_"),
            ("gr\u{fc}n", true, "gr_n"),
        ] {
            assert_eq!(sound(name, is_metric), expected);
        }
    }

    #[test]
    fn names_that_are_taken_get_a_prefix() {
        let own = Own::default();
        let make = CounterCell::default;
        own.counters.find(&Key::from_name("taken"), make).parts[0].0.store(1, Ordering::Relaxed);
        own.counters.find(&Key::from_name("twice_total"), make);
        own.gauges.find(&Key::from_name("twice"), GaugeCell::default);
        let mut page = Page::new(Format::Text);
        page.family(&Family { name: "taken", kind: Kind::Gauge, unit: "", help: "Ours." });
        own.write(&mut page);
        let page = page.finish();
        for line in ["app_taken_total 1", "twice_total 0", "app_twice 0"] {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
    }

    #[test]
    fn labels_never_meet() {
        let labels = [("a.b", "1"), ("a_b", "2"), ("le", "3")];
        labelled(&Key::from_parts("x", &labels), |labels| {
            assert_eq!(labels, [("a_b", "1"), ("app_a_b", "2"), ("app_le", "3")]);
        });
    }

    #[test]
    fn what_threads_count_is_added_up() {
        let own = Own::default();
        let (counted, spread) = (Key::from_name("n"), Key::from_name("seconds"));
        let make = || HistogramCell { bounds: &BOUNDS, parts: Default::default() };
        std::thread::scope(|scope| {
            for part in 0..PARTS {
                let (own, counted, spread) = (&own, &counted, &spread);
                scope.spawn(move || {
                    let cell = own.counters.find(counted, CounterCell::default);
                    (0..100).for_each(|_| Handle { cell: Arc::clone(&cell), part }.increment(2));
                    let cell = own.histograms.find(spread, make);
                    Handle { cell, part }.record(0.5);
                });
            }
        });
        let mut page = Page::new(Format::Text);
        own.write(&mut page);
        let page = page.finish();
        for line in
            ["n_total 1600", "seconds_bucket{le=\"0.5\"} 8", "seconds_count 8", "seconds_sum 4"]
        {
            assert!(page.lines().any(|found| found == line), "{line}: {page}");
        }
    }
}
