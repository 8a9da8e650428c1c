//! Who a contender is: what a run file says about it.

use std::path::Path;

use peregrine_lab_host::environment::sha256;
use peregrine_lab_model::contender::Contender;

use crate::recipe::{Places, Recipe, absolute};

/// Said where a recipe tells how to find a version, but that did not succeed.
const UNKNOWN: &str = "unknown";

impl Recipe {
    /// Class, version, compiler, allocator, commands, and the hashes of the lock file and of the
    /// program, as they are now. Commands and variables keep their placeholders, so that they mean
    /// the same on another machine. The workers are left for the caller to say.
    #[must_use]
    pub fn identity(&self, target: &Path) -> Contender {
        let toolchain = self.toolchain().unwrap_or_else(|_| UNKNOWN.to_owned());
        self.identity_of(&absolute(target), toolchain)
    }

    pub(crate) fn identity_of(&self, target: &Path, toolchain: String) -> Contender {
        let hash = |path: &Path| sha256(path).unwrap_or_default();
        // Behind an interpreter it is the built file that tells one program from another.
        let program = self.products(target).into_iter().next().or_else(|| self.program(target));
        Contender {
            name: self.name.clone(),
            class: self.class,
            version: self.framework_version(target),
            toolchain,
            allocator: self.allocator.clone(),
            build: self.build.clone(),
            run: self.run.clone(),
            environment: self.environment.clone(),
            lock_sha256: self.lock.as_deref().map(hash).unwrap_or_default(),
            program_sha256: program.as_deref().map(hash).unwrap_or_default(),
            ..Contender::default()
        }
    }

    /// The framework's version; empty if the recipe does not tell where to find it.
    fn framework_version(&self, target: &Path) -> String {
        if self.package.is_some() {
            return self.lock_version().unwrap_or_else(|| UNKNOWN.to_owned());
        }
        if self.version.is_empty() {
            return String::new();
        }
        let places = Places { target: target.to_owned(), ..Places::default() };
        let said = self.ask(self.filled(&self.version, &places));
        said.map_or_else(|_| UNKNOWN.to_owned(), |line| number(&line).to_owned())
    }
}

/// The version number in a line such as `nginx version: nginx/1.24.0`; the line, if it has none.
fn number(line: &str) -> &str {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || ".-+".contains(letter);
    let words = line.split(|letter| !is_part(letter));
    let from_digit = |word: &'_ str| word.find(|letter: char| letter.is_ascii_digit());
    let mut numbers = words
        .filter_map(|word| Some(word[from_digit(word)?..].trim_end_matches('.')))
        .filter(|word| word.contains('.'));
    numbers.next().unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_programs_print() {
        for (line, version) in [
            ("nginx version: nginx/1.24.0", "1.24.0"),
            ("go version go1.26.1 linux/amd64", "1.26.1"),
            ("v0.3.0-rc.1+build", "0.3.0-rc.1+build"),
            ("version 7.", "version 7."),
            ("the newest", "the newest"),
        ] {
            assert_eq!(number(line), version, "{line}");
        }
    }
}
