//! What a claim's printed number says, as intervals.

use crate::claim::{Claim, Form, Measure};
use crate::quantity::{Dimension, Factor, Interval, Printed, Share, Time};

/// The meaning of a claim, with the rounding of its printed number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Statement {
    /// `subject / object` lies in the interval.
    Ratio(Interval),
    /// `subject / object` goes from the first to the second over several operations.
    RatioRange(Interval, Interval),
    /// The mean of the subject's times lies in the interval (seconds).
    Average(Interval),
    /// The subject's times go from the first to the second (seconds).
    Span(Interval, Interval),
    /// The subject's times are below this (seconds).
    Below(f64),
    /// The two are the same for practical purposes.
    Equivalent,
    /// The subject does worse.
    Worse,
}

impl Statement {
    /// Reads what a claim states.
    ///
    /// # Errors
    ///
    /// A sentence that says which key is missing or unreadable, and what it needs to be.
    pub fn of(claim: &Claim) -> Result<Self, String> {
        let less_is_better = claim.measure.less_is_better();
        Ok(match claim.form {
            Form::PercentMore => {
                let share = single::<Share>(claim)?;
                Self::Ratio(Interval::between(1.0 + share.low, 1.0 + share.high))
            }
            Form::PercentLess => {
                let share = single::<Share>(claim)?;
                Self::Ratio(Interval::between(1.0 - share.high, 1.0 - share.low))
            }
            Form::Factor => Self::Ratio(ratio_of_factor(single::<Factor>(claim)?, less_is_better)),
            Form::FactorRange => {
                let (least, greatest) = double::<Factor>(claim)?;
                let first = ratio_of_factor(least, less_is_better);
                let second = ratio_of_factor(greatest, less_is_better);
                if less_is_better {
                    Self::RatioRange(second, first)
                } else {
                    Self::RatioRange(first, second)
                }
            }
            Form::Average => Self::Average(single::<Time>(claim)?),
            Form::Span => {
                let (least, greatest) = double::<Time>(claim)?;
                Self::Span(least, greatest)
            }
            Form::Below => Self::Below(single_value::<Time>(claim)?),
            Form::Equivalent => Self::Equivalent,
            Form::Worse => Self::Worse,
            Form::Implied => {
                let ratio = claim
                    .ratio
                    .ok_or("an implied claim needs `ratio`, the quotient of the two rows")?;
                Self::Ratio(Interval { low: ratio - 0.0005, high: ratio + 0.0005 })
            }
        })
    }

    /// The ratio of subject to object that a run would have to show, if the claim names one.
    #[must_use]
    pub fn ratio(self) -> Option<Interval> {
        match self {
            Self::Ratio(ratio) => Some(ratio),
            Self::RatioRange(least, greatest) => {
                Some(Interval { low: least.low, high: greatest.high })
            }
            Self::Equivalent => Some(Interval::exact(1.0)),
            Self::Average(_) | Self::Span(..) | Self::Below(_) | Self::Worse => None,
        }
    }

    /// Checks the `ratio` keys of a claim against its printed number.
    ///
    /// # Errors
    ///
    /// A sentence with the ratio that the printed number stands for.
    pub fn check_ratio(self, claim: &Claim) -> Result<(), String> {
        // The keys carry three decimals, so half a unit in the fourth is rounding, not an error.
        const SLACK: f64 = 0.0006;
        let near = |written: f64, stated: Interval| {
            written >= stated.low - SLACK && written <= stated.high + SLACK
        };
        let (first, second) = match self {
            Self::RatioRange(least, greatest) => (Some(least), Some(greatest)),
            Self::Ratio(ratio) => (Some(ratio), None),
            Self::Equivalent => (Some(Interval::exact(1.0)), None),
            _ => (None, None),
        };
        for (key, written, stated) in
            [("ratio", claim.ratio, first), ("ratio_to", claim.ratio_to, second)]
        {
            match (written, stated) {
                (None, None) => {}
                (Some(written), Some(stated)) if near(written, stated) => {}
                (_, Some(stated)) => {
                    return Err(format!(
                        "`{key}` must be subject / object, here between {:.4} and {:.4}",
                        stated.low, stated.high
                    ));
                }
                (Some(_), None) => {
                    return Err(format!("`{key}` has no meaning in this form; remove it"));
                }
            }
        }
        Ok(())
    }
}

/// A factor says how many times better; the ratio of two times is its inverse.
fn ratio_of_factor(factor: Interval, less_is_better: bool) -> Interval {
    if less_is_better { Interval::exact(1.0).over(factor) } else { factor }
}

fn printed(claim: &Claim) -> Result<&str, String> {
    let text =
        claim.printed.as_ref().ok_or("this form needs `printed`, the number in the sentence")?;
    Ok(text.get_ref())
}

fn single_value<D: Dimension>(claim: &Claim) -> Result<f64, String> {
    let text = printed(claim)?.trim_start_matches('-');
    Ok(Printed::<D>::read(text, None)?.value())
}

fn single<D: Dimension>(claim: &Claim) -> Result<Interval, String> {
    // A minus sign before a percentage says "less" a second time; the form says it already.
    let text = printed(claim)?.trim_start_matches('-');
    Ok(Printed::<D>::read(text, None)?.interval())
}

fn double<D: Dimension>(claim: &Claim) -> Result<(Interval, Interval), String> {
    let text = printed(claim)?;
    let (least, greatest) = text
        .split_once(['\u{2013}', '-'])
        .ok_or_else(|| format!("`{text}` must be a range such as `3-5x` or `7-12 ns`"))?;
    let unit =
        greatest.trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | ' '));
    let least = Printed::<D>::read(&format!("{}{unit}", least.trim()), None)?.interval();
    let greatest = Printed::<D>::read(greatest, None)?.interval();
    Ok((least, greatest))
}

/// Whether a measure is one that microbenchmark tables hold.
#[must_use]
pub fn is_of_operations(measure: Measure) -> bool {
    matches!(measure, Measure::TimePerOperation)
}
