//! Checks of source files: where `unsafe` is allowed, their length, their names, and their
//! examples.

use crate::tree::Tree;
use std::path::Path;

/// Crates without permission must forbid `unsafe` with the compiler's lint.
pub(crate) fn check_unsafe(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let allowed = &tree.rules.unsafe_allowed;
    for package in tree.packages.iter().filter(|package| !allowed.contains(&package.name)) {
        for root in ["src/lib.rs", "src/main.rs"] {
            let place = format!("{}/{root}", package.folder);
            let text = tree.files.get(&place);
            if text.is_some_and(|text| !text.contains("#![forbid(unsafe_code)]")) {
                complaints.push(format!("{place}: write #![forbid(unsafe_code)] at its top"));
            }
        }
    }
    complaints
}

/// Complains about files that are longer than the limit, not counting their tests.
pub(crate) fn check_sizes(tree: &Tree) -> Vec<String> {
    let most = tree.rules.file_lines_max;
    let files =
        tree.files.iter().filter(|(place, _)| !place.split('/').any(|part| part == "tests"));
    let lengths = files.map(|(place, text)| (place, lines_without_tests(text)));
    let too_long = lengths.filter(|(_, lines)| *lines > most);
    too_long
        .map(|(place, lines)| format!("{place}: {lines} lines without tests; at most {most}"))
        .collect()
}

fn lines_without_tests(text: &str) -> usize {
    text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count()
}

/// Complains about file names that do not describe their contents, and about a file `x.rs` beside a
/// folder `x`: it should be `x/mod.rs`.
pub(crate) fn check_names(tree: &Tree) -> Vec<String> {
    let refused = &tree.rules.file_names_refused;
    let is_refused = |place: &&String| {
        let stem = Path::new(place).file_stem();
        refused.iter().any(|name| stem == Some(name.as_ref()))
    };
    let places = tree.files.keys().filter(is_refused);
    let mut complaints: Vec<_> =
        places.map(|place| format!("{place}: name it after its contents")).collect();
    for place in tree.files.keys() {
        let folder = format!("{}/", place.trim_end_matches(".rs"));
        let next = tree.files.range(folder.clone()..).next();
        if next.is_some_and(|(place, _)| place.starts_with(&folder)) {
            complaints.push(format!("{place}: move it to {folder}mod.rs"));
        }
    }
    complaints
}

/// Examples in public documentation must use only the crate that users depend on, so that a copied
/// example compiles.
pub(crate) fn check_examples(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let shown = &tree.rules.shown_to_users;
    for package in tree.packages.iter().filter(|package| shown.contains(&package.name)) {
        let folder = format!("{}/src", package.folder);
        for (place, text) in tree.below(&folder) {
            complaints.extend(inner_names(text).map(|number| {
                format!(
                    "{folder}/{place}:{number}: use `peregrine::`; users do not have this crate"
                )
            }));
        }
    }
    complaints
}

/// The lines of a file's examples that name one of our crates other than `peregrine`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_permission_must_forbid_unsafe() {
        let mut tree = Tree::of(&[("crates/a/src/lib.rs", "//! A.")]);
        assert_eq!(check_unsafe(&tree).len(), 1);
        tree.rules.unsafe_allowed.push("a".to_owned());
        assert_eq!(check_unsafe(&tree), [""; 0]);
        let tree = Tree::of(&[("crates/a/src/lib.rs", "#![forbid(unsafe_code)]")]);
        assert_eq!(check_unsafe(&tree), [""; 0]);
    }

    #[test]
    fn tests_do_not_count_as_length() {
        let place = |name: &str| format!("crates/a/{name}.rs");
        let (long, short, test) = (place("long"), place("short"), place("tests/it"));
        let tree = Tree::of(&[
            (&long, "a\n    #[cfg(test)]\nb\n"),
            (&short, "a\nb\n#[cfg(test)]\nmod tests {}\n"),
            (&test, "a\nb\nc\n"),
        ]);
        assert_eq!(check_sizes(&tree), [format!("{long}: 3 lines without tests; at most 2")]);
    }

    #[test]
    fn a_file_name_that_says_nothing_is_refused() {
        let tree = Tree::of(&[("a/util.rs", ""), ("a/utility.rs", "")]);
        assert_eq!(check_names(&tree), ["a/util.rs: name it after its contents"]);
    }

    #[test]
    fn a_file_beside_its_folder_is_refused() {
        let tree =
            Tree::of(&[("a/b.rs", ""), ("a/b/c.rs", ""), ("a/d-e.rs", ""), ("a/d/mod.rs", "")]);
        assert_eq!(check_names(&tree), ["a/b.rs: move it to a/b/mod.rs"]);
    }

    #[test]
    fn only_examples_must_not_name_inner_crates() {
        let text = "//! From `peregrine_web`.\n//! ```\n//! use peregrine::App;\n\
                    //! # use peregrine_web::Scope;\n//! ```\nuse peregrine_web::App;\n\
                    //! See [`peregrine_web`].\n    /// ```\n    /// use peregrine_tls::Tls;\n
                    //! /// ```\n";
        assert_eq!(inner_names(text).collect::<Vec<_>>(), [4, 9]);
        assert_eq!(check_examples(&Tree::of(&[("crates/a/src/lib.rs", text)])).len(), 2);
    }
}
