//! One number for many: centres, quantiles, spreads, and the ratios of a pair.

/// What turns the median absolute deviation of a normal population into its standard deviation.
const NORMAL_DEVIATIONS: f64 = 1.482_602_218_505_602;

/// The value below which the share `share` (0 to 1) of the values lies, by linear interpolation
/// between neighbours (type 7 of Hyndman and Fan). Not a number if there are no values.
#[must_use]
pub fn quantile(values: &[f64], share: f64) -> f64 {
    quantile_of_sorted(&sorted(values), share)
}

/// The same as [`quantile`], for values that are sorted already.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let below = position.floor();
    let index = below as usize;
    let above = sorted[(index + 1).min(sorted.len() - 1)];
    if above == sorted[index] {
        // Two infinities have no difference to interpolate over.
        return above;
    }
    sorted[index] + (above - sorted[index]) * (position - below)
}

/// The middle value. Not a number if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The Hodges-Lehmann estimate of the centre: the median of the means of all pairs, each value
/// with itself included. It is nearly as exact as the mean and hardly moved by outliers. Not a
/// number if there are no values. Takes time and memory by the square of the count.
#[must_use]
pub fn hodges_lehmann(values: &[f64]) -> f64 {
    let mut means = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
    for (index, first) in values.iter().enumerate() {
        means.extend(values[index..].iter().map(|second| middle(*first, *second)));
    }
    median_in_place(&mut means)
}

/// The Hodges-Lehmann estimate of how far `values` lie above `others`: the median of all
/// differences between one of each. For samples that are not paired. Not a number if either is
/// empty.
#[must_use]
pub fn hodges_lehmann_shift(values: &[f64], others: &[f64]) -> f64 {
    let mut differences: Vec<f64> =
        values.iter().flat_map(|value| others.iter().map(move |other| value - other)).collect();
    median_in_place(&mut differences)
}

/// The natural logarithms of `costs` over `reference`, block by block: negative is cheaper.
/// Blocks in which either is missing (not a number) or not positive are left out, and so are
/// blocks that only one of the two has.
#[must_use]
pub fn log_ratios(costs: &[f64], reference: &[f64]) -> Vec<f64> {
    costs
        .iter()
        .zip(reference)
        .filter(|(cost, reference)| **cost > 0.0 && **reference > 0.0)
        .map(|(cost, reference)| (cost / reference).ln())
        .filter(|logarithm| logarithm.is_finite())
        .collect()
}

/// The width of the middle half of the values, by [`quantile`].
#[must_use]
pub fn interquartile_range(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    quantile_of_sorted(&sorted, 0.75) - quantile_of_sorted(&sorted, 0.25)
}

/// The median distance of the values from their median. Half of the values may be arbitrarily
/// wrong before it is.
#[must_use]
pub fn median_absolute_deviation(values: &[f64]) -> f64 {
    let centre = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - centre).abs()).collect();
    median(&distances)
}

/// The standard deviation of the bulk of the values: 1.4826 median absolute deviations, which is
/// the standard deviation if they are normal, and does not see outliers.
#[must_use]
pub fn robust_deviation(values: &[f64]) -> f64 {
    NORMAL_DEVIATIONS * median_absolute_deviation(values)
}

/// The mean of two values, without overflow.
pub(crate) fn middle(first: f64, second: f64) -> f64 {
    first / 2.0 + second / 2.0
}

pub(crate) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn median_in_place(values: &mut [f64]) -> f64 {
    let count = values.len();
    if count == 0 {
        return f64::NAN;
    }
    let (below, upper, _) = values.select_nth_unstable_by(count / 2, f64::total_cmp);
    if count % 2 == 1 {
        return *upper;
    }
    let lower = below.iter().copied().max_by(f64::total_cmp).expect("an even count is at least 2");
    middle(lower, *upper)
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
        assert_eq!(quantile(&[f64::NEG_INFINITY; 3], 0.4), f64::NEG_INFINITY);
    }

    #[test]
    fn hodges_lehmann_is_the_median_of_pair_means() {
        // 1, 2, 10 have the pair means 1, 1.5, 2, 5.5, 6, 10: an even count, so the middle of
        // 2 and 5.5.
        close(hodges_lehmann(&[1.0, 2.0, 10.0]), 3.75);
        // 1, 2 have 1, 1.5, 2: an odd count.
        close(hodges_lehmann(&[1.0, 2.0]), 1.5);
        close(hodges_lehmann(&[5.0]), 5.0);
        assert!(hodges_lehmann(&[]).is_nan());
        // The differences of Hollander and Wolfe's depression data; R's wilcox.test(conf.int =
        // TRUE) prints the pseudo-median -0.46.
        let differences = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];
        close(hodges_lehmann(&differences), -0.46);
    }

    #[test]
    fn the_shift_is_the_median_of_all_differences() {
        // Differences 4 - {1, 2, 6} and 7 - {1, 2, 6}: -2, 1, 2, 3, 5, 6.
        close(hodges_lehmann_shift(&[4.0, 7.0], &[1.0, 2.0, 6.0]), 2.5);
        close(hodges_lehmann_shift(&[1.0, 2.0, 6.0], &[4.0, 7.0]), -2.5);
        // Hollander and Wolfe's permeability data; R's wilcox.test prints the difference -0.305.
        let term = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
        let early = [1.15, 0.88, 0.90, 0.74, 1.21];
        close(hodges_lehmann_shift(&early, &term), -0.305);
        assert!(hodges_lehmann_shift(&[], &term).is_nan());
    }

    #[test]
    fn one_outlier_hardly_moves_the_estimate() {
        let mut values: Vec<f64> = (0..41).map(|index| 100.0 + f64::from(index % 5)).collect();
        let (before, spread) = (hodges_lehmann(&values), robust_deviation(&values));
        values[7] = 1e9;
        assert!((hodges_lehmann(&values) - before).abs() < 0.5);
        assert!((robust_deviation(&values) - spread).abs() < 0.5);
    }

    #[test]
    fn spreads_are_those_worked_out_by_hand() {
        let values = [1.0, 2.0, 3.0, 4.0, 10.0];
        close(interquartile_range(&values), 2.0);
        // The distances from 3 are 2, 1, 0, 1, 7.
        close(median_absolute_deviation(&values), 1.0);
        close(robust_deviation(&values), 1.482_602_218_505_602);
    }

    #[test]
    fn blocks_without_two_costs_have_no_ratio() {
        let costs = [2.0, f64::NAN, 2.0, 0.0, -1.0, f64::INFINITY, 3.0];
        let found = log_ratios(&costs, &[1.0, 1.0, 4.0, 1.0, -1.0, 1.0]);
        assert_eq!(found, [2.0_f64.ln(), 0.5_f64.ln()]);
    }
}
