//! The rank-sum test of Mann, Whitney and Wilcoxon: does one sample lie above another?
//!
//! For samples that are not paired. Equal values share the mean of their ranks. If neither sample
//! has more than [`EXACT_MAX`] values the probability is exact for the ranks at hand, ties
//! included: every choice of which values form the first sample is counted. Beyond, it is the
//! normal approximation with a variance corrected for ties and half a rank for continuity.

use crate::midranks;
use crate::signed_rank::{Alternative, RankTest, continuous_tails};

/// The most values of each sample for which the probability is exact.
pub const EXACT_MAX: usize = 20;

/// Tests whether `first` and `second` come from one population. Values that are not numbers are
/// left out; the `p` of an empty sample is not a number.
#[must_use]
pub fn rank_sum(first: &[f64], second: &[f64], alternative: Alternative) -> RankTest {
    let known = |values: &[f64]| -> Vec<f64> {
        values.iter().copied().filter(|value| !value.is_nan()).collect()
    };
    let mut values = known(first);
    let first_count = values.len();
    values.extend(known(second));
    let second_count = values.len() - first_count;
    if first_count == 0 || second_count == 0 {
        return RankTest { statistic: f64::NAN, p: f64::NAN, is_exact: true };
    }
    let (ranks, ties) = midranks::doubled(&values);
    let doubled_sum: usize = ranks[..first_count].iter().sum();
    let least = (first_count * (first_count + 1)) as f64 / 2.0;
    let statistic = doubled_sum as f64 / 2.0 - least;
    let is_exact = first_count.max(second_count) <= EXACT_MAX;
    let (below, above, either) = if is_exact {
        exact_tails(&ranks, first_count, doubled_sum)
    } else {
        let all = values.len() as f64;
        let product = (first_count * second_count) as f64;
        let variance = product / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
        let (below, above) = continuous_tails(statistic, product / 2.0, variance);
        (below, above, (2.0 * below.min(above)).min(1.0))
    };
    let p = match alternative {
        Alternative::TwoSided => either,
        Alternative::Greater => above,
        Alternative::Less => below,
    };
    RankTest { statistic, p, is_exact }
}

/// The probabilities of a sum of at most `doubled_sum`, of at least that, and of one that is as
/// far from the mean in either direction; with ties the distribution need not be symmetric, so the
/// last is not always twice the smaller of the others.
fn exact_tails(doubled_ranks: &[usize], chosen: usize, doubled_sum: usize) -> (f64, f64, f64) {
    let total: usize = doubled_ranks.iter().sum();
    let width = total + 1;
    // ways[k * width + sum]: in how many ways k of the ranks so far give that sum. The largest
    // count is 40 over 20, below 2^38, so exact.
    let mut ways = vec![0.0_f64; (chosen + 1) * width];
    ways[0] = 1.0;
    for (seen, &rank) in doubled_ranks.iter().enumerate() {
        for taken in (1..=chosen.min(seen + 1)).rev() {
            for sum in (rank..width).rev() {
                ways[taken * width + sum] += ways[(taken - 1) * width + sum - rank];
            }
        }
    }
    let ways = &ways[chosen * width..];
    let all: f64 = ways.iter().sum();
    let below: f64 = ways[..=doubled_sum].iter().sum();
    let above: f64 = ways[doubled_sum..].iter().sum();
    // The mean of the doubled sum is the share `chosen` of the total, which need not be whole, so
    // distances are compared after multiplying by the count.
    let distance = |sum: usize| (sum * doubled_ranks.len()).abs_diff(total * chosen);
    let far: f64 =
        (0..width).filter(|&sum| distance(sum) >= distance(doubled_sum)).map(|sum| ways[sum]).sum();
    (below / all, above / all, far / all)
}
