//! Writes a metrics page for Prometheus.
//!
//! The two formats differ little: OpenMetrics declares units, ends with `# EOF`, writes bounds as
//! `1.0`, escapes quotes in help texts as well, and omits `_total` from the name of a counter.

use crate::format::Format;
use crate::histogram::Buckets;
use std::collections::HashSet;
use std::fmt::{self, Display, Write as _};

/// The kind of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// The distribution of values.
    Histogram,
    /// Text, as labels of a constant value 1.
    Info,
}

/// Metrics with the same name and different labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    /// Its name, without the `_total` of a counter or the `_info` of an info.
    pub name: &'a str,
    /// Its kind.
    pub kind: Kind,
    /// The unit, which is also the suffix of the name; empty for a plain number.
    pub unit: &'a str,
    /// The help text, one sentence.
    pub help: &'a str,
}

impl Family<'_> {
    /// The name of its samples, or their common prefix.
    #[must_use]
    pub fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// All names under which its samples may appear.
    fn names(&self) -> impl Iterator<Item = String> {
        let suffixes: &[&str] = match self.kind {
            Kind::Counter => &["", "_total", "_created"],
            Kind::Gauge => &[""],
            Kind::Histogram => &["", "_bucket", "_sum", "_count", "_created"],
            Kind::Info => &["", "_info"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name))
    }
}

/// Names and values of labels.
pub type Labels<'a> = [(&'a str, &'a str)];

/// A page that is being written, family by family.
#[derive(Debug)]
pub struct Page {
    format: Format,
    text: String,
    /// The names already used.
    names: HashSet<String>,
    /// The sample name of the current family.
    sample: String,
}

impl Page {
    /// Creates an empty page.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let (text, sample) = (String::with_capacity(16 * 1024), String::new());
        Self { format, text, names: HashSet::new(), sample }
    }

    /// Returns whether a sample of this family would have a name that is already used.
    #[must_use]
    pub fn is_taken(&self, family: &Family<'_>) -> bool {
        family.names().any(|name| self.names.contains(&name))
    }

    /// Starts a family. Its samples must follow before the next family starts.
    pub fn family(&mut self, family: &Family<'_>) {
        debug_assert!(!self.is_taken(family), "{} is already on the page", family.name);
        self.names.extend(family.names());
        self.sample = family.sample_name();
        let Self { text, sample, .. } = self;
        let kind = match (family.kind, self.format) {
            (Kind::Counter, _) => "counter",
            (Kind::Gauge, _) | (Kind::Info, Format::Text) => "gauge",
            (Kind::Histogram, _) => "histogram",
            (Kind::Info, Format::OpenMetrics) => "info",
        };
        let help = Escaped { text: family.help, quotes: self.format == Format::OpenMetrics };
        let _ = match self.format {
            Format::Text => {
                write!(text, "# HELP {sample} {help}\n# TYPE {sample} {kind}\n")
            }
            Format::OpenMetrics => {
                let name = family.name;
                let _ = writeln!(text, "# TYPE {name} {kind}");
                if !family.unit.is_empty() {
                    let _ = writeln!(text, "# UNIT {name} {}", family.unit);
                }
                writeln!(text, "# HELP {name} {help}")
            }
        };
    }

    /// Writes a sample of the current family, which must not be a histogram.
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Into<Value>) {
        self.line("", labels, None, value.into());
    }

    /// Writes a histogram of the current family. `bounds` and `sum` are divided by `scale`: 1e9 to
    /// export nanoseconds as seconds.
    pub fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[u64],
        buckets: &Buckets,
        scale: f64,
    ) {
        let bounds = bounds.iter().map(|bound| *bound as f64 / scale);
        self.ranges(labels, bounds, &buckets.counts, buckets.sum as f64 / scale);
    }

    /// Like `histogram`, for values that are floating-point numbers.
    pub fn histogram_of(&mut self, labels: &Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        self.ranges(labels, bounds.iter().copied(), counts, sum);
    }

    fn ranges(
        &mut self,
        labels: &Labels<'_>,
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let mut so_far = 0;
        for (at, bound) in bounds.chain([f64::INFINITY]).enumerate() {
            so_far += counts.get(at).copied().unwrap_or(0);
            self.line("_bucket", labels, Some(bound), Value::Whole(so_far));
        }
        self.line("_sum", labels, None, Value::Real(sum));
        self.line("_count", labels, None, Value::Whole(so_far));
    }

    fn line(&mut self, suffix: &str, labels: &Labels<'_>, bound: Option<f64>, value: Value) {
        let Self { format, text, sample, .. } = self;
        let _ = write!(text, "{sample}{suffix}");
        let mut separator = '{';
        for (name, value) in labels {
            let value = Escaped { text: value, quotes: true };
            let _ = write!(text, "{separator}{name}=\"{value}\"");
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(text, "{separator}le=\"");
            let _ = match format {
                Format::OpenMetrics if bound.is_finite() => write!(text, "{bound:?}\""),
                _ => write!(text, "{}\"", Value::Real(bound)),
            };
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        let _ = writeln!(text, "{end} {value}");
    }

    /// Returns the finished page.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Whole(u64),
    /// A floating-point number.
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(value) => value.fmt(f),
            Self::Real(value) if value.is_nan() => f.write_str("NaN"),
            Self::Real(value) if value.is_infinite() => {
                f.write_str(if *value > 0.0 { "+Inf" } else { "-Inf" })
            }
            Self::Real(value) => value.fmt(f),
        }
    }
}

/// Escapes characters that would end the text early.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.text;
        let is_special =
            |character: char| matches!(character, '\\' | '\n') || self.quotes && character == '"';
        while let Some(at) = rest.find(is_special) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'\n' => "\\n",
                b'"' => "\\\"",
                _ => "\\\\",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}
