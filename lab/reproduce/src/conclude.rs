//! A word for each claim.

use std::cmp::Ordering;

use peregrine_lab_audit::claim::{Claim, Document, Form, Measure};
use peregrine_lab_audit::quantity::Interval;
use peregrine_lab_audit::statement::{Statement, is_of_operations};
use peregrine_lab_model::claim::{ClaimResult, Finding};

use crate::effect::{Effect, Published, Results};
use crate::observed::{Observed, PairJudged};
use crate::operations;
use crate::program::{Method, Program, Trial, failures_text};
use crate::roster::label;
use crate::words;

/// What came of every claim of `page`, in its order: exactly one result a claim.
///
/// - *Confirmed*: the same direction as published, beyond the noise, and the published ratio
///   (with its rounding) is within the interval or below the measured effect. A claim of sameness:
///   the interval is within what the page itself calls the same.
/// - *Smaller*: the same direction, beyond the noise, and the whole interval is short of the
///   published effect.
/// - *Not reproduced*: no difference beyond the noise; or, of a claim of sameness, neither sameness
///   nor difference.
/// - *Reversed*: beyond the noise in the other direction; or, of a claim of sameness, a difference.
/// - *Not testable here*: the detail says why.
///
/// Throughput is judged by requests per second of server CPU time, latency at an equal rate of an
/// open loop; what the published method gives stands beside it and decides nothing.
#[must_use]
pub fn conclude(
    page: &Document,
    program: &Program,
    observed: &[Observed],
    judged: &[PairJudged],
) -> Vec<ClaimResult> {
    let results = Results { observed, judged };
    page.claims.iter().map(|claim| result(page, program, results, claim)).collect()
}

fn result(page: &Document, program: &Program, results: Results<'_>, claim: &Claim) -> ClaimResult {
    let trial = trial_of(program, claim);
    let (finding, corrected, mut details) = match judgement(page, program, results, claim) {
        Ok(judged) => judged,
        Err(reason) => {
            let why = words::named(page, claim, &reason);
            let times = operations::times_text(page, results, claim);
            let measured = trial.and_then(|trial| measured(page, trial, results, claim));
            let details = std::iter::once(why).chain(times).collect();
            (Finding::NotTestable, measured, details)
        }
    };
    let as_published = trial.and_then(|trial| words::as_published(page, trial, results, claim));
    details.extend(words::versions(page, program, claim));
    if let Some(Method::Load { corrected, .. }) = trial.map(|trial| &trial.method) {
        details.extend(corrected.remarks.iter().cloned());
    }
    if page.source.withdrawn.is_some() {
        details.push("The author took the page's numbers back.".to_owned());
    }
    ClaimResult {
        source: page.source.title.clone(),
        claim: words::claim(page, claim),
        published: words::published(page, claim),
        as_published,
        corrected,
        finding,
        detail: details.join(" "),
    }
}

/// The trial in which the claim's contenders ran, whether or not it can decide the claim.
fn trial_of<'a>(program: &'a Program, claim: &Claim) -> Option<&'a Trial> {
    program.trial(claim.scenario.get_ref())
}

/// The word, what the corrected method gave, and why.
pub(crate) type Judged = (Finding, Option<String>, Vec<String>);

fn judgement(
    page: &Document,
    program: &Program,
    results: Results<'_>,
    claim: &Claim,
) -> Result<Judged, String> {
    if let Some(reason) = program.reason(claim.id.get_ref()) {
        return Err(reason.to_owned());
    }
    let statement =
        Statement::of(claim).map_err(|problem| format!("It cannot be read: {problem}."))?;
    if let Some(judged) = operations::of_one(page, results, claim, statement)? {
        return Ok(judged);
    }
    let object = claim.object.as_ref().ok_or("It compares with nobody.")?.get_ref();
    let pair = (claim.subject.get_ref().as_str(), object.as_str());
    let published = published(page, claim, statement)?;
    let (effect, text) = if is_of_operations(claim.measure) {
        let effect = operations::effect(page, results, claim, pair)?;
        let text = words::effect(&effect, "times", None);
        (effect, text)
    } else {
        let trial = trial_of(program, claim).ok_or("Its trial was not run.")?;
        let effect = results.effect(&trial.id, pair, claim.measure)?;
        let text = words::corrected(trial, results, claim, pair, &effect);
        (effect, text)
    };
    let finding = effect.finding(published);
    let why = words::why(finding, published, &effect, claim.form == Form::Equivalent);
    let mut details = vec![words::named(page, claim, &why)];
    details.extend(failures(page, claim, pair));
    details.extend(words::contradiction(program, results, claim, pair, &effect));
    Ok((finding, Some(text), details))
}

/// What was measured of a claim that cannot be tested: the effect if both sides ran, or else the
/// figures of the one that did.
fn measured(page: &Document, trial: &Trial, results: Results<'_>, claim: &Claim) -> Option<String> {
    let object = claim.object.as_ref()?.get_ref();
    let pair = (claim.subject.get_ref().as_str(), object.as_str());
    match results.effect(&trial.id, pair, claim.measure) {
        Ok(effect) => Some(words::corrected(trial, results, claim, pair, &effect)),
        Err(_) => words::corrected_parts(page, trial, results, claim),
    }
}

/// What to know of a sentence that rests on a row of failures.
fn failures(page: &Document, claim: &Claim, pair: (&str, &str)) -> Option<String> {
    let (id, failures) = [pair.0, pair.1].into_iter().find_map(|id| {
        let row = page.row(claim.scenario.get_ref(), id)?;
        Some((id, failures_text(row)?))
    })?;
    let name = label(page, id);
    Some(format!("The page's own row of {name} counts failures ({failures}), not right replies."))
}

/// What the claim says of subject divided by object.
fn published(page: &Document, claim: &Claim, statement: Statement) -> Result<Published, String> {
    match statement {
        Statement::Worse => {
            let is_less = !claim.measure.less_is_better();
            Ok(Published::Side(if is_less { Ordering::Less } else { Ordering::Greater }))
        }
        Statement::Equivalent => Ok(Published::Same(own_difference(page, claim).unwrap_or(0.0))),
        _ => {
            let ratio = statement.ratio().ok_or("It names no ratio.")?;
            if ratio.low > 1.0 || ratio.high < 1.0 {
                Ok(Published::Ratio(ratio))
            } else {
                Ok(Published::Same(share_from_one(ratio)))
            }
        }
    }
}

/// How far apart the page's own two numbers may be that it calls the same, as a share: its words
/// mean at least that much.
fn own_difference(page: &Document, claim: &Claim) -> Option<f64> {
    let scenario = claim.scenario.get_ref();
    let value = |id: &str| -> Option<Interval> {
        let row = page.row(scenario, id)?;
        match claim.measure {
            Measure::Rate => row.rate.as_ref().map(|printed| printed.interval()),
            Measure::Transfer => row.transfer.as_ref().map(|printed| printed.interval()),
            Measure::Mean => row.mean.as_ref().map(|printed| printed.interval()),
            Measure::P99 => row.p99.as_ref().map(|printed| printed.interval()),
            _ => None,
        }
    };
    let object = claim.object.as_ref()?.get_ref();
    let (subject, object) = (value(claim.subject.get_ref())?, value(object)?);
    let ratio = subject.over(object);
    let share = share_from_one(ratio);
    share.is_finite().then_some(share)
}

/// The share by which the far end of a ratio differs from 1.
fn share_from_one(ratio: Interval) -> f64 {
    ratio.high.max(1.0 / ratio.low) - 1.0
}

impl Effect {
    /// Whether the published effect is one that this run would call noise.
    pub(crate) fn hides(&self, published: Published) -> bool {
        match published {
            Published::Ratio(ratio) => {
                ratio.low >= 1.0 / (1.0 + self.band) && ratio.high <= 1.0 + self.band
            }
            Published::Same(_) | Published::Side(_) => false,
        }
    }
}
