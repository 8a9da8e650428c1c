//! What may be said about contenders: one of four words, with an estimate, an interval and a
//! probability beside it.
//!
//! Input is one list of log-ratios of costs for each contender, from paired blocks
//! ([`crate::estimates::log_ratios`]), where less is better. For rates, where more is better, give
//! the reference first.
//!
//! **The band.** Differences up to the smallest effect of interest do not count. It is the larger
//! of what the user cares for and of how far the same program seems to differ from itself in this
//! run: [`noise_band`]. Nothing is ranked inside it.
//!
//! **The words.** With the 95 % BCa interval of the Hodges-Lehmann estimate, and the probability
//! after Holm's correction over all contenders that were judged together:
//!
//! - *faster* or *slower*: the whole interval lies beyond the band, and the probability is at most
//!   5 %.
//! - *equivalent*: the whole interval at 90 % lies inside the band.
//! - *cannot tell*: anything else, and always with fewer than [`BLOCKS_MIN`] blocks.
//!
//! **The probability** is that of Wilcoxon's signed-rank test for no difference beyond the band:
//! the differences are moved by the band towards zero before they are tested, and it is twice the
//! smaller of both directions. With a band of zero this is the usual two-sided test.

use crate::estimates::log_ratios;
use crate::family::{EQUIVALENCE_LEVEL, holm, is_equivalent};
use crate::intervals::{Bootstrap, Interval, LEVEL, RESAMPLES};
use crate::normal;
use crate::signed_rank::{Alternative, signed_rank};

/// The smallest difference worth a word if the user names none, as a share: one per cent.
pub const SMALLEST_EFFECT: f64 = 0.01;

/// The largest probability, after correction, at which a difference is believed.
pub const PROBABILITY_MAX: f64 = 0.05;

/// The fewest blocks for any verdict: with five, the two-sided signed-rank test cannot reach 5 %.
pub const BLOCKS_MIN: usize = 6;

/// Where an estimated number of further blocks stops meaning anything.
pub const BLOCKS_NEEDED_MAX: usize = 100_000;

/// How likely the estimated number of further blocks is to be enough.
const POWER: f64 = 0.8;

/// What may be said about a contender against the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It costs less, by more than the band.
    Faster,
    /// It costs more, by more than the band.
    Slower,
    /// It costs the same, to within the band.
    Equivalent,
    /// The blocks do not decide.
    CannotTell {
        /// About how many further blocks would decide with a chance of 80 %, if the estimate, its
        /// spread and the band stay as they are. `None` if that is unknown, or so many that it is
        /// out of reach ([`BLOCKS_NEEDED_MAX`]).
        blocks_needed: Option<usize>,
    },
}

impl Verdict {
    /// The verdict in one of four words.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Equivalent => "equivalent",
            Verdict::CannotTell { .. } => "cannot tell",
        }
    }

    /// The verdict in the words of a report; the number of blocks is rounded up to two digits.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Verdict::CannotTell { blocks_needed: Some(1) } => {
                "cannot tell (needs about 1 more block)".to_owned()
            }
            Verdict::CannotTell { blocks_needed: Some(blocks) } => {
                let step = 10_usize.pow(blocks.max(10).ilog10() - 1);
                let rounded = blocks.div_ceil(step) * step;
                format!("cannot tell (needs about {rounded} more blocks)")
            }
            _ => self.word().to_owned(),
        }
    }

    /// Whether the two are apart, so that one may be ranked before the other.
    #[must_use]
    pub fn is_separation(self) -> bool {
        matches!(self, Verdict::Faster | Verdict::Slower)
    }

    /// The verdict on the reference against the contender.
    #[must_use]
    pub fn reversed(self) -> Verdict {
        match self {
            Verdict::Faster => Verdict::Slower,
            Verdict::Slower => Verdict::Faster,
            same => same,
        }
    }
}

/// A ratio of costs with its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The cost of the contender over the cost of the reference: below 1 is cheaper.
    pub estimate: f64,
    /// The 95 % BCa bootstrap interval of the estimate.
    pub interval: Interval,
}

/// The ratio of paired costs: the Hodges-Lehmann estimate over `log_ratios`, one a block.
#[must_use]
pub fn ratio(log_ratios: &[f64], seed: u64) -> Ratio {
    Evidence::new(log_ratios, seed).ratio()
}

/// The share by which differences are noise: the far end of the interval of the A/A arm, and never
/// less than `smallest_effect`, a share as well. Infinite if the A/A arm has no ratio.
#[must_use]
pub fn noise_band(again: Ratio, smallest_effect: f64) -> f64 {
    let far = again.interval.high.max(1.0 / again.interval.low) - 1.0;
    if again.interval.low.is_nan() || far.is_nan() {
        f64::INFINITY
    } else {
        far.max(smallest_effect)
    }
}

/// Everything that is said about one contender.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Its cost against the reference.
    pub ratio: Ratio,
    /// The 90 % BCa interval of the ratio, by which equivalence is judged.
    pub equivalence_interval: Interval,
    /// How many blocks it rests on.
    pub blocks: usize,
    /// The share up to which differences did not count. *Equivalent* means no more than equal to
    /// within this, so it belongs beside that word.
    pub band: f64,
    /// How probable such blocks are if the true difference is no larger than the band.
    pub p: f64,
    /// The same after Holm's correction over the family.
    pub p_adjusted: f64,
    /// What may be said.
    pub verdict: Verdict,
}

/// Judges a family: the log-ratios of every contender against the reference, one list each, all
/// by the same `band` (a share, from [`noise_band`]). The same seed gives the same judgements.
///
/// What was not asked must not be in the family: the reference itself, the A/A arm, and contenders
/// with wrong answers. Log-ratios that are not finite are left out. A contender without any has
/// results that are not numbers, and does not weigh on the others.
#[must_use]
pub fn judge(family: &[&[f64]], band: f64, seed: u64) -> Vec<Judgement> {
    let margin = band.ln_1p();
    let family: Vec<Vec<f64>> = family
        .iter()
        .map(|all| all.iter().copied().filter(|log_ratio| log_ratio.is_finite()).collect())
        .collect();
    let probabilities: Vec<f64> =
        family.iter().map(|log_ratios| beyond_margin(log_ratios, margin)).collect();
    let asked = probabilities.iter().filter(|p| !p.is_nan()).count();
    let adjusted = holm(&probabilities);
    let judged = family.iter().zip(probabilities.iter().zip(adjusted));
    judged
        .map(|(log_ratios, (&p, p_adjusted))| {
            let evidence = Evidence::new(log_ratios, seed);
            Judgement {
                ratio: evidence.ratio(),
                equivalence_interval: evidence.narrow.map(f64::exp),
                blocks: log_ratios.len(),
                band,
                p,
                p_adjusted,
                verdict: evidence.verdict(margin, p_adjusted, asked),
            }
        })
        .collect()
}

/// Judges every pair of contenders from their costs by block, as one family. The verdict of the
/// later against the earlier is the reverse. Gives pairs in the order (0, 1), (0, 2) ... (1, 2).
#[must_use]
pub fn judge_pairs(costs: &[&[f64]], band: f64, seed: u64) -> Vec<(usize, usize, Judgement)> {
    let pairs: Vec<(usize, usize)> = (0..costs.len())
        .flat_map(|first| (first + 1..costs.len()).map(move |second| (first, second)))
        .collect();
    let ratios: Vec<Vec<f64>> =
        pairs.iter().map(|&(first, second)| log_ratios(costs[first], costs[second])).collect();
    let family: Vec<&[f64]> = ratios.iter().map(Vec::as_slice).collect();
    let judgements = judge(&family, band, seed);
    pairs.into_iter().zip(judgements).map(|((one, other), found)| (one, other, found)).collect()
}

/// The probability of the log-ratios if the true one is within `margin` of zero.
fn beyond_margin(log_ratios: &[f64], margin: f64) -> f64 {
    if log_ratios.is_empty() {
        return f64::NAN;
    }
    if !margin.is_finite() {
        return 1.0;
    }
    let moved = |by: f64| -> Vec<f64> { log_ratios.iter().map(|value| value + by).collect() };
    let above = signed_rank(&moved(-margin), Alternative::Greater).p;
    let below = signed_rank(&moved(margin), Alternative::Less).p;
    (2.0 * above.min(below)).min(1.0)
}

/// The estimate with its intervals, all of log-ratios.
struct Evidence {
    blocks: usize,
    estimate: f64,
    wide: Interval,
    narrow: Interval,
}

impl Evidence {
    fn new(log_ratios: &[f64], seed: u64) -> Evidence {
        let bootstrap = Bootstrap::of_hodges_lehmann(log_ratios, RESAMPLES, seed);
        Evidence {
            blocks: log_ratios.len(),
            estimate: bootstrap.estimate(),
            wide: bootstrap.bca(LEVEL),
            narrow: bootstrap.bca(EQUIVALENCE_LEVEL),
        }
    }

    fn ratio(&self) -> Ratio {
        Ratio { estimate: self.estimate.exp(), interval: self.wide.map(f64::exp) }
    }

    fn verdict(&self, margin: f64, p_adjusted: f64, family: usize) -> Verdict {
        if self.blocks >= BLOCKS_MIN {
            let is_believed = p_adjusted <= PROBABILITY_MAX;
            if is_believed && self.wide.high < -margin {
                return Verdict::Faster;
            }
            if is_believed && self.wide.low > margin {
                return Verdict::Slower;
            }
            if is_equivalent(self.narrow, margin) {
                return Verdict::Equivalent;
            }
        }
        Verdict::CannotTell { blocks_needed: self.blocks_needed(margin, family) }
    }

    /// The number of further blocks, from this: the half-width h of an interval shrinks with the
    /// square root of the number n of blocks. To be decided, the half-width that lies between the
    /// estimate and the end of the band must shrink to the distance d between these two, and
    /// somewhat further, so that chance does not spoil it in 80 of 100 cases:
    ///
    /// n' = n (h / d)^2 ((z_a + z_0.8) / z_h)^2
    ///
    /// where z_h belongs to the level of the interval, and z_a is the same for equivalence, and
    /// for a difference the deviation of 5 % shared by all members of the family (Holm's first
    /// and hardest step).
    fn blocks_needed(&self, margin: f64, family: usize) -> Option<usize> {
        if self.blocks == 0 || !margin.is_finite() {
            return None;
        }
        let distance = self.estimate.abs() - margin;
        let is_apart = distance > 0.0;
        // The end of the interval that lies towards the nearer end of the band.
        let interval = if is_apart { self.wide } else { self.narrow };
        let is_upper = is_apart != (self.estimate >= 0.0);
        let end = if is_upper { interval.high } else { interval.low };
        let level = if is_apart { LEVEL } else { EQUIVALENCE_LEVEL };
        let of_interval = normal::deviation_below((1.0 + level) / 2.0);
        let of_test = if is_apart {
            normal::deviation_below(1.0 - PROBABILITY_MAX / 2.0 / family.max(1) as f64)
        } else {
            of_interval
        };
        let factor = (of_test + normal::deviation_below(POWER)) / of_interval;
        let shrink = (end - self.estimate).abs() * factor / distance.abs();
        let all = (self.blocks as f64 * shrink * shrink).ceil();
        if all.is_nan() || all > BLOCKS_NEEDED_MAX as f64 {
            return None;
        }
        // The test can only reach 5 % of the family's share with enough blocks: its smallest
        // probability is 2^(1 - n).
        let testable = 1.0 + (family.max(1) as f64 / PROBABILITY_MAX).log2();
        let least = if is_apart { BLOCKS_MIN.max(testable.ceil() as usize) } else { BLOCKS_MIN };
        Some((all as usize).max(least).saturating_sub(self.blocks).max(1))
    }
}
