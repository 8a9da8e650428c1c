//! Printed numbers and what they stand for.
//!
//! A printed `4.99 ms` is not 0.00499 s but every value that rounds to it: 4.985 ms to 4.995 ms.
//! All arithmetic of the audit is done on such intervals, so that nothing is called impossible
//! because of the digits that were left out.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

/// Every value between two ends, both included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lowest value.
    pub low: f64,
    /// The highest value; never below `low`.
    pub high: f64,
}

impl Interval {
    /// The interval of one value that is known exactly.
    #[must_use]
    pub fn exact(value: f64) -> Self {
        Self { low: value, high: value }
    }

    /// The interval from `low` to `high`; the ends may come in either order.
    #[must_use]
    pub fn between(low: f64, high: f64) -> Self {
        Self { low: low.min(high), high: low.max(high) }
    }

    /// The product of two intervals of values that are not negative.
    #[must_use]
    pub fn times(self, other: Self) -> Self {
        Self { low: self.low * other.low, high: self.high * other.high }
    }

    /// The quotient of two intervals of values that are not negative. Infinite at the high end if
    /// the divisor may be zero.
    #[must_use]
    pub fn over(self, divisor: Self) -> Self {
        Self { low: self.low / divisor.high, high: self.high / divisor.low }
    }

    /// The sum of two intervals.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { low: self.low + other.low, high: self.high + other.high }
    }

    /// Whether the two have a value in common, with a part in 10^9 of slack for the arithmetic of
    /// floating point numbers.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        let slack = 1e-9 * self.high.abs().max(other.high.abs());
        self.low <= other.high + slack && other.low <= self.high + slack
    }

    /// The value in the middle.
    #[must_use]
    pub fn middle(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }
}

/// What a number measures: which units it may carry and how they scale.
pub trait Dimension {
    /// The units that are understood, for error messages.
    const UNITS: &'static str;

    /// How many base units (seconds, bytes, one per second, one) the unit stands for, or `None`.
    fn scale(unit: &str) -> Option<f64>;

    /// Whether a number without decimals is a count and thus exact.
    const WHOLE_IS_EXACT: bool = false;
}

/// Time, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Time {}
/// Requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {}
/// Bytes, or bytes per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Size {}
/// A count of things; exact when printed without decimals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Count {}
/// A percentage, as a fraction of one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Share {}
/// A factor such as `3.7×`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Factor {}

impl Dimension for Time {
    const UNITS: &'static str = "ns, us, µs, ms, s or min (a trailing /op is ignored)";
    fn scale(unit: &str) -> Option<f64> {
        match unit.trim_end_matches("/op") {
            "ns" => Some(1e-9),
            // The micro sign and the Greek letter look alike and are both found on pages.
            "us" | "\u{b5}s" | "\u{3bc}s" => Some(1e-6),
            "ms" => Some(1e-3),
            "s" => Some(1.0),
            "min" => Some(60.0),
            _ => None,
        }
    }
}

impl Dimension for Rate {
    const UNITS: &'static str = "none, k, M, /s, req/s";
    fn scale(unit: &str) -> Option<f64> {
        match unit {
            "" | "/s" | "req/s" => Some(1.0),
            "k" | "K" => Some(1e3),
            "M" => Some(1e6),
            _ => None,
        }
    }
}

impl Dimension for Size {
    const UNITS: &'static str = "B, kB, MB, GB, KiB, MiB or GiB (a trailing /s is ignored)";
    fn scale(unit: &str) -> Option<f64> {
        match unit.trim_end_matches("/s") {
            "" | "B" => Some(1.0),
            "kB" => Some(1e3),
            "MB" => Some(1e6),
            "GB" => Some(1e9),
            "KiB" => Some(1024.0),
            "MiB" => Some(1024.0 * 1024.0),
            "GiB" => Some(1024.0 * 1024.0 * 1024.0),
            _ => None,
        }
    }
}

impl Dimension for Count {
    const UNITS: &'static str = "none";
    const WHOLE_IS_EXACT: bool = true;
    fn scale(unit: &str) -> Option<f64> {
        unit.is_empty().then_some(1.0)
    }
}

impl Dimension for Share {
    const UNITS: &'static str = "%";
    fn scale(unit: &str) -> Option<f64> {
        (unit == "%").then_some(0.01)
    }
}

impl Dimension for Factor {
    const UNITS: &'static str = "× or x";
    fn scale(unit: &str) -> Option<f64> {
        matches!(unit, "\u{d7}" | "x").then_some(1.0)
    }
}

/// How far a number marked with `~` may lie from what is printed, as a share of it: the mark says
/// that the digits are not to be trusted, without saying how many.
pub const APPROXIMATE_SHARE: f64 = 0.01;

/// A number as a page prints it, with where it stands.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "PrintedText", bound = "D: Dimension")]
pub struct Printed<D> {
    text: String,
    line: Option<u32>,
    value: f64,
    half_step: f64,
    is_approximate: bool,
    dimension: PhantomData<D>,
}

/// The form of a printed number in a claim file: `{ text = "4.99 ms", line = 98 }`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrintedText {
    text: String,
    line: Option<u32>,
}

impl<D: Dimension> Printed<D> {
    /// Reads `text`: an optional `~`, digits with optional commas and decimals, and a unit.
    ///
    /// # Errors
    ///
    /// A sentence that says what could not be read and what would be.
    pub fn read(text: &str, line: Option<u32>) -> Result<Self, String> {
        let bare = text.trim();
        let (is_approximate, bare) = match bare.strip_prefix('~') {
            Some(rest) => (true, rest.trim_start()),
            None => (false, bare),
        };
        let end = bare.find(|c: char| !matches!(c, '0'..='9' | ',' | '.')).unwrap_or(bare.len());
        let (digits, unit) = (&bare[..end], bare[end..].trim());
        let plain = digits.replace(',', "");
        let number: f64 = plain.parse().map_err(|_| {
            format!(
                "`{text}` does not begin with a number; write digits, then a unit ({})",
                D::UNITS
            )
        })?;
        let scale = D::scale(unit).ok_or_else(|| {
            format!("`{text}` has the unit `{unit}`; understood are: {}", D::UNITS)
        })?;
        let decimals = plain.split_once('.').map_or(0, |(_, after)| after.len());
        let is_exact = D::WHOLE_IS_EXACT && decimals == 0 && !is_approximate;
        let step = if is_exact { 0.0 } else { 10f64.powi(-i32::try_from(decimals).unwrap_or(0)) };
        let about = if is_approximate { APPROXIMATE_SHARE * number } else { 0.0 };
        Ok(Self {
            text: text.trim().to_owned(),
            line,
            value: number * scale,
            half_step: (step / 2.0).max(about) * scale,
            is_approximate,
            dimension: PhantomData,
        })
    }
}

impl<D> Printed<D> {
    /// The number as it was printed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line of the source text that holds it, counted from 1.
    #[must_use]
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// The number in base units, as if its digits were all there is.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.value
    }

    /// One unit in the last printed digit, in base units; more if it is approximate.
    #[must_use]
    pub fn step(&self) -> f64 {
        self.half_step * 2.0
    }

    /// Whether the page marks it as approximate with a `~`.
    #[must_use]
    pub fn is_approximate(&self) -> bool {
        self.is_approximate
    }

    /// Every value that rounds to what was printed, never below zero; for an approximate number
    /// all within [`APPROXIMATE_SHARE`] of it.
    #[must_use]
    pub fn interval(&self) -> Interval {
        Interval { low: (self.value - self.half_step).max(0.0), high: self.value + self.half_step }
    }
}

impl<D: Dimension> TryFrom<PrintedText> for Printed<D> {
    type Error = String;
    fn try_from(printed: PrintedText) -> Result<Self, String> {
        Self::read(&printed.text, printed.line)
    }
}

/// A duration for a reader: three or four digits and a fitting unit.
#[must_use]
pub fn time_text(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        s if s >= 1e-6 => (s * 1e6, "µs"),
        s => (s * 1e9, "ns"),
    };
    format!("{} {unit}", digits_text(value))
}

/// A number for a reader: at least four significant digits, without trailing noise.
#[must_use]
pub fn digits_text(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => grouped_text(value),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        v if v >= 0.01 || v == 0.0 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}

/// A whole number with commas between groups of three digits.
#[must_use]
pub fn grouped_text(value: f64) -> String {
    let plain = format!("{value:.0}");
    let (sign, digits) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
    let mut text = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Interval {
        Printed::<Time>::read(text, None).unwrap().interval()
    }

    fn near(interval: Interval, low: f64, high: f64) {
        assert!((interval.low - low).abs() <= 1e-12 * high.max(1.0), "{interval:?} {low}");
        assert!((interval.high - high).abs() <= 1e-12 * high.max(1.0), "{interval:?} {high}");
    }

    #[test]
    fn a_printed_time_stands_for_all_that_rounds_to_it() {
        near(time("4.99 ms"), 0.004_985, 0.004_995);
        near(time("4.99ms"), 0.004_985, 0.004_995);
        near(time("118µs"), 117.5e-6, 118.5e-6);
        near(time("118 \u{3bc}s"), 117.5e-6, 118.5e-6);
        near(time("~500 us"), 495e-6, 505e-6);
        near(time("0.000 ms"), 0.0, 0.5e-6);
        near(time("1,064 ns"), 1063.5e-9, 1064.5e-9);
        near(time("17.48 ns/op"), 17.475e-9, 17.485e-9);
    }

    #[test]
    fn rates_sizes_shares_and_factors_are_scaled() {
        near(Printed::<Rate>::read("131.79k", None).unwrap().interval(), 131_785.0, 131_795.0);
        near(Printed::<Rate>::read("165,573", None).unwrap().interval(), 165_572.5, 165_573.5);
        near(Printed::<Share>::read("45.7%", None).unwrap().interval(), 0.4565, 0.4575);
        near(Printed::<Factor>::read("3.7×", None).unwrap().interval(), 3.65, 3.75);
        let size = Printed::<Size>::read("16.93MiB", None).unwrap();
        assert!((size.value() - 17_752_391.68).abs() < 0.01);
    }

    #[test]
    fn a_count_without_decimals_is_exact() {
        near(Printed::<Count>::read("929,792", None).unwrap().interval(), 929_792.0, 929_792.0);
    }

    #[test]
    fn an_unknown_unit_is_refused_with_the_known_ones() {
        let error = Printed::<Time>::read("4.99 mz", None).unwrap_err();
        assert!(error.contains("`mz`") && error.contains("ms"), "{error}");
        assert!(Printed::<Time>::read("fast", None).is_err());
        assert!(Printed::<Time>::read("4.99", None).is_err(), "a time needs a unit");
    }

    #[test]
    fn numbers_for_readers_keep_four_digits_and_commas() {
        assert_eq!(grouped_text(4_098_580.0), "4,098,580");
        assert_eq!(grouped_text(999.0), "999");
        assert_eq!(digits_text(42.674), "42.67");
        assert_eq!(time_text(191.45e-6), "191.4 µs");
        assert_eq!(time_text(2.0), "2.000 s");
    }
}
