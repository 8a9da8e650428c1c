//! Whether a contender can be measured here and now, and if not, why.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use peregrine_lab_model::contender::Contender;

use crate::build;
use crate::program::{self, Ended, Task};
use crate::recipe::{Need, Places, Recipe, absolute};
use crate::sources;

/// How long each command of `needs` may take.
const NEED_TIMEOUT: Duration = Duration::from_secs(20);

/// How much of what a command said is told, in letters.
const SAID_LETTERS_MAX: usize = 300;

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
    /// Looks what stands in the way: first whether there is anything to build it with, then the
    /// recipe's `needs`, then the compiler's version, then the program. It runs the commands of
    /// `needs`, each for at most 20 s, and builds nothing.
    #[must_use]
    pub fn state(&self, target: &Path) -> State {
        let target = &absolute(target);
        if let Some(reason) = not_installed(&self.build, "building") {
            return State::Skipped { reason };
        }
        for need in &self.needs {
            if let Some(error) = self.failure(need, target) {
                return self.unmet(need, &error);
            }
        }
        let toolchain = match self.suitable_toolchain() {
            Ok(toolchain) => toolchain,
            Err(reason) => return State::Skipped { reason },
        };
        let missing = self.products(target).into_iter().find(|product| !product.exists());
        if self.build.is_empty() {
            return match missing {
                Some(path) => State::Skipped {
                    reason: format!("{} does not exist, and nothing builds it", path.display()),
                },
                None => self.ready(target, toolchain),
            };
        }
        let changed = self.sources_changed(target);
        if missing.is_none() && build::is_fresh(self, target, &toolchain, changed) {
            return self.ready(target, toolchain);
        }
        match build::failure(self, target, &toolchain, changed) {
            Some((reason, log)) => State::BuildFailed { reason, log },
            None => State::NotBuilt,
        }
    }

    fn ready(&self, target: &Path, toolchain: String) -> State {
        State::Ready { identity: Box::new(self.identity_of(target, toolchain)) }
    }

    fn unmet(&self, need: &Need, error: &str) -> State {
        match &self.unobtainable {
            Some(sentence) => State::NotObtainable { reason: format!("{sentence} ({error})") },
            None => State::Skipped { reason: format!("{} ({error})", need.reason) },
        }
    }

    /// How a need fails, in a line; nothing if it is met.
    fn failure(&self, need: &Need, target: &Path) -> Option<String> {
        let places = Places { target: target.to_owned(), ..Places::default() };
        let words = self.filled(&need.command, &places);
        let command = words.join(" ");
        let task = Task {
            name: &self.name,
            words,
            environment: BTreeMap::new(),
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
        let how: String = how.chars().take(SAID_LETTERS_MAX).collect();
        Some(format!("`{command}`: {how}"))
    }

    /// The compiler's version, or what is missing to build and run it.
    fn suitable_toolchain(&self) -> Result<String, String> {
        if let Some(reason) = not_installed(&self.run, "running") {
            return Err(reason);
        }
        // Where no Rust answers, the one that is wanted belongs into the reason.
        let toolchain = self.toolchain();
        match self.lacks_rust(toolchain.as_deref().unwrap_or_default()) {
            Some(reason) => Err(reason),
            None => toolchain,
        }
    }
}

/// That a command's program is nowhere on the PATH, if so. Paths are not looked at.
fn not_installed(words: &[String], purpose: &str) -> Option<String> {
    let name = words.first().filter(|name| !name.contains('/'))?;
    let is_missing = program::find(name).is_none();
    is_missing.then(|| format!("`{name}`, needed for {purpose} it, is not installed"))
}

/// Whether all that the build made is at least as new as `changed`.
pub(crate) fn products_are_newer(recipe: &Recipe, target: &Path, changed: SystemTime) -> bool {
    recipe
        .products(target)
        .iter()
        .all(|product| sources::modified(product).is_some_and(|made| made >= changed))
}
