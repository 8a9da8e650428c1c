//! Who was measured, and how it was built and started.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A contender of a run. The name identifies it, in every list of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Contender {
    /// The name in the report.
    pub name: String,
    /// As its documentation shows it, or changed for speed.
    pub class: Class,
    /// The version of the framework.
    pub version: String,
    /// The compiler or runtime, with its version.
    pub toolchain: String,
    /// The allocator.
    pub allocator: String,
    /// The command that built it.
    pub build: Vec<String>,
    /// The command that started it.
    pub run: Vec<String>,
    /// The variables added to its environment.
    pub environment: BTreeMap<String, String>,
    /// SHA-256 of its lock file, in hexadecimal digits; empty if it has none.
    pub lock_sha256: String,
    /// SHA-256 of the program that ran, in hexadecimal digits; empty if unknown.
    pub program_sha256: String,
    /// How many workers it was told to use; 0 if it was not told.
    pub workers: u32,
    /// Why it was not measured; none if it was.
    pub skipped: Option<String>,
}

/// How far a contender is from what a reader of its documentation would run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// As its documentation shows it for production.
    #[default]
    Stock,
    /// Changed for speed.
    Tuned,
    /// A class that this version does not know.
    #[serde(other)]
    Other,
}

impl Class {
    /// The class in the word of a report.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Class::Stock => "stock",
            Class::Tuned => "tuned",
            Class::Other => "other",
        }
    }
}
