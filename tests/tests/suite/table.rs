//! Checks that the tables of `docs/protocols.md` and the suites agree.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the page's tables with this many columns, without the header rows.
fn rows(columns: usize) -> Vec<Vec<String>> {
    let page = read("docs/protocols.md");
    let cells = page.lines().filter(|line| line.starts_with("| ")).map(|line| {
        let cells = line.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        let mut cells: Vec<_> = cells.skip(1).collect();
        cells.pop();
        cells
    });
    let is_head = |cells: &Vec<String>| cells[0] == "behaviour" || cells[0] == "attack";
    cells.filter(|cells| cells.len() == columns && !is_head(cells)).collect()
}

/// The cases that a macro lists, in lines such as `file::case,`.
fn listed(path: &str) -> BTreeSet<String> {
    let text = read(path);
    let lines = text.lines().map(str::trim).filter_map(|line| line.strip_suffix(','));
    lines.filter(|line| is_case(line)).map(str::to_owned).collect()
}

fn is_case(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter))
    };
    text.split_once("::").is_some_and(|(file, case)| is_name(file) && is_name(case))
}

/// The source of each case in a folder, by `file::case`.
fn texts(folder: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root().join(folder)).expect("the folder exists") {
        let path = entry.expect("the folder is readable").path();
        let file = path.file_stem().expect("the file has a stem").to_string_lossy().into_owned();
        let text = fs::read_to_string(&path).expect("the file is UTF-8");
        for part in text.split("\npub async fn ").skip(1) {
            let name = part.split('<').next().unwrap_or_default();
            let body = part.split("\n}\n").next().unwrap_or_default();
            all.insert(format!("{file}::{name}"), body.to_owned());
        }
    }
    all
}

#[test]
fn each_row_names_a_case_and_each_case_has_a_row() {
    let listed = listed("tests/src/server/ways.rs");
    let named: Vec<_> = rows(5).into_iter().map(|row| row[1].clone()).collect();
    let unique: BTreeSet<_> = named.iter().cloned().collect();
    assert_eq!(unique.len(), named.len(), "a case has one row");
    assert_eq!(
        unique.difference(&listed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no such case"
    );
    assert_eq!(listed.difference(&unique).collect::<Vec<_>>(), Vec::<&String>::new(), "no row");
    let written = texts("tests/src/server/cases/neutral");
    let unlisted: Vec<_> = written.keys().filter(|case| !listed.contains(*case)).collect();
    assert!(
        unlisted.is_empty() && listed.len() == written.len(),
        "cases that do not run: {unlisted:?}"
    );
}

#[test]
fn a_row_differs_if_and_only_if_its_case_does() {
    let texts = texts("tests/src/server/cases/neutral");
    for row in rows(5) {
        let [behaviour, case, http1, http2, why] = &row[..] else { unreachable!("five columns") };
        let asserts = texts.get(case).is_some_and(|text| text.contains("way.differs("));
        assert!(http1 != http2 || http1.is_empty(), "{behaviour}: identical columns must be empty");
        let differs = !http1.is_empty() && !http2.is_empty();
        assert_eq!(
            http1.is_empty(),
            http2.is_empty(),
            "{behaviour}: fill both columns, or neither"
        );
        assert_eq!(
            differs, asserts,
            "{behaviour}: the row differs: {differs}, its case {case}: {asserts}"
        );
        assert_eq!(differs, !why.is_empty(), "{behaviour}: only a difference has a reason");
    }
}

#[test]
fn each_attack_is_made_by_a_case() {
    let listed = listed("tests/src/server/attacks.rs");
    let named: BTreeSet<_> = rows(4).into_iter().map(|row| row[1].clone()).collect();
    assert_eq!(named, listed);
    for attack in [
        "rapid reset",
        "MadeYouReset",
        "CONTINUATION",
        "bomb",
        "thrash",
        "SETTINGS",
        "PING",
        "PRIORITY",
        "WINDOW_UPDATE",
        "empty DATA",
        "empty HEADERS",
        "window of one byte",
        "zero window",
        "never ended",
        "huge header lists",
        "slow preface",
        "slow frames",
        "never read",
        "padding",
        "dependency loops",
    ] {
        let attack = attack.to_lowercase();
        let is_there = rows(4).iter().any(|row| row[0].to_lowercase().contains(&attack));
        assert!(is_there, "no row for {attack}");
    }
}
