//! What all verdicts do not show, and the forest plot of them.

use peregrine_lab_model::verdict::{Decision, Measure, Ratio};

use crate::chart::{Size, forest};
use crate::content::{Judged, Report, Run, Section as Scenario, Series};
use crate::document::{Cell, Figure, Part, Section, Table};
use crate::numbers;

pub(super) fn heading(scenario: &Scenario, run: &Run) -> String {
    let name = super::name(scenario);
    run.rate_per_s.map_or_else(
        || name.clone(),
        |rate| format!("{name}, {} requests/s", numbers::fixed(rate, 0)),
    )
}

pub(super) fn is_again(run: &Run, contender: &str) -> bool {
    run.again.as_ref().is_some_and(|(second, _)| second == contender)
}

pub(crate) fn not_shown(report: &Report) -> Section {
    Section {
        title: "What this does not show".to_owned(),
        parts: vec![Part::List(report.not_shown.clone())],
    }
}

pub(crate) fn forest(report: &Report) -> Option<Section> {
    let mut groups = Vec::new();
    let mut table = Table::new(&[
        ("scenario", "", false),
        ("contender", "", false),
        ("against", "", false),
        ("ratio", "×", true),
        ("95\u{a0}% interval", "×", true),
        ("blocks", "", true),
        ("p, corrected", "", true),
        ("verdict", "", false),
    ]);
    for scenario in &report.sections {
        for run in &scenario.runs {
            if let Some(group) = group(scenario, run) {
                groups.push(group);
                list(&mut table, &heading(scenario, run), run);
            }
        }
    }
    if groups.is_empty() {
        return None;
    }
    let caption = "Server CPU time per request against the reference (×, logarithmic axis), with \
                   95\u{a0}% intervals of paired blocks. Left of the line is cheaper. The shaded band \
                   is how far the same program differs from itself (A/A): nothing inside it is \
                   ranked.";
    let figure = Figure {
        title: "Cost per request against the reference".to_owned(),
        caption: caption.to_owned(),
        wide: forest::draw(&groups, Size::Wide),
        narrow: forest::draw(&groups, Size::Narrow),
        legend: Vec::new(),
        table: Some(table),
    };
    Some(Section {
        title: "All comparisons at a glance".to_owned(),
        parts: vec![Part::Figure(figure)],
    })
}

/// The forest plot as a picture that stands alone.
pub(crate) fn forest_svg(report: &Report) -> String {
    let mut groups = Vec::new();
    let mut references: Vec<&str> = Vec::new();
    for scenario in &report.sections {
        for run in &scenario.runs {
            if let Some(group) = group(scenario, run) {
                groups.push(group);
                references.push(&run.reference);
            }
        }
    }
    references.sort_unstable();
    references.dedup();
    let reference = match references[..] {
        [reference] => reference,
        _ => "the reference",
    };
    forest::alone(groups, reference)
}

fn group<'a>(scenario: &Scenario, run: &'a Run) -> Option<forest::Group<'a>> {
    let judged = run
        .verdicts
        .iter()
        .filter(|judged| judged.measure == Measure::ServerCpu && !is_again(run, &judged.contender));
    let mut rows: Vec<forest::Row<'_>> = judged
        .map(|judged| forest::Row {
            name: &judged.contender,
            series: judged.series,
            ratio: shown(judged),
            word: judged.decision.words(),
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let cost = |row: &forest::Row<'_>| row.ratio.map_or(f64::INFINITY, |ratio| ratio.estimate);
    rows.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    if let Some((second, ratio)) = &run.again {
        rows.push(forest::Row {
            name: second,
            series: Series::Neutral,
            ratio: Some(*ratio).filter(Ratio::is_known),
            word: "A/A arm",
        });
    }
    let against = &rows_reference(run);
    let title = format!("{}  ·  against {against}", heading(scenario, run));
    Some(forest::Group { title, band: run.band, rows })
}

/// The ratio, unless it is void or unknown.
fn shown(judged: &Judged) -> Option<Ratio> {
    (judged.decision != Decision::Void && judged.ratio.is_known()).then_some(judged.ratio)
}

/// Whom the verdicts compare with, by the verdicts themselves.
fn rows_reference(run: &Run) -> String {
    let mut names: Vec<&str> = run
        .verdicts
        .iter()
        .filter(|judged| judged.measure == Measure::ServerCpu && !is_again(run, &judged.contender))
        .map(|judged| judged.reference.as_str())
        .collect();
    names.dedup();
    names.join(", ")
}

fn list(table: &mut Table, scenario: &str, run: &Run) {
    for judged in &run.verdicts {
        if judged.measure != Measure::ServerCpu || is_again(run, &judged.contender) {
            continue;
        }
        let Judged { ratio, p_value, .. } = judged;
        let (estimate, interval) = match shown(judged) {
            None => ("–".to_owned(), "–".to_owned()),
            Some(_) => (numbers::fixed(ratio.estimate, 3), numbers::interval(ratio, " to ")),
        };
        let p_value = p_value.filter(|_| judged.decision != Decision::Void);
        let p_value = p_value.map_or("–".to_owned(), |p_value| {
            if p_value < 0.001 { "< 0.001".to_owned() } else { numbers::fixed(p_value, 3) }
        });
        table.push([
            scenario.into(),
            Cell::name(&judged.contender, judged.series),
            judged.reference.as_str().into(),
            estimate.into(),
            interval.into(),
            numbers::count(judged.blocks.into()).into(),
            p_value.into(),
            judged.decision.words().into(),
        ]);
    }
    if let Some((second, ratio)) = &run.again {
        table.push([
            scenario.into(),
            Cell::name(second, Series::Neutral),
            "itself".into(),
            numbers::fixed(ratio.estimate, 3).into(),
            numbers::interval(ratio, " to ").into(),
            "–".into(),
            "–".into(),
            format!("noise: ±{}", numbers::percent(run.band.unwrap_or(f64::NAN))).into(),
        ]);
    }
}
