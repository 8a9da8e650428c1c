//! How a command ends, as a number for programs and a sentence for people.

use std::fmt;
use std::process::ExitCode;

use peregrine_lab_run::error::RunError;

/// The exit codes, as the help shows them.
pub(crate) const HELP: &str = "\
Exit codes: 0 all right; 1 a regression (compare --fail-if); 2 inconclusive; 3 the machine or the
set-up is not fit, or (audit) a number is impossible; 4 wrong answers; 5 the client was the limit;
64 wrong usage; 74 a file could not be read or written; 130 interrupted.";

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All right.
    Right,
    /// What `--fail-if` names.
    Regression,
    /// Nothing can be told.
    Inconclusive,
    /// The machine or the set-up is not fit.
    Unfit,
    /// Wrong answers.
    Wrong,
    /// The client was the limit.
    ClientBound,
    /// The command line or a file given by the user.
    Usage,
    /// A file.
    File,
    /// Ctrl-C.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Right => 0,
            Exit::Regression => 1,
            Exit::Inconclusive => 2,
            Exit::Unfit => 3,
            Exit::Wrong => 4,
            Exit::ClientBound => 5,
            Exit::Usage => 64,
            Exit::File => 74,
            Exit::Interrupted => 130,
        })
    }
}

/// Why a command could not be carried out.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The sentence.
    pub(crate) text: String,
}

impl Failure {
    /// What the user can mend on the command line or in a file.
    pub(crate) fn usage(text: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Usage, text: text.to_string() }
    }

    /// What a file system said about this.
    pub(crate) fn file(what: impl fmt::Display, error: &std::io::Error) -> Failure {
        Failure { exit: Exit::File, text: format!("{what}: {error}") }
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Failure {
        let exit = match &error {
            RunError::Invalid(_) => Exit::Usage,
            RunError::Machine(_) => Exit::Unfit,
            RunError::NotReady(_) => Exit::Wrong,
            RunError::NotMeasured(_) => Exit::Inconclusive,
            RunError::Io(..) => Exit::File,
            RunError::Interrupted => Exit::Interrupted,
        };
        Failure { exit, text: error.to_string() }
    }
}
