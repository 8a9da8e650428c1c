//! Claims about tables of operations, by the times of the router benchmark.

use std::cmp::Ordering;

use peregrine_lab_audit::claim::{Claim, Document, Operation};
use peregrine_lab_audit::quantity::{Interval, time_text};
use peregrine_lab_audit::statement::Statement;
use peregrine_lab_model::claim::Finding;
use peregrine_lab_model::verdict::{Decision, Ratio};

use crate::conclude::Judged;
use crate::effect::{Effect, Results, is_within, side_of};
use crate::observed::OperationTime;
use crate::program::ROUTER;

/// The share up to which two routers' times do not differ. Code that is placed otherwise in
/// memory differs by as much.
pub(crate) const BAND: f64 = 0.05;

/// The routers that are named beside a claim which cannot be tested.
const NAMED: [&str; 7] = ["peregrine", "matchit", "wayfind", "trie", "map", "regex", "linear"];

/// The operations of a claim, with the benchmark's cases.
fn operations<'a>(page: &'a Document, claim: &'a Claim) -> impl Iterator<Item = &'a Operation> {
    page.microbenchmarks
        .iter()
        .filter(|table| table.scenario == *claim.scenario.get_ref())
        .flat_map(|table| &table.operations)
        .filter(|operation| {
            claim.operations.as_ref().is_none_or(|names| names.contains(&operation.name))
        })
}

/// The times of a router for all operations of a claim; none if one of them is missing.
pub(crate) fn times<'a>(
    page: &'a Document,
    results: Results<'a>,
    claim: &'a Claim,
    router: &str,
) -> Option<Vec<&'a OperationTime>> {
    let observed = results.observed(ROUTER, router)?;
    let time = |operation: &Operation| {
        let case = operation.case.as_ref()?;
        observed.operations.iter().find(|time| time.case == *case && time.ns > 0.0)
    };
    let times: Option<Vec<_>> = operations(page, claim).map(time).collect();
    times.filter(|times| !times.is_empty())
}

/// The geometric mean of the ratios of two routers' times.
pub(crate) fn ratio_of(subject: &[&OperationTime], object: &[&OperationTime]) -> f64 {
    mean_ratio(subject.iter().zip(object).map(|(subject, object)| subject.ns / object.ns))
}

fn mean_ratio(ratios: impl Iterator<Item = f64>) -> f64 {
    let logarithms: Vec<f64> = ratios.map(f64::ln).collect();
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}

/// The effect that decides a claim about two routers.
///
/// # Errors
///
/// Why there is none, in a sentence.
pub(crate) fn effect(
    page: &Document,
    results: Results<'_>,
    claim: &Claim,
    (subject, object): (&str, &str),
) -> Result<Effect, String> {
    let of = |id: &str, name: &str| {
        times(page, results, claim, id)
            .ok_or(format!("The router benchmark has no such times of {name}."))
    };
    let (subject, object) = (of(subject, "{subject}")?, of(object, "{object}")?);
    let interval = |time: &OperationTime| {
        let (low, high) = time.interval_ns?;
        (low > 0.0 && high >= low).then_some(Interval { low, high })
    };
    let mut lows = Vec::new();
    let mut highs = Vec::new();
    for (one, other) in subject.iter().zip(&object) {
        let both = interval(one).zip(interval(other));
        let (one, other) = both.ok_or("The router benchmark gave its times without a spread.")?;
        let ratio = one.over(other);
        lows.push(ratio.low);
        highs.push(ratio.high);
    }
    let ratio = Ratio {
        estimate: ratio_of(&subject, &object),
        low: mean_ratio(lows.into_iter()),
        high: mean_ratio(highs.into_iter()),
    };
    let side = side_of(&ratio, BAND);
    let decision = match side {
        Some(Ordering::Less) => Decision::Faster,
        Some(_) => Decision::Slower,
        None if is_within(&ratio, BAND) => Decision::Equivalent,
        None => Decision::CannotTell,
    };
    Ok(Effect {
        ratio,
        side,
        band: BAND,
        decision,
        more_blocks: None,
        measure: None,
        reply_bytes: None,
    })
}

/// Judges a claim about the times of one router; none if it is about two.
///
/// # Errors
///
/// Why it cannot be judged, in a sentence.
pub(crate) fn of_one(
    page: &Document,
    results: Results<'_>,
    claim: &Claim,
    statement: Statement,
) -> Result<Option<Judged>, String> {
    let (figure, limit): (&str, f64) = match statement {
        Statement::Average(mean) => ("mean", mean.high),
        Statement::Span(_, greatest) => ("greatest", greatest.high),
        Statement::Below(limit) => ("greatest", limit),
        _ => return Ok(None),
    };
    let times = times(page, results, claim, claim.subject.get_ref())
        .ok_or("The router benchmark has no such times of {subject}.")?;
    let seconds = times.iter().map(|time| time.ns / 1e9);
    let measured = if figure == "mean" {
        seconds.sum::<f64>() / times.len() as f64
    } else {
        seconds.fold(0.0, f64::max)
    };
    let finding = if measured <= limit { Finding::Confirmed } else { Finding::NotReproduced };
    let text = format!("{} as the {figure}", time_text(measured));
    let detail = format!(
        "{}, here {}: a time of one machine beside that of another.",
        time_text(limit),
        time_text(measured)
    );
    Ok(Some((finding, Some(text), vec![detail])))
}

/// The times that there are for the operations of a claim which cannot be tested, in a sentence.
pub(crate) fn times_text(page: &Document, results: Results<'_>, claim: &Claim) -> Option<String> {
    let text = |router: &&str| {
        let times = times(page, results, claim, router)?;
        let least = times.iter().map(|time| time.ns).fold(f64::INFINITY, f64::min);
        let greatest = times.iter().map(|time| time.ns).fold(0.0, f64::max);
        Some(if times.len() == 1 {
            format!("{router} {least:.1} ns")
        } else {
            format!("{router} {least:.1} to {greatest:.1} ns")
        })
    };
    let texts: Vec<String> = NAMED.iter().filter_map(text).collect();
    (!texts.is_empty()).then(|| format!("Other routers here: {}.", texts.join(", ")))
}
