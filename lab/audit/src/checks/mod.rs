//! The checks, a file per subject. Each is a pure function from a page to findings, and its
//! documentation says why the matter is worth a finding.

mod clock;
mod errors;
mod little;
mod order;
mod ranking;
mod replies;
mod sentences;
mod setup;
mod tool;

pub use clock::{clock_grid, zero_median};
pub use errors::{errors_counted, errors_not_shown};
pub use little::{BUSY_SHARE_MIN, EDGE_SHARE, busy_connections, little_bound, one_in_flight};
pub use order::{mean_bounds, percentile_order};
pub use ranking::{NOISE_OF_ONE_RUN, ranked_noise};
pub use replies::{bytes_per_reply, totals};
pub use sentences::{
    ClaimFigures, claim_arithmetic, claim_basis, claim_figures, claim_wording, restated_numbers,
    unmentioned_losses,
};
pub use setup::{admissions, not_printed};
pub use tool::{maximum_at_timeout, shared_cores, threads_over_connections};

use crate::claim::Document;
use crate::finding::Finding;

/// Runs every check and sorts what they say, the gravest first; within one severity in the order
/// of the checks below.
#[must_use]
pub fn all(document: &Document) -> Vec<Finding> {
    let checks: [fn(&Document) -> Vec<Finding>; 22] = [
        little_bound,
        threads_over_connections,
        percentile_order,
        mean_bounds,
        totals,
        admissions,
        one_in_flight,
        busy_connections,
        errors_counted,
        maximum_at_timeout,
        shared_cores,
        zero_median,
        clock_grid,
        bytes_per_reply,
        claim_arithmetic,
        claim_basis,
        claim_wording,
        restated_numbers,
        ranked_noise,
        errors_not_shown,
        not_printed,
        unmentioned_losses,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(document)).collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}
