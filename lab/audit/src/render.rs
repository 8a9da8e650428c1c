//! A report for readers: a text for terminals and Markdown for documents.

use std::fmt::Write as _;

use crate::checks::ClaimFigures;
use crate::claim::Form;
use crate::figures::{RowFigures, interval_text};
use crate::finding::Severity;
use crate::quantity::{Interval, grouped_text, time_text};
use crate::report::Report;

/// The widest line of the text form, in columns; only table rows and single words may exceed it.
const COLUMNS: usize = 100;

/// What the columns of the row table mean, for the reader below the table.
const LEGEND: &str = "N: requests in flight, rate x mean. N/c: per connection; a closed loop cannot \
exceed 1. c/rate: the cycle of one connection, the most a mean can be. B/reply: bytes with head.";

const ROW_HEADS: [&str; 9] =
    ["row", "connections", "rate/s", "mean", "N", "N/c", "c/rate", "B/reply", "errors"];

const CLAIM_HEADS: [&str; 5] = ["claim", "printed", "expected", "from the rows", "follows"];

/// The report as text with aligned tables.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    line(&mut out, &format!("Audit of {}: {}", report.id, report.title));
    if let Some(hash) = &report.sha256 {
        line(&mut out, &format!("page SHA-256 {hash}"));
    }
    line(&mut out, &format!("load tool {}; {}", report.tool, report.summary()));
    if !report.rows.is_empty() {
        line(&mut out, "");
        aligned(&mut out, &ROW_HEADS, &row_cells(report));
        paragraph(&mut out, "", LEGEND);
    }
    for severity in Severity::ALL {
        if report.of_severity(severity).next().is_none() {
            continue;
        }
        line(&mut out, "");
        line(&mut out, &severity.word().to_uppercase());
        let mut last = None;
        for finding in report.of_severity(severity) {
            // Findings of one kind share a head line, so that a page of them stays readable.
            let head = format!("[{}] {}", finding.check.name(), finding.summary);
            if last.as_ref() != Some(&head) {
                paragraph(&mut out, "* ", &head);
            }
            last = Some(head);
            if finding.concerns.is_empty() {
                paragraph(&mut out, "    ", &finding.detail);
            } else {
                let concerns = finding.concerns.join(", ");
                paragraph(&mut out, "  - ", &format!("{concerns}: {}", finding.detail));
            }
        }
    }
    if !report.claims.is_empty() {
        line(&mut out, "");
        line(&mut out, "CLAIMS (subject / object, as claimed and as the page's rows give it)");
        aligned(&mut out, &CLAIM_HEADS, &claim_cells(report));
    }
    for (index, remark) in report.remarks.iter().enumerate() {
        if index == 0 {
            line(&mut out, "");
            line(&mut out, "THE PAGE ITSELF SAYS");
        }
        paragraph(&mut out, "* ", remark);
    }
    out
}

/// The report as Markdown.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    line(&mut out, &format!("# Audit of {}: {}", report.id, escaped(&report.title)));
    line(&mut out, "");
    if let Some(hash) = &report.sha256 {
        line(&mut out, &format!("Page SHA-256 `{hash}`."));
    }
    line(&mut out, &format!("Load tool {}; {}.", report.tool, report.summary()));
    if !report.rows.is_empty() {
        line(&mut out, "\n## Rows\n");
        piped(&mut out, &ROW_HEADS, &row_cells(report));
        line(&mut out, &format!("\n{LEGEND}"));
    }
    if !report.findings.is_empty() {
        line(&mut out, "\n## Findings\n");
        let cells: Vec<Vec<String>> = report
            .findings
            .iter()
            .map(|finding| {
                vec![
                    finding.severity.word().to_owned(),
                    finding.check.name().to_owned(),
                    finding.concerns.join(", "),
                    format!("**{}** {}", finding.summary, finding.detail),
                ]
            })
            .collect();
        piped(&mut out, &["severity", "check", "concerns", "finding"], &cells);
    }
    if !report.claims.is_empty() {
        line(&mut out, "\n## Claims\n");
        piped(&mut out, &CLAIM_HEADS, &claim_cells(report));
    }
    if !report.remarks.is_empty() {
        line(&mut out, "\n## The page itself says\n");
        for remark in &report.remarks {
            line(&mut out, &format!("- {}", escaped(remark)));
        }
    }
    out
}

fn row_cells(report: &Report) -> Vec<Vec<String>> {
    let absent = || "-".to_owned();
    let number = |interval: Option<Interval>, text: fn(f64) -> String| {
        interval.map_or_else(absent, |interval| interval_text_short(interval, text))
    };
    let cells = |row: &RowFigures| {
        vec![
            row.row.clone(),
            row.connections.map_or_else(absent, grouped_text),
            row.rate.clone().unwrap_or_else(absent),
            row.mean.clone().unwrap_or_else(absent),
            number(row.in_flight, crate::quantity::digits_text),
            number(row.busy_share, |share| format!("{share:.2}")),
            row.cycle_seconds.map_or_else(absent, |cycle| time_text(cycle.middle())),
            number(row.bytes_per_reply, |bytes| format!("{bytes:.0}")),
            row.errors.map_or_else(absent, grouped_text),
        ]
    };
    report.rows.iter().map(cells).collect()
}

/// The middle of an interval: tables have no room for both ends, which findings give.
fn interval_text_short(interval: Interval, text: fn(f64) -> String) -> String {
    text(interval.middle())
}

fn claim_cells(report: &Report) -> Vec<Vec<String>> {
    let cells = |claim: &ClaimFigures| {
        let is_time = matches!(claim.form, Form::Average | Form::Span | Form::Below);
        let recomputed = claim.recomputed.map_or_else(
            || "-".to_owned(),
            |found| {
                if is_time {
                    interval_text(found, time_text)
                } else {
                    interval_text(found, ratio_text)
                }
            },
        );
        vec![
            claim.id.clone(),
            claim.printed.clone().unwrap_or_else(|| "-".to_owned()),
            claim.expected.map_or_else(|| "-".to_owned(), |ratio| interval_text(ratio, ratio_text)),
            recomputed,
            match claim.follows {
                Some(true) => "yes".to_owned(),
                Some(false) => "no".to_owned(),
                None => "-".to_owned(),
            },
        ]
    };
    report.claims.iter().map(cells).collect()
}

/// Ratios are near one, or small: three decimals, or three digits below a tenth.
fn ratio_text(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.4}") } else { format!("{ratio:.3}") }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Columns side by side: the first to the left, the others to the right.
fn aligned(out: &mut String, heads: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let heads: Vec<String> = heads.iter().map(|head| (*head).to_owned()).collect();
    for row in std::iter::once(&heads).chain(rows) {
        let mut text = format!("{:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            write!(text, "  {cell:>width$}").expect("writing to a string does not fail");
        }
        line(out, text.trim_end());
    }
}

fn piped(out: &mut String, heads: &[&str], rows: &[Vec<String>]) {
    line(out, &format!("| {} |", heads.join(" | ")));
    line(out, &format!("|{}", "---|".repeat(heads.len())));
    for row in rows {
        let cells: Vec<String> = row.iter().map(|cell| escaped(cell)).collect();
        line(out, &format!("| {} |", cells.join(" | ")));
    }
}

/// A bar would end a table's cell, and angle brackets would begin a tag.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('>', "&gt;").replace('\n', " ")
}

/// Words broken into lines of at most [`COLUMNS`], with a hanging indent of the mark's width.
fn paragraph(out: &mut String, mark: &str, words: &str) {
    let indent = " ".repeat(mark.len());
    let mut current = mark.to_owned();
    let mut is_empty = true;
    for word in words.split_whitespace() {
        if !is_empty && current.chars().count() + 1 + word.chars().count() > COLUMNS {
            line(out, &current);
            current.clone_from(&indent);
            is_empty = true;
        }
        if !is_empty {
            current.push(' ');
        }
        current.push_str(word);
        is_empty = false;
    }
    line(out, &current);
}
