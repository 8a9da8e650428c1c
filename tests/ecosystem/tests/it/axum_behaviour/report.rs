//! The table of results, regenerated from the cases themselves.

use crate::axum_behaviour::compare::{Run, outcome};
use std::fmt::Write;
use std::path::Path;
use std::{fs, panic};

const GROUPS: &[(&str, &[(&str, Run)])] = &[
    ("Routing", crate::axum_behaviour::routing::CASES),
    ("Methods, 405 and `Allow`, HEAD", crate::axum_behaviour::methods::CASES),
    ("Nesting and merging", crate::axum_behaviour::nesting::CASES),
    ("Fallbacks", crate::axum_behaviour::fallbacks::CASES),
    ("Extractors and their refusals", crate::axum_behaviour::extractors::CASES),
    ("Answers", crate::axum_behaviour::responses::CASES),
    ("Middleware", crate::axum_behaviour::layers::CASES),
    ("Bodies and their limits", crate::axum_behaviour::bodies::CASES),
    ("Streams and server-sent events", crate::axum_behaviour::streams::CASES),
    ("WebSockets", crate::axum_behaviour::sockets::CASES),
    ("Connections and shutdown", crate::axum_behaviour::connections::CASES),
];

/// The results of one group.
#[derive(Default)]
struct Row {
    cases: usize,
    /// Cases whose assertions the reference itself satisfies.
    kept: usize,
    /// For each of our drivers, the cases in which it responded like the reference; `None` if
    /// refused.
    alike: [Option<usize>; 2],
    differences: Vec<String>,
}

fn row(cases: &[(&str, Run)]) -> Row {
    let mut row = Row { cases: cases.len(), alike: [Some(0); 2], ..Row::default() };
    for (name, run) in cases {
        let Ok(case) = panic::catch_unwind(|| outcome(*run)) else {
            row.differences.push(format!("`{name}` fails"));
            continue;
        };
        row.kept += 1;
        for (number, differences) in case.differences.iter().enumerate() {
            if case.refused[number] {
                row.alike[number] = None;
            } else if differences.is_empty() {
                row.alike[number] = row.alike[number].map(|count| count + 1);
            }
        }
        if case.differences.iter().any(|differences| !differences.is_empty()) {
            row.differences.push(format!("`{name}`"));
        }
    }
    row
}

fn table() -> String {
    let mut text = String::from(
        "| behaviour | cases | axum::serve | tokio | io_uring | differences |\n|---|---|---|---|---|---|\n",
    );
    let mut total = Row { alike: [Some(0); 2], ..Row::default() };
    let count =
        |count: Option<usize>| count.map_or("refused".to_owned(), |count| count.to_string());
    for (name, cases) in GROUPS {
        let row = row(cases);
        let Row { cases, kept, alike: [tokio, uring], differences } = &row;
        let differences =
            if differences.is_empty() { "none".to_owned() } else { differences.join(", ") };
        let (tokio, uring) = (count(*tokio), count(*uring));
        writeln!(text, "| {name} | {cases} | {kept} | {tokio} | {uring} | {differences} |")
            .expect("writing to a string cannot fail");
        total.cases += row.cases;
        total.kept += row.kept;
        for (sum, alike) in total.alike.iter_mut().zip(row.alike) {
            *sum = sum.zip(alike).map(|(sum, alike)| sum + alike);
        }
        total.differences.extend(row.differences);
    }
    let Row { cases, kept, alike: [tokio, uring], differences } = total;
    let (tokio, uring) = (count(tokio), count(uring));
    writeln!(text, "| **all** | {cases} | {kept} | {tokio} | {uring} | {} |", differences.len())
        .expect("writing to a string cannot fail");
    text
}

/// The version of axum in the lock file.
fn version(root: &Path) -> String {
    let lock = fs::read_to_string(root.join("Cargo.lock")).expect("the workspace has one");
    let entry = lock.split("name = \"axum\"\nversion = \"").nth(1).expect("axum is a dependency");
    entry.split('"').next().unwrap_or_default().to_owned()
}

#[test]
fn every_group_has_cases_and_no_case_is_named_twice() {
    let mut names: Vec<_> =
        GROUPS.iter().flat_map(|(_, cases)| cases.iter().map(|(name, _)| *name)).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(GROUPS.iter().all(|(_, cases)| !cases.is_empty()));
}

/// Writes the table between the two markers of the page.
#[test]
#[ignore = "writes a page of the documentation"]
fn write_the_table() {
    const MARKS: [&str; 2] = ["<!-- table -->\n", "<!-- end of the table -->\n"];
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("the crate is inside the workspace");
    let path = root.join("docs/results/axum-behaviour/README.md");
    let page = fs::read_to_string(&path).expect("the page is part of the repository");
    let (before, rest) = page.split_once(MARKS[0]).expect("the page has both marks");
    let (_, after) = rest.split_once(MARKS[1]).expect("the page has both marks");
    let table = format!("axum {}\n\n{}", version(root), table());
    let page = format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]);
    fs::write(&path, page).expect("the page can be written");
}
