//! Whether a contender can be measured here and now, and if not, why.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use peregrine_lab_model::contender::Contender;

use crate::build::{self, absolute};
use crate::program::{self, Ended, Task};
use crate::recipe::{Need, Recipe};
use crate::sources;

/// How long each command of `needs` may take.
const NEED_TIMEOUT: Duration = Duration::from_secs(20);

/// How much of such a command's output is kept, in bytes.
const NEED_OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// What stands between a recipe and a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Nothing: the program is there and newer than what it is made of.
    Ready {
        /// Who it is.
        identity: Box<Contender>,
    },
    /// It is to be built first: it never was, its sources are newer, or it was built by another
    /// compiler or command.
    NotBuilt,
    /// It cannot be built or run on this machine.
    Skipped {
        /// What is missing.
        reason: String,
    },
    /// It is not to be had, because it is not published.
    NotObtainable {
        /// What the recipe says about it, and what the command that found out said.
        reason: String,
    },
    /// The last build failed, and nothing has been changed since. Building again is allowed.
    BuildFailed {
        /// The last meaningful lines of the build.
        reason: String,
        /// All that the build printed.
        log: PathBuf,
    },
}

impl State {
    /// Why the contender is not ready; nothing if it is.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match self {
            State::Ready { .. } => None,
            _ => Some(self.to_string()),
        }
    }
}

/// In one line: of a longer reason only the first.
impl fmt::Display for State {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        match self {
            State::Ready { .. } => formatter.write_str("ready"),
            State::NotBuilt => formatter.write_str("not built"),
            State::Skipped { reason } => write!(formatter, "skipped: {}", line(reason)),
            State::NotObtainable { reason } => {
                write!(formatter, "not obtainable here: {}", line(reason))
            }
            State::BuildFailed { reason, log } => {
                write!(formatter, "build failed: {} ({})", line(reason), log.display())
            }
        }
    }
}

impl Recipe {
    /// Looks what stands in the way: first the recipe's `needs`, then compilers, then the program.
    /// It runs the commands of `needs`, each for at most 20 s, and builds nothing.
    #[must_use]
    pub fn state(&self, target: &Path) -> State {
        let target = &absolute(target);
        for need in &self.needs {
            if let Some(error) = self.failure(need) {
                return self.unmet(need, &error);
            }
        }
        let toolchain = match self.lacking() {
            Ok(toolchain) => toolchain,
            Err(reason) => return State::Skipped { reason },
        };
        let missing = self.products(target).into_iter().find(|product| !product.exists());
        if self.build.is_empty() {
            return match missing {
                Some(path) => State::Skipped {
                    reason: format!("{} does not exist, and nothing builds it", path.display()),
                },
                None => self.ready(target),
            };
        }
        let changed = self.sources_changed(target);
        if missing.is_none() && build::is_fresh(self, target, &toolchain, changed) {
            return self.ready(target);
        }
        match build::failure(self, target, &toolchain, changed) {
            Some((reason, log)) => State::BuildFailed { reason, log },
            None => State::NotBuilt,
        }
    }

    fn ready(&self, target: &Path) -> State {
        State::Ready { identity: Box::new(self.identity(target)) }
    }

    fn unmet(&self, need: &Need, error: &str) -> State {
        match &self.unobtainable {
            Some(sentence) => State::NotObtainable { reason: format!("{sentence} ({error})") },
            None => State::Skipped { reason: format!("{} ({error})", need.reason) },
        }
    }

    /// How a need fails, in a line; nothing if it is met.
    fn failure(&self, need: &Need) -> Option<String> {
        let places = crate::recipe::Places::default();
        let words = self.filled(&need.command, &places);
        let command = words.join(" ");
        let task = Task {
            name: &self.name,
            words,
            environment: std::collections::BTreeMap::new(),
            folder: &self.folder,
            timeout: NEED_TIMEOUT,
            output_bytes_max: NEED_OUTPUT_BYTES_MAX,
        };
        let how = match task.run(&mut |_| ()) {
            Ended::Exited { status, .. } if status.success() => return None,
            Ended::Exited { status, output } => match program::first_line(&output) {
                Some(line) => line.to_owned(),
                None => status.to_string(),
            },
            Ended::NotStarted(error) => error.to_string(),
            Ended::TimedOut { .. } => format!("no answer in {} s", NEED_TIMEOUT.as_secs()),
            Ended::Interrupted { .. } => "interrupted".to_owned(),
        };
        Some(format!("`{command}`: {how}"))
    }

    /// The compiler's version, or what is missing to build and run it.
    fn lacking(&self) -> Result<String, String> {
        let places = crate::recipe::Places::default();
        for (words, purpose) in [(&self.build, "building"), (&self.run, "running")] {
            let filled = self.filled(words, &places);
            let name = filled.first().filter(|name| !name.contains('/'));
            if let Some(name) = name.filter(|name| program::find(name).is_none()) {
                return Err(format!("`{name}`, needed for {purpose} it, is not installed"));
            }
        }
        if let Some(reason) = self.lacks_rust() {
            return Err(reason);
        }
        self.toolchain()
    }
}

/// Whether all that the build made is at least as new as `changed`.
pub(crate) fn products_are_newer(
    recipe: &Recipe,
    target: &Path,
    changed: std::time::SystemTime,
) -> bool {
    recipe
        .products(target)
        .iter()
        .all(|product| sources::modified(product).is_some_and(|made| made >= changed))
}
