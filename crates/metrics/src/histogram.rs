//! How values are spread: a count for each of some ranges.

use crate::count::Count;

/// Counts of values by ranges that are fixed, and their sum. One thread writes, as to a [`Count`].
///
/// Values are whole numbers of a small unit: nanoseconds, bytes. The last range, of what is larger than
/// all bounds, has no bound.
#[derive(Debug)]
// The sum comes before the counts, of which most values need the first ones: they share a line of the cache.
#[repr(C)]
pub struct Histogram<const BOUNDS: usize> {
    sum: Count,
    counts: [Count; BOUNDS],
    beyond: Count,
}

impl<const BOUNDS: usize> Default for Histogram<BOUNDS> {
    fn default() -> Self {
        Self { sum: Count::new(), counts: [const { Count::new() }; BOUNDS], beyond: Count::new() }
    }
}

impl<const BOUNDS: usize> Histogram<BOUNDS> {
    /// Counts `value` in the first range whose bound is not below it. `bounds` are in rising order, and the
    /// same at each call.
    #[inline]
    pub fn note(&self, value: u64, bounds: &[u64; BOUNDS]) {
        self.note_times(1, value, bounds);
    }

    /// The same for a value that came so many times.
    #[inline]
    pub fn note_times(&self, times: u64, value: u64, bounds: &[u64; BOUNDS]) {
        let at = bounds.iter().position(|bound| value <= *bound);
        at.map_or(&self.beyond, |at| &self.counts[at]).add(times);
        self.sum.add(value.saturating_mul(times));
    }

    /// Adds what was counted to `buckets`, from any thread.
    pub fn read(&self, buckets: &mut Buckets) {
        let counts = self.counts.iter().chain([&self.beyond]);
        buckets.add(counts.map(Count::get), self.sum.get());
    }
}

/// What was read of one histogram or of several with the same bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Values in each range, not added up; the last range has no bound.
    pub counts: Vec<u64>,
    /// The sum of all values, in their small unit.
    pub sum: u64,
}

impl Buckets {
    /// Adds what was counted elsewhere.
    pub fn add(&mut self, counts: impl Iterator<Item = u64>, sum: u64) {
        for (at, count) in counts.enumerate() {
            match self.counts.get_mut(at) {
                Some(present) => *present += count,
                None => self.counts.push(count),
            }
        }
        self.sum = self.sum.wrapping_add(sum);
    }

    /// Adds another one with the same bounds.
    pub fn merge(&mut self, other: &Self) {
        self.add(other.counts.iter().copied(), other.sum);
    }

    /// How many values there are. It is made of the ranges, so that a page which is written while others
    /// count never contradicts itself.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_counted_in_the_first_range_that_has_it() {
        let histogram = Histogram::default();
        for value in [0, 10, 11, 20, 21, 1000] {
            histogram.note(value, &[10, 20]);
        }
        let mut buckets = Buckets::default();
        histogram.read(&mut buckets);
        assert_eq!(buckets, Buckets { counts: vec![2, 2, 2], sum: 1062 });
        histogram.read(&mut buckets);
        assert_eq!((buckets.count(), buckets.sum), (12, 2124));
    }
}
