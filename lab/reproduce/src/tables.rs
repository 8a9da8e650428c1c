//! The page's tables beside what came out here, row by row.

use peregrine_lab_audit::claim::{Document, Row};
use serde::{Deserialize, Serialize};

use crate::observed::{CorrectedFigures, Observed, PublishedFigures};
use crate::program::{Program, Trial};
use crate::roster::label;

/// One contender in one table, there and here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowAgain {
    /// The trial's id.
    pub trial: String,
    /// The contender's id.
    pub contender: String,
    /// Its name on the page, or its id if the page does not have it.
    pub label: String,
    /// What the page prints; none if it has no such row.
    pub printed: Option<PrintedRow>,
    /// What the published method gave here.
    pub published: Option<PublishedFigures>,
    /// What the corrected method gave here.
    pub corrected: Option<CorrectedFigures>,
    /// Why it could not be run, if so, in a clause.
    pub missing: Option<String>,
}

/// A row as printed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PrintedRow {
    /// Requests per second.
    pub rate: Option<String>,
    /// Mean latency.
    pub mean: Option<String>,
    /// Median latency.
    pub p50: Option<String>,
    /// The 99th percentile of the latency.
    pub p99: Option<String>,
    /// Highest latency.
    pub max: Option<String>,
    /// Bytes per second.
    pub transfer: Option<String>,
}

/// All rows of the tables under load that the program repeats: per trial those of the page in its
/// order, then those of contenders that the page does not have.
#[must_use]
pub fn rows_again(page: &Document, program: &Program, observed: &[Observed]) -> Vec<RowAgain> {
    let trials = program.trials.iter().filter(|trial| !trial.is_operations());
    trials.flat_map(|trial| of_trial(page, trial, observed)).collect()
}

fn of_trial(page: &Document, trial: &Trial, observed: &[Observed]) -> Vec<RowAgain> {
    let again = |id: &str, row: Option<&Row>| {
        let found = observed.iter().find(|o| o.trial == trial.id && o.contender == id);
        let missing = trial.missing.iter().find(|missing| missing.contender == id);
        RowAgain {
            trial: trial.id.clone(),
            contender: id.to_owned(),
            label: label(page, id).to_owned(),
            printed: row.map(printed),
            published: found.and_then(|found| found.published.clone()),
            corrected: found.and_then(|found| found.corrected.clone()),
            missing: missing.map(|missing| missing.reason.clone()),
        }
    };
    let of_page = page.rows_of(&trial.id).map(|row| again(row.contender.get_ref(), Some(row)));
    let others = trial.contenders.iter().filter(|id| page.row(&trial.id, id).is_none());
    of_page.chain(others.map(|id| again(id, None))).collect()
}

fn printed(row: &Row) -> PrintedRow {
    PrintedRow {
        rate: row.rate.as_ref().map(|printed| printed.text().to_owned()),
        mean: row.mean.as_ref().map(|printed| printed.text().to_owned()),
        p50: row.p50.as_ref().map(|printed| printed.text().to_owned()),
        p99: row.p99.as_ref().map(|printed| printed.text().to_owned()),
        max: row.max.as_ref().map(|printed| printed.text().to_owned()),
        transfer: row.transfer.as_ref().map(|printed| printed.text().to_owned()),
    }
}
