//! A verdict in words.

use peregrine_lab_model::verdict::{Decision, Measure, Verdict};

use crate::collect::Palette;
use crate::content::Judged;
use crate::numbers;

pub(crate) fn judged(verdict: &Verdict, palette: &Palette) -> Judged {
    Judged {
        contender: verdict.contender.clone(),
        reference: verdict.reference.clone(),
        series: palette.series(&verdict.contender),
        measure: verdict.measure,
        ratio: verdict.ratio,
        decision: verdict.decision,
        blocks: verdict.blocks,
        p_value: verdict.p_value,
        sentence: sentence(verdict),
        note: verdict.note.clone(),
    }
}

/// The decision in a word that fits the measure: nobody is faster by memory.
pub(crate) fn word(measure: Measure, decision: Decision) -> &'static str {
    match (measure, decision) {
        (Measure::Memory, Decision::Faster) => "less",
        (Measure::Memory, Decision::Slower) => "more",
        (_, decision) => decision.words(),
    }
}

/// The verdict without the name that it begins with.
fn sentence(verdict: &Verdict) -> String {
    let Verdict { reference, ratio, .. } = verdict;
    if verdict.decision == Decision::Void {
        return format!("is not judged: {}", verdict.note);
    }
    if !ratio.is_known() {
        return format!("cannot be compared with {reference}: too few blocks have both figures");
    }
    let [estimate, low, high] = numbers::ratio(ratio.estimate, ratio.low, ratio.high);
    let what = match verdict.measure {
        Measure::ServerCpu => format!("used {estimate}× the server CPU per request of {reference}"),
        Measure::Throughput => {
            format!("answered {estimate}× the requests per second of {reference}")
        }
        Measure::LatencyMedian => format!("had {estimate}× the median latency of {reference}"),
        Measure::LatencyP99 => format!("had {estimate}× the p99 latency of {reference}"),
        Measure::LatencyP999 => format!("had {estimate}× the p99.9 latency of {reference}"),
        Measure::Memory => format!("used {estimate}× the peak memory of {reference}"),
        Measure::Other => format!("had {estimate}× the figure of {reference}"),
    };
    let interval = match numbers::has_interval(ratio) {
        true => format!("95\u{a0}% interval {low} to {high}"),
        false => "too few blocks for an interval".to_owned(),
    };
    let mut text = format!("{what} ({interval}): {}", word(verdict.measure, verdict.decision));
    if let Some(more) = verdict.more_blocks {
        text.push_str(&format!("; about {} more blocks would tell", numbers::count(more.into())));
    }
    if !verdict.note.is_empty() {
        text.push_str("; ");
        text.push_str(&verdict.note);
    }
    text
}
