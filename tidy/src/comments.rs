//! Checks that comment lines have at most 100 columns, which rustfmt does not enforce on stable
//! Rust.
//!
//! Older code has longer lines. `tidy/long-comments.txt` lists their number per crate, which may
//! only decrease.

use crate::tree::Tree;
use std::collections::BTreeMap;
use std::fs;

const COLUMNS_MAX: usize = 100;

const BASELINE: &str = "tidy/long-comments.txt";

/// The number of long comment lines per folder.
type Counts = BTreeMap<String, usize>;

/// Complains about crates with more long comment lines than listed, or fewer.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    compare(&counts(tree), &listed(tree))
}

/// Lowers the numbers in the list.
pub(crate) fn bless(tree: &Tree) {
    let text = lowered(&counts(tree), &listed(tree));
    fs::write(tree.root.join(BASELINE), text).expect("tidy/ is writable");
}

fn listed(tree: &Tree) -> Counts {
    read(&fs::read_to_string(tree.root.join(BASELINE)).unwrap_or_default())
}

fn lowered(present: &Counts, listed: &Counts) -> String {
    let lower = |(folder, before): (&String, &usize)| {
        let count = *present.get(folder)?.min(before);
        Some(format!("{folder} {count}\n"))
    };
    listed.iter().filter_map(lower).collect()
}

fn compare(present: &Counts, listed: &Counts) -> Vec<String> {
    let mut complaints = Vec::new();
    for folder in present.keys().chain(listed.keys().filter(|key| !present.contains_key(*key))) {
        let count = |of: &Counts| of.get(folder).copied().unwrap_or(0);
        let (now, before) = (count(present), count(listed));
        let change = format!("{folder}: {now} comment lines over {COLUMNS_MAX} columns");
        if now > before {
            complaints.push(format!("{change}, {before} listed in {BASELINE}; wrap the new ones"));
        } else if now < before {
            complaints
                .push(format!("{change}, {before} listed; run `cargo tidy comments --bless`"));
        }
    }
    complaints
}

fn counts(tree: &Tree) -> Counts {
    let mut counts = Counts::new();
    for (place, text) in &tree.files {
        let count = text.lines().filter(|line| is_long(line)).count();
        if count > 0 {
            *counts.entry(folder(place)).or_default() += count;
        }
    }
    counts
}

/// The crate of a file: its first folder, plus the second one if the first contains several crates.
fn folder(place: &str) -> String {
    let parts =
        if ["crates/", "drivers/", "lab/"].iter().any(|of| place.starts_with(of)) { 2 } else { 1 };
    place.split('/').take(parts).collect::<Vec<_>>().join("/")
}

/// Whether a comment line is too long. A line that is mainly a URL cannot be wrapped.
fn is_long(line: &str) -> bool {
    let text = line.trim_start();
    let url = text.split_whitespace().filter(|word| word.contains("://")).map(str::len).max();
    text.starts_with("//")
        && line.chars().count() > COLUMNS_MAX
        && url.is_none_or(|url| url < COLUMNS_MAX / 2)
}

fn read(baseline: &str) -> Counts {
    let line = |line: &str| {
        let (folder, count) = line.split_once(' ')?;
        Some((folder.to_owned(), count.parse().ok()?))
    };
    baseline.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_comments_count() {
        let (word, url) = ("x".repeat(40), format!("https://{}", "x".repeat(60)));
        assert!(is_long(&format!("    /// {word} {word} {word}")));
        assert!(is_long(&format!("//{}", "é".repeat(99))));
        assert!(!is_long(&format!("//{}", "é".repeat(98))));
        assert!(!is_long(&format!("let {word} = {word} + {word};")));
        assert!(!is_long(&format!("// [the issue]: {url} {word}")));
    }

    #[test]
    fn more_and_fewer_than_listed_are_complaints_and_only_fewer_is_blessed() {
        let long = format!("// {}", "x ".repeat(60));
        let places = ["crates/a/src/lib.rs", "crates/a/src/b.rs", "tests/src/lib.rs"];
        let tree = Tree::of(&places.map(|place| (place, long.as_str())));
        let complaints = |listed| compare(&counts(&tree), &read(listed));
        assert_eq!(complaints("crates/a 2\ntests 1\n"), [""; 0]);
        assert!(complaints("tests 1\ncrates/a 1\n")[0].contains("crates/a: 2 comment lines"));
        assert!(complaints("tests 1\n")[0].contains("wrap the new ones"));
        assert!(complaints("crates/a 2\ntests 2\n")[0].contains("--bless"));
        assert!(complaints("crates/a 2\ntests 1\ngone 3\n")[0].contains("gone: 0 comment lines"));
        let listed = read("crates/a 5\ngone 3\ntests 0\n");
        assert_eq!(lowered(&counts(&tree), &listed), "crates/a 2\ntests 0\n");
    }
}
