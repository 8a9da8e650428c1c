//! The page's sentences against its own tables.

use std::collections::HashSet;

use serde::Serialize;

use crate::claim::{Claim, Discipline, Document, Form, Measure, Row};
use crate::figures::{RowFigures, interval_text, percent_text};
use crate::finding::{Check, Finding, Severity};
use crate::quantity::{Interval, Printed, Rate, Size, Time, digits_text, time_text};
use crate::statement::Statement;

use super::little::little_bound;
use super::ranking::NOISE_OF_ONE_RUN;

/// A claim as something that a run can confirm, with what the page's own rows give for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClaimFigures {
    /// The claim's id.
    pub id: String,
    /// The words, or `None` if two rows only imply it.
    pub quote: Option<String>,
    /// The scenario's id.
    pub scenario: String,
    /// The scenario's connections.
    pub connections: Option<u32>,
    /// The number that is compared.
    pub measure: Measure,
    /// What the claim is about.
    pub subject: String,
    /// What it is compared with.
    pub object: Option<String>,
    /// How the printed number is read.
    pub form: Form,
    /// The number as printed.
    pub printed: Option<String>,
    /// Subject divided by object, as claimed; `None` if the claim names no ratio.
    pub expected: Option<Interval>,
    /// Subject divided by object, or the subject's own mean or span, from the page's rows.
    pub recomputed: Option<Interval>,
    /// Whether the sentence follows from the rows; `None` if they do not tell.
    pub follows: Option<bool>,
}

/// One comparison of a claim: the operation, if any, and the two numbers.
struct Pair {
    operation: Option<String>,
    subject: Interval,
    object: Option<Interval>,
}

impl Pair {
    fn ratio(&self) -> Option<Interval> {
        Some(self.subject.over(self.object?))
    }
}

/// Computes the figures of every claim.
#[must_use]
pub fn claim_figures(document: &Document) -> Vec<ClaimFigures> {
    document
        .claims
        .iter()
        .map(|claim| {
            let pairs = pairs_of(document, claim);
            let judged =
                Statement::of(claim).ok().and_then(|statement| judge(statement, claim, &pairs));
            ClaimFigures {
                id: claim.id.get_ref().clone(),
                quote: claim.quote.clone(),
                scenario: claim.scenario.get_ref().clone(),
                connections: claim.connections,
                measure: claim.measure,
                subject: claim.subject.get_ref().clone(),
                object: claim.object.as_ref().map(|object| object.get_ref().clone()),
                form: claim.form,
                printed: claim.printed.as_ref().map(|printed| printed.get_ref().clone()),
                expected: Statement::of(claim).ok().and_then(Statement::ratio),
                recomputed: judged.as_ref().map(|judged| judged.recomputed),
                follows: judged.map(|judged| judged.follows),
            }
        })
        .collect()
}

/// Finds sentences whose number does not follow from the page's rows.
///
/// The number in a headline is what readers remember. It is recomputed from the rows with their
/// rounding; a sentence about several rows must hold in each of them.
#[must_use]
pub fn claim_arithmetic(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for claim in &document.claims {
        let pairs = pairs_of(document, claim);
        let Some(judged) =
            Statement::of(claim).ok().and_then(|statement| judge(statement, claim, &pairs))
        else {
            continue;
        };
        if judged.follows {
            continue;
        }
        // "In the same range" names no bounds, so a wide gap is only pointed at.
        let severity =
            if claim.form == Form::Equivalent { Severity::Note } else { Severity::Misleading };
        let detail = format!("\"{}\": {}", quote_of(claim), judged.arithmetic);
        let summary = "The sentence does not follow from the page's own rows.";
        let concerns = vec![claim.id.get_ref().clone()];
        findings.push(Finding::new(severity, Check::ClaimArithmetic, concerns, summary, detail));
    }
    findings
}

struct Judged {
    follows: bool,
    recomputed: Interval,
    arithmetic: String,
}

fn judge(statement: Statement, claim: &Claim, pairs: &[Pair]) -> Option<Judged> {
    let subjects: Vec<Interval> = pairs.iter().map(|pair| pair.subject).collect();
    match statement {
        Statement::Average(printed) => {
            let sum = subjects.iter().copied().reduce(Interval::plus)?;
            let mean = sum.over(Interval::exact(subjects.len() as f64));
            let times: Vec<String> = subjects.iter().map(|time| time_text(time.middle())).collect();
            let arithmetic = format!(
                "the mean of {} is {}, printed is {}.",
                times.join(", "),
                interval_text(mean, time_text),
                printed_of(claim)
            );
            Some(Judged { follows: mean.meets(printed), recomputed: mean, arithmetic })
        }
        Statement::Span(least, greatest) => {
            let found = hull(&subjects)?;
            let follows = least.meets(extreme(&subjects, false)?)
                && greatest.meets(extreme(&subjects, true)?);
            let arithmetic = format!("the rows go from {}.", interval_text(found, time_text));
            Some(Judged { follows, recomputed: found, arithmetic })
        }
        Statement::Below(limit) => {
            let found = hull(&subjects)?;
            let arithmetic = format!("the greatest time is {}.", time_text(found.high));
            Some(Judged {
                follows: found.low < limit && extreme(&subjects, true)?.low < limit,
                recomputed: found,
                arithmetic,
            })
        }
        Statement::Ratio(_)
        | Statement::RatioRange(..)
        | Statement::Equivalent
        | Statement::Worse => judge_ratios(statement, claim, pairs),
    }
}

fn judge_ratios(statement: Statement, claim: &Claim, pairs: &[Pair]) -> Option<Judged> {
    let ratios: Vec<Interval> = pairs.iter().filter_map(Pair::ratio).collect();
    let recomputed = hull(&ratios)?;
    let follows = match statement {
        Statement::Ratio(claimed) => ratios.iter().all(|ratio| ratio.meets(claimed)),
        Statement::RatioRange(least, greatest) => {
            least.meets(extreme(&ratios, false)?) && greatest.meets(extreme(&ratios, true)?)
        }
        Statement::Equivalent => ratios
            .iter()
            .all(|r| r.low <= 1.0 + NOISE_OF_ONE_RUN && r.high >= 1.0 / (1.0 + NOISE_OF_ONE_RUN)),
        Statement::Worse if claim.measure.less_is_better() => recomputed.low > 1.0,
        Statement::Worse => recomputed.high < 1.0,
        Statement::Average(_) | Statement::Span(..) | Statement::Below(_) => return None,
    };
    let list: Vec<String> = pairs
        .iter()
        .filter_map(|pair| {
            let text = advantage_text(claim, pair.ratio()?);
            Some(
                pair.operation
                    .as_ref()
                    .map_or_else(|| text.clone(), |name| format!("{name}: {text}")),
            )
        })
        .collect();
    let arithmetic = format!("the rows give {}.", list.join(", "));
    Some(Judged { follows, recomputed, arithmetic })
}

/// The ratio in the form in which the claim speaks.
fn advantage_text(claim: &Claim, ratio: Interval) -> String {
    let middle = ratio.middle();
    match claim.form {
        Form::PercentMore => format!("{} more", percent_text(middle - 1.0)),
        Form::PercentLess => format!("{} less", percent_text(1.0 - middle)),
        Form::Factor | Form::FactorRange if claim.measure.less_is_better() => {
            format!("{} times", digits_text(1.0 / middle))
        }
        _ => format!("{} times", digits_text(middle)),
    }
}

fn hull(intervals: &[Interval]) -> Option<Interval> {
    intervals
        .iter()
        .copied()
        .reduce(|all, one| Interval { low: all.low.min(one.low), high: all.high.max(one.high) })
}

fn extreme(intervals: &[Interval], greatest: bool) -> Option<Interval> {
    let order = |a: &&Interval, b: &&Interval| a.middle().total_cmp(&b.middle());
    if greatest {
        intervals.iter().max_by(order).copied()
    } else {
        intervals.iter().min_by(order).copied()
    }
}

fn pairs_of(document: &Document, claim: &Claim) -> Vec<Pair> {
    let (scenario, subject) = (claim.scenario.get_ref(), claim.subject.get_ref());
    let object = claim.object.as_ref().map(|object| object.get_ref().as_str());
    if claim.measure != Measure::TimePerOperation {
        let number =
            |contender: &str| measure_of(document.row(scenario, contender)?, claim.measure);
        let Some(of_subject) = number(subject) else { return Vec::new() };
        let of_object = object.and_then(number);
        return vec![Pair { operation: None, subject: of_subject, object: of_object }];
    }
    let all = document
        .microbenchmarks
        .iter()
        .filter(|table| table.scenario == *scenario)
        .flat_map(|table| table.operations.iter().map(|operation| operation.name.clone()));
    let operations = claim.operations.clone().unwrap_or_else(|| all.collect());
    operations
        .into_iter()
        .filter_map(|operation| {
            let time = |column: &str| {
                document.operation(scenario, column, &operation).map(|printed| printed.interval())
            };
            let (of_subject, of_object) = (time(subject)?, object.and_then(time));
            Some(Pair { operation: Some(operation), subject: of_subject, object: of_object })
        })
        .collect()
}

fn measure_of(row: &Row, measure: Measure) -> Option<Interval> {
    match measure {
        Measure::Rate => row.rate.as_ref().map(|printed| printed.interval()),
        Measure::Transfer => row.transfer.as_ref().map(|printed| printed.interval()),
        Measure::Mean => row.mean.as_ref().map(|printed| printed.interval()),
        Measure::Max => row.max.as_ref().map(|printed| printed.interval()),
        Measure::P99 => row.p99.as_ref().map(|printed| printed.interval()),
        Measure::TimePerOperation | Measure::Allocations => None,
    }
}

fn quote_of(claim: &Claim) -> &str {
    claim.quote.as_deref().unwrap_or("implied by two rows")
}

fn printed_of(claim: &Claim) -> &str {
    claim.printed.as_ref().map_or("nothing", |printed| printed.get_ref())
}

/// Finds claims that rest on rows which are impossible themselves, and latency claims that the
/// throughput of the same rows does not carry.
///
/// A sentence computed correctly from impossible rows is still not a measurement. And in a closed
/// loop both contenders' connections were always in some part of their cycle, so latencies that
/// differ by a factor while the cycles (connections / rate) hardly do show a difference in what
/// was counted, not in speed.
#[must_use]
pub fn claim_basis(document: &Document) -> Vec<Finding> {
    let impossible: HashSet<String> = little_bound(document)
        .into_iter()
        .filter(|finding| finding.severity == Severity::Impossible)
        .flat_map(|finding| finding.concerns)
        .collect();
    let mut findings = Vec::new();
    for claim in document.claims.iter().filter(|claim| claim.form != Form::Implied) {
        let Some(object) = &claim.object else { continue };
        if claim.measure != Measure::Mean {
            continue;
        }
        let rows = [claim.subject.get_ref(), object.get_ref()]
            .map(|contender| format!("{}/{contender}", claim.scenario.get_ref()));
        let broken: Vec<&str> =
            rows.iter().filter(|row| impossible.contains(*row)).map(String::as_str).collect();
        let cycles = cycle_sentence(document, claim);
        if broken.is_empty() && cycles.is_none() {
            continue;
        }
        let mut detail = format!("\"{}\"", quote_of(claim));
        if !broken.is_empty() {
            detail.push_str(&format!(" uses the impossible mean of {}", broken.join(" and ")));
        }
        detail.push('.');
        detail.push_str(&cycles.unwrap_or_default());
        let summary = "A latency claim that the same rows do not carry.";
        let concerns = vec![claim.id.get_ref().clone()];
        findings.push(Finding::new(
            Severity::Misleading,
            Check::ClaimBasis,
            concerns,
            summary,
            detail,
        ));
    }
    findings
}

/// Compares the cycles of the two rows of a latency claim, if they differ far less than claimed.
fn cycle_sentence(document: &Document, claim: &Claim) -> Option<String> {
    if document.tool.discipline != Discipline::Closed {
        return None;
    }
    let cycle = |contender: &str| {
        let row = document.row(claim.scenario.get_ref(), contender)?;
        RowFigures::of(document, row).cycle_seconds
    };
    let subject = cycle(claim.subject.get_ref())?.middle();
    let object = cycle(claim.object.as_ref()?.get_ref())?.middle();
    let claimed = Statement::of(claim).ok()?.ratio()?.middle();
    // Within a tenth the two ways to look at it agree.
    if ((subject / object) / claimed - 1.0).abs() < 0.1 {
        return None;
    }
    Some(format!(
        " A connection's cycle (connections / rate) was {} against {}: {} less, not {}.",
        time_text(subject),
        time_text(object),
        percent_text(1.0 - subject / object),
        percent_text(1.0 - claimed),
    ))
}

/// Notes sentences whose words mean another number than the one computed.
///
/// "67.6 % faster" is read as 1.676 times the speed. If the number is the share of time saved,
/// the speed is 3.09 times, or 209 % higher; the two must not be mixed with throughput claims on
/// the same page, where "45.7 % higher" is meant as read.
#[must_use]
pub fn claim_wording(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for claim in document.claims.iter().filter(|claim| claim.form == Form::PercentLess) {
        let says_faster = claim.quote.as_ref().is_some_and(|quote| quote.contains("faster"));
        let ratio = Statement::of(claim).ok().and_then(Statement::ratio).map(Interval::middle);
        let Some(ratio) = ratio.filter(|ratio| says_faster && *ratio > 0.0) else { continue };
        let detail = format!(
            "\"{}\" is the share of time saved; in speed that is {:.2} times, or {:.0} % faster.",
            quote_of(claim),
            1.0 / ratio,
            (1.0 / ratio - 1.0) * 100.0
        );
        let summary = "\"Faster\" by a percentage of time, not of speed.";
        let concerns = vec![claim.id.get_ref().clone()];
        findings.push(Finding::new(Severity::Note, Check::ClaimWording, concerns, summary, detail));
    }
    findings
}

/// Finds numbers that are printed twice with different values.
///
/// Captions, rankings and summaries repeat numbers with fewer digits; they must round to the same.
#[must_use]
pub fn restated_numbers(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for restated in &document.restated {
        let (scenario, contender) = (restated.scenario.get_ref(), restated.contender.get_ref());
        let first = match &restated.operation {
            Some(operation) => {
                document.operation(scenario, contender, operation).map(|p| p.interval())
            }
            None => {
                document.row(scenario, contender).and_then(|row| measure_of(row, restated.measure))
            }
        };
        let again = match restated.measure {
            Measure::Rate => Printed::<Rate>::read(&restated.text, None).map(|p| p.interval()),
            Measure::Transfer => Printed::<Size>::read(&restated.text, None).map(|p| p.interval()),
            Measure::Allocations => continue,
            _ => Printed::<Time>::read(&restated.text, None).map(|p| p.interval()),
        };
        let (Some(first), Ok(again)) = (first, again) else { continue };
        if first.meets(again) {
            continue;
        }
        let detail = format!("\"{}\" (line {}).", restated.text, restated.line.unwrap_or(0));
        let concerns = vec![format!("{scenario}/{contender}")];
        let summary = "A number is printed twice with different values.";
        findings.push(Finding::new(
            Severity::Misleading,
            Check::Restated,
            concerns,
            summary,
            detail,
        ));
    }
    findings
}

/// Notes operations in which the publisher's own entry is beaten, on pages whose sentences speak
/// of wins only.
#[must_use]
pub fn unmentioned_losses(document: &Document) -> Vec<Finding> {
    let Some(home) = &document.source.home else { return Vec::new() };
    let mut findings = Vec::new();
    for table in &document.microbenchmarks {
        let Some(own) = table.columns.iter().position(|column| column == home) else { continue };
        for operation in &table.operations {
            let times = operation.times.get_ref();
            let ours = times[own].interval();
            let better = |printed: &Printed<Time>| printed.interval().high < ours.low;
            for (column, time) in table.columns.iter().zip(times).filter(|(_, time)| better(time)) {
                let factor = digits_text(ours.over(time.interval()).middle());
                let detail = format!(
                    "{}, {}: {home} {}, {column} {} ({factor} times faster); no sentence of the page says so.",
                    table.title,
                    operation.name,
                    times[own].text(),
                    time.text(),
                );
                let summary = "The publisher's own entry is beaten here.";
                let concerns = vec![format!("{}/{column}", table.scenario)];
                findings.push(Finding::new(
                    Severity::Note,
                    Check::UnmentionedLoss,
                    concerns,
                    summary,
                    detail,
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hull_spans_all_and_the_extremes_are_members() {
        let all = [Interval { low: 1.0, high: 2.0 }, Interval { low: 3.0, high: 4.0 }];
        assert_eq!(hull(&all), Some(Interval { low: 1.0, high: 4.0 }));
        assert_eq!(extreme(&all, true), Some(all[1]));
        assert_eq!(extreme(&all, false), Some(all[0]));
        assert_eq!(hull(&[]), None);
    }
}
