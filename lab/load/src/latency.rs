//! Times in constant memory, with the tail kept.

use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};
use serde::Serialize;

/// The longest time that is told apart: one hour. Longer ones count as this long.
const NANOSECONDS_MAX: u64 = 3_600_000_000_000;

/// Relative resolution of a recorded time, in decimal digits.
const DIGITS: u8 = 3;

/// A percentile above the 99th is shown only with at least this many samples beyond it.
pub const SAMPLES_BEYOND_MIN: u64 = 1000;

/// A distribution of times: input in nanoseconds, three significant digits, about 250 KB however
/// many there are. Two of them are merged by addition, which percentiles themselves never allow.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
    censored: u64,
}

/// One point of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Percentile {
    /// Which one, such as 99.9.
    pub percent: f64,
    /// The time that this share of the samples did not exceed. None if too few samples lie beyond
    /// it to mean anything.
    pub nanoseconds: Option<u64>,
    /// How many samples are longer.
    pub beyond: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            histogram: Histogram::new_with_bounds(1, NANOSECONDS_MAX, DIGITS)
                .expect("the bounds are constants"),
            sum_ns: 0,
            max_ns: 0,
            censored: 0,
        }
    }
}

impl Latency {
    /// Counts one time.
    pub fn record(&mut self, nanoseconds: u64) {
        self.histogram.saturating_record(nanoseconds.clamp(1, NANOSECONDS_MAX));
        self.sum_ns += u128::from(nanoseconds);
        self.max_ns = self.max_ns.max(nanoseconds);
    }

    /// Counts a time that is known only to be at least this long, because nobody waited longer.
    pub fn record_censored(&mut self, nanoseconds: u64) {
        self.record(nanoseconds);
        self.censored += 1;
    }

    /// Adds the samples of another distribution.
    pub fn add(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
        self.censored += other.censored;
    }

    /// How many samples there are, censored ones among them.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// How many samples are lower bounds only.
    #[must_use]
    pub fn censored(&self) -> u64 {
        self.censored
    }

    /// The exact mean in nanoseconds; not a number without samples. With censored samples it is a
    /// lower bound.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.sum_ns as f64 / self.count() as f64
    }

    /// The longest time, exact.
    #[must_use]
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// One percentile, from 0 to 100, shown whatever lies beyond it up to the 99th.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Percentile {
        let count = self.count();
        if count == 0 {
            return Percentile { percent, nanoseconds: None, beyond: 0 };
        }
        let value = self.histogram.value_at_percentile(percent);
        // The histogram's value is the upper end of a bucket; no sample exceeds the maximum.
        let nanoseconds = value.min(self.max_ns);
        let beyond = count - self.histogram.count_between(0, value).min(count);
        let is_shown = percent <= 99.0 || beyond >= SAMPLES_BEYOND_MIN;
        Percentile { percent, nanoseconds: is_shown.then_some(nanoseconds), beyond }
    }

    /// The percentiles of a report: 50, 90, 99 and 99.9.
    #[must_use]
    pub fn percentiles(&self) -> [Percentile; 4] {
        [50.0, 90.0, 99.0, 99.9].map(|percent| self.percentile(percent))
    }

    /// The classes that were seen: the upper end of each in nanoseconds, and its count, rising.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.histogram
            .iter_recorded()
            .map(|class| (class.value_iterated_to().min(self.max_ns), class.count_at_value()))
    }

    /// The histogram in the V2 format that HdrHistogram's tools read. The exact sum and the
    /// number of censored samples are not part of it.
    #[must_use]
    pub fn to_v2(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(&self.histogram, &mut bytes)
            .expect("writing into memory does not fail");
        bytes
    }

    /// Reads what [`Latency::to_v2`] wrote; the sum is as exact as the buckets are, and no sample
    /// counts as censored.
    #[must_use]
    pub fn from_v2(mut bytes: &[u8]) -> Option<Latency> {
        let read: Histogram<u64> = Deserializer::new().deserialize(&mut bytes).ok()?;
        let mut latency = Latency::default();
        latency.histogram.add(&read).ok()?;
        latency.max_ns = read.max();
        latency.sum_ns = (read.mean() * read.len() as f64) as u128;
        Some(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evenly(count: u64) -> Latency {
        let mut latency = Latency::default();
        (1..=count).for_each(|number| latency.record(number * 1000));
        latency
    }

    fn is_near(value: u64, expected: u64) -> bool {
        value.abs_diff(expected) * 1000 <= expected
    }

    #[test]
    fn percentiles_of_a_known_distribution_are_within_a_thousandth() {
        let latency = evenly(2_000_000);
        let [p50, p90, p99, p999] = latency.percentiles();
        for (point, expected) in [(p50, 1_000_000), (p90, 1_800_000), (p99, 1_980_000)] {
            let nanoseconds = point.nanoseconds.unwrap();
            assert!(is_near(nanoseconds, expected * 1000), "{point:?}");
        }
        assert!(is_near(p999.nanoseconds.unwrap(), 1_998_000_000));
        assert_eq!(latency.max(), Duration::from_secs(2));
        assert!((latency.mean_ns() - 1_000_000_500.0).abs() < 1.0);
    }

    #[test]
    fn samples_beyond_are_counted_and_too_few_hide_the_percentile() {
        let [_, _, p99, p999] = evenly(100_000).percentiles();
        assert!(p99.beyond.abs_diff(1000) <= 100, "{p99:?}");
        assert!(p999.beyond < SAMPLES_BEYOND_MIN);
        assert_eq!(p999.nanoseconds, None);
        assert!(evenly(2_100_000).percentile(99.9).nanoseconds.is_some());
    }

    #[test]
    fn merging_gives_what_one_would_have_recorded() {
        let (mut low, mut high) = (Latency::default(), Latency::default());
        for number in 1..=5000_u64 {
            if number % 3 == 0 { low.record(number * 7) } else { high.record(number * 7) }
        }
        high.record_censored(1_000_000);
        low.add(&high);
        let mut whole = Latency::default();
        (1..=5000_u64).for_each(|number| whole.record(number * 7));
        whole.record_censored(1_000_000);
        assert_eq!(low.percentiles(), whole.percentiles());
        assert_eq!((low.count(), low.censored(), low.max()), (5001, 1, whole.max()));
    }

    #[test]
    fn the_extremes_are_counted_and_never_cut_off() {
        let mut latency = Latency::default();
        latency.record(0);
        latency.record(u64::MAX);
        assert_eq!(latency.count(), 2);
        assert_eq!(latency.max(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn the_v2_form_is_read_back_the_same() {
        let latency = evenly(3000);
        let bytes = latency.to_v2();
        // The cookie of the uncompressed V2 encoding, with its word size.
        assert_eq!(bytes[..4], 0x1c84_9313_u32.to_be_bytes());
        let read = Latency::from_v2(&bytes).unwrap();
        assert_eq!(read.percentile(50.0), latency.percentile(50.0));
        assert_eq!(read.count(), 3000);
        // The exact maximum is not part of the form, so the last class may end elsewhere.
        let counts = |one: &Latency| one.buckets().map(|(_, count)| count).collect::<Vec<_>>();
        assert_eq!(counts(&read), counts(&latency));
        assert_eq!(latency.buckets().map(|(_, count)| count).sum::<u64>(), 3000);
        assert_eq!(latency.buckets().last().map(|(value, _)| value), Some(3_000_000));
        assert!(Latency::from_v2(b"nothing").is_none());
    }

    #[test]
    fn nothing_recorded_shows_nothing() {
        let latency = Latency::default();
        assert!(latency.mean_ns().is_nan());
        assert!(latency.percentiles().iter().all(|point| point.nanoseconds.is_none()));
    }
}
