//! What source files look like: where `unsafe` lives, how long they are, what they are called.

use crate::layers::{Layers, packages};
use std::fs;
use std::path::{Path, PathBuf};

/// Crates without permission forbid `unsafe` in the compiler's own words.
pub(crate) fn check_unsafe(root: &Path) -> Vec<String> {
    let layers = Layers::read(root);
    let mut complaints = Vec::new();
    for package in packages(root) {
        if layers.rules.unsafe_allowed.contains(&package.name) {
            continue;
        }
        let source = Path::new(&package.folder).join("src");
        let entries = ["lib.rs", "main.rs"].map(|name| source.join(name));
        for entry in entries.iter().filter(|path| path.exists()) {
            let text = fs::read_to_string(entry).expect("the file exists");
            if !text.contains("#![forbid(unsafe_code)]") {
                let place = place(root, entry);
                complaints.push(format!("{place}: write #![forbid(unsafe_code)] at its top"));
            }
        }
    }
    complaints
}

/// No file, its tests aside, is longer than the limit.
pub(crate) fn check_sizes(root: &Path) -> Vec<String> {
    let most = Layers::read(root).rules.file_lines_max;
    let mut complaints = Vec::new();
    for path in rust_files(root) {
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("the file exists");
        let lines = lines_without_tests(&text);
        if lines > most {
            let place = place(root, &path);
            complaints.push(format!("{place}: {lines} lines without tests; at most {most}"));
        }
    }
    complaints
}

fn lines_without_tests(text: &str) -> usize {
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
}

/// Files have names that say what is in them.
pub(crate) fn check_names(root: &Path) -> Vec<String> {
    let refused = Layers::read(root).rules.file_names_refused;
    let mut complaints = Vec::new();
    for path in rust_files(root) {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if refused.contains(&stem) {
            complaints.push(format!("{}: its name tells nothing", place(root, &path)));
        }
    }
    complaints
}

/// What users read speaks of the one crate that they depend on: an example that is copied from the
/// documentation compiles.
pub(crate) fn check_examples(root: &Path) -> Vec<String> {
    let shown = Layers::read(root).rules.shown_to_users;
    let mut complaints = Vec::new();
    for package in packages(root).iter().filter(|package| shown.contains(&package.name)) {
        let mut files = Vec::new();
        walk(&Path::new(&package.folder).join("src"), &mut files);
        files.sort();
        for path in files {
            let text = fs::read_to_string(&path).expect("the file exists");
            let place = place(root, &path);
            complaints.extend(inner_names(&text).map(|number| {
                format!("{place}:{number}: an example names a crate that users do not have; say `peregrine::`")
            }));
        }
    }
    complaints
}

/// The lines of a file's examples that name a crate of ours other than `peregrine`.
fn inner_names(text: &str) -> impl Iterator<Item = usize> {
    let mut is_code = false;
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let line = line.trim_start();
        let Some(line) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
            is_code = false;
            return None;
        };
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        (is_code && line.contains("peregrine_")).then_some(number)
    })
}

/// Every Rust file of the project, in order.
pub(crate) fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "drivers", "tests", "fuzz", "examples", "lab", "tidy"] {
        walk(&root.join(folder), &mut files);
    }
    files.sort();
    files
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" {
            walk(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

pub(crate) fn place(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_inner_crates_count_in_examples_only() {
        let text = "//! From `peregrine_web`.\n//! ```\n//! use peregrine::App;\n\
                    //! # use peregrine_web::Scope;\n//! ```\nuse peregrine_web::App;\n\
                    //! See [`peregrine_web`].\n    /// ```\n    /// use peregrine_tls::Tls;\n    /// ```\n";
        assert_eq!(inner_names(text).collect::<Vec<_>>(), [4, 9]);
    }

    #[test]
    fn tests_at_the_end_of_a_file_do_not_count() {
        assert_eq!(lines_without_tests("a\nb\n#[cfg(test)]\nmod tests {}\n"), 2);
        assert_eq!(lines_without_tests("a\n    #[cfg(test)]\nb\n"), 3);
    }
}
