//! The audit's result as one value, from which every output is made.

use serde::Serialize;

use crate::checks::{self, ClaimFigures};
use crate::claim::{Document, Fact};
use crate::figures::RowFigures;
use crate::finding::{Finding, Severity};

/// The result of an audit. The same page always gives the same report.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of this form; 1.
    pub schema: u32,
    /// The claim file's id.
    pub id: String,
    /// The page's title.
    pub title: String,
    /// SHA-256 of the page's text, if known.
    pub sha256: Option<String>,
    /// The load tool.
    pub tool: String,
    /// What the page says about how to read it.
    pub remarks: Vec<String>,
    /// Derived figures of each row.
    pub rows: Vec<RowFigures>,
    /// Each claim with its recomputed number.
    pub claims: Vec<ClaimFigures>,
    /// What the checks found, the gravest first.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Audits a page.
    #[must_use]
    pub fn of(document: &Document) -> Self {
        let remarks = document.environment.remarks.iter().chain(&document.design.remarks);
        Self {
            schema: 1,
            id: document.id.clone(),
            title: document.source.title.clone(),
            sha256: document.source.sha256.clone(),
            tool: document.tool.name.clone(),
            remarks: remarks.map(remark).collect(),
            rows: document.rows.iter().map(|row| RowFigures::of(document, row)).collect(),
            claims: checks::claim_figures(document),
            findings: checks::all(document),
        }
    }

    /// The findings of one severity.
    pub fn of_severity(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.severity == severity)
    }

    /// Whether anything on the page cannot be a measurement.
    #[must_use]
    pub fn is_impossible(&self) -> bool {
        self.of_severity(Severity::Impossible).next().is_some()
    }

    /// The report as JSON, two spaces per level, with a line end.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self)
            .expect("a report has string keys only and no map that could fail");
        text.push('\n');
        text
    }

    /// One line: how many findings of each severity.
    #[must_use]
    pub fn summary(&self) -> String {
        let counts: Vec<String> = Severity::ALL
            .iter()
            .map(|severity| format!("{} {}", self.of_severity(*severity).count(), severity.word()))
            .collect();
        counts.join(", ")
    }
}

fn remark(fact: &Fact) -> String {
    match fact.line {
        Some(line) => format!("\"{}\" (line {line})", fact.text),
        None => format!("\"{}\"", fact.text),
    }
}
