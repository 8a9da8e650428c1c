//! Published numbers: what came out of each claim here, what stands beside them, and what a paper
//! check finds in them.

use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::claim::{Audit, Finding};

use crate::content::Report;
use crate::document::{Card, Cell, Part, Section, Table};

/// Words that a paper check's sentences may begin with, from bad to harmless.
const SEVERITIES: [&str; 4] = ["impossible", "misleading", "missing", "note"];

/// The findings in the order in which they are counted.
const FINDINGS: [Finding; 6] = [
    Finding::Confirmed,
    Finding::Smaller,
    Finding::NotReproduced,
    Finding::Reversed,
    Finding::NotTestable,
    Finding::Other,
];

pub(crate) fn claims(report: &Report) -> Option<Section> {
    if report.claims.is_empty() && report.beside.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    if !report.claims.is_empty() {
        parts.push(Part::Text(tally(report)));
        let sources = sources(report.claims.iter().map(|claim| claim.source.as_str()));
        let paper = paper_check(report).map_or_else(String::new, |found| format!(" {found}"));
        parts.push(Part::Note(format!("Published in: {}.{paper}", sources.join("; "))));
    }
    let (tested, not): (Vec<_>, Vec<_>) =
        report.claims.iter().partition(|claim| claim.finding != Finding::NotTestable);
    let cards = |claims: Vec<&peregrine_lab_model::claim::ClaimResult>| -> Vec<Card> {
        claims.into_iter().map(card).collect()
    };
    if !tested.is_empty() {
        parts.push(Part::Cards(cards(tested)));
    }
    match not.len() {
        0 => {}
        count if count == report.claims.len() => parts.push(Part::Cards(cards(not))),
        1 => parts
            .push(Part::Folded("1 claim not testable here".into(), vec![Part::Cards(cards(not))])),
        count => parts.push(Part::Folded(
            format!("{count} claims not testable here"),
            vec![Part::Cards(cards(not))],
        )),
    }
    if !report.beside.is_empty() {
        parts.push(Part::Heading("Beside the claims".to_owned()));
        let text = "This tests no claim: it is what a reader may want to know where a published \
                    program cannot be had.";
        parts.push(Part::Note(text.to_owned()));
        parts.push(Part::List(report.beside.clone()));
    }
    Some(Section { title: "Published claims, tried here".to_owned(), parts })
}

/// How many claims have which finding.
fn tally(report: &Report) -> String {
    let counts = FINDINGS.iter().filter_map(|finding| {
        let count = report.claims.iter().filter(|claim| claim.finding == *finding).count();
        (count > 0).then(|| format!("{count} {}", finding.words()))
    });
    let counts: Vec<String> = counts.collect();
    let word = if report.claims.len() == 1 { "claim" } else { "claims" };
    format!("Of {} published {word}: {}.", report.claims.len(), counts.join(", "))
}

/// What the paper check says in a sentence; its section has the rest.
fn paper_check(report: &Report) -> Option<String> {
    let of = |outcome: Outcome| report.audits.iter().filter(|one| one.outcome == outcome).count();
    (!report.audits.is_empty()).then(|| {
        format!(
            "Checked on paper alone: {} findings of what cannot be, {} of what misleads, {} of what \
             is missing (see the audit below).",
            of(Outcome::Failed),
            of(Outcome::Warned),
            of(Outcome::Skipped)
        )
    })
}

fn sources<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut sources: Vec<&str> = Vec::new();
    for source in all {
        if !source.is_empty() && !sources.contains(&source) {
            sources.push(source);
        }
    }
    sources
}

fn card(claim: &peregrine_lab_model::claim::ClaimResult) -> Card {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".to_owned());
    Card {
        word: claim.finding.words(),
        title: claim.claim.clone(),
        facts: vec![
            ("published", claim.published.clone()),
            ("as published, here", or_dash(&claim.as_published)),
            ("corrected, here", or_dash(&claim.corrected)),
        ],
        text: claim.detail.clone(),
    }
}

pub(crate) fn audits(report: &Report) -> Option<Section> {
    if report.audits.is_empty() {
        return None;
    }
    let text = "A paper check: what can be said of published numbers without running anything.";
    let mut parts = vec![Part::Text(text.to_owned())];
    let outcomes = [
        (Outcome::Failed, "What cannot be"),
        (Outcome::Warned, "What misleads"),
        (Outcome::ClientBound, "Where the client was the limit"),
        (Outcome::Skipped, "What is missing"),
        (Outcome::Passed, "What holds, and notes"),
        (Outcome::Other, "Others"),
    ];
    for (outcome, title) in outcomes {
        let of: Vec<&Audit> =
            report.audits.iter().filter(|audit| audit.outcome == outcome).collect();
        if of.is_empty() {
            continue;
        }
        let title = format!("{title}: {}", of.len());
        let table = Part::Table(table(&of));
        if outcome == Outcome::Failed {
            parts.extend([Part::Heading(title), table]);
        } else {
            parts.push(Part::Folded(title, vec![table]));
        }
    }
    let sources = sources(report.audits.iter().map(|audit| audit.source.as_str()));
    parts.push(Part::Note(format!("Looked at: {}.", sources.join("; "))));
    Some(Section { title: "Audit of published numbers".to_owned(), parts })
}

/// Columns that say nothing are left out: a sentence often has the figures in it.
fn table(audits: &[&Audit]) -> Table {
    let has_published = audits.iter().any(|audit| !audit.published.is_empty());
    let has_bound = audits.iter().any(|audit| !audit.bound.is_empty());
    let mut columns = vec![("test", "", false), ("what follows", "", false)];
    if has_published {
        columns.push(("published", "", false));
    }
    if has_bound {
        columns.push(("bound", "", false));
    }
    columns.push(("about", "", false));
    let mut table = Table::new(&columns);
    for audit in audits {
        let mut cells: Vec<Cell> = vec![audit.test.as_str().into(), sentence(&audit.detail).into()];
        if has_published {
            cells.push(audit.published.as_str().into());
        }
        if has_bound {
            cells.push(audit.bound.as_str().into());
        }
        cells.push(about(&audit.subject));
        table.push(cells);
    }
    table
}

/// The sentence without the severity, which the heading says.
fn sentence(detail: &str) -> String {
    let severity = detail.split_once(": ").filter(|(word, _)| SEVERITIES.contains(word));
    let Some((_, rest)) = severity else { return detail.to_owned() };
    rest.to_owned()
}

/// A sentence about many rows names three of them.
fn about(subject: &str) -> Cell {
    let rows: Vec<&str> = subject.split(", ").collect();
    if rows.len() <= 4 {
        return subject.into();
    }
    let (shown, more) = rows.split_at(3);
    let more = more.iter().map(|row| (*row).to_owned()).collect();
    Cell { text: shown.join(", "), more, ..Cell::default() }
}
