//! Bootstrap intervals: how far an estimate would move if the run were done again.
//!
//! Blocks are drawn with replacement, the estimate is taken again from each draw, and the spread
//! of these estimates is the interval. The BCa interval (bias-corrected and accelerated, Efron
//! 1987) moves its ends by how lopsided that spread is, so it keeps its promise for skewed costs,
//! where the plain percentile interval leans.

use crate::estimates::{middle, quantile_of_sorted, sorted};
use crate::normal;
use crate::random::Random;

/// How often a bootstrap draws anew. The ends of a 95 % interval then move by less than a
/// twentieth of its width from seed to seed.
pub const RESAMPLES: usize = 10_000;

/// The level of the intervals in reports.
pub const LEVEL: f64 = 0.95;

/// A range around an estimate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The lower end, in the unit of the estimate.
    pub low: f64,
    /// The upper end, in the unit of the estimate.
    pub high: f64,
}

impl Interval {
    /// The interval of what nobody knows: both ends are not numbers.
    pub const UNKNOWN: Interval = Interval { low: f64::NAN, high: f64::NAN };

    /// Whether `value` lies inside; the ends count.
    #[must_use]
    pub fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }

    /// Both ends sent through `change`, which must not fall.
    #[must_use]
    pub fn map(self, change: impl Fn(f64) -> f64) -> Interval {
        Interval { low: change(self.low), high: change(self.high) }
    }
}

/// An estimate with the estimates of its resamples. One serves intervals at every level.
#[derive(Debug, Clone)]
pub struct Bootstrap {
    estimate: f64,
    resampled: Vec<f64>,
    acceleration: f64,
}

impl Bootstrap {
    /// Draws `resamples` times (usually [`RESAMPLES`]) with replacement from `values`, which are
    /// one per block. `estimate` must not depend on the order of the values. The same seed gives
    /// the same draws.
    pub fn new(
        values: &[f64],
        resamples: usize,
        seed: u64,
        estimate: impl Fn(&[f64]) -> f64,
    ) -> Bootstrap {
        let mut draw = Vec::with_capacity(values.len());
        Bootstrap::by_counts(values, resamples, seed, |sorted, counts| {
            draw.clear();
            for (value, &count) in sorted.iter().zip(counts) {
                draw.extend(std::iter::repeat_n(*value, count as usize));
            }
            estimate(&draw)
        })
    }

    /// The same as [`Bootstrap::new`] with [`crate::estimates::hodges_lehmann`], but many times quicker: the means
    /// of all pairs are sorted once, and a draw only weighs them.
    #[must_use]
    pub fn of_hodges_lehmann(values: &[f64], resamples: usize, seed: u64) -> Bootstrap {
        let pairs = PairMeans::new(&sorted(values));
        Bootstrap::by_counts(values, resamples, seed, |_, counts| pairs.weighted_median(counts))
    }

    /// `estimate` gets the sorted values, and how often each is in the draw.
    fn by_counts(
        values: &[f64],
        resamples: usize,
        seed: u64,
        mut estimate: impl FnMut(&[f64], &[u32]) -> f64,
    ) -> Bootstrap {
        let values = sorted(values);
        let mut counts = vec![1_u32; values.len()];
        let whole = estimate(&values, &counts);
        if values.is_empty() || resamples == 0 {
            return Bootstrap { estimate: whole, resampled: Vec::new(), acceleration: 0.0 };
        }
        let mut without = Vec::with_capacity(values.len());
        for left_out in 0..values.len() {
            counts[left_out] = 0;
            without.push(estimate(&values, &counts));
            counts[left_out] = 1;
        }
        let mut random = Random::new(seed);
        let mut resampled: Vec<f64> = (0..resamples)
            .map(|_| {
                counts.fill(0);
                for _ in 0..values.len() {
                    counts[random.below(values.len())] += 1;
                }
                estimate(&values, &counts)
            })
            .collect();
        resampled.sort_unstable_by(f64::total_cmp);
        Bootstrap { estimate: whole, resampled, acceleration: acceleration(&without) }
    }

    /// The estimate from the values as they are.
    #[must_use]
    pub fn estimate(&self) -> f64 {
        self.estimate
    }

    /// The percentile interval: the middle `level` (0 to 1) of the resampled estimates.
    #[must_use]
    pub fn percentile(&self, level: f64) -> Interval {
        self.between((1.0 - level) / 2.0, (1.0 + level) / 2.0)
    }

    /// The BCa interval at `level` (0 to 1). It is the percentile interval where bias or
    /// acceleration cannot be known, and it has no width if all values are equal.
    #[must_use]
    pub fn bca(&self, level: f64) -> Interval {
        let count = self.resampled.len() as f64;
        let below = self.resampled.partition_point(|&value| value < self.estimate);
        let not_above = self.resampled.partition_point(|&value| value <= self.estimate);
        // Resamples that equal the estimate count half on either side.
        let bias = normal::deviation_below((below + not_above) as f64 / (2.0 * count));
        if !bias.is_finite() || !self.acceleration.is_finite() {
            return self.percentile(level);
        }
        let share = |deviation: f64| {
            let shifted = bias + deviation;
            normal::share_below(bias + shifted / (1.0 - self.acceleration * shifted))
        };
        let deviation = normal::deviation_below((1.0 + level) / 2.0);
        self.between(share(-deviation), share(deviation))
    }

    fn between(&self, low: f64, high: f64) -> Interval {
        Interval {
            low: quantile_of_sorted(&self.resampled, low),
            high: quantile_of_sorted(&self.resampled, high),
        }
    }
}

/// How fast the spread of the estimate changes with its value: the skewness of the estimates with
/// one value left out each, over 6. Zero if they do not differ.
fn acceleration(without: &[f64]) -> f64 {
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    let (mut squares, mut cubes) = (0.0, 0.0);
    for value in without {
        let distance = mean - value;
        squares += distance * distance;
        cubes += distance * distance * distance;
    }
    if squares > 0.0 { cubes / (6.0 * squares.powf(1.5)) } else { 0.0 }
}

/// The 95 % BCa interval of `estimate` over `values` from [`RESAMPLES`] draws.
pub fn bca(values: &[f64], seed: u64, estimate: impl Fn(&[f64]) -> f64) -> Interval {
    Bootstrap::new(values, RESAMPLES, seed, estimate).bca(LEVEL)
}

/// The 95 % percentile interval of `estimate` over `values` from [`RESAMPLES`] draws. The right
/// one for medians, whose estimates with one value left out take two values only, so that the
/// acceleration of BCa means nothing.
pub fn percentile(values: &[f64], seed: u64, estimate: impl Fn(&[f64]) -> f64) -> Interval {
    Bootstrap::new(values, RESAMPLES, seed, estimate).percentile(LEVEL)
}

/// The means of all pairs of values, sorted, with the places of the two.
struct PairMeans {
    pairs: Vec<(f64, u32, u32)>,
    /// How many of `pairs` a walk may usually skip: somewhat fewer than half.
    skipped: usize,
    /// For each value, the end of the places that it is paired with among the skipped pairs. They
    /// start with its own place and have no gap, because means grow with the second value.
    skipped_ends: Vec<usize>,
}

impl PairMeans {
    fn new(values: &[f64]) -> PairMeans {
        let place = |index: usize| u32::try_from(index).expect("blocks are few");
        let mut pairs = Vec::with_capacity(values.len() * (values.len() + 1) / 2);
        for (first, value) in values.iter().enumerate() {
            for (second, other) in values.iter().enumerate().skip(first) {
                pairs.push((middle(*value, *other), place(first), place(second)));
            }
        }
        pairs.sort_unstable_by(|left, right| {
            left.0.total_cmp(&right.0).then((left.1, left.2).cmp(&(right.1, right.2)))
        });
        // The estimates of draws lie around the half of the pairs with a deviation of about
        // 0.6 / sqrt(n) of them, so most lie behind this start.
        let share = 0.5 - 0.95 / (values.len().max(1) as f64).sqrt();
        let skipped = (pairs.len() as f64 * share.max(0.0)) as usize;
        let mut skipped_ends: Vec<usize> = (0..values.len()).collect();
        for &(_, first, second) in &pairs[..skipped] {
            skipped_ends[first as usize] = second as usize + 1;
        }
        PairMeans { pairs, skipped, skipped_ends }
    }

    /// The Hodges-Lehmann estimate of values of which each is there `counts` times.
    fn weighted_median(&self, counts: &[u32]) -> f64 {
        let count: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let all = count * (count + 1) / 2;
        if all == 0 {
            return f64::NAN;
        }
        // Places from 1; one place twice if the number of pairs is odd.
        let (lower, upper) = (all.div_ceil(2), all / 2 + 1);
        let skipped_weight = self.skipped_weight(counts);
        let (start, mut passed) =
            if skipped_weight < lower { (self.skipped, skipped_weight) } else { (0, 0) };
        let mut at_lower = None;
        for &(mean, first, second) in &self.pairs[start..] {
            let (one, other) = (counts[first as usize], counts[second as usize]);
            // Equal values are paired with each other once, and each with itself.
            passed += u64::from(if first == second { one * (one + 1) / 2 } else { one * other });
            if passed >= lower && at_lower.is_none() {
                at_lower = Some(mean);
            }
            if passed >= upper {
                return middle(at_lower.unwrap_or(mean), mean);
            }
        }
        unreachable!("the weights of all pairs add up to their number")
    }

    fn skipped_weight(&self, counts: &[u32]) -> u64 {
        let mut weight = 0;
        // How many values there are before each place.
        let mut sums = Vec::with_capacity(counts.len() + 1);
        sums.push(0);
        sums.extend(counts.iter().scan(0, |sum, &count| {
            *sum += u64::from(count);
            Some(*sum)
        }));
        for (place, (&count, &end)) in counts.iter().zip(&self.skipped_ends).enumerate() {
            if end > place {
                let count = u64::from(count);
                weight += count * (sums[end] - sums[place + 1]) + count * (count + 1) / 2;
            }
        }
        weight
    }
}

/// The Hodges-Lehmann estimate of `values` with its BCa interval at [`LEVEL`], from [`RESAMPLES`]
/// draws.
#[must_use]
pub fn centre(values: &[f64], seed: u64) -> (f64, Interval) {
    let bootstrap = Bootstrap::of_hodges_lehmann(values, RESAMPLES, seed);
    (bootstrap.estimate(), bootstrap.bca(LEVEL))
}
