//! How statistics are written into JSON. They come from a crate that knows no format.

use peregrine_lab_stats::intervals::Interval;
use peregrine_lab_stats::verdicts::{Judgement, Ratio, Verdict};
use serde::{Serialize, Serializer};

#[derive(Serialize)]
#[serde(remote = "Interval")]
pub(crate) struct IntervalForm {
    low: f64,
    high: f64,
}

#[derive(Serialize)]
#[serde(remote = "Ratio")]
pub(crate) struct RatioForm {
    estimate: f64,
    #[serde(with = "IntervalForm")]
    interval: Interval,
}

#[derive(Serialize)]
#[serde(remote = "Verdict", rename_all = "kebab-case")]
enum VerdictForm {
    Faster,
    Slower,
    Equivalent,
    CannotTell { blocks_needed: Option<usize> },
}

#[derive(Serialize)]
#[serde(remote = "Judgement")]
struct JudgementForm {
    #[serde(with = "RatioForm")]
    ratio: Ratio,
    #[serde(with = "IntervalForm")]
    equivalence_interval: Interval,
    blocks: usize,
    band: f64,
    p: f64,
    p_adjusted: f64,
    #[serde(with = "VerdictForm")]
    verdict: Verdict,
}

/// Writes a judgement, or null where there is none.
pub(crate) fn judgement<S: Serializer>(
    judgement: &Option<Judgement>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Written(#[serde(with = "JudgementForm")] Judgement);
    judgement.map(Written).serialize(serializer)
}
