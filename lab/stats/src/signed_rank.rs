//! Wilcoxon's signed-rank test: do paired differences lie around zero?
//!
//! Zero differences say nothing about a direction and are left out before ranking, as Wilcoxon
//! did. Differences of equal size share the mean of their ranks. Up to [`EXACT_MAX`] differences
//! the probability is exact for the ranks at hand, ties included: every one of the 2^n ways to
//! give them signs is counted. Beyond, it is the normal approximation with a variance corrected
//! for ties and a correction for continuity of half a rank.

use crate::midranks;
use crate::normal;

/// The most non-zero differences for which the probability is exact.
pub const EXACT_MAX: usize = 25;

/// What the test looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alternative {
    /// A shift from zero in either direction.
    TwoSided,
    /// A shift above zero.
    Greater,
    /// A shift below zero.
    Less,
}

/// The result of a rank test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankTest {
    /// Signed ranks: the sum of the ranks of positive differences. Rank sums: the U of the first
    /// sample, which is the number of pairs in which its value is the larger one.
    pub statistic: f64,
    /// How probable a statistic at least as extreme is if there is no shift. Not a number if there
    /// is nothing to test.
    pub p: f64,
    /// Whether `p` was counted out, not approximated.
    pub is_exact: bool,
}

/// Tests whether `differences` lie around zero. Differences that are all zero have a `p` of 1: they
/// speak for no shift. Values that are not numbers are left out.
#[must_use]
pub fn signed_rank(differences: &[f64], alternative: Alternative) -> RankTest {
    let known: Vec<f64> = differences.iter().copied().filter(|value| !value.is_nan()).collect();
    let moved: Vec<f64> = known.iter().copied().filter(|&value| value != 0.0).collect();
    if moved.is_empty() {
        let p = if known.is_empty() { f64::NAN } else { 1.0 };
        return RankTest { statistic: 0.0, p, is_exact: true };
    }
    let sizes: Vec<f64> = moved.iter().map(|value| value.abs()).collect();
    let (ranks, ties) = midranks::doubled(&sizes);
    let doubled_sum: usize =
        ranks.iter().zip(&moved).filter(|(_, value)| **value > 0.0).map(|(rank, _)| rank).sum();
    let is_exact = moved.len() <= EXACT_MAX;
    let (below, above) = if is_exact {
        exact_tails(&ranks, doubled_sum)
    } else {
        normal_tails(moved.len(), ties, doubled_sum as f64 / 2.0)
    };
    let p = match alternative {
        Alternative::TwoSided => (2.0 * below.min(above)).min(1.0),
        Alternative::Greater => above,
        Alternative::Less => below,
    };
    RankTest { statistic: doubled_sum as f64 / 2.0, p, is_exact }
}

/// The probabilities of a sum of at most, and of at least, `doubled_sum`.
fn exact_tails(doubled_ranks: &[usize], doubled_sum: usize) -> (f64, f64) {
    let total: usize = doubled_ranks.iter().sum();
    // After each rank: in how many ways the signs so far give each sum. At most 2^25, so exact.
    let mut ways = vec![0.0_f64; total + 1];
    ways[0] = 1.0;
    let mut reached = 0;
    for &rank in doubled_ranks {
        for sum in (0..=reached).rev() {
            ways[sum + rank] += ways[sum];
        }
        reached += rank;
    }
    let all: f64 = ways.iter().sum();
    let below: f64 = ways[..=doubled_sum].iter().sum();
    let above: f64 = ways[doubled_sum..].iter().sum();
    (below / all, above / all)
}

fn normal_tails(count: usize, ties: f64, sum: f64) -> (f64, f64) {
    let count = count as f64;
    let mean = count * (count + 1.0) / 4.0;
    let variance = count * (count + 1.0) * (2.0 * count + 1.0) / 24.0 - ties / 48.0;
    continuous_tails(sum, mean, variance)
}

/// The normal probabilities of at most, and of at least, `sum`, each with half a rank more.
pub(crate) fn continuous_tails(sum: f64, mean: f64, variance: f64) -> (f64, f64) {
    if variance <= 0.0 {
        return (1.0, 1.0);
    }
    let deviation = variance.sqrt();
    let below = normal::share_below((sum + 0.5 - mean) / deviation);
    let above = normal::share_below(-(sum - 0.5 - mean) / deviation);
    (below, above)
}
