//! What stands in for contenders that cannot be had: information beside the claims.
//!
//! A claim about a program that nobody can get is not tested by another program. But a reader wants
//! to know how far the published ratio is from what can be reached here, against the same
//! opponent. So the same ratio is given for a stand-in that the claim file names, in a sentence
//! that says what it is not.

use peregrine_lab_audit::claim::{Claim, Document, Measure, StandIn as InPlace};
use peregrine_lab_audit::quantity::Interval;
use peregrine_lab_audit::statement::{Statement, is_of_operations};
use peregrine_lab_model::verdict::{Decision, Ratio};
use serde::{Deserialize, Serialize};

use crate::effect::{Effect, Results};
use crate::observed::{Observed, PairJudged};
use crate::operations;
use crate::program::{Pair, Program, ROUTER, Trial};
use crate::roster::{entry, label};
use crate::words;

/// A published ratio beside the same ratio with other programs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandIn {
    /// The claim's id; none if the published ratio is that of two rows of a table.
    pub claim: Option<String>,
    /// The trial's id.
    pub trial: String,
    /// The page's pair, as labels. The reference is empty for a number about one contender.
    pub published_pair: Pair,
    /// The pair that was run.
    pub pair: Pair,
    /// The published subject divided by the published object, if the number is a ratio.
    pub published: Option<f64>,
    /// The same ratio of the pair that was run; the interval's ends are not numbers where there is
    /// no interval. None if it was not measured.
    pub measured: Option<Ratio>,
    /// The word, *faster* being better; none if it was not judged.
    pub decision: Option<Decision>,
    /// All of it in words, with the warning that it tests nothing.
    pub sentence: String,
}

/// The published ratios whose subject cannot be had, with what stands in for it here: first those
/// of claims, then those of tables whose pair no claim is about, each in the page's order.
#[must_use]
pub fn stand_ins(
    page: &Document,
    program: &Program,
    observed: &[Observed],
    judged: &[PairJudged],
) -> Vec<StandIn> {
    let results = Results { observed, judged };
    let mut found: Vec<StandIn> = Vec::new();
    for claim in &page.claims {
        let next = if is_of_operations(claim.measure) {
            program.trial(ROUTER).and_then(|_| of_operations(page, results, claim))
        } else {
            of_claim(page, program, results, claim)
        };
        found.extend(next);
    }
    let of_claims = found.len();
    for trial in program.trials.iter().filter(|trial| !trial.is_operations()) {
        let of_table = of_table(page, results, trial);
        let is_new = |stand_in: &StandIn| {
            !found[..of_claims].iter().any(|other| {
                other.trial == stand_in.trial && other.published_pair == stand_in.published_pair
            })
        };
        let new: Vec<StandIn> = of_table.into_iter().filter(is_new).collect();
        found.extend(new);
    }
    found
}

/// The contender itself if it runs, or else the one that stands in for it.
pub(crate) fn substituted<'a>(page: &'a Document, id: &'a str, contenders: &[String]) -> &'a str {
    if contenders.iter().any(|contender| contender == id) {
        return id;
    }
    let stand_in = entry(page, id).and_then(|entry| entry.stand_in.as_ref());
    stand_in.map_or(id, |stand_in| &stand_in.id)
}

fn of_claim(
    page: &Document,
    program: &Program,
    results: Results<'_>,
    claim: &Claim,
) -> Option<StandIn> {
    let trial = program.trial(claim.scenario.get_ref())?;
    let object = claim.object.as_ref()?.get_ref();
    let ratio = Statement::of(claim).ok()?.ratio()?;
    let pair = (claim.subject.get_ref().as_str(), object.as_str());
    let mut stand_in = substitute(page, results, trial, pair, claim.measure, ratio)?;
    stand_in.claim = Some(claim.id.get_ref().clone());
    Some(stand_in)
}

/// The rates of the publisher's own entry, or of any that is missing, against all others.
fn of_table(page: &Document, results: Results<'_>, trial: &Trial) -> Vec<StandIn> {
    let rate = |id: &str| page.row(&trial.id, id)?.rate.as_ref().map(|rate| rate.interval());
    let Some(home) = page.source.home.as_deref() else { return Vec::new() };
    let others = page.rows_of(&trial.id).map(|row| row.contender.get_ref().as_str());
    others
        .filter(|other| *other != home)
        .filter_map(|other| {
            let ratio = rate(home)?.over(rate(other)?);
            substitute(page, results, trial, (home, other), Measure::Rate, ratio)
        })
        .collect()
}

/// The same ratio with stand-ins; none if the subject is there, or nothing stands in for it.
fn substitute(
    page: &Document,
    results: Results<'_>,
    trial: &Trial,
    (subject, object): (&str, &str),
    measure: Measure,
    published: Interval,
) -> Option<StandIn> {
    if trial.contenders.iter().any(|contender| contender == subject) {
        return None;
    }
    let pair = (
        substituted(page, subject, &trial.contenders),
        substituted(page, object, &trial.contenders),
    );
    let can_run = [pair.0, pair.1].iter().all(|id| trial.contenders.iter().any(|c| c == id));
    if !can_run || pair.0 == pair.1 {
        return None;
    }
    let effect = results.effect(&trial.id, pair, measure);
    let place = trial
        .connections()
        .map_or_else(String::new, |connections| format!(" at {connections} connections"));
    let here = match &effect {
        Ok(effect) => words::effect(effect, words::unit(effect, measure), None),
        Err(reason) => {
            let (one, other) = (running(page, subject, pair.0), running(page, object, pair.1));
            let reason = reason.replace("{subject}", one).replace("{object}", other);
            format!("not measured. {}", reason.trim_end_matches('.'))
        }
    };
    let sentence = format!(
        "{} published \u{d7}{} against {} ({}{place}). {} Here {} against {}: {here}. This does \
         not test the published number.",
        label(page, subject),
        words::number(published.middle()),
        label(page, object),
        words::measure(measure),
        introductions(page, &[(subject, pair.0), (object, pair.1)]),
        running(page, subject, pair.0),
        running(page, object, pair.1),
    );
    let effect: Option<Effect> = effect.ok();
    Some(StandIn {
        claim: None,
        trial: trial.id.clone(),
        published_pair: Pair::new(label(page, subject), label(page, object)),
        pair: Pair::new(pair.0, pair.1),
        published: Some(published.middle()),
        measured: effect.as_ref().map(|effect| effect.ratio),
        decision: effect.map(|effect| effect.decision),
        sentence,
    })
}

/// The name of whoever runs in a contender's place.
fn running<'a>(page: &'a Document, published: &'a str, id: &'a str) -> &'a str {
    let stand_in = entry(page, published).and_then(|entry| entry.stand_in.as_ref());
    match stand_in {
        Some(stand_in) if stand_in.id == id && published != id => &stand_in.label,
        _ => label(page, id),
    }
}

/// Who stands in for whom and why, in sentences.
fn introductions(page: &Document, sides: &[(&str, &str)]) -> String {
    let sentences: Vec<String> = sides
        .iter()
        .filter(|(published, id)| published != id)
        .filter_map(|(published, _)| {
            Some(introduction(page, published, entry(page, published)?.stand_in.as_ref()?))
        })
        .collect();
    sentences.join(" ")
}

fn of_operations(page: &Document, results: Results<'_>, claim: &Claim) -> Option<StandIn> {
    let replaced = |id: &str| {
        let stand_in = entry(page, id)?.stand_in.as_ref()?;
        Some((stand_in, operations::times(page, results, claim, &stand_in.id)?))
    };
    let subject = claim.subject.get_ref().as_str();
    let object = claim.object.as_ref().map(|object| object.get_ref().as_str());
    let (in_place, times) = replaced(subject)?;
    let other = match object {
        Some(object) => Some(replaced(object)?),
        None => None,
    };
    let ratio = other.as_ref().map(|(_, of_other)| Ratio {
        estimate: operations::ratio_of(&times, of_other),
        low: f64::NAN,
        high: f64::NAN,
    });
    let here = ratio.map_or_else(
        || times.iter().map(|time| format!("{:.1} ns", time.ns)).collect::<Vec<_>>().join(", "),
        |ratio| words::ratio(&ratio),
    );
    let other = other.map(|(stand_in, _)| stand_in);
    let against = other.map_or_else(String::new, |other| format!(" against {}", other.label));
    let mut introductions = introduction(page, subject, in_place);
    if let Some((object, other)) = object.zip(other) {
        introductions = format!("{introductions} {}", introduction(page, object, other));
    }
    let sentence = format!(
        "{} published {}{}. {introductions} Here {}{against}: {here}. This does not test the \
         published number.",
        label(page, subject),
        words::published(page, claim),
        words::place(page, claim),
        in_place.label,
    );
    Some(StandIn {
        claim: Some(claim.id.get_ref().clone()),
        trial: ROUTER.to_owned(),
        published_pair: Pair::new(label(page, subject), object.map_or("", |id| label(page, id))),
        pair: Pair::new(&in_place.id, other.map_or("", |other| &other.id)),
        published: Statement::of(claim).ok().and_then(Statement::ratio).map(Interval::middle),
        measured: ratio,
        decision: None,
        sentence,
    })
}

fn introduction(page: &Document, published: &str, stand_in: &InPlace) -> String {
    let (name, because) = (&stand_in.label, &stand_in.because);
    format!("{name} stands in for {}: {because}.", label(page, published))
}
