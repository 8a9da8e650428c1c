//! Rankings by differences that one run cannot show.

use crate::claim::{Document, Row};
use crate::figures::percent_text;
use crate::finding::{Check, Finding, Severity};

/// The difference between two single runs of the same program that nobody should be surprised
/// by. Machines tuned for measuring repeat a rate within about 2 %, ordinary ones drift by 5 to
/// 15 % within minutes, so below 5 % one run each ranks nobody.
pub const NOISE_OF_ONE_RUN: f64 = 0.05;

/// Finds neighbours in a table whose difference is within the noise of their runs.
///
/// A table of rates is read as a ranking. Without repeats and spread, neighbours closer than
/// [`NOISE_OF_ONE_RUN`] may well change places in the next run. With printed repeats the noise of
/// their mean is smaller, by the square root of their number.
#[must_use]
pub fn ranked_noise(document: &Document) -> Vec<Finding> {
    if document.design.spread.is_some() {
        return Vec::new();
    }
    let runs = document.design.repeats.unwrap_or(1).max(1);
    let noise = NOISE_OF_ONE_RUN / f64::from(runs).sqrt();
    let mut findings = Vec::new();
    for scenario in &document.scenarios {
        let mut ranked: Vec<(&Row, f64)> = document
            .rows_of(&scenario.id)
            .filter_map(|row| Some((row, row.rate.as_ref()?.value())))
            .filter(|(_, rate)| *rate > 0.0)
            .collect();
        ranked.sort_by(|(_, first), (_, second)| second.total_cmp(first));
        let close: Vec<_> =
            ranked.windows(2).filter(|pair| pair[0].1 / pair[1].1 - 1.0 < noise).collect();
        if close.is_empty() {
            continue;
        }
        let list: Vec<String> = close
            .iter()
            .map(|pair| {
                format!(
                    "{} over {} by {:.2} %",
                    pair[0].0.contender.get_ref(),
                    pair[1].0.contender.get_ref(),
                    (pair[0].1 / pair[1].1 - 1.0) * 100.0
                )
            })
            .collect();
        let mut rows: Vec<String> =
            close.iter().flat_map(|pair| [pair[0].0.name(), pair[1].0.name()]).collect();
        rows.dedup();
        let runs_text = match document.design.repeats {
            Some(repeats) => format!("{repeats} runs without a printed spread cannot rank"),
            None => "one run each cannot rank, and no repeats are printed".to_owned(),
        };
        let detail = format!("{}. Below {} {runs_text}.", list.join(", "), percent_text(noise));
        let summary = "The order rests on differences smaller than the noise of the runs.";
        findings.push(Finding::new(Severity::Misleading, Check::Noise, rows, summary, detail));
    }
    findings
}
