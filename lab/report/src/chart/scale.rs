//! Values to places on an axis, and where its ticks are.

/// The fewest ticks of a logarithmic axis.
const TICKS_MIN: usize = 4;

/// An axis from a value at `start` to a value at `end`, in pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    is_log: bool,
}

impl Scale {
    pub(crate) fn linear(values: (f64, f64), pixels: (f64, f64)) -> Scale {
        Scale { low: values.0, high: values.1, start: pixels.0, end: pixels.1, is_log: false }
    }

    /// Both values have to be positive.
    pub(crate) fn log(values: (f64, f64), pixels: (f64, f64)) -> Scale {
        Scale {
            low: values.0.ln(),
            high: values.1.ln(),
            start: pixels.0,
            end: pixels.1,
            is_log: true,
        }
    }

    /// The place of a value; values beyond the ends stand at the ends.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let span = self.high - self.low;
        let share = if span > 0.0 { ((value - self.low) / span).clamp(0.0, 1.0) } else { 0.5 };
        self.start + share * (self.end - self.start)
    }
}

/// The end of an axis from zero that holds `largest`, and the distance of its ticks: 1, 2 or 5
/// times a power of ten, with at most `ticks` of them.
pub(crate) fn from_zero(largest: f64, ticks: usize) -> (f64, f64) {
    let largest = if largest.is_finite() && largest > 0.0 { largest } else { 1.0 };
    let rough = largest / ticks.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(10.0 * power);
    ((largest / step).ceil() * step, step)
}

/// Ticks at 1, 2 and 5 times the powers of ten within two positive values: more where these would
/// be very few, and the powers alone where they would be more than `most`.
pub(crate) fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let within = |factors: &[f64]| -> Vec<f64> {
        powers
            .clone()
            .flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)))
            .filter(|tick| *tick >= low * 0.999 && *tick <= high * 1.001)
            .collect()
    };
    let all = within(&[1.0, 2.0, 5.0]);
    if all.len() > most {
        return within(&[1.0]);
    }
    if all.len() < TICKS_MIN { within(&[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0]) } else { all }
}

/// The nearest of the steps 1, 2 and 5 times a power of ten below and above a positive range.
pub(crate) fn log_range(low: f64, high: f64) -> (f64, f64) {
    // A range of two powers of ten and more has ticks enough, so these are at 1, 2 and 5.
    let steps = log_ticks(low / 10.0, high * 10.0, usize::MAX);
    let below = steps.iter().copied().filter(|step| *step <= low).fold(low / 10.0, f64::max);
    let above = steps.iter().copied().filter(|step| *step >= high).fold(f64::INFINITY, f64::min);
    (below, if above.is_finite() { above } else { high * 2.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_from_zero_hold_the_largest_value() {
        assert_eq!(from_zero(15.5, 5), (20.0, 5.0));
        assert_eq!(from_zero(7.0, 8), (7.0, 1.0));
        assert_eq!(from_zero(f64::NAN, 5).0, 1.0);
    }

    #[test]
    fn log_axes_have_round_ends_and_ticks() {
        let (low, high) = log_range(0.13, 7.0);
        assert!((low - 0.1).abs() < 1e-9 && (high - 10.0).abs() < 1e-9, "{low} {high}");
        assert_eq!(log_ticks(1.0, 10.0, 9), [1.0, 2.0, 5.0, 10.0]);
        assert_eq!(log_ticks(2.0, 5.0, 9), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(log_ticks(1.0, 1000.0, 4), [1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn places_stay_on_the_axis() {
        let scale = Scale::log((1.0, 100.0), (0.0, 200.0));
        assert!((scale.at(10.0) - 100.0).abs() < 1e-9);
        assert!((scale.at(0.0) - 0.0).abs() < 1e-9);
        assert!((scale.at(1e9) - 200.0).abs() < 1e-9);
    }
}
