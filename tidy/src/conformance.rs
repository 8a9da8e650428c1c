//! Generates `docs/conformance.md`, the list of rules from standards that the code implements, from
//! comments of the form `// RFC 9112 §6.3: the rule` next to that code.

use crate::tree::Tree;
use std::fs;

const PAGE: &str = "docs/conformance.md";

/// Complains if the page differs from the comments.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let present = fs::read_to_string(tree.root.join(PAGE)).unwrap_or_default();
    let is_current = present == page(tree);
    let complaint =
        || format!("{PAGE} differs from the comments: run `cargo tidy conformance --bless`");
    if is_current { Vec::new() } else { vec![complaint()] }
}

/// Writes the page.
pub(crate) fn bless(tree: &Tree) {
    fs::write(tree.root.join(PAGE), page(tree)).expect("docs/ is writable");
}

fn page(tree: &Tree) -> String {
    // Citations in tests do not count: the code under test implements the rule.
    let is_shipped = |place: &str| {
        !["tests/", "tidy/", "lab/"].iter().any(|start| place.starts_with(start))
            && !place.contains("/tests/")
    };
    let files = tree.files.iter().filter(|(place, _)| is_shipped(place));
    let mut rules: Vec<_> = files
        .flat_map(|(place, text)| citations(text).into_iter().map(move |rule| (rule, place)))
        .collect();
    rules.sort_by(|(a, _), (b, _)| (a.0, &a.1).cmp(&(b.0, &b.1)));
    let mut page = String::from(
        "# Conformance\n\nRules of the standards that the code cites where it obeys them. This \
         page is generated from those\ncomments by `cargo tidy conformance --bless`.\n",
    );
    let mut last = 0;
    for ((rfc, section, rule), place) in rules {
        if rfc != last {
            page += &format!("\n## RFC {rfc}\n\n");
            last = rfc;
        }
        let section: Vec<_> = section.iter().map(u32::to_string).collect();
        page += &format!("- §{}: {rule} (`{place}`)\n", section.join("."));
    }
    page
}

/// The RFC, section and rule of each citation. A rule ends with its sentence or its comment.
fn citations(text: &str) -> Vec<(u32, Vec<u32>, String)> {
    let mut found: Vec<(u32, Vec<u32>, String)> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(str::trim) {
        if let Some((rfc, section, rule)) = citation(line) {
            found.push((rfc, section, rule.to_owned()));
            is_open = true;
        } else if let Some(more) = line.strip_prefix("// ").filter(|_| is_open) {
            let (.., rule) = found.last_mut().expect("an open rule was pushed");
            *rule = format!("{rule} {more}");
        } else {
            is_open = false;
        }
        is_open &= found.last().is_some_and(|(.., rule)| !rule.ends_with('.'));
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
        let text = "    // RFC 9112 §6.3: a rule that\n    // continues.\n    // And a remark.\n\
            // RFC 9110 §5: short.\n// not RFC 1 §2: this";
        let expected = vec![
            (9112, vec![6, 3], "a rule that continues.".to_owned()),
            (9110, vec![5], "short.".to_owned()),
        ];
        assert_eq!(citations(text), expected);
    }

    #[test]
    fn a_page_that_is_not_current_is_a_complaint() {
        let tree = Tree::of(&[("a.rs", "// RFC 9110 §5: b."), ("tests/c.rs", "// RFC 1 §1: d.")]);
        assert!(page(&tree).ends_with("## RFC 9110\n\n- §5: b. (`a.rs`)\n"));
        assert_eq!(check(&tree).len(), 1);
    }
}
