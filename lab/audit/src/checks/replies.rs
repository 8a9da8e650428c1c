//! Bytes and totals: numbers that must agree with the rate.

use crate::claim::Document;
use crate::figures::{RowFigures, interval_text};
use crate::finding::{Check, Finding, Severity};
use crate::quantity::{Interval, digits_text, grouped_text};

/// Finds scenarios whose contenders sent replies of different size.
///
/// Bytes per second divided by requests per second is the size of a reply with its head. If it
/// differs, the contenders did not send the same: headers are missing, or the body is another one.
/// A ranking by bytes per second then rewards longer headers, and one by requests per second
/// rewards shorter ones.
#[must_use]
pub fn bytes_per_reply(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for scenario in &document.scenarios {
        let sizes: Vec<(String, String, Interval)> = document
            .rows_of(&scenario.id)
            .filter_map(|row| {
                let size = RowFigures::of(document, row).bytes_per_reply?;
                Some((row.name(), row.contender.get_ref().clone(), size))
            })
            .collect();
        let least = sizes.iter().map(|(_, _, size)| size.high).fold(f64::INFINITY, f64::min);
        let most = sizes.iter().map(|(_, _, size)| size.low).fold(0.0, f64::max);
        if sizes.len() < 2 || most <= least {
            continue;
        }
        let list: Vec<String> = sizes
            .iter()
            .map(|(_, contender, size)| {
                format!("{contender} {}", interval_text(*size, |bytes| format!("{bytes:.0}")))
            })
            .collect();
        let promise =
            document.design.same_payload.as_ref().map_or_else(String::new, |words| {
                format!(" The page promises \"{}\".", words.text)
            });
        let detail = format!("Bytes per reply, head included: {}.{promise}", list.join(", "));
        let rows = sizes.into_iter().map(|(row, _, _)| row).collect();
        let summary = "The contenders did not send the same number of bytes per reply.";
        findings.push(Finding::new(
            Severity::Misleading,
            Check::BytesPerReply,
            rows,
            summary,
            detail,
        ));
    }
    findings
}

/// Finds totals that contradict their rates.
///
/// Requests divided by the run's length is the rate, and bytes read divided by it is the transfer
/// rate. If they disagree beyond rounding, one of the three belongs to another run.
#[must_use]
pub fn totals(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &document.rows {
        let Some(duration) = row.duration.as_ref().map(|duration| duration.interval()) else {
            continue;
        };
        let requests = row.requests.as_ref().map(|printed| printed.interval());
        let rate = row.rate.as_ref().map(|printed| printed.interval());
        let bytes = row.bytes_read.as_ref().map(|printed| printed.interval());
        let transfer = row.transfer.as_ref().map(|printed| printed.interval());
        for (what, total, per_second) in [("requests", requests, rate), ("bytes", bytes, transfer)]
        {
            let (Some(total), Some(per_second)) = (total, per_second) else {
                continue;
            };
            let computed = total.over(duration);
            if computed.meets(per_second) {
                continue;
            }
            let detail = format!(
                "{} {what} / {} s = {} per second, printed is {}.",
                grouped_text(total.middle()),
                digits_text(duration.middle()),
                interval_text(computed, grouped_text),
                interval_text(per_second, grouped_text),
            );
            let summary = "A total contradicts its rate.";
            let concerns = vec![row.name()];
            findings.push(Finding::new(
                Severity::Impossible,
                Check::Totals,
                concerns,
                summary,
                detail,
            ));
        }
    }
    findings
}
