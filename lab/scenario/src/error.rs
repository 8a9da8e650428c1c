//! What can be wrong with a scenario, said so that its writer can mend it.

use std::fmt;
use std::path::{Path, PathBuf};

use peregrine_lab_load::question::TemplateError;

/// Why a scenario cannot be used: where, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    /// The file, or the folder where a scenario was sought.
    pub file: PathBuf,
    /// The key, with its tables, as in `load.connections`; empty if the whole file is meant.
    pub key: String,
    /// What is wrong.
    pub cause: String,
    /// What would be right.
    pub fix: String,
}

impl ScenarioError {
    pub(crate) fn new(file: &Path, wrong: Wrong) -> ScenarioError {
        let Wrong { key, cause, fix } = wrong;
        ScenarioError { file: file.to_owned(), key, cause, fix }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.file.display())?;
        if !self.key.is_empty() {
            write!(formatter, "`{}`: ", self.key)?;
        }
        write!(formatter, "{}; {}", self.cause, self.fix)
    }
}

impl std::error::Error for ScenarioError {}

/// A [`ScenarioError`] where the file is not known.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) key: String,
    pub(crate) cause: String,
    pub(crate) fix: String,
}

impl Wrong {
    pub(crate) fn new(
        key: impl Into<String>,
        cause: impl Into<String>,
        fix: impl Into<String>,
    ) -> Wrong {
        Wrong { key: key.into(), cause: cause.into(), fix: fix.into() }
    }

    /// The same below a table.
    pub(crate) fn within(mut self, table: &str) -> Wrong {
        self.key = if self.key.is_empty() { table.into() } else { format!("{table}.{}", self.key) };
        self
    }
}

/// Why an exchange cannot be asked in paired time slices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadError {
    /// A text is no template.
    Template(TemplateError),
    /// The answer's status or its body is left open, so that a server could save the work.
    OpenAnswer,
    /// The kind of load has no paired form, and why.
    Unpaired(&'static str),
}

impl fmt::Display for WorkloadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadError::Template(error) => error.fmt(formatter),
            WorkloadError::OpenAnswer => formatter
                .write_str("the answer's status or body is left open; paired slices need both"),
            WorkloadError::Unpaired(why) => {
                write!(formatter, "{why}; measure it in separate runs")
            }
        }
    }
}

impl std::error::Error for WorkloadError {}
