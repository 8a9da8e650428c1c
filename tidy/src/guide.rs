//! The guide in `docs/guide`: that each page is listed and compiled, and that links lead somewhere.
//!
//! A page that is not in `SUMMARY.md` is not in the book, one that is not in `README.md` is not found by who reads on
//! the forge, and code of one that no test includes is believed by nobody.

use crate::results::without_dots;
use crate::source::{place, rust_files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const GUIDE: &str = "docs/guide";

/// The book's own list of its pages.
const SUMMARY: &str = "SUMMARY.md";

/// The first page, with the list for who reads on the forge.
const README: &str = "README.md";

/// Folders whose pages' links are not looked at: what others wrote, and what is made.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

/// Each page is in the book, in the first page's list, and in the tests of the documentation.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let folder = root.join(GUIDE);
    let pages: BTreeSet<_> = names(&folder).into_iter().filter(|name| name != SUMMARY).collect();
    let listed = |name: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        links(&text).into_iter().map(|target| without_anchor(target).to_owned()).collect()
    };
    let (summary, readme, compiled) = (listed(SUMMARY), listed(README), compiled(root));
    let mut complaints = Vec::new();
    for page in &pages {
        if !summary.contains(page) {
            complaints.push(format!("{GUIDE}/{page}: {SUMMARY} does not list it"));
        }
        if page != README && !readme.contains(page) {
            complaints.push(format!("{GUIDE}/{page}: {README} does not list it"));
        }
        if !compiled.contains(page) {
            complaints.push(format!(
                "{GUIDE}/{page}: no test compiles its code; include it in crates/peregrine/src/lib.rs as its neighbours are"
            ));
        }
    }
    let order = |name: &str| -> Vec<String> {
        let text = fs::read_to_string(folder.join(name)).unwrap_or_default();
        let items = text.lines().filter(|line| line.starts_with("- ")).map(str::to_owned);
        items.filter_map(|item| Some((*links(&item).first()?).to_owned())).collect()
    };
    if order(SUMMARY) != order(README) {
        complaints
            .push(format!("{GUIDE}: {SUMMARY} and {README} list the pages in different orders"));
    }
    complaints
}

/// The pages of the guide that a source file includes as documentation, or compares with what is compiled.
fn compiled(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for path in rust_files(root) {
        let text = fs::read_to_string(&path).expect("the file exists");
        // A test may hold the code of a page to files that are compiled.
        let includes = |line: &&str| {
            line.starts_with("#[doc = include_str!(")
                || line.starts_with("const PAGE: &str = include_str!(")
        };
        for line in text.lines().filter(includes) {
            let page = line.split_once("docs/guide/").and_then(|(_, rest)| rest.split_once('"'));
            found.extend(page.map(|(name, _)| name.to_owned()));
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".md")).collect()
}

/// Each link from a page of the repository to another one leads to a file, and to a heading of it.
pub(crate) fn check_links(root: &Path) -> Vec<String> {
    let mut texts = BTreeMap::new();
    let mut pages = Vec::new();
    collect(root, &mut pages);
    for page in pages {
        let text = fs::read_to_string(&page).unwrap_or_default();
        texts.insert(page, text);
    }
    let mut complaints = Vec::new();
    for (page, text) in &texts {
        for target in links(text) {
            if let Some(wrong) = wrong(page, text, target, &texts) {
                complaints.push(format!("{}: {wrong}", place(root, page)));
            }
        }
    }
    complaints
}

/// What is wrong with one link; `None` where it leads somewhere, or out of the repository.
fn wrong(
    page: &Path,
    text: &str,
    target: &str,
    texts: &BTreeMap<PathBuf, String>,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = without_dots(&page.parent()?.join(file));
    let found = if file.is_empty() { Some(text) } else { texts.get(&path).map(String::as_str) };
    if !file.is_empty() && !path.exists() {
        return Some(format!("the link `{target}` leads nowhere"));
    }
    let found = found.filter(|_| !anchor.is_empty())?;
    let is_there = headings(found).iter().any(|heading| heading == anchor);
    (!is_there).then(|| format!("the link `{target}` leads to no heading of that page"))
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let is_skipped = SKIPPED.iter().any(|skipped| name == *skipped);
        if path.is_dir() && !path.is_symlink() && !is_skipped {
            collect(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

/// The targets of links and pictures, outside of code.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (line, _) in lines(text).filter(|(_, is_code)| !is_code) {
        for (at, _) in line.match_indices("](") {
            let is_in_span = line[..at].matches('`').count() % 2 == 1;
            let target = line[at + 2..].split_once(')').map(|(target, _)| target);
            found.extend(target.filter(|target| !is_in_span && !target.contains(' ')));
        }
    }
    found
}

/// Lines, and whether each is within a block of code.
fn lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut is_code = false;
    text.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (line, is_code || is_fence)
    })
}

fn without_anchor(target: &str) -> &str {
    target.split('#').next().unwrap_or(target)
}

/// The anchors of a page's headings, as forges and mdBook make them.
fn headings(text: &str) -> Vec<String> {
    let mut seen = BTreeMap::new();
    let mut found = Vec::new();
    for (line, _) in lines(text).filter(|(line, is_code)| !is_code && line.starts_with('#')) {
        let anchor = anchor(line.trim_start_matches('#').trim());
        let count = seen.entry(anchor.clone()).and_modify(|count| *count += 1).or_insert(0);
        found.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
    }
    found
}

/// Letters, digits, `-` and `_` in lower case, and `-` for each space.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.flat_map(char::to_lowercase)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "[a](b.md#c) `[x](y)` ![p](q.svg)\n```\n[n](o)\n```\n[r](s)";
        assert_eq!(links(text), ["b.md#c", "q.svg", "s"]);
    }

    #[test]
    fn headings_have_the_anchors_of_forges() {
        let text = "# One: `two`, !Send\n```\n# no\n```\n## A, B\n## A B\n## A B";
        assert_eq!(headings(text), ["one-two-send", "a-b", "a-b-1", "a-b-2"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_told() {
        let folder = std::env::temp_dir().join(format!("tidy-links-{}", std::process::id()));
        fs::create_dir_all(folder.join("b")).expect("a folder");
        fs::write(
            folder.join("a.md"),
            "# A\n[1](b/c.md#d) [2](b/c.md#e) [3](n.md) [4](#a) [5](#b)",
        )
        .expect("a page");
        fs::write(folder.join("b/c.md"), "## D\n[up](../a.md#a) [out](https://a.example/#x)")
            .expect("a page");
        let complaints = check_links(&folder);
        fs::remove_dir_all(&folder).expect("it was made here");
        let told = complaints.join("\n");
        assert!(complaints.len() == 3, "{told}");
        assert!(["#e`", "n.md`", "#b`"].iter().all(|wrong| told.contains(wrong)), "{told}");
    }
}
