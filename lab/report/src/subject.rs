//! What a run file is about.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Check;

/// Checks whose result is what a scenario was made to find out: they stand in its section, and an
/// odd one says something about a contender and nothing about the run.
const FINDINGS: [&str; 3] = ["shutdown under load", OVERLOAD, "idle connections stay open"];

/// The finding of a run in which every contender is offered a multiple of its own capacity.
const OVERLOAD: &str = "goodput under overload";

/// What the conduct suite's checks begin with. The odd ones are remarks on a contender.
const CONDUCT: &str = "conduct: ";

/// What the kinds of run files have to be judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Requests to servers.
    Load,
    /// Operations inside a process.
    Operations,
    /// A published page: its claims and its paper check. Nothing is measured in such a file.
    Page,
}

pub(crate) fn of(file: &RunFile) -> Subject {
    let is_about_a_page =
        !file.claims.is_empty() || !file.audits.is_empty() || !file.beside.is_empty();
    let is_without_load =
        file.blocks.is_empty() && file.contenders.is_empty() && file.excluded.is_empty();
    if is_without_load && !file.operations.is_empty() {
        Subject::Operations
    } else if is_without_load && is_about_a_page && file.verdicts.is_empty() {
        Subject::Page
    } else {
        Subject::Load
    }
}

/// Whether every contender of a run is asked at a rate of its own.
pub(crate) fn has_own_rates(file: &RunFile) -> bool {
    file.checks.iter().any(|check| check.name == OVERLOAD)
}

/// Whether a check is what its scenario was made to find out.
pub(crate) fn is_finding(check: &str) -> bool {
    FINDINGS.contains(&check)
}

/// Whether an odd result of this check is a remark about a contender, and no doubt about the run.
pub(crate) fn is_remark(check: &Check) -> bool {
    is_finding(&check.name) || check.name.starts_with(CONDUCT)
}
