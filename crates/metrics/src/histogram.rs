//! Histograms: the number of values in each of several ranges.

use crate::counter::Counter;

/// A histogram with fixed ranges, and the sum of its values. Only one thread may write, as for a
/// [`Counter`].
///
/// Values are integers in a small unit, such as nanoseconds or bytes. The last range, for values
/// above all bounds, is unbounded.
#[derive(Debug)]
// The sum comes before the counts: it shares a cache line with the first ones, which most values
// need.
#[repr(C)]
pub struct Histogram<const BOUNDS: usize> {
    sum: Counter,
    counts: [Counter; BOUNDS],
    overflow: Counter,
}

impl<const BOUNDS: usize> Default for Histogram<BOUNDS> {
    fn default() -> Self {
        Self {
            sum: Counter::new(),
            counts: [const { Counter::new() }; BOUNDS],
            overflow: Counter::new(),
        }
    }
}

impl<const BOUNDS: usize> Histogram<BOUNDS> {
    /// Counts `value` in the first range whose bound is not less than it. `bounds` must be
    /// ascending and the same in each call.
    #[inline]
    pub fn observe(&self, value: u64, bounds: &[u64; BOUNDS]) {
        self.observe_n(1, value, bounds);
    }

    /// Counts a value that occurred `times` times.
    #[inline]
    pub fn observe_n(&self, times: u64, value: u64, bounds: &[u64; BOUNDS]) {
        let index = bounds.iter().position(|bound| value <= *bound);
        index.map_or(&self.overflow, |index| &self.counts[index]).add(times);
        self.sum.add(value.saturating_mul(times));
    }

    /// Adds the counts to `buckets`. Any thread can call this.
    pub fn read_into(&self, buckets: &mut HistogramSnapshot) {
        let counts = self.counts.iter().chain([&self.overflow]);
        buckets.add(counts.map(Counter::get), self.sum.get());
    }
}

/// The contents of one histogram, or of several with the same bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The number of values in each range, not cumulative; the last range is unbounded.
    pub counts: Vec<u64>,
    /// The sum of all values, in their small unit.
    pub sum: u64,
}

impl HistogramSnapshot {
    /// Adds counts from another source.
    pub fn add(&mut self, counts: impl Iterator<Item = u64>, sum: u64) {
        for (index, count) in counts.enumerate() {
            match self.counts.get_mut(index) {
                Some(existing) => *existing += count,
                None => self.counts.push(count),
            }
        }
        self.sum = self.sum.wrapping_add(sum);
    }

    /// Adds the contents of a histogram with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.add(other.counts.iter().copied(), other.sum);
    }

    /// The number of values. It is computed from the ranges, so a page is consistent even if other
    /// threads count while it is written.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_first_range_that_contains_it() {
        let histogram = Histogram::default();
        for value in [0, 10, 11, 20, 21, 1000] {
            histogram.observe(value, &[10, 20]);
        }
        let mut buckets = HistogramSnapshot::default();
        histogram.read_into(&mut buckets);
        assert_eq!(buckets, HistogramSnapshot { counts: vec![2, 2, 2], sum: 1062 });
        histogram.read_into(&mut buckets);
        assert_eq!((buckets.count(), buckets.sum), (12, 2124));
    }
}
