//! What was checked about a run itself.

use serde::{Deserialize, Serialize};

/// A check with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked, such as "Little's law" or "Date moves".
    pub name: String,
    /// The contender it is about; none if it is about the run.
    #[serde(default)]
    pub contender: Option<String>,
    /// The result.
    pub outcome: Outcome,
    /// The figures behind it, in a sentence.
    #[serde(default)]
    pub detail: String,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As it has to be.
    Passed,
    /// Odd, but what was measured stands.
    Warned,
    /// What was measured does not stand.
    Failed,
    /// It could not be checked.
    Skipped,
    /// The client was the limit, not the server: rates and latencies say nothing about the server.
    ClientBound,
    /// A result that this version does not know.
    #[serde(other)]
    Other,
}

impl Outcome {
    /// The result in the words of a report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Warned => "warned",
            Outcome::Failed => "failed",
            Outcome::Skipped => "not checked",
            Outcome::ClientBound => "CLIENT-BOUND",
            Outcome::Other => "unknown result",
        }
    }
}
