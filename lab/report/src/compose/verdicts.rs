//! The verdicts in words, run by run: the headline measure first, the others on demand, and what
//! cannot be judged in one sentence.

use peregrine_lab_model::verdict::{Decision, Measure};

use super::checks::unique;
use super::overview::{heading, is_again};
use crate::content::{Judged, Report, Run};
use crate::document::{Part, Section, Verdict};
use crate::numbers;
use crate::verdict;

/// The measures in their order.
const MEASURES: [(Measure, &str); 7] = [
    (Measure::ServerCpu, "Server CPU per request"),
    (Measure::Throughput, "Requests per second"),
    (Measure::LatencyMedian, "Median latency"),
    (Measure::LatencyP99, "p99 latency"),
    (Measure::LatencyP999, "p99.9 latency"),
    (Measure::Memory, "Peak memory"),
    (Measure::Other, "Other measures"),
];

/// With more headlines than this in a report, each run shows its first ones.
const LINES_ALL: usize = 40;

/// How many these are.
const LINES_RUN: usize = 8;

/// What reasons begin with if the client was the limit.
const CLIENT: &str = "the client was the limit";

pub(crate) fn section(report: &Report) -> Option<Section> {
    let mut parts = Vec::new();
    let runs = report.sections.iter().flat_map(|scenario| &scenario.runs);
    let judged = |run: &Run| unique(run.verdicts.iter().map(|one| one.contender.as_str())).len();
    let lines: usize = runs.map(judged).sum();
    let shown = if lines > LINES_ALL { LINES_RUN } else { usize::MAX };
    for scenario in &report.sections {
        for run in &scenario.runs {
            let judged: Vec<&Judged> =
                run.verdicts.iter().filter(|judged| !is_again(run, &judged.contender)).collect();
            if judged.is_empty() {
                continue;
            }
            parts.push(Part::Heading(heading(scenario, run)));
            parts.push(Part::Note(load(run)));
            parts.extend(of_run(run, &judged, shown));
        }
    }
    (!parts.is_empty()).then(|| Section { title: "Verdicts".to_owned(), parts })
}

/// Under which load, with which noise.
fn load(run: &Run) -> String {
    let noise = run.band.map_or_else(
        || "the noise is unknown".to_owned(),
        |band| format!("the same program twice: ±{}", numbers::percent(band)),
    );
    format!("{}; {noise}.", run.load)
}

/// At most `shown_max` of the headline's lines stand there without being asked for.
fn of_run(run: &Run, judged: &[&Judged], shown_max: usize) -> Vec<Part> {
    let is_void = |one: &&&Judged| one.decision == Decision::Void;
    let mut shown: Vec<&Judged> = judged.iter().filter(|one| !is_void(one)).copied().collect();
    shown.sort_by(|one, other| rank(one).total_cmp(&rank(other)));
    let of = |measure: Measure| -> Vec<&Judged> {
        shown.iter().filter(|one| one.measure == measure).copied().collect()
    };
    // Loads at an equal rate are there for the latency, all others for the cost.
    let headline = match run.rate_per_s.is_some() && !of(Measure::LatencyP99).is_empty() {
        true => Measure::LatencyP99,
        false => Measure::ServerCpu,
    };
    let mut leading = of(headline);
    let mut others: Vec<Part> = Vec::new();
    for (measure, title) in MEASURES.into_iter().filter(|(measure, _)| *measure != headline) {
        let of = of(measure);
        if of.is_empty() {
            continue;
        }
        // Without a headline, the first measure that there is takes its place.
        if leading.is_empty() {
            leading = of;
            continue;
        }
        let title = format!("{title}: {}", tally(&of));
        others.push(Part::Folded(title, vec![Part::Verdicts(of.into_iter().map(line).collect())]));
    }
    let rest = leading.split_off(leading.len().min(shown_max));
    let mut lines: Vec<Verdict> = leading.into_iter().map(line).collect();
    lines.extend(voids(run, judged));
    let mut parts = Vec::new();
    if !lines.is_empty() {
        parts.push(Part::Verdicts(lines));
    }
    if !rest.is_empty() {
        let title = format!("{} more: {}", rest.len(), tally(&rest));
        parts.push(Part::Folded(title, vec![Part::Verdicts(rest.into_iter().map(line).collect())]));
    }
    parts.extend(others);
    parts
}

/// The best first. Of rates, more is better.
fn rank(judged: &Judged) -> f64 {
    match judged.ratio.estimate {
        estimate if !estimate.is_finite() => f64::INFINITY,
        estimate if judged.measure == Measure::Throughput => -estimate,
        estimate => estimate,
    }
}

fn line(judged: &Judged) -> Verdict {
    Verdict {
        word: verdict::word(judged.measure, judged.decision),
        name: judged.contender.clone(),
        sentence: judged.sentence.clone(),
    }
}

fn tally(judged: &[&Judged]) -> String {
    let decisions = [
        Decision::Faster,
        Decision::Slower,
        Decision::Equivalent,
        Decision::CannotTell,
        Decision::Other,
    ];
    let counts = decisions.iter().filter_map(|decision| {
        let count = judged.iter().filter(|one| one.decision == *decision).count();
        let measure = judged.first().map_or(Measure::Other, |one| one.measure);
        (count > 0).then(|| format!("{count} {}", verdict::word(measure, *decision)))
    });
    counts.collect::<Vec<_>>().join(", ")
}

/// Contenders that are void for the same measures and the same reason share a sentence.
fn voids(run: &Run, judged: &[&Judged]) -> Vec<Verdict> {
    /// Names, measures, and the reason.
    type Void<'a> = (Vec<&'a str>, Vec<Measure>, &'a str);
    let mut by_name: Vec<Void<'_>> = Vec::new();
    for one in judged.iter().filter(|one| one.decision == Decision::Void) {
        let reason = reason(one);
        let same = by_name
            .iter_mut()
            .find(|(names, _, note)| names[0] == one.contender && *note == reason);
        match same {
            Some((_, measures, _)) => measures.push(one.measure),
            None => by_name.push((vec![&one.contender], vec![one.measure], reason)),
        }
    }
    let mut shared: Vec<Void<'_>> = Vec::new();
    for (names, measures, note) in by_name {
        match shared.iter_mut().find(|other| other.1 == measures && other.2 == note) {
            Some(other) => other.0.extend(names),
            None => shared.push((names, measures, note)),
        }
    }
    shared.into_iter().map(|void| void_line(run, void)).collect()
}

/// Why a verdict is void. The client was the limit of a comparison whichever side it was the limit
/// of, so that the two cases need no two sentences.
fn reason(judged: &Judged) -> &str {
    let of_reference = judged.note.strip_prefix(judged.reference.as_str());
    let of_reference = of_reference.and_then(|rest| rest.strip_prefix(": "));
    of_reference.filter(|rest| rest.starts_with(CLIENT)).unwrap_or(&judged.note)
}

fn void_line(run: &Run, (names, measures, note): (Vec<&str>, Vec<Measure>, &str)) -> Verdict {
    let is_all_of_run = names.len() > 1
        && run.rows.iter().all(|row| {
            names.contains(&row.contender.as_str())
                || row.contender == run.reference
                || is_again(run, &row.contender)
        });
    let (name, verb) = match names[..] {
        _ if is_all_of_run => ("Nobody".to_owned(), "is judged"),
        [name] => (name.to_owned(), "is not judged"),
        _ => (names.join(", "), "are not judged"),
    };
    let words: Vec<String> = MEASURES
        .iter()
        .filter(|(measure, _)| measures.contains(measure))
        .map(|(_, words)| words.to_lowercase())
        .collect();
    // Who is void by the headline is void altogether.
    let what = match measures.contains(&Measure::ServerCpu) {
        true => verb.to_owned(),
        false => format!("{verb} by {}", words.join(", ")),
    };
    Verdict { word: Decision::Void.words(), name, sentence: format!("{what}: {note}") }
}
