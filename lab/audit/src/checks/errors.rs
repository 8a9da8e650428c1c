//! Failed requests: not shown, or counted as if they were answers.

use crate::claim::{Document, ErrorsShown, Row};
use crate::figures::percent_text;
use crate::finding::{Check, Finding, Severity};
use crate::quantity::{Count, Printed, grouped_text};

/// Finds pages that say nothing about failed requests.
///
/// An error page is quick to send, and a dropped connection is quicker. Without a count of errors
/// and timeouts, a zero included, no one can tell answers from failures.
#[must_use]
pub fn errors_not_shown(document: &Document) -> Vec<Finding> {
    if document.tool.errors == ErrorsShown::WhenAny {
        return Vec::new();
    }
    let kinds = |row: &Row| row.errors.is_some() || row.non_2xx.is_some() || row.timeouts.is_some();
    let silent: Vec<String> =
        document.rows.iter().filter(|row| !kinds(row)).map(|row| row.name()).collect();
    if silent.is_empty() {
        return Vec::new();
    }
    let detail = format!(
        "{} of {} rows print neither errors nor timeouts, not even as zero.",
        silent.len(),
        document.rows.len()
    );
    let concerns = if silent.len() == document.rows.len() { Vec::new() } else { silent };
    let summary = "No word about failed requests.";
    vec![Finding::new(Severity::Missing, Check::ErrorsNotShown, concerns, summary, detail)]
}

/// Finds rows whose rate counts failed requests.
///
/// Load tools count a reply with an error status, and a reply after which the connection broke,
/// as a completed request. Such a row measures an error path or the opening of connections and
/// has no place in a ranking.
#[must_use]
pub fn errors_counted(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &document.rows {
        let statuses = "replies have an error status: the row measures the error path";
        let reads = "requests ended in a failed read: the row measures opening connections";
        let kinds: [(&Option<Printed<Count>>, &str, &str); 6] = [
            (&row.non_2xx, statuses, "Error replies are ranked as answers."),
            (&row.read_errors, reads, "Broken connections are ranked as answers."),
            (&row.errors, "requests failed", "Failed requests are in a ranked row."),
            (&row.connect_errors, "connections failed", "Failed connections are in a ranked row."),
            (&row.write_errors, "writes failed", "Failed writes are in a ranked row."),
            (&row.timeouts, "requests were not answered in time", "Timeouts are in a ranked row."),
        ];
        for (count, words, summary) in kinds {
            let Some(count) =
                count.as_ref().map(|count| count.value()).filter(|count| *count > 0.0)
            else {
                continue;
            };
            findings.push(Finding::new(
                Severity::Misleading,
                Check::ErrorsCounted,
                vec![row.name()],
                summary,
                format!("{} {words}.", share_of_requests(document, row, count)),
            ));
        }
    }
    findings
}

/// `4,098,580 of 4,098,580 (100.0 %)`, or the bare count if the total is not known.
fn share_of_requests(document: &Document, row: &Row, count: f64) -> String {
    let scenario = document.scenario(row.scenario.get_ref());
    let duration = row.duration.as_ref().or(scenario.and_then(|s| s.duration.as_ref()));
    let counted = row.requests.as_ref().map(|requests| requests.value());
    let computed = row.rate.as_ref().zip(duration).map(|(rate, time)| rate.value() * time.value());
    match counted.or(computed) {
        Some(total) if total > 0.0 => format!(
            "{} of {} ({})",
            grouped_text(count),
            grouped_text(total),
            percent_text(count / total)
        ),
        _ => grouped_text(count),
    }
}
