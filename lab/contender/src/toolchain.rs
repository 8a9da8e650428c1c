//! Compilers: which one a contender is built with, and whether it is new enough.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::program::{self, Ended, Task};
use crate::recipe::Recipe;

/// How long a program may take to say its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(20);

/// How much of such an answer is kept, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024;

/// The commands that print a compiler's version.
const RUST: &[&str] = &["rustc", "--version"];
const GO: &[&str] = &["go", "version"];
const C: &[&str] = &["cc", "--version"];

/// A version of Rust: major, minor, patch.
pub(crate) type RustVersion = (u32, u32, u32);

/// Reads `1.88` or `1.88.1`; what follows a hyphen, as in `1.90.0-nightly`, is passed over.
pub(crate) fn parse(text: &str) -> Option<RustVersion> {
    let text = text.split('-').next()?;
    let mut numbers = text.split('.').map(str::parse);
    let (major, minor) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let patch = numbers.next().unwrap_or(Ok(0)).ok()?;
    numbers.next().is_none().then_some((major, minor, patch))
}

impl Recipe {
    /// What the compiler that fits the build says its version is; empty where none fits.
    ///
    /// # Errors
    ///
    /// A sentence that says why there is no answer.
    pub(crate) fn toolchain(&self) -> Result<String, String> {
        let program = self.build.first().map(String::as_str).unwrap_or_default();
        let lock = self.lock.as_ref().and_then(|lock| lock.file_name()?.to_str());
        let words = match program.rsplit('/').next().unwrap_or_default() {
            "cargo" | "rustc" => RUST,
            "go" => GO,
            "cc" | "gcc" | "clang" | "make" | "cmake" => C,
            "" => return Ok(String::new()),
            _ => match lock {
                Some("Cargo.lock") => RUST,
                Some("go.sum" | "go.mod") => GO,
                _ => return Ok(String::new()),
            },
        };
        self.ask(words.iter().map(|&word| word.to_owned()).collect())
    }

    /// Why the compiler here is too old for the recipe; nothing if it is not.
    pub(crate) fn lacks_rust(&self, toolchain: &str) -> Option<String> {
        let wanted = self.rust.as_deref()?;
        let said = if toolchain.starts_with("rustc ") {
            Ok(toolchain.to_owned())
        } else {
            self.ask(RUST.iter().map(|&word| word.to_owned()).collect())
        };
        let said = match said {
            Ok(said) => said,
            Err(error) => return Some(format!("it needs Rust {wanted} or newer; {error}")),
        };
        let has = said.split_whitespace().nth(1).and_then(parse);
        let is_old = has.is_none_or(|has| parse(wanted).is_some_and(|wanted| has < wanted));
        is_old.then(|| format!("it needs Rust {wanted} or newer; here is {said}"))
    }

    /// The first line that a program prints, run in the recipe's folder.
    pub(crate) fn ask(&self, words: Vec<String>) -> Result<String, String> {
        let command = words.join(" ");
        let task = Task {
            name: &self.name,
            words,
            environment: BTreeMap::new(),
            folder: &self.folder,
            timeout: VERSION_TIMEOUT,
            output_bytes_max: ANSWER_BYTES_MAX,
        };
        match task.run(&mut |_| ()) {
            Ended::Exited { status, output } if status.success() => {
                let line = output.lines().map(str::trim).find(|line| !line.is_empty());
                line.map(String::from).ok_or_else(|| format!("`{command}` says nothing"))
            }
            Ended::Exited { status, output } => {
                let line = program::first_line(&output).unwrap_or("it says nothing");
                Err(format!("`{command}` fails ({status}): {line}"))
            }
            Ended::NotStarted(error) => Err(format!("`{command}` cannot be run: {error}")),
            Ended::TimedOut { .. } => {
                Err(format!("`{command}` takes longer than {} s", VERSION_TIMEOUT.as_secs()))
            }
            Ended::Interrupted { .. } => Err("interrupted".to_owned()),
        }
    }
}
