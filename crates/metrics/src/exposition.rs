//! Writes a metrics page for Prometheus.
//!
//! The two formats differ little: OpenMetrics declares units, ends with `# EOF`, writes bounds as
//! `1.0`, escapes quotes in help texts as well, and omits `_total` from the name of a counter.

use crate::format::ExpositionFormat;
use crate::histogram::HistogramSnapshot;
use std::collections::HashSet;
use std::fmt::{self, Display, Write as _};

/// The kind of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
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
pub struct MetricFamily<'a> {
    /// Its name, without the `_total` of a counter or the `_info` of an info.
    pub name: &'a str,
    /// Its kind.
    pub metric_type: MetricType,
    /// The unit, which is also the suffix of the name; empty for a plain number.
    pub unit: &'a str,
    /// The help text, one sentence.
    pub help: &'a str,
}

impl MetricFamily<'_> {
    /// Returns the name of its samples, or their common prefix.
    #[must_use]
    pub fn sample_name(&self) -> String {
        let suffix = match self.metric_type {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// All names under which its samples may appear.
    fn names(&self) -> impl Iterator<Item = String> {
        let suffixes: &[&str] = match self.metric_type {
            MetricType::Counter => &["", "_total", "_created"],
            MetricType::Gauge => &[""],
            MetricType::Histogram => &["", "_bucket", "_sum", "_count", "_created"],
            MetricType::Info => &["", "_info"],
        };
        suffixes.iter().map(|suffix| format!("{}{suffix}", self.name))
    }
}

/// Names and values of labels.
pub type Labels<'a> = [(&'a str, &'a str)];

/// A page that is being written, family by family.
#[derive(Debug)]
pub struct Exposition {
    format: ExpositionFormat,
    text: String,
    /// All names under which samples of the families so far may appear.
    used_names: HashSet<String>,
    /// The sample name of the current family.
    sample_name: String,
}

impl Exposition {
    /// Creates an empty page.
    #[must_use]
    pub fn new(format: ExpositionFormat) -> Self {
        let (text, sample_name) = (String::with_capacity(16 * 1024), String::new());
        Self { format, text, used_names: HashSet::new(), sample_name }
    }

    /// Returns whether a sample of this family would have a name that is already used.
    #[must_use]
    pub fn has_name_conflict(&self, family: &MetricFamily<'_>) -> bool {
        family.names().any(|name| self.used_names.contains(&name))
    }

    /// Starts a family. Its samples must follow before the next family starts.
    pub fn begin_family(&mut self, family: &MetricFamily<'_>) {
        debug_assert!(!self.has_name_conflict(family), "{} is already on the page", family.name);
        self.used_names.extend(family.names());
        self.sample_name = family.sample_name();
        let Self { text, sample_name, .. } = self;
        let kind = match (family.metric_type, self.format) {
            (MetricType::Counter, _) => "counter",
            (MetricType::Gauge, _) | (MetricType::Info, ExpositionFormat::PrometheusText) => {
                "gauge"
            }
            (MetricType::Histogram, _) => "histogram",
            (MetricType::Info, ExpositionFormat::OpenMetrics) => "info",
        };
        let help =
            Escaped { text: family.help, quotes: self.format == ExpositionFormat::OpenMetrics };
        let _ = match self.format {
            ExpositionFormat::PrometheusText => {
                write!(text, "# HELP {sample_name} {help}\n# TYPE {sample_name} {kind}\n")
            }
            ExpositionFormat::OpenMetrics => {
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
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Into<SampleValue>) {
        self.write_line("", labels, None, value.into());
    }

    /// Writes a histogram of the current family. `bounds` and `sum` are divided by `scale`: 1e9 to
    /// export nanoseconds as seconds.
    pub fn histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[u64],
        buckets: &HistogramSnapshot,
        scale: f64,
    ) {
        let bounds = bounds.iter().map(|bound| *bound as f64 / scale);
        self.write_buckets(labels, bounds, &buckets.counts, buckets.sum as f64 / scale);
    }

    /// Like `histogram`, for values that are floating-point numbers.
    pub fn float_histogram(
        &mut self,
        labels: &Labels<'_>,
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) {
        self.write_buckets(labels, bounds.iter().copied(), counts, sum);
    }

    fn write_buckets(
        &mut self,
        labels: &Labels<'_>,
        bounds: impl Iterator<Item = f64>,
        counts: &[u64],
        sum: f64,
    ) {
        let mut cumulative = 0;
        for (index, bound) in bounds.chain([f64::INFINITY]).enumerate() {
            cumulative += counts.get(index).copied().unwrap_or(0);
            self.write_line("_bucket", labels, Some(bound), SampleValue::Integer(cumulative));
        }
        self.write_line("_sum", labels, None, SampleValue::Float(sum));
        self.write_line("_count", labels, None, SampleValue::Integer(cumulative));
    }

    fn write_line(
        &mut self,
        suffix: &str,
        labels: &Labels<'_>,
        bound: Option<f64>,
        value: SampleValue,
    ) {
        let Self { format, text, sample_name, .. } = self;
        let _ = write!(text, "{sample_name}{suffix}");
        let mut separator = '{';
        for (name, value) in labels {
            let value = Escaped { text: value, quotes: true };
            let _ = write!(text, "{separator}{name}=\"{value}\"");
            separator = ',';
        }
        if let Some(bound) = bound {
            let _ = write!(text, "{separator}le=\"");
            let _ = match format {
                ExpositionFormat::OpenMetrics if bound.is_finite() => write!(text, "{bound:?}\""),
                _ => write!(text, "{}\"", SampleValue::Float(bound)),
            };
            separator = ',';
        }
        let end = if separator == ',' { "}" } else { "" };
        let _ = writeln!(text, "{end} {value}");
    }

    /// Returns the finished page.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue {
    /// An integer.
    Integer(u64),
    /// A floating-point number.
    Float(f64),
}

impl From<u64> for SampleValue {
    fn from(value: u64) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for SampleValue {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl Display for SampleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) if value.is_nan() => f.write_str("NaN"),
            Self::Float(value) if value.is_infinite() => {
                f.write_str(if *value > 0.0 { "+Inf" } else { "-Inf" })
            }
            Self::Float(value) => value.fmt(f),
        }
    }
}

/// Displays text with escapes for characters that would end it early; double quotes only if
/// `quotes` is set.
struct Escaped<'a> {
    text: &'a str,
    quotes: bool,
}

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut remaining = self.text;
        let is_special =
            |character: char| matches!(character, '\\' | '\n') || self.quotes && character == '"';
        while let Some(position) = remaining.find(is_special) {
            f.write_str(&remaining[..position])?;
            f.write_str(match remaining.as_bytes()[position] {
                b'\n' => "\\n",
                b'"' => "\\\"",
                _ => "\\\\",
            })?;
            remaining = &remaining[position + 1..];
        }
        f.write_str(remaining)
    }
}
