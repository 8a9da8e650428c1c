//! The page that lists which rules of which standards the code obeys, made from its comments.
//!
//! A comment of the form `// RFC 9112 §6.3: the rule` next to the code that obeys it becomes a line
//! of `docs/conformance.md`.

use crate::source::{place, rust_files};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// A rule and the file that obeys it.
type Citation = (String, String);

const PAGE: &str = "docs/conformance.md";

/// Is the page what the comments say?
pub(crate) fn check(root: &Path) -> Vec<String> {
    let present = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    if present == page(root) {
        return Vec::new();
    }
    vec![format!("{PAGE} is not what the comments say: run `cargo tidy write-conformance`")]
}

/// Writes the page.
pub(crate) fn write(root: &Path) {
    fs::write(root.join(PAGE), page(root)).expect("docs/ can be written to");
}

fn page(root: &Path) -> String {
    let mut rules: BTreeMap<(u32, Vec<u32>), Vec<Citation>> = BTreeMap::new();
    for path in rust_files(root) {
        let place = place(root, &path);
        // A test explains rules; it is what it tests that obeys them.
        let is_test = place.starts_with("tests/") || place.contains("/tests/");
        if is_test || place.starts_with("tidy/") || place.starts_with("lab/") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("the file exists");
        for (rfc, section, rule) in citations(&text) {
            rules.entry((rfc, section)).or_default().push((rule, place.clone()));
        }
    }
    let mut page = String::from(
        "# Conformance\n\nRules of the standards that the code cites where it obeys them. This page is made \
         from those\ncomments by `cargo tidy write-conformance`.\n",
    );
    let mut last = 0;
    for ((rfc, section), lines) in rules {
        if rfc != last {
            let _ = write!(page, "\n## RFC {rfc}\n\n");
            last = rfc;
        }
        let section: Vec<_> = section.iter().map(u32::to_string).collect();
        for (rule, place) in lines {
            let _ = writeln!(page, "- §{}: {rule} (`{place}`)", section.join("."));
        }
    }
    page
}

/// RFC, section and rule of each citation, joined over the lines of its comment.
fn citations(text: &str) -> Vec<(u32, Vec<u32>, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let Some((rfc, section, first)) = citation(line) else { continue };
        let mut rule = first.to_owned();
        while let Some(next) = lines.peek() {
            let Some(more) = next.strip_prefix("// ") else { break };
            if citation(next).is_some() || rule.ends_with('.') {
                break;
            }
            rule.push(' ');
            rule.push_str(more);
            lines.next();
        }
        found.push((rfc, section, rule));
    }
    found
}

fn citation(line: &str) -> Option<(u32, Vec<u32>, &str)> {
    let comment = line.strip_prefix("// RFC ")?;
    let (rfc, rest) = comment.split_once(" §")?;
    let (section, rule) = rest.split_once(": ")?;
    let section = section.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((rfc.parse().ok()?, section, rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_citation_is_joined_over_its_lines_and_ends_with_its_sentence() {
        let text = "    // RFC 9112 §6.3: a rule that\n    // goes on.\n    // And a remark.\n\
            // RFC 9110 §5: short.\n// not RFC 1 §2: this";
        let expected = vec![
            (9112, vec![6, 3], "a rule that goes on.".to_owned()),
            (9110, vec![5], "short.".to_owned()),
        ];
        assert_eq!(citations(text), expected);
    }
}
