//! The faults of an application, all reported at once when it is built.

use std::fmt;

/// All faults of an application, found by [`App::build`](crate::App::build).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The faults; never empty.
    pub faults: Vec<Fault>,
}

/// One fault of an application. Its text names the routes, where they are added in the source, and
/// how to fix the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A pattern that cannot be parsed.
    Pattern {
        /// The route: its methods, pattern, and source location.
        route: String,
        /// The mistake in the pattern, and how to fix it.
        reason: String,
    },
    /// Two routes match the same paths and answer the same methods.
    Conflict {
        /// The route that was added first.
        first: String,
        /// The route that was added later.
        second: String,
        /// The methods that both answer.
        methods: String,
    },
    /// A route that is unreachable: a guarded route that is checked earlier accepts the same
    /// requests.
    Hidden {
        /// The route that is checked first.
        first: String,
        /// The unreachable route.
        second: String,
    },
    /// A handler or a middleware needs a state that the application lacks.
    MissingState {
        /// The route, fallback or middleware that needs it.
        route: String,
        /// The state's type.
        state: &'static str,
    },
    /// A handler takes path parameters that its pattern does not have.
    PathMismatch {
        /// The route.
        route: String,
        /// The parameters that the handler takes.
        takes: String,
        /// The parameters that the pattern has.
        has: String,
    },
    /// Two scopes with the same prefix each have a fallback.
    SameFallback {
        /// The fallback that was added first.
        first: String,
        /// The fallback that was added later.
        second: String,
    },
    /// A route of an application that is used as a handler has an option that the server can apply
    /// only to that handler as a whole.
    UnkeptOption {
        /// The route.
        route: String,
        /// The handler that the application is used as.
        outer: String,
        /// The option.
        option: &'static str,
        /// The call that sets the option on the whole handler.
        setting: &'static str,
    },
    /// A call that has no effect in this place.
    Misplaced {
        /// The call, its place, and what to do instead.
        what: String,
    },
    /// Two routes with different patterns have the same name.
    SameName {
        /// The route that was added first.
        first: String,
        /// The route that was added later.
        second: String,
        /// The name.
        name: String,
    },
    /// An invalid setting of a middleware or an extractor.
    Setting {
        /// The middleware or extractor with the setting, and where it was added.
        of: String,
        /// Why the setting is invalid, and how to fix it.
        reason: String,
    },
    /// A fault that a check added with [`App::inspect`](crate::App::inspect) found.
    Found {
        /// The text that the check returned.
        what: String,
    },
    /// The application exceeds a limit of the router.
    TooMany {
        /// A description of the exceeded limit.
        what: String,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern { route, reason } => write!(f, "{route}: {reason}"),
            Self::Conflict { first, second, methods } => write!(
                f,
                "{first} and {second} match the same paths and both answer {methods}; remove one, \
                 or give them different methods"
            ),
            Self::Hidden { first, second } => write!(
                f,
                "{second} is unreachable: {first} is checked first and accepts every request that \
                 it accepts; remove one, swap them, or give them different guards"
            ),
            Self::MissingState { route, state } => {
                write!(f, "{route} needs State<{state}>; add .state(...) to the App")
            }
            Self::PathMismatch { route, takes, has } => write!(
                f,
                "{route} takes {takes} from the path, but its pattern has {has}; make the Path \
                 argument and the pattern agree"
            ),
            Self::SameFallback { first, second } => {
                write!(f, "{first} and {second} answer for the same paths; remove one")
            }
            Self::UnkeptOption { route, outer, option, setting } => write!(
                f,
                "{route} sets `{option}`, but it is inside {outer}, and the server applies only \
                 the options of that handler; merge the App (`.merge(app)`) instead of passing the \
                 built one, or set the option on the whole with `application.{setting}`"
            ),
            Self::SameName { first, second, name } => {
                write!(f, "{first} and {second} are both named `{name}`; rename one")
            }
            Self::Setting { of, reason } => write!(f, "{of}: {reason}"),
            Self::TooMany { what } | Self::Misplaced { what } | Self::Found { what } => {
                f.write_str(what)
            }
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.faults.len();
        let noun = if count == 1 { "fault" } else { "faults" };
        write!(f, "the application has {count} {noun}:")?;
        for fault in &self.faults {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}
