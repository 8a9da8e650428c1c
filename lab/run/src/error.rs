//! Why a run cannot go on. What a server does wrong is not here: it is part of the result.

use std::fmt;
use std::io;

/// Why a run cannot go on.
#[derive(Debug)]
pub enum RunError {
    /// What was asked for cannot be; the sentence says why, and what could.
    Invalid(String),
    /// The machine is not fit for this; the sentence says why.
    Machine(String),
    /// A contender does not start or does not answer rightly; the sentence names it.
    NotReady(String),
    /// A contender was not heard of in time, neither rightly nor wrongly: nothing can be told.
    NotMeasured(String),
    /// The system's word, with what was tried.
    Io(String, io::Error),
    /// The user wants the lab to end.
    Interrupted,
}

impl RunError {
    /// Says what was tried when the system refused.
    pub fn io(tried: impl Into<String>) -> impl FnOnce(io::Error) -> RunError {
        let tried = tried.into();
        move |error| RunError::Io(tried, error)
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Invalid(text)
            | RunError::Machine(text)
            | RunError::NotReady(text)
            | RunError::NotMeasured(text) => formatter.write_str(text),
            RunError::Io(tried, error) => write!(formatter, "{tried}: {error}"),
            RunError::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

impl std::error::Error for RunError {}
