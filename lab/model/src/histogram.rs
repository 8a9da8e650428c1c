//! Latencies, counted in classes.

use serde::{Deserialize, Serialize};

/// A histogram of latencies in nanoseconds: how often each class was seen, with the class's upper
/// end as its value. Classes without samples are left out, so it is small, and any tool that
/// reads JSON can read it. Histograms are merged by adding, never by averaging percentiles.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Histogram {
    /// Pairs of a class's upper end in nanoseconds and its count, rising.
    buckets: Vec<(u64, u64)>,
    /// Samples that are at least as long as they are counted, because nobody waited longer: the
    /// timeouts. They are part of the buckets.
    pub censored: u64,
}

impl Histogram {
    /// A histogram from values with counts, in any order.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = (u64, u64)>) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.buckets.extend(values);
        histogram.order();
        histogram
    }

    /// Adds the samples of another one.
    pub fn merge(&mut self, other: &Histogram) {
        self.buckets.extend_from_slice(&other.buckets);
        self.censored += other.censored;
        self.order();
    }

    /// The pairs of value and count, rising.
    #[must_use]
    pub fn buckets(&self) -> &[(u64, u64)] {
        &self.buckets
    }

    /// How many samples there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The latency that the share `share` (0 to 1) of all samples does not exceed, in nanoseconds;
    /// none if there are no samples.
    #[must_use]
    pub fn at(&self, share: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.buckets
            .iter()
            .find(|(_, count)| {
                seen += count;
                seen >= wanted
            })
            .or(self.buckets.last())
            .map(|(value, _)| *value)
    }

    /// How many samples lie beyond the share `share` (0 to 1).
    #[must_use]
    pub fn beyond(&self, share: f64) -> u64 {
        let count = self.count();
        count.saturating_sub((count as f64 * share).ceil() as u64)
    }

    /// The longest latency, in nanoseconds; none if there are no samples.
    #[must_use]
    pub fn longest(&self) -> Option<u64> {
        self.buckets.last().map(|(value, _)| *value)
    }

    /// The same samples in far fewer classes: those that [`shares`] fall into, and the last one.
    /// For these shares, and for the number of samples beyond any share, it says exactly what the
    /// whole histogram says.
    #[must_use]
    pub fn thinned(&self) -> Histogram {
        let mut kept: Vec<u64> = shares().filter_map(|share| self.at(share)).collect();
        kept.extend(self.longest());
        kept.sort_unstable();
        let mut thinned = Histogram { censored: self.censored, ..Histogram::default() };
        let mut sum = 0;
        for (value, count) in &self.buckets {
            sum += count;
            if kept.binary_search(value).is_ok() {
                thinned.buckets.push((*value, std::mem::take(&mut sum)));
            }
        }
        thinned
    }

    fn order(&mut self) {
        self.buckets.sort_unstable();
        self.buckets.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                first.1 += later.1;
            }
            is_same
        });
        self.buckets.retain(|(_, count)| *count > 0);
    }
}

/// Steps of [`shares`] between a share and ten times fewer samples beyond it.
const STEPS: i32 = 20;

/// Powers of ten that [`shares`] go on for: up to one sample in 100,000 lies beyond.
const DECADES: i32 = 5;

/// The shares that a thinned histogram tells exactly: some below the median, the usual ones, and
/// even steps of the logarithm of what lies beyond.
pub fn shares() -> impl Iterator<Item = f64> {
    let beyond = |step: i32| 10_f64.powf(-f64::from(step) / f64::from(STEPS));
    let steps = (0..=STEPS * DECADES).map(move |step| 1.0 - beyond(step));
    [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999].into_iter().chain(steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_histogram_says_the_same_in_fewer_classes() {
        let whole = Histogram::new((1..=5_000_u64).map(|value| (value * 7, 1 + value % 13)));
        let thin = whole.thinned();
        assert!(thin.buckets().len() < 120, "{}", thin.buckets().len());
        assert_eq!(thin.count(), whole.count());
        assert_eq!(thin.longest(), whole.longest());
        for share in shares() {
            assert_eq!(thin.at(share), whole.at(share), "{share}");
            assert_eq!(thin.beyond(share), whole.beyond(share), "{share}");
        }
        assert_eq!(Histogram::default().thinned(), Histogram::default());
    }

    #[test]
    fn shares_are_counted_in_samples() {
        let histogram = Histogram::new([(30, 1), (10, 98), (20, 1)]);
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.at(0.0), Some(10));
        assert_eq!(histogram.at(0.98), Some(10));
        assert_eq!(histogram.at(0.99), Some(20));
        assert_eq!(histogram.at(1.0), Some(30));
        assert_eq!(histogram.beyond(0.99), 1);
        assert_eq!(Histogram::default().at(0.5), None);
    }

    #[test]
    fn merging_adds_counts_of_equal_values() {
        let mut histogram = Histogram::new([(10, 1), (30, 2)]);
        histogram.merge(&Histogram { censored: 3, ..Histogram::new([(30, 3), (20, 1)]) });
        assert_eq!(histogram.buckets(), [(10, 1), (20, 1), (30, 5)]);
        assert_eq!(histogram.censored, 3);
        assert_eq!(histogram.longest(), Some(30));
    }
}
