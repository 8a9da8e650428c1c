//! Many questions at once: Holm's correction, and equivalence by two one-sided tests.

use crate::intervals::Interval;

/// The level of the interval that has to lie inside the band of what counts as equal. Two
/// one-sided tests at 5 % each are the same as an interval at 90 %.
pub const EQUIVALENCE_LEVEL: f64 = 0.90;

/// Holm's adjusted probabilities, in the order given: refusing where one is at most 5 % keeps the
/// chance of a single false refusal in the whole family at 5 %, whatever depends on what.
///
/// The smallest of m probabilities counts m times, the next m - 1 times and so on, none less than
/// the one before and none above 1. What is not a number is not part of the family and stays so.
#[must_use]
pub fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut places: Vec<usize> =
        (0..probabilities.len()).filter(|&place| !probabilities[place].is_nan()).collect();
    places.sort_by(|&left, &right| probabilities[left].total_cmp(&probabilities[right]));
    let mut adjusted = vec![f64::NAN; probabilities.len()];
    let mut largest = 0.0_f64;
    for (index, &place) in places.iter().enumerate() {
        let left = (places.len() - index) as f64;
        largest = largest.max(probabilities[place] * left).min(1.0);
        adjusted[place] = largest;
    }
    adjusted
}

/// Whether two things are equal for all practical purposes: their whole interval at
/// [`EQUIVALENCE_LEVEL`] lies within `margin` of zero, on the scale of the interval (for
/// log-ratios: the logarithm of 1 plus the share that does not matter).
#[must_use]
pub fn is_equivalent(interval: Interval, margin: f64) -> bool {
    -margin <= interval.low && interval.high <= margin && margin.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holm_multiplies_by_what_is_left() {
        // R's p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") prints 0.03 0.06 0.06 0.02.
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.5, 0.9]), [1.0, 1.0]);
        assert_eq!(holm(&[0.2]), [0.2]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn what_was_not_asked_is_not_part_of_the_family() {
        let adjusted = holm(&[f64::NAN, 0.02, f64::NAN, 0.01]);
        assert_eq!(adjusted[1], 0.02);
        assert_eq!(adjusted[3], 0.02);
        assert!(adjusted[0].is_nan() && adjusted[2].is_nan());
    }

    #[test]
    fn equivalence_needs_the_whole_interval_inside() {
        let interval = |low, high| Interval { low, high };
        assert!(is_equivalent(interval(-0.01, 0.009), 0.01));
        assert!(!is_equivalent(interval(-0.01, 0.011), 0.01));
        assert!(!is_equivalent(interval(-0.02, 0.0), 0.01));
        assert!(!is_equivalent(interval(f64::NAN, 0.0), 0.01));
        assert!(!is_equivalent(interval(-0.01, 0.0), f64::INFINITY));
    }
}
