//! Building a contender: bounded, logged, and undone by nothing but a change.
//!
//! Beside the log lies a record of the last build. Its time is that of the build's beginning, so
//! that a source that is changed during a build is newer, and a build that had nothing to do still
//! makes the program count as fresh. Its text is the compiler's version, the
//! command and the variables that compilers heed.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::program::{Ended, Task};
use crate::recipe::{Recipe, absolute};
use crate::sources;
use crate::state::products_are_newer;

/// How long a build may take. Compiling one contender with all optimisations takes minutes.
const BUILD_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// How much of the end of a build's output is kept, in bytes.
const OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// How many lines of the output a failure shows.
const SHOWN_LINES: usize = 20;

/// Variables that change what compilers make.
const VARIABLES: [&str; 6] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "GOFLAGS",
    "CGO_ENABLED",
    "CFLAGS",
];

/// How lines begin that tell how far a build has come.
const PROGRESS_WORDS: [&str; 9] = [
    "Blocking",
    "Compiling",
    "Downloaded",
    "Downloading",
    "Updating",
    "Locking",
    "Adding",
    "warning:",
    "go: downloading",
];

/// Why there is no program after a build.
#[derive(Debug)]
pub enum BuildError {
    /// Its command cannot be run.
    NotStarted {
        /// The command.
        command: String,
        /// Why.
        error: io::Error,
    },
    /// Its command failed.
    Failed {
        /// Whose.
        name: String,
        /// The exit status, in the words of the system.
        status: String,
        /// The last meaningful lines that it printed.
        lines: String,
        /// All that it printed.
        log: PathBuf,
    },
    /// It took longer than 20 minutes and was killed.
    TimedOut {
        /// Whose.
        name: String,
        /// The last meaningful lines that it printed.
        lines: String,
        /// All that it printed.
        log: PathBuf,
    },
    /// It succeeded, but what is to be run is not there.
    NoProgram {
        /// What is missing.
        path: PathBuf,
        /// All that it printed.
        log: PathBuf,
    },
    /// The log or the record cannot be written.
    NoLog {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The user wants the lab to end.
    Interrupted,
}

impl fmt::Display for BuildError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildError::NotStarted { command, error } => {
                write!(formatter, "`{command}` cannot be run: {error}")
            }
            BuildError::Failed { name, status, lines, log } => {
                write!(
                    formatter,
                    "building {name} failed ({status}): {lines}\nall of it stands in {}",
                    log.display()
                )
            }
            BuildError::TimedOut { name, lines, log } => write!(
                formatter,
                "building {name} took longer than {} min and was ended; its last lines: {lines}\n\
                 all of it stands in {}",
                BUILD_TIMEOUT.as_secs() / 60,
                log.display()
            ),
            BuildError::NoProgram { path, log } => write!(
                formatter,
                "the build succeeded, but there is no {}; compare `build` with `run` in the \
                 recipe; what it printed stands in {}",
                path.display(),
                log.display()
            ),
            BuildError::NoLog { path, error } => {
                write!(formatter, "{} cannot be written: {error}", path.display())
            }
            BuildError::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

impl std::error::Error for BuildError {}

/// What is written about a build, and where.
struct Records {
    log: PathBuf,
    built: PathBuf,
    failed: PathBuf,
}

impl Records {
    fn of(recipe: &Recipe, target: &Path) -> Records {
        let file = |ending| target.join("logs").join(format!("{}.{ending}", recipe.name));
        Records { log: file("log"), built: file("built"), failed: file("failed") }
    }
}

impl Recipe {
    /// Builds it, in its folder, with `CARGO_TARGET_DIR` set to `target`. `progress` is told the last
    /// line of the output whenever it changes. What the build printed, at most the last 4 MiB, is
    /// kept in `<target>/logs/<name>.log`. With nothing to build this only looks for the program.
    ///
    /// # Errors
    ///
    /// A [`BuildError`]. No process is left behind in any case.
    pub fn build(&self, target: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), BuildError> {
        self.build_within(BUILD_TIMEOUT, target, progress)
    }

    fn build_within(
        &self,
        timeout: Duration,
        target: &Path,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), BuildError> {
        let target = &absolute(target);
        let records = Records::of(self, target);
        let Some(words) = self.build_words(target) else {
            return self.find_products(target, &records);
        };
        let begin = SystemTime::now();
        let folder = records.log.parent().expect("a log lies in a folder");
        fs::create_dir_all(folder)
            .map_err(|error| BuildError::NoLog { path: folder.to_owned(), error })?;
        // Whatever happens from here on, the earlier build says nothing any more.
        for path in [&records.built, &records.failed] {
            let _ = fs::remove_file(path);
        }
        let command = words.join(" ");
        let variable = ("CARGO_TARGET_DIR".to_owned(), target.to_string_lossy().into_owned());
        let task = Task {
            name: &self.name,
            words,
            environment: [variable].into(),
            folder: &self.folder,
            timeout,
            output_bytes_max: OUTPUT_BYTES_MAX,
        };
        let ended = task.run(progress);
        let output = match &ended {
            Ended::Exited { output, .. }
            | Ended::TimedOut { output }
            | Ended::Interrupted { output } => output.as_str(),
            Ended::NotStarted(_) => "",
        };
        fs::write(&records.log, format!("$ {command}\n{output}"))
            .map_err(|error| BuildError::NoLog { path: records.log.clone(), error })?;
        let (name, log, lines) = (self.name.clone(), records.log.clone(), meaningful(output));
        let result = match ended {
            Ended::Exited { status, .. } if status.success() => {
                self.find_products(target, &records)
            }
            Ended::Exited { status, .. } => {
                Err(BuildError::Failed { name, status: status.to_string(), lines, log })
            }
            Ended::TimedOut { .. } => Err(BuildError::TimedOut { name, lines, log }),
            Ended::NotStarted(error) => Err(BuildError::NotStarted { command, error }),
            Ended::Interrupted { .. } => return Err(BuildError::Interrupted),
        };
        self.record(&records, begin, &result)?;
        result
    }

    fn find_products(&self, target: &Path, records: &Records) -> Result<(), BuildError> {
        let missing = self.products(target).into_iter().find(|product| !product.exists());
        missing.map_or(Ok(()), |path| Err(BuildError::NoProgram { path, log: records.log.clone() }))
    }

    /// Writes down how a build ended, as of its beginning.
    fn record(
        &self,
        records: &Records,
        begin: SystemTime,
        result: &Result<(), BuildError>,
    ) -> Result<(), BuildError> {
        let mut text = self.fingerprint(&self.toolchain().unwrap_or_default());
        let path = match result {
            Ok(()) => &records.built,
            Err(error) => {
                let reason = match error {
                    BuildError::Failed { lines, .. } => lines.clone(),
                    BuildError::TimedOut { .. } => "it took too long".to_owned(),
                    other => other.to_string(),
                };
                text.push_str(&reason);
                &records.failed
            }
        };
        let write = || {
            let mut file = File::create(path)?;
            file.write_all(text.as_bytes())?;
            file.set_modified(begin)
        };
        write().map_err(|error| BuildError::NoLog { path: path.clone(), error })
    }

    /// What besides the sources decides what a build makes: a line each for the compiler, the
    /// command and the variables.
    fn fingerprint(&self, toolchain: &str) -> String {
        let set = VARIABLES.iter().filter_map(|&name| Some((name, std::env::var(name).ok()?)));
        let variables: Vec<(&str, String)> = set.collect();
        format!("{toolchain}\n{:?}\n{variables:?}\n", self.build)
    }
}

/// Whether what was built is as new as its sources, and of this compiler and command. Without a
/// record, somebody built it by other means, and only its age counts.
pub(crate) fn is_fresh(
    recipe: &Recipe,
    target: &Path,
    toolchain: &str,
    changed: Option<SystemTime>,
) -> bool {
    let record = Records::of(recipe, target).built;
    let is_newer = |changed| products_are_newer(recipe, target, changed);
    match fs::read_to_string(&record) {
        Ok(text) if text != recipe.fingerprint(toolchain) => false,
        Ok(_) if sources::modified(&record) >= changed => true,
        _ => changed.is_none_or(is_newer),
    }
}

/// Why the last build failed, and its log, if nothing has been changed since.
pub(crate) fn failure(
    recipe: &Recipe,
    target: &Path,
    toolchain: &str,
    changed: Option<SystemTime>,
) -> Option<(String, PathBuf)> {
    let records = Records::of(recipe, target);
    let text = fs::read_to_string(&records.failed).ok()?;
    let reason = text.strip_prefix(&recipe.fingerprint(toolchain))?;
    let is_recent = sources::modified(&records.failed) >= changed;
    is_recent.then(|| (reason.to_owned(), records.log))
}

/// The end of a build's output without its progress, from the first error if there is one.
fn meaningful(output: &str) -> String {
    let is_progress = |line: &&str| {
        let line = line.trim_start();
        line.is_empty() || PROGRESS_WORDS.iter().any(|word| line.starts_with(word))
    };
    let lines: Vec<&str> = output.lines().filter(|line| !is_progress(line)).collect();
    let error = lines.iter().position(|line| line.trim_start().starts_with("error"));
    let shown = match error {
        Some(first) => &lines[first..lines.len().min(first + SHOWN_LINES)],
        None => &lines[lines.len().saturating_sub(SHOWN_LINES)..],
    };
    if shown.is_empty() { "it printed nothing".to_owned() } else { shown.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_takes_too_long_is_ended_with_its_children() {
        let root = tempfile::tempdir().unwrap();
        let mut recipe = Recipe::parse("mine={target}/mine").unwrap();
        recipe.folder = root.path().to_owned();
        let script = "sleep 600 & echo $! > pid; echo slow; wait";
        recipe.build = ["sh", "-c", script].map(String::from).into();
        let short = Duration::from_millis(300);
        let error = recipe.build_within(short, root.path(), &mut |_| ()).unwrap_err();
        assert!(matches!(error, BuildError::TimedOut { .. }), "{error}");
        if let Ok(id) = fs::read_to_string(root.path().join("pid")) {
            let path = format!("/proc/{}/status", id.trim());
            let status = fs::read_to_string(path).unwrap_or_default();
            assert!(status.is_empty() || status.contains("State:\tZ"), "{status}");
        }
        let recorded = fs::read_to_string(root.path().join("logs/mine.failed")).unwrap();
        assert!(recorded.ends_with("it took too long"), "{recorded}");
    }

    #[test]
    fn without_an_error_the_last_lines_are_shown_and_progress_is_not() {
        let many: String = (0..30).map(|line| format!("line {line}\n")).collect();
        let shown = meaningful(&format!("{many}   Compiling x\n\n"));
        assert_eq!(shown.lines().count(), SHOWN_LINES);
        assert!(shown.ends_with("line 29"), "{shown}");
        assert_eq!(meaningful("  Updating index\n"), "it printed nothing");
    }
}
