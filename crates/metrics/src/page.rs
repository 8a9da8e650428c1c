//! A page of metrics, as Prometheus reads it.
//!
//! The two formats differ little: OpenMetrics tells units, ends with `# EOF`, writes bounds as `1.0`,
//! escapes quotes in help as well, and names a counter without the `_total` of its samples.

use crate::format::Format;
use crate::histogram::Buckets;
use std::collections::HashSet;
use std::fmt::{self, Display, Write as _};

/// What a family of metrics is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// How values are spread.
    Histogram,
    /// Text, as labels of a value that is always 1.
    Info,
}

/// Metrics of one name, which differ by their labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family<'a> {
    /// Its name, without the `_total` of a counter or the `_info` of information.
    pub name: &'a str,
    /// What it is.
    pub kind: Kind,
    /// The unit, which the name ends with; empty for a plain number.
    pub unit: &'a str,
    /// One sentence.
    pub help: &'a str,
}

impl Family<'_> {
    /// The name of its samples, or of what they begin with.
    #[must_use]
    pub fn sample_name(&self) -> String {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        format!("{}{suffix}", self.name)
    }

    /// All names by which readers may meet its samples.
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
    /// The names that are taken.
    names: HashSet<String>,
    /// Of the present family.
    sample: String,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new(format: Format) -> Self {
        let (text, sample) = (String::with_capacity(16 * 1024), String::new());
        Self { format, text, names: HashSet::new(), sample }
    }

    /// Would a sample of this family have a name that is taken?
    #[must_use]
    pub fn is_taken(&self, family: &Family<'_>) -> bool {
        family.names().any(|name| self.names.contains(&name))
    }

    /// Begins a family. Its samples follow, before the next family begins.
    pub fn family(&mut self, family: &Family<'_>) {
        debug_assert!(!self.is_taken(family), "{} stands on the page already", family.name);
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

    /// A sample of the present family, which is no histogram.
    pub fn sample(&mut self, labels: &Labels<'_>, value: impl Into<Value>) {
        self.line("", labels, None, value.into());
    }

    /// A histogram of the present family. `bounds` and `sum` are shown in units of which the counted
    /// values have `scale` each: 1e9 for nanoseconds that are shown as seconds.
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

    /// The same of values that are any numbers.
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

    /// The whole page.
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
    /// A whole number.
    Whole(u64),
    /// Any number.
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

/// Text in which what would end it early is escaped.
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
