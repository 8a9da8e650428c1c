//! Errors in a route table. They are always mistakes in the program, and are reported together.

use std::fmt;

use crate::{LITERAL_BYTES_MAX, MethodSet, PARAMETERS_MAX, ROUTE_ID_MAX, SEGMENTS_MAX};

/// Everything that is wrong with a route table, in the order of insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterBuildError {
    /// The problems; never empty.
    pub errors: Vec<RouteError>,
}

/// A route as identified in errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteDescription {
    /// The pattern as inserted.
    pub pattern: String,
    /// The id given by the caller.
    pub id: u32,
    /// The label given by the caller, such as a position in the source; may be empty.
    pub label: String,
}

/// One error in a route table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// A malformed pattern.
    InvalidPattern {
        /// The route.
        route: RouteDescription,
        /// The cause and its position.
        error: PatternError,
    },
    /// Two routes of the same shape have the same methods.
    Duplicate {
        /// The route that was inserted first.
        first: RouteDescription,
        /// The route that was inserted later.
        second: RouteDescription,
        /// The methods that both have.
        methods: MethodSet,
    },
    /// Two routes have the same id.
    DuplicateId {
        /// The route that was inserted first.
        first: RouteDescription,
        /// The route that was inserted later.
        second: RouteDescription,
    },
    /// A route id above [`ROUTE_ID_MAX`].
    IdTooLarge {
        /// The route.
        route: RouteDescription,
    },
    /// A route without methods, which can never be found.
    NoMethods {
        /// The route.
        route: RouteDescription,
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
    pub kind: PatternErrorKind,
}

/// The cause of a pattern error. Its `Display` says how to fix it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternErrorKind {
    /// It does not begin with `/`.
    MissingLeadingSlash,
    /// A `{` without its `}` in the same segment.
    UnclosedBrace,
    /// A `}` without its `{`.
    UnopenedBrace,
    /// `{}` or `{*}`.
    EmptyName,
    /// A character that is not allowed in the name of a parameter.
    InvalidName,
    /// A constraint after a colon, as in `{id:[0-9]+}`.
    Constraint,
    /// The same name twice in one pattern.
    DuplicateName,
    /// A second parameter in one segment.
    TwoParametersInSegment,
    /// Text next to a catch-all in its segment.
    AffixedCatchAll,
    /// A segment after a catch-all.
    CatchAllNotLast,
    /// A segment that begins with `:` or `*`, the parameter syntax of other routers.
    LegacySyntax,
    /// A `?` or `#`, which a path cannot contain.
    QueryOrFragment,
    /// A zero byte.
    Nul,
    /// More than [`PARAMETERS_MAX`] parameters.
    TooManyParameters,
    /// More than [`SEGMENTS_MAX`] segments.
    TooManySegments,
    /// More than [`LITERAL_BYTES_MAX`] bytes of fixed text in one segment.
    LiteralTooLong,
}

impl fmt::Display for PatternErrorKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::MissingLeadingSlash => "a pattern begins with `/`: put one in front",
            Self::UnclosedBrace => {
                "this `{` is not closed: add `}`, or write `{{` for a literal brace"
            }
            Self::UnopenedBrace => "this `}` closes nothing: write `}}` for a literal brace",
            Self::EmptyName => "a parameter needs a name: write `{name}` or `{*name}`",
            Self::InvalidName => "a name is made of letters, digits, `_`, `-` and `.`: rename it",
            Self::Constraint => {
                "constraints are not part of a pattern: write `{name}` and check the value in the \
                 handler"
            }
            Self::DuplicateName => {
                "this name is already used in the pattern: rename one of the two"
            }
            Self::TwoParametersInSegment => {
                "a segment has at most one parameter: put a `/` between the two, or split one \
                 parameter in the handler"
            }
            Self::AffixedCatchAll => {
                "a catch-all fills whole segments: put a `/` before it and nothing after it"
            }
            Self::CatchAllNotLast => {
                "a catch-all takes the rest of the path: move it to the end, or write `{name}` for \
                 one segment"
            }
            Self::LegacySyntax => {
                "parameters are written `{name}` and catch-alls `{*name}`: for a literal `:` or \
                 `*` at the start of a segment write `%3A` or `%2A`"
            }
            Self::QueryOrFragment => {
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
        write!(out, "pattern `{}`, byte {}: {}", self.pattern, self.position, self.kind)
    }
}

impl std::error::Error for PatternError {}

impl fmt::Display for RouteDescription {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "route {} `{}`", self.id, self.pattern)?;
        if self.label.is_empty() { Ok(()) } else { write!(out, " ({})", self.label) }
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidPattern { route, error } => write!(out, "{route}: {error}"),
            Self::Duplicate { first, second, methods } => write!(
                out,
                "{first} and {second} match the same paths and both answer methods {methods:?}: \
                 remove one, or give them different methods"
            ),
            Self::DuplicateId { first, second } => {
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

impl fmt::Display for RouterBuildError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the route table has {} problem(s):", self.errors.len())?;
        for problem in &self.errors {
            write!(out, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RouterBuildError {}
