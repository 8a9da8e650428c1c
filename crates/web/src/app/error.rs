//! Faults of an application, all reported at once when it is built.

use std::fmt;

/// Everything that is wrong with an application, found by [`App::build`](crate::App::build).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The faults; never empty.
    pub faults: Vec<Fault>,
}

/// One thing that is wrong with an application. Its text names the routes, where they are added in the
/// source, and how to fix the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A pattern that cannot be read.
    Pattern {
        /// The route: method, pattern, and place in the source.
        route: String,
        /// What is wrong with the pattern, and how to fix it.
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
    /// A route that no request comes to: another one with guards accepts the same, and is asked before.
    Hidden {
        /// The route that is asked first.
        first: String,
        /// The route that is never asked.
        second: String,
    },
    /// A handler or a middleware needs a state that was not given.
    MissingState {
        /// The route that needs it.
        route: String,
        /// The state's type.
        state: &'static str,
    },
    /// A handler takes parameters from the path that its pattern does not have.
    PathMismatch {
        /// The route.
        route: String,
        /// What the handler takes.
        takes: String,
        /// What the pattern has.
        has: String,
    },
    /// Two scopes of the same prefix have a fallback each.
    SameFallback {
        /// The fallback that was added first.
        first: String,
        /// The fallback that was added later.
        second: String,
    },
    /// A route of an application that is used as a handler has an option that the server can only apply
    /// to that handler as a whole.
    UnkeptOption {
        /// The route.
        route: String,
        /// The application as a handler.
        outer: String,
        /// The option.
        option: &'static str,
        /// How to set the option on the whole.
        setting: &'static str,
    },
    /// Something that has no effect where it stands.
    Misplaced {
        /// What, where, and what to do instead.
        what: String,
    },
    /// Two routes of different patterns have one name.
    SameName {
        /// The route that was added first.
        first: String,
        /// The route that was added later.
        second: String,
        /// The name.
        name: String,
    },
    /// A setting of a middleware or an extractor that cannot be kept.
    Setting {
        /// What has the setting, and where it is added.
        of: String,
        /// What is wrong with the setting, and how to fix it.
        reason: String,
    },
    /// Something that [`App::inspect`](crate::App::inspect) found.
    Found {
        /// What, where, and how to fix it.
        what: String,
    },
    /// More than the router can distinguish.
    TooMany {
        /// What exceeds its limit, and the limit.
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
                "{second} is never asked: {first} is asked before it and accepts all that it does; remove one, swap \
                 them, or give them other guards"
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
                "{route} asks for `{option}`, but it is inside of {outer}, and the server keeps the \
                 options of that only; merge the App (`.merge(app)`) instead of handing over the \
                 built one, or ask for all of it by `application.{setting}`"
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
