//! Errors in a route table. They are always mistakes in the program, and are all reported at once.

use std::fmt;

use crate::{LITERAL_BYTES_MAX, Methods, PARAMETERS_MAX, ROUTE_ID_MAX, SEGMENTS_MAX};

/// Everything that is wrong with a route table, in the order of insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The problems; never empty.
    pub problems: Vec<Problem>,
}

/// A route as identified in errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteName {
    /// The pattern as inserted.
    pub pattern: String,
    /// The id given by the caller.
    pub id: u32,
    /// The label given by the caller, such as a position in the source; may be empty.
    pub label: String,
}

/// One error in a route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A malformed pattern.
    Pattern {
        /// The route.
        route: RouteName,
        /// The cause and its position.
        error: PatternError,
    },
    /// Two routes of the same shape have the same methods.
    Duplicate {
        /// The route that was inserted first.
        first: RouteName,
        /// The route that was inserted later.
        second: RouteName,
        /// The methods that both have.
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
        /// The route.
        route: RouteName,
    },
    /// A route without methods, which can never be found.
    NoMethods {
        /// The route.
        route: RouteName,
    },
}

/// An error in a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// The pattern as inserted.
    pub pattern: String,
    /// Where the error begins, in bytes from the start of the pattern.
    pub position: usize,
    /// The cause.
    pub fault: PatternFault,
}

/// The cause of a pattern error. Its `Display` says how to fix it.
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
    /// A character that is not allowed in the name of a parameter.
    BadName,
    /// A constraint after a colon, as in `{id:[0-9]+}`.
    Constraint,
    /// The same name twice in one pattern.
    NameTwice,
    /// A second parameter in one segment.
    TwoInSegment,
    /// Text next to a catch-all in its segment.
    AffixedCatchAll,
    /// A segment after a catch-all.
    CatchAllNotLast,
    /// A segment that begins with `:` or `*`, the parameter syntax of other routers.
    OldSyntax,
    /// A `?` or `#`, which a path cannot contain.
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
                "a catch-all fills whole segments: put a `/` before it and nothing after it"
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
            Self::Nul => "fixed text cannot contain a zero byte: remove it",
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
                write!(out, "{first} and {second} have the same id: use different ids")
            }
            Self::IdTooLarge { route } => {
                write!(out, "{route}: ids go up to {ROUTE_ID_MAX}: number routes from 0")
            }
            Self::NoMethods { route } => {
                write!(out, "{route} has no methods: add at least one")
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
