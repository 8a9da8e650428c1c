//! Validity checks: the odd ones grouped with everybody whom they are about, the others on demand.

use peregrine_lab_model::check::Outcome;

use crate::content::{CheckRow, Report};
use crate::document::{Cell, Part, Section, Table};

/// Outcomes from bad to good.
const ORDER: [Outcome; 6] = [
    Outcome::Failed,
    Outcome::ClientBound,
    Outcome::Warned,
    Outcome::Other,
    Outcome::Skipped,
    Outcome::Passed,
];

/// A check with the same result, for whomever and in whatever run.
struct Group<'a> {
    name: &'a str,
    outcome: Outcome,
    rows: Vec<&'a CheckRow>,
}

pub(crate) fn section(report: &Report) -> Section {
    let title = "Validity checks".to_owned();
    if report.checks.is_empty() {
        let text = "The run files hold no checks.".to_owned();
        return Section { title, parts: vec![Part::Text(text)] };
    }
    let of = |wanted: Outcome| report.checks.iter().filter(|row| row.outcome == wanted).count();
    let text = format!(
        "{} of {} checks passed, {} failed, {} odd, {} client-bound, {} could not be made.",
        of(Outcome::Passed),
        report.checks.len(),
        of(Outcome::Failed),
        of(Outcome::Warned),
        of(Outcome::ClientBound),
        of(Outcome::Skipped) + of(Outcome::Other),
    );
    let mut parts = vec![Part::Text(text)];
    let groups = groups(&report.checks);
    let (passed, odd): (Vec<Group<'_>>, Vec<Group<'_>>) =
        groups.into_iter().partition(|group| group.outcome == Outcome::Passed);
    let runs = unique(report.checks.iter().map(|row| row.run.as_str()));
    if !odd.is_empty() {
        parts.push(Part::Table(table(&odd, runs.len(), true)));
    }
    if !passed.is_empty() {
        let note = "The figures of each are in the JSON form of this report.".to_owned();
        let title = format!("The {} that passed", of(Outcome::Passed));
        let table = Part::Table(table(&passed, runs.len(), false));
        parts.push(Part::Folded(title, vec![table, Part::Note(note)]));
    }
    Section { title, parts }
}

fn groups(rows: &[CheckRow]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let same =
            groups.iter_mut().find(|group| group.name == row.name && group.outcome == row.outcome);
        match same {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { name: &row.name, outcome: row.outcome, rows: vec![row] }),
        }
    }
    let place = |group: &Group<'_>| ORDER.iter().position(|outcome| *outcome == group.outcome);
    groups.sort_by_key(place);
    groups
}

fn table(groups: &[Group<'_>], runs_all: usize, is_odd: bool) -> Table {
    let mut columns = vec![("check", "", false)];
    if is_odd {
        columns.push(("result", "", false));
    }
    columns.push(("contenders", "", false));
    if runs_all > 1 {
        columns.push(("runs", "", false));
    }
    if is_odd {
        columns.push(("figures", "", false));
    }
    let mut table = Table::new(&columns);
    for group in groups {
        let rows = || group.rows.iter();
        let names = unique(rows().map(|row| row.contender.as_deref().unwrap_or("the run")));
        let runs = unique(rows().map(|row| row.run.as_str()));
        let mut cells: Vec<Cell> = vec![group.name.into()];
        if is_odd {
            cells.push(outcome(group.outcome));
        }
        cells.push(names.join(", ").into());
        if runs_all > 1 {
            cells.push(if runs.len() == runs_all { "all".into() } else { runs.join(", ").into() });
        }
        if is_odd {
            cells.push(figures(group, names.len(), runs.len()));
        }
        table.push(cells);
    }
    table
}

/// Each different sentence, with whom it is about where that is not plain.
fn figures(group: &Group<'_>, names: usize, runs: usize) -> Cell {
    let different = unique(group.rows.iter().map(|row| row.detail.as_str()));
    if let [same] = different[..] {
        return same.into();
    }
    let lines: Vec<String> = group
        .rows
        .iter()
        .map(|row| {
            let mut about = Vec::new();
            if names > 1 {
                about.push(row.contender.as_deref().unwrap_or("the run"));
            }
            if runs > 1 {
                about.push(&row.run);
            }
            match about.is_empty() {
                true => row.detail.clone(),
                false => format!("{}: {}", about.join(", "), row.detail),
            }
        })
        .collect();
    Cell::lines(&lines)
}

pub(super) fn unique<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

/// A result that needs attention is a label, the others are plain words.
pub(super) fn outcome(outcome: Outcome) -> Cell {
    match outcome {
        Outcome::Failed | Outcome::Warned | Outcome::ClientBound => {
            Cell { labels: vec![outcome.words()], ..Cell::default() }
        }
        Outcome::Passed | Outcome::Skipped | Outcome::Other => outcome.words().into(),
    }
}
