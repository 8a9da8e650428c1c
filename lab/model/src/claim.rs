//! Published numbers: what a paper check found, and what came out here.

use serde::{Deserialize, Serialize};

use crate::check::Outcome;

/// What a paper check found in one published number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audit {
    /// Where the number was published.
    pub source: String,
    /// Whose number it is, and under which load.
    pub subject: String,
    /// What was tried, such as "Little's law".
    pub test: String,
    /// The number as printed, with its unit.
    pub published: String,
    /// What it has to be, or the bound, with its unit; may be empty.
    #[serde(default)]
    pub bound: String,
    /// The result.
    pub outcome: Outcome,
    /// What follows, in a sentence.
    #[serde(default)]
    pub detail: String,
}

/// What came out here of one published claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimResult {
    /// Where it was published.
    pub source: String,
    /// The claim, in a sentence.
    pub claim: String,
    /// The published figure with its unit.
    pub published: String,
    /// What the published method gives here; none if it was not run.
    #[serde(default)]
    pub as_published: Option<String>,
    /// What the corrected method gives here; none if it was not run.
    #[serde(default)]
    pub corrected: Option<String>,
    /// The word.
    pub finding: Finding,
    /// Why, in a sentence; may be empty.
    #[serde(default)]
    pub detail: String,
}

/// What came out of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// It holds here.
    Confirmed,
    /// The direction holds, and the size does not.
    Smaller,
    /// No difference can be seen here.
    NotReproduced,
    /// The opposite holds here.
    Reversed,
    /// It cannot be tried here; the detail says why.
    NotTestable,
    /// A finding that this version does not know.
    #[serde(other)]
    Other,
}

impl Finding {
    /// The finding in the words of a report.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Finding::Confirmed => "confirmed",
            Finding::Smaller => "smaller",
            Finding::NotReproduced => "not reproduced",
            Finding::Reversed => "reversed",
            Finding::NotTestable => "not testable here",
            Finding::Other => "unknown finding",
        }
    }
}
