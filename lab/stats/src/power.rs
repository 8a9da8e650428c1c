//! Planning: what a number of blocks can see, and how many blocks an effect wants.

use crate::estimates::robust_deviation;
use crate::normal;
use crate::verdicts::{BLOCKS_MIN, BLOCKS_NEEDED_MAX, PROBABILITY_MAX};

/// The variance of the Hodges-Lehmann estimate of normal values over that of their mean: pi / 3.
const VARIANCE_OF_ESTIMATE: f64 = std::f64::consts::FRAC_PI_3;

/// A paired design before it is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Design {
    /// How many blocks there will be.
    pub blocks: usize,
    /// The standard deviation of the log-ratio of one block: from a trial run by [`spread`], or
    /// from experience (0.02 is two per cent).
    pub spread: f64,
    /// How many contenders will be judged against the reference.
    pub family: usize,
    /// The smallest difference the user cares for, as a share.
    pub smallest_effect: f64,
    /// How likely an effect should be seen; 0.8 is usual.
    pub power: f64,
}

/// The spread of log-ratios from a trial run, for a [`Design`]: robust, so that one disturbed
/// block does not spoil the plan.
#[must_use]
pub fn spread(log_ratios: &[f64]) -> f64 {
    robust_deviation(log_ratios)
}

impl Design {
    /// The half-width of the 95 % interval of a log-ratio that these blocks will give:
    /// t s sqrt(pi / 3 / n), with Student's deviation for n - 1 degrees of freedom.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        self.deviation(1.0 - PROBABILITY_MAX / 2.0) * self.error()
    }

    /// The band that the A/A arm will probably give, as a share: the far end of an interval of
    /// that half-width around an estimate that misses 1 by its mean error, and never less than
    /// the smallest effect.
    #[must_use]
    pub fn expected_band(&self) -> f64 {
        // The mean distance of a normal value from its mean is sqrt(2 / pi) deviations.
        let miss = std::f64::consts::FRAC_2_PI.sqrt() * self.error();
        (self.half_width() + miss).exp_m1().max(self.smallest_effect)
    }

    /// The smallest true difference, as a share of the cost, that will be called *faster* or
    /// *slower* with the wanted power: beyond the expected band by the deviations of Holm's first
    /// step and of the power. Infinite with fewer blocks than a verdict needs.
    #[must_use]
    pub fn visible_effect(&self) -> f64 {
        // The signed-rank test cannot reach a smaller probability than 2^(1 - n).
        let family = self.family.max(1) as f64;
        let reachable = 0.5_f64.powi(self.blocks.min(1000) as i32 - 1);
        if self.blocks < BLOCKS_MIN || reachable * family > PROBABILITY_MAX {
            return f64::INFINITY;
        }
        let of_test = self.deviation(1.0 - PROBABILITY_MAX / 2.0 / family);
        let of_power = self.deviation(self.power);
        (self.expected_band().ln_1p() + (of_test + of_power) * self.error()).exp_m1()
    }

    /// The fewest blocks with which the design sees `effect` (a share), whatever its own number of
    /// blocks. `None` if the effect is not beyond the smallest effect of interest, or wants more
    /// than [`BLOCKS_NEEDED_MAX`].
    #[must_use]
    pub fn blocks_for(&self, effect: f64) -> Option<usize> {
        let sees = |blocks: usize| Design { blocks, ..*self }.visible_effect() <= effect;
        if !sees(BLOCKS_NEEDED_MAX) {
            return None;
        }
        // More blocks never see less, so the boundary can be halved in.
        let (mut blind, mut seeing) = (0, BLOCKS_NEEDED_MAX);
        while seeing - blind > 1 {
            let middle = blind + (seeing - blind) / 2;
            if sees(middle) {
                seeing = middle;
            } else {
                blind = middle;
            }
        }
        Some(seeing)
    }

    fn error(&self) -> f64 {
        self.spread * (VARIANCE_OF_ESTIMATE / self.blocks.max(1) as f64).sqrt()
    }

    fn deviation(&self, share: f64) -> f64 {
        normal::student_deviation_below(share, self.blocks.saturating_sub(1).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESIGN: Design =
        Design { blocks: 40, spread: 0.02, family: 1, smallest_effect: 0.01, power: 0.8 };

    #[test]
    fn forty_blocks_with_a_noise_of_two_per_cent_see_two_per_cent() {
        // By hand: the error is 0.02 sqrt(1.0472 / 40) = 0.003236, the half-width 2.0227 errors =
        // 0.006545, the band that plus 0.7979 errors = 0.009127, so 0.01 of the user decides. The
        // effect is ln 1.01 + (2.0227 + 0.8509) errors = 0.01925, which is 1.94 per cent.
        assert!((DESIGN.half_width() - 0.006_545).abs() < 1e-5, "{}", DESIGN.half_width());
        assert!((DESIGN.expected_band() - 0.01).abs() < 1e-12);
        let effect = DESIGN.visible_effect();
        assert!((effect - 0.019_44).abs() < 1e-4, "{effect}");
    }

    #[test]
    fn more_blocks_see_more_and_more_contenders_see_less() {
        let effect = |blocks, family| Design { blocks, family, ..DESIGN }.visible_effect();
        let mut before = f64::INFINITY;
        for blocks in 6..300 {
            let now = effect(blocks, 1);
            assert!(now < before, "{blocks}: {now} is not below {before}");
            before = now;
        }
        assert!(effect(40, 20) > effect(40, 1));
        assert!(effect(5, 1).is_infinite());
        assert!(effect(6, 20).is_infinite());
        assert!(effect(0, 0).is_infinite());
    }

    #[test]
    fn the_number_of_blocks_undoes_the_effect() {
        let blocks = DESIGN.blocks_for(0.015).unwrap();
        let effect = |blocks| Design { blocks, ..DESIGN }.visible_effect();
        assert!(effect(blocks) <= 0.015 && effect(blocks - 1) > 0.015, "{blocks}");
        assert_eq!(DESIGN.blocks_for(0.01), None);
    }

    #[test]
    fn one_disturbed_block_does_not_widen_the_spread() {
        let mut log_ratios: Vec<f64> = (0..21).map(|block| 0.001 * f64::from(block)).collect();
        let before = spread(&log_ratios);
        log_ratios[20] = 5.0;
        assert!((spread(&log_ratios) - before).abs() < 0.002);
    }
}
