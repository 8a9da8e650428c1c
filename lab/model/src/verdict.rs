//! What may be said, and what may not.

use serde::{Deserialize, Deserializer, Serialize};

/// What may be said about one contender against another, by one measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The contender that is judged.
    pub contender: String,
    /// The contender that it is compared with.
    pub reference: String,
    /// By which measure.
    pub measure: Measure,
    /// The contender's figure over the reference's, by paired blocks.
    pub ratio: Ratio,
    /// The word.
    pub decision: Decision,
    /// How many blocks it rests on.
    #[serde(default)]
    pub blocks: u32,
    /// The probability of such a difference between equals, corrected for the number of verdicts.
    #[serde(default)]
    pub p_value: Option<f64>,
    /// About how many more blocks would tell, if it cannot be told.
    #[serde(default)]
    pub more_blocks: Option<u32>,
    /// Why a verdict is void, or what else a reader must know; may be empty.
    #[serde(default)]
    pub note: String,
}

/// A ratio with its 95 % interval. What could not be estimated is not a number, and `null` in the
/// file.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The estimate.
    #[serde(deserialize_with = "number_or_null")]
    pub estimate: f64,
    /// The interval's lower end.
    #[serde(deserialize_with = "number_or_null")]
    pub low: f64,
    /// The interval's upper end.
    #[serde(deserialize_with = "number_or_null")]
    pub high: f64,
}

impl Ratio {
    /// Whether all three are positive numbers, so that the ratio can be shown.
    #[must_use]
    pub fn is_known(&self) -> bool {
        [self.estimate, self.low, self.high].iter().all(|value| value.is_finite() && *value > 0.0)
    }
}

/// JSON knows no number for "not a number": it is written as `null`.
pub(crate) fn number_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Server CPU time per right reply: the headline. Less is better.
    ServerCpu,
    /// Right replies per second. More is better.
    Throughput,
    /// Median latency. Less is better.
    LatencyMedian,
    /// The latency that 99 % do not exceed. Less is better.
    #[serde(rename = "latency-p99")]
    LatencyP99,
    /// The latency that 99.9 % do not exceed. Less is better.
    #[serde(rename = "latency-p99.9")]
    LatencyP999,
    /// Peak memory. Less is better.
    Memory,
    /// A measure that this version does not know.
    #[serde(other)]
    Other,
}

/// The word of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// Better than the reference, by more than the noise.
    Faster,
    /// Worse than the reference, by more than the noise.
    Slower,
    /// Shown to differ by less than what matters.
    Equivalent,
    /// The interval allows for more than one of the others.
    CannotTell,
    /// Not judged, because of wrong answers or a failed check.
    Void,
    /// A word that this version does not know.
    #[serde(other)]
    Other,
}

impl Decision {
    /// The decision in the words of a report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Decision::Faster => "faster",
            Decision::Slower => "slower",
            Decision::Equivalent => "equivalent",
            Decision::CannotTell => "cannot tell",
            Decision::Void => "void",
            Decision::Other => "unknown verdict",
        }
    }
}

/// The A/A arm: the same program twice. Their difference is the noise of the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Again {
    /// The contender that ran twice.
    pub contender: String,
    /// The name of its second start, in the list of contenders.
    pub second: String,
    /// The second start's cost over the first one's.
    pub ratio: Ratio,
    /// The share up to which differences count as noise: 0.02 is 2 %. Not a number, and `null` in
    /// the file, if it could not be estimated.
    #[serde(deserialize_with = "number_or_null")]
    pub band: f64,
}
