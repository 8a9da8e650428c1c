//! The few statistics that paired slices need, each with one meaning.
//!
//! The unit of analysis is a block: every contender once, close together in time. Slow drift of
//! the machine moves a whole block, so ratios within blocks keep what absolute figures lose.

use serde::Serialize;

use crate::random::Random;

/// How often a bootstrap draws anew.
pub const RESAMPLES: usize = 2_000;

/// The smallest difference worth a word, as a share: one per cent.
pub const SMALLEST_DIFFERENCE: f64 = 0.01;

/// A range that holds the estimated value in 95 of 100 repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The lower end, in the unit of the estimate.
    pub low: f64,
    /// The upper end, in the unit of the estimate.
    pub high: f64,
}

/// The value below which the share `share` (0 to 1) of the values lies, by linear interpolation
/// between neighbours (type 7 of Hyndman and Fan). Not a number if there are no values.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(&sorted, share)
}

/// The middle value. Not a number if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The Hodges-Lehmann estimate of the centre: the median of the means of all pairs, each value
/// with itself included. It is nearly as exact as the mean and hardly moved by outliers.
#[must_use]
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (index, first) in values.iter().enumerate() {
        means.extend(values[index..].iter().map(|second| (first + second) / 2.0));
    }
    let count = means.len();
    if count == 0 {
        return f64::NAN;
    }
    let (below, upper, _) = means.select_nth_unstable_by(count / 2, f64::total_cmp);
    if count % 2 == 1 {
        return *upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).expect("an even count is at least 2");
    (lower + *upper) / 2.0
}

/// The 95 % percentile bootstrap interval of `estimate` over `values`: [`RESAMPLES`] draws with
/// replacement. The same seed gives the same interval.
pub fn bootstrap(values: &[f64], seed: u64, estimate: impl Fn(&[f64]) -> f64) -> Interval {
    if values.is_empty() {
        return Interval { low: f64::NAN, high: f64::NAN };
    }
    let mut random = Random::new(seed);
    let mut draw = vec![0.0; values.len()];
    let mut estimates: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            draw.fill_with(|| values[random.below(values.len())]);
            estimate(&draw)
        })
        .collect();
    estimates.sort_unstable_by(f64::total_cmp);
    Interval {
        low: quantile_of_sorted(&estimates, 0.025),
        high: quantile_of_sorted(&estimates, 0.975),
    }
}

/// What a contender costs against the reference, from paired blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The cost of the contender over the cost of the reference: below 1 is cheaper.
    pub estimate: f64,
    /// The bootstrap interval of the estimate.
    pub interval: Interval,
}

/// The ratio of paired costs, by the Hodges-Lehmann estimate over the log-ratios of the blocks.
/// Blocks in which either cost is missing or not positive are left out.
#[must_use]
pub fn paired_ratio(costs: &[f64], reference: &[f64], seed: u64) -> Ratio {
    let logarithms: Vec<f64> = costs
        .iter()
        .zip(reference)
        .map(|(cost, reference)| (cost / reference).ln())
        .filter(|logarithm| logarithm.is_finite())
        .collect();
    let interval = bootstrap(&logarithms, seed, hodges_lehmann);
    Ratio {
        estimate: hodges_lehmann(&logarithms).exp(),
        interval: Interval { low: interval.low.exp(), high: interval.high.exp() },
    }
}

/// The share by which the same program seems to differ from itself: the far end of the interval
/// of its A/A ratio, and never less than [`SMALLEST_DIFFERENCE`]. Infinite if there is no ratio.
#[must_use]
pub fn noise_band(again: Ratio) -> f64 {
    let far = again.interval.high.max(1.0 / again.interval.low) - 1.0;
    if far.is_nan() { f64::INFINITY } else { far.max(SMALLEST_DIFFERENCE) }
}

/// What may be said about a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The whole interval lies below the band: less server CPU per request.
    Faster,
    /// The whole interval lies above the band: more server CPU per request.
    Slower,
    /// The interval touches the band, or there is no interval.
    CannotTell,
}

impl Verdict {
    /// The verdict on `ratio` when differences up to the share `band` are noise.
    #[must_use]
    pub fn of(ratio: Ratio, band: f64) -> Verdict {
        if ratio.interval.high < 1.0 / (1.0 + band) {
            Verdict::Faster
        } else if ratio.interval.low > 1.0 + band {
            Verdict::Slower
        } else {
            Verdict::CannotTell
        }
    }

    /// The verdict in the words of a report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::CannotTell => "cannot tell",
        }
    }
}

fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    let position = share * (sorted.len() - 1) as f64;
    let below = position.floor();
    let index = below as usize;
    let above = sorted[(index + 1).min(sorted.len() - 1)];
    sorted[index] + (above - sorted[index]) * (position - below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(left: f64, right: f64) {
        assert!((left - right).abs() < 1e-12, "{left} is not {right}");
    }

    #[test]
    fn quantiles_interpolate_between_neighbours() {
        let values = [4.0, 1.0, 3.0, 2.0];
        close(quantile(&values, 0.0), 1.0);
        close(quantile(&values, 0.25), 1.75);
        close(median(&values), 2.5);
        close(quantile(&values, 0.75), 3.25);
        close(quantile(&values, 1.0), 4.0);
        close(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn hodges_lehmann_is_the_median_of_pair_means() {
        // 1, 2, 10 have the pair means 1, 1.5, 2, 5.5, 6, 10: an even count, so the middle of
        // 2 and 5.5.
        close(hodges_lehmann(&[1.0, 2.0, 10.0]), 3.75);
        // 1, 2 have 1, 1.5, 2: an odd count.
        close(hodges_lehmann(&[1.0, 2.0]), 1.5);
        close(hodges_lehmann(&[5.0]), 5.0);
        // The differences of Hollander and Wolfe's depression data; R's wilcox.test(conf.int =
        // TRUE) prints the pseudo-median -0.46.
        let differences = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];
        close(hodges_lehmann(&differences), -0.46);
    }

    #[test]
    fn one_outlier_hardly_moves_the_estimate() {
        let mut values: Vec<f64> = (0..41).map(|index| 100.0 + f64::from(index % 5)).collect();
        let before = hodges_lehmann(&values);
        values[7] = 1e9;
        assert!((hodges_lehmann(&values) - before).abs() < 0.5);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval() {
        let values: Vec<f64> = (0..30).map(|index| f64::from(index * index % 17)).collect();
        let first = bootstrap(&values, 9, median);
        assert_eq!(first, bootstrap(&values, 9, median));
        assert_ne!(first, bootstrap(&values, 10, hodges_lehmann));
        let centre = median(&values);
        assert!(first.low <= centre && centre <= first.high, "{first:?} lacks {centre}");
    }

    #[test]
    fn equal_values_have_an_interval_of_no_width() {
        let interval = bootstrap(&[3.0; 20], 1, median);
        assert_eq!(interval, Interval { low: 3.0, high: 3.0 });
    }

    #[test]
    fn a_constant_factor_survives_any_drift() {
        let reference: Vec<f64> = (0..40).map(|block| 4.4 + 0.03 * f64::from(block)).collect();
        let costs: Vec<f64> = reference.iter().map(|cost| cost * 1.05).collect();
        let ratio = paired_ratio(&costs, &reference, 3);
        close(ratio.estimate, 1.05);
        close(ratio.interval.low, 1.05);
        close(ratio.interval.high, 1.05);
    }

    #[test]
    fn a_block_without_a_cost_is_left_out() {
        let ratio = paired_ratio(&[2.0, f64::NAN, 2.0, 0.0], &[1.0, 1.0, 1.0, 1.0], 3);
        close(ratio.estimate, 2.0);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval_beyond_the_band() {
        let ratio = |low, high| Ratio { estimate: 1.0, interval: Interval { low, high } };
        assert_eq!(Verdict::of(ratio(0.90, 0.95), 0.02), Verdict::Faster);
        assert_eq!(Verdict::of(ratio(0.90, 0.99), 0.02), Verdict::CannotTell);
        assert_eq!(Verdict::of(ratio(1.03, 1.20), 0.02), Verdict::Slower);
        assert_eq!(Verdict::of(ratio(1.01, 1.20), 0.02), Verdict::CannotTell);
        assert_eq!(Verdict::of(ratio(f64::NAN, f64::NAN), 0.02), Verdict::CannotTell);
    }

    #[test]
    fn the_band_is_the_far_end_of_the_program_against_itself() {
        let ratio = |low, high| Ratio { estimate: 1.0, interval: Interval { low, high } };
        close(noise_band(ratio(0.999, 1.002)), SMALLEST_DIFFERENCE);
        close(noise_band(ratio(0.8, 1.1)), 0.25);
        close(noise_band(ratio(0.99, 1.03)), 0.03);
        assert!(noise_band(ratio(f64::NAN, f64::NAN)).is_infinite());
    }
}
