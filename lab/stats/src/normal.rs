//! The normal and Student's distribution: shares from deviations, and deviations from shares.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// From here on the continued fraction of the tail converges faster than the series.
const TAIL_START: f64 = 3.0;

/// Enough terms for full precision on either side of [`TAIL_START`].
const TERMS: u32 = 120;

/// The share of a standard normal population that lies below `deviation`. The relative error is
/// below 1e-12, in the tails too.
#[must_use]
pub fn share_below(deviation: f64) -> f64 {
    if deviation.is_nan() {
        return f64::NAN;
    }
    if deviation < 0.0 { tail(-deviation) } else { 1.0 - tail(deviation) }
}

/// The deviation below which the share `share` of a standard normal population lies: infinite for
/// 0 and 1, not a number outside them.
#[must_use]
pub fn deviation_below(share: f64) -> f64 {
    if !(0.0..=1.0).contains(&share) {
        return f64::NAN;
    }
    if share == 0.0 || share == 1.0 {
        return if share == 0.0 { f64::NEG_INFINITY } else { f64::INFINITY };
    }
    if share > 0.5 {
        return -deviation_below(1.0 - share);
    }
    // A start that is right to 5e-4 (Abramowitz and Stegun 26.2.23), then Newton's method with a
    // second-order term, which triples the right digits each time.
    let root = (-2.0 * share.ln()).sqrt();
    let above = 2.515_517 + root * (0.802_853 + root * 0.010_328);
    let below = 1.0 + root * (1.432_788 + root * (0.189_269 + root * 0.001_308));
    let mut deviation = above / below - root;
    for _ in 0..3 {
        let step = (share_below(deviation) - share) / density(deviation);
        deviation -= step / (1.0 + deviation * step / 2.0);
    }
    deviation
}

/// The deviation below which the share `share` of Student's distribution with `freedom` degrees of
/// freedom lies, by the expansion of Fisher and Cornish: right to 1 % from 4 degrees on and to
/// 0.1 % from 8 on, which is enough for planning.
#[must_use]
pub fn student_deviation_below(share: f64, freedom: usize) -> f64 {
    let z = deviation_below(share);
    let freedom = freedom as f64;
    let square = z * z;
    let first = z * (square + 1.0) / 4.0;
    let second = z * (3.0 + square * (16.0 + square * 5.0)) / 96.0;
    let third = z * (-15.0 + square * (17.0 + square * (19.0 + square * 3.0))) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

fn density(deviation: f64) -> f64 {
    (-deviation * deviation / 2.0).exp() / (2.0 * PI).sqrt()
}

/// The share above `deviation`, which is not negative.
fn tail(deviation: f64) -> f64 {
    if deviation < TAIL_START {
        // The series of the error function without alternating signs:
        // exp(-x^2) 2 x / sqrt(pi) * sum of (2 x^2)^n / (1 * 3 * ... * (2 n + 1)).
        let x = deviation * FRAC_1_SQRT_2;
        let mut term = 2.0 * x * (-x * x).exp() / PI.sqrt();
        let mut sum = term;
        for index in 1..TERMS {
            term *= 2.0 * x * x / f64::from(2 * index + 1);
            sum += term;
        }
        return (1.0 - sum) / 2.0;
    }
    // Laplace's continued fraction, from its far end: density / (x + 1 / (x + 2 / (x + ...))).
    let fraction =
        (1..TERMS).rev().fold(deviation, |rest, index| deviation + f64::from(index) / rest);
    density(deviation) / fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_tables() {
        // From an independent implementation of the normal distribution with 16 digits.
        let table = [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (1.959_963_984_540_054, 0.975),
            (-1.0, 0.158_655_253_931_457_05),
            (-2.9, 0.001_865_813_300_384_04),
            (-3.1, 0.000_967_603_213_218_358_9),
            (-6.0, 9.865_876_450_376_946e-10),
            (-10.0, 7.619_853_024_160_495e-24),
        ];
        for (deviation, share) in table {
            let found = share_below(deviation);
            assert!((found / share - 1.0).abs() < 1e-11, "{deviation}: {found} is not {share}");
        }
        assert!(share_below(f64::NAN).is_nan());
    }

    #[test]
    fn deviations_undo_shares() {
        for share in [1e-12, 1e-4, 0.02, 0.025, 0.3, 0.5, 0.8, 0.975, 0.9999] {
            let back = share_below(deviation_below(share));
            assert!((back / share - 1.0).abs() < 1e-10, "{share}: {back}");
        }
        assert!((deviation_below(0.975) - 1.959_963_984_540_054).abs() < 1e-12);
        assert_eq!(deviation_below(0.0), f64::NEG_INFINITY);
        assert_eq!(deviation_below(1.0), f64::INFINITY);
        assert!(deviation_below(1.1).is_nan());
    }

    #[test]
    fn student_s_deviations_are_those_of_the_tables() {
        // The two-sided 5 % column of any table of Student's distribution, and the 80 % one.
        let table = [(4, 2.776, 1e-2), (8, 2.306, 1e-3), (19, 2.093, 1e-3), (39, 2.0227, 1e-3)];
        for (freedom, deviation, error) in table {
            let found = student_deviation_below(0.975, freedom);
            assert!((found / deviation - 1.0).abs() < error, "{freedom}: {found}");
        }
        assert!((student_deviation_below(0.8, 10) - 0.879).abs() < 1e-3);
    }
}
