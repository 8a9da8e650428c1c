//! Percentiles of latency over runs: the run is what is drawn, not the request.
//!
//! Requests of one run share its fate (one slow start, one unlucky placement), so a million of
//! them tell less about the next run than three runs do. An interval over requests would be far
//! too narrow; here whole runs are drawn with replacement.

use crate::estimates::quantile_of_sorted;
use crate::intervals::{Interval, LEVEL, RESAMPLES};
use crate::random::Random;

/// A value, and how many requests had it: what a histogram lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    /// The value, in any unit.
    pub value: f64,
    /// The number of requests.
    pub count: u64,
}

/// A percentile over several runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentile {
    /// The smallest value that at least the wanted share of all requests of all runs do not
    /// exceed.
    pub estimate: f64,
    /// Its 95 % percentile bootstrap interval over runs. With fewer than two runs it is unknown.
    pub interval: Interval,
    /// How many requests lie above the estimate. A percentile with fewer than 1,000 should not be
    /// printed.
    pub beyond: u64,
}

/// The percentile `share` (0 to 1) of all requests of `runs`, each a list of buckets in any order.
/// Not a number if there are no requests.
#[must_use]
pub fn percentile(runs: &[&[Bucket]], share: f64, seed: u64) -> Percentile {
    let mut buckets: Vec<(f64, usize, u64)> = runs
        .iter()
        .enumerate()
        .flat_map(|(run, list)| list.iter().map(move |bucket| (bucket.value, run, bucket.count)))
        .filter(|(value, _, count)| !value.is_nan() && *count > 0)
        .collect();
    buckets.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
    let totals: Vec<u64> =
        runs.iter().map(|run| run.iter().map(|bucket| bucket.count).sum()).collect();
    let estimate = of_draw(&buckets, &totals, &vec![1; runs.len()], share);
    let above = buckets.iter().filter(|(value, ..)| *value > estimate);
    let beyond = above.map(|(_, _, count)| count).sum();
    let interval = if runs.len() < 2 || estimate.is_nan() {
        Interval::UNKNOWN
    } else {
        resampled(&buckets, &totals, share, seed)
    };
    Percentile { estimate, interval, beyond }
}

fn resampled(buckets: &[(f64, usize, u64)], totals: &[u64], share: f64, seed: u64) -> Interval {
    let mut random = Random::new(seed);
    let mut times = vec![0; totals.len()];
    let mut estimates: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            times.fill(0);
            for _ in 0..totals.len() {
                times[random.below(totals.len())] += 1;
            }
            of_draw(buckets, totals, &times, share)
        })
        .filter(|estimate| !estimate.is_nan())
        .collect();
    estimates.sort_unstable_by(f64::total_cmp);
    Interval {
        low: quantile_of_sorted(&estimates, (1.0 - LEVEL) / 2.0),
        high: quantile_of_sorted(&estimates, (1.0 + LEVEL) / 2.0),
    }
}

/// The percentile of a draw in which each run is there that many `times`.
fn of_draw(buckets: &[(f64, usize, u64)], totals: &[u64], times: &[u64], share: f64) -> f64 {
    let all: u64 = totals.iter().zip(times).map(|(total, times)| total * times).sum();
    let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
    let mut passed = 0;
    for &(value, run, count) in buckets {
        passed += count * times[run];
        if passed >= wanted {
            return value;
        }
    }
    f64::NAN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(values: impl IntoIterator<Item = u32>) -> Vec<Bucket> {
        values.into_iter().map(|value| Bucket { value: f64::from(value), count: 1 }).collect()
    }

    #[test]
    fn a_percentile_counts_requests_of_all_runs() {
        let (low, high) = (run(1..=50), run(51..=100));
        let found = percentile(&[&high, &low], 0.9, 1);
        assert_eq!((found.estimate, found.beyond), (90.0, 10));
        assert_eq!(percentile(&[&high, &low], 1.0, 1).estimate, 100.0);
        assert_eq!(percentile(&[&high, &low], 0.0, 1).estimate, 1.0);
        // A count stands for that many requests.
        let heavy = [Bucket { value: 7.0, count: 1_000_000 }];
        assert_eq!(percentile(&[&heavy, &low], 0.9, 1).estimate, 7.0);
    }

    #[test]
    fn the_interval_is_as_wide_as_runs_differ() {
        let runs: Vec<Vec<Bucket>> = (0..8).map(|run_| run(run_ * 10..run_ * 10 + 100)).collect();
        let runs: Vec<&[Bucket]> = runs.iter().map(Vec::as_slice).collect();
        let found = percentile(&runs, 0.5, 3);
        assert!(found.interval.contains(found.estimate), "{found:?}");
        let width = found.interval.high - found.interval.low;
        assert!((15.0..60.0).contains(&width), "{found:?}");

        let same = run(0..100);
        let equal = percentile(&[same.as_slice(); 8], 0.5, 3);
        assert_eq!(equal.interval, Interval { low: equal.estimate, high: equal.estimate });
    }

    #[test]
    fn one_run_has_no_interval_and_no_requests_have_no_percentile() {
        let only = percentile(&[&run(0..100)], 0.99, 1);
        assert_eq!(only.estimate, 98.0);
        assert!(only.interval.low.is_nan());
        assert!(percentile(&[&[], &[]], 0.5, 1).estimate.is_nan());
        assert!(percentile(&[], 0.5, 1).estimate.is_nan());
    }
}
