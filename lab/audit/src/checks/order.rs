//! Percentiles must rise, and the mean must lie where they allow.

use crate::claim::{Document, Row};
use crate::finding::{Check, Finding, Severity};
use crate::quantity::time_text;

use super::little::least_mean;

/// Finds percentiles that fall.
///
/// The 99th percentile of the same requests cannot be below their median, nor any of them above
/// the maximum. If it is, the columns come from different runs or were averaged apart.
#[must_use]
pub fn percentile_order(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &document.rows {
        let known = row.percentiles();
        for pair in known.windows(2) {
            let ((lower, _, before), (upper, _, after)) = (&pair[0], &pair[1]);
            if before.interval().low <= after.interval().high {
                continue;
            }
            let detail = format!("{lower} is {}, {upper} is {}.", before.text(), after.text());
            findings.push(Finding::new(
                Severity::Impossible,
                Check::PercentileOrder,
                vec![row.name()],
                "A higher percentile is below a lower one.",
                detail,
            ));
        }
    }
    findings
}

/// How far a mean may lie outside of the bounds: histograms round their values to buckets, and
/// some tools interpolate between two requests.
const BUCKET_SHARE: f64 = 0.01;

/// Finds means outside of the bounds that the percentiles of the same row set.
///
/// Half of the requests took at least the median, a hundredth at least the 99th percentile, and
/// none more than the maximum; so the percentiles bound the mean from both sides. A mean below the
/// median is possible but rare for latencies, whose tail is on the other side, and is noted.
#[must_use]
pub fn mean_bounds(document: &Document) -> Vec<Finding> {
    let mut findings = Vec::new();
    for row in &document.rows {
        let Some(mean) = &row.mean else { continue };
        let least = least_mean(row);
        let greatest = greatest_mean(row);
        let is_low = least.is_some_and(|least| mean.interval().high < least * (1.0 - BUCKET_SHARE));
        let is_high =
            greatest.is_some_and(|most| mean.interval().low > most * (1.0 + BUCKET_SHARE));
        if is_low || is_high {
            let detail = format!(
                "By its percentiles the mean is between {} and {}; printed is {}.",
                least.map_or_else(|| "zero".to_owned(), time_text),
                greatest.map_or_else(|| "anything".to_owned(), time_text),
                mean.text(),
            );
            findings.push(Finding::new(
                Severity::Impossible,
                Check::PercentileOrder,
                vec![row.name()],
                "The mean contradicts the percentiles.",
                detail,
            ));
        } else if let Some(median) =
            row.p50.as_ref().filter(|p| mean.interval().high < p.interval().low)
        {
            let detail = format!("The mean is {}, the median {}.", mean.text(), median.text());
            findings.push(Finding::new(
                Severity::Note,
                Check::PercentileOrder,
                vec![row.name()],
                "The mean is below the median, which is rare for latencies.",
                detail,
            ));
        }
    }
    findings
}

/// The greatest mean that the percentiles and the maximum allow: each request took at most the
/// percentile above it.
fn greatest_mean(row: &Row) -> Option<f64> {
    row.max.as_ref()?;
    let mut below = 0.0;
    let mut sum = 0.0;
    for (_, share, printed) in row.percentiles() {
        sum += (share - below) * printed.interval().high;
        below = share;
    }
    Some(sum)
}
