//! The errors of an application, all reported together when it is built.

use std::fmt;

/// All errors of an application, found by [`App::build`](crate::App::build).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The errors; never empty.
    pub errors: Vec<BuildErrorKind>,
}

/// One error of an application. Its text names the routes, where they are added in the source, and
/// how to fix the error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildErrorKind {
    /// A pattern that cannot be parsed.
    InvalidPattern {
        /// The route: its methods, pattern, and source location.
        route: String,
        /// The mistake in the pattern, and how to fix it.
        reason: String,
    },
    /// Two routes match the same paths and handle the same methods.
    Conflict {
        /// The route that was added first.
        first: String,
        /// The route that was added later.
        second: String,
        /// The methods that both handle.
        methods: String,
    },
    /// A route that is unreachable: a route that is checked earlier accepts all of its requests.
    Shadowed {
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
    /// The path parameters that a handler or its middleware expects do not match its pattern.
    PathMismatch {
        /// The route.
        route: String,
        /// The number of parameters that the handler expects, or the names of those that are
        /// missing.
        expected: String,
        /// The parameters that the pattern has.
        found: String,
    },
    /// Two scopes with the same prefix each have a fallback.
    DuplicateFallback {
        /// The fallback that was added first.
        first: String,
        /// The fallback that was added later.
        second: String,
    },
    /// An application is used as a handler, and one of its routes has an option that the server can
    /// apply only to the whole handler.
    UnsupportedOption {
        /// The route.
        route: String,
        /// The route or fallback whose handler is the application.
        outer: String,
        /// The option.
        option: &'static str,
        /// The call that sets the option on the whole handler.
        setting: &'static str,
    },
    /// A fallback has a guard, but guards have no effect on fallbacks.
    GuardedFallback {
        /// The fallback, its source location, and what to do instead.
        message: String,
    },
    /// Two routes with different patterns have the same name.
    DuplicateName {
        /// The route that was added first.
        first: String,
        /// The route that was added later.
        second: String,
        /// The name.
        name: String,
    },
    /// An invalid setting of a middleware or an extractor.
    InvalidSetting {
        /// The middleware with the setting, or the route or fallback with the extractor, and where
        /// it was added.
        owner: String,
        /// Why the setting is invalid, and how to fix it.
        reason: String,
    },
    /// An error found by a check of [`App::on_build`](crate::App::on_build).
    BuildHook {
        /// The text that the check returned.
        message: String,
    },
    /// The application exceeds a limit of the router.
    LimitExceeded {
        /// A description of the exceeded limit.
        message: String,
    },
}

impl fmt::Display for BuildErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidPattern { route, reason } => write!(f, "{route}: {reason}"),
            Self::Conflict { first, second, methods } => write!(
                f,
                "{first} and {second} match the same paths and both handle {methods}; remove one, \
                 or give them different methods"
            ),
            Self::Shadowed { first, second } => write!(
                f,
                "{second} is unreachable: {first} is checked first and accepts every request that \
                 it accepts; remove one, swap them, or give them different guards"
            ),
            Self::MissingState { route, state } => {
                write!(f, "{route} needs State<{state}>; add .state(...) to the App")
            }
            Self::PathMismatch { route, expected, found } => write!(
                f,
                "{route} takes {expected} from the path, but its pattern has {found}; make the \
                 Path argument and the pattern agree"
            ),
            Self::DuplicateFallback { first, second } => {
                write!(f, "{first} and {second} handle the same paths; remove one")
            }
            Self::UnsupportedOption { route, outer, option, setting } => write!(
                f,
                "{route} sets `{option}`, but it is inside {outer}, and the server applies only \
                 the options of that handler; merge the App (`.merge(app)`) instead of passing the \
                 built one, or set the option on that handler with `application.{setting}`"
            ),
            Self::DuplicateName { first, second, name } => {
                write!(f, "{first} and {second} are both named `{name}`; rename one")
            }
            Self::InvalidSetting { owner, reason } => write!(f, "{owner}: {reason}"),
            Self::LimitExceeded { message }
            | Self::GuardedFallback { message }
            | Self::BuildHook { message } => f.write_str(message),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.errors.len();
        let noun = if count == 1 { "error" } else { "errors" };
        write!(f, "the application has {count} {noun}:")?;
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}
