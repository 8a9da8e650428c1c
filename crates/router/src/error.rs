//! Errors in a route table: always the author's mistake, all reported at once.

use std::fmt;

use crate::{LITERAL_BYTES_MAX, Methods, PARAMETERS_MAX, ROUTE_ID_MAX, SEGMENTS_MAX};

/// Everything that is wrong with a route table, in the order of insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The problems; never empty.
    pub problems: Vec<Problem>,
}

/// A route as errors name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteName {
    /// The pattern as it was inserted.
    pub pattern: String,
    /// The id that the caller gave.
    pub id: u32,
    /// The label that the caller gave, such as a place in the source; empty if none.
    pub label: String,
}

/// One thing that is wrong with a route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A pattern that cannot be read.
    Pattern {
        /// The route that has it.
        route: RouteName,
        /// What is wrong with it, and where.
        error: PatternError,
    },
    /// Two routes of the same shape answer the same methods.
    Duplicate {
        /// The route that was inserted first.
        first: RouteName,
        /// The route that was inserted later.
        second: RouteName,
        /// The methods that both answer.
        methods: Methods,
    },
    /// Two routes have the same id.
    IdUsedTwice {
        /// The route that was inserted first.
        first: RouteName,
        /// The route that was inserted later.
        second: RouteName,
    },
    /// A route id above [`ROUTE_ID_MAX`].
    IdTooLarge {
        /// The route that has it.
        route: RouteName,
    },
    /// A route that answers no method can never be found.
    NoMethods {
        /// The route.
        route: RouteName,
    },
}

/// A pattern that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// The pattern as it was inserted.
    pub pattern: String,
    /// Where the fault begins, in bytes from the start of the pattern.
    pub position: usize,
    /// What is wrong.
    pub fault: PatternFault,
}

/// What is wrong with a pattern. Its `Display` says how to fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternFault {
    /// It does not begin with `/`.
    NoLeadingSlash,
    /// A `{` without its `}` in the same segment.
    Unclosed,
    /// A `}` without its `{`.
    Unopened,
    /// `{}` or `{*}`.
    EmptyName,
    /// A character that a parameter's name cannot have.
    BadName,
    /// A constraint after a colon, as in `{id:[0-9]+}`.
    Constraint,
    /// The same name twice in one pattern.
    NameTwice,
    /// A second parameter in one segment.
    TwoInSegment,
    /// Text beside a catch-all in its segment.
    AffixedCatchAll,
    /// A segment after a catch-all.
    CatchAllNotLast,
    /// A segment that begins with `:` or `*`, as other routers write parameters.
    OldSyntax,
    /// A `?` or `#`, which no path can hold.
    NotInPath,
    /// A zero byte.
    Nul,
    /// More than [`PARAMETERS_MAX`] parameters.
    TooManyParameters,
    /// More than [`SEGMENTS_MAX`] segments.
    TooManySegments,
    /// More than [`LITERAL_BYTES_MAX`] bytes of fixed text in one segment.
    LiteralTooLong,
}

impl fmt::Display for PatternFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::NoLeadingSlash => "a pattern begins with `/`: put one in front",
            Self::Unclosed => "this `{` is not closed: add `}`, or write `{{` for a literal brace",
            Self::Unopened => "this `}` closes nothing: write `}}` for a literal brace",
            Self::EmptyName => "a parameter needs a name: write `{name}` or `{*name}`",
            Self::BadName => "a name is made of letters, digits, `_`, `-` and `.`: rename it",
            Self::Constraint => {
                "constraints are not part of a pattern: write `{name}` and check the value in the \
                 handler"
            }
            Self::NameTwice => "this name is already used in the pattern: rename one of the two",
            Self::TwoInSegment => {
                "a segment has at most one parameter: put a `/` between the two, or take one \
                 parameter apart in the handler"
            }
            Self::AffixedCatchAll => {
                "a catch-all fills whole segments: put a `/` before it and nothing behind it"
            }
            Self::CatchAllNotLast => {
                "a catch-all takes the rest of the path: move it to the end, or write `{name}` for \
                 one segment"
            }
            Self::OldSyntax => {
                "parameters are written `{name}` and catch-alls `{*name}`: for a literal `:` or \
                 `*` at the start of a segment write `%3A` or `%2A`"
            }
            Self::NotInPath => {
                "a path has no `?` or `#`: remove the query, or write `%3F` or `%23` for the \
                 escaped character"
            }
            Self::Nul => "fixed text has no zero byte: remove it",
            Self::TooManyParameters => {
                return write!(out, "a pattern has at most {PARAMETERS_MAX} parameters");
            }
            Self::TooManySegments => {
                return write!(out, "a pattern has at most {SEGMENTS_MAX} segments");
            }
            Self::LiteralTooLong => {
                return write!(
                    out,
                    "a segment has at most {LITERAL_BYTES_MAX} bytes of fixed text"
                );
            }
        };
        out.write_str(text)
    }
}

impl fmt::Display for PatternError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "pattern `{}`, byte {}: {}", self.pattern, self.position, self.fault)
    }
}

impl std::error::Error for PatternError {}

impl fmt::Display for RouteName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "route {} `{}`", self.id, self.pattern)?;
        if self.label.is_empty() { Ok(()) } else { write!(out, " ({})", self.label) }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern { route, error } => write!(out, "{route}: {error}"),
            Self::Duplicate { first, second, methods } => write!(
                out,
                "{first} and {second} match the same paths and both answer methods {methods:?}: \
                 remove one, or give them different methods"
            ),
            Self::IdUsedTwice { first, second } => {
                write!(out, "{first} and {second} have the same id: number them apart")
            }
            Self::IdTooLarge { route } => {
                write!(out, "{route}: ids go up to {ROUTE_ID_MAX}: number routes from 0")
            }
            Self::NoMethods { route } => {
                write!(out, "{route} answers no method: give it at least one")
            }
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the route table has {} problem(s):", self.problems.len())?;
        for problem in &self.problems {
            write!(out, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}
