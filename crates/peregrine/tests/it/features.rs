//! Every feature is documented, and checked alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// The features of `Cargo.toml`.
fn features() -> BTreeSet<String> {
    let manifest = read("Cargo.toml").expect("the manifest");
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("features]"));
    let lines = section.expect("a features section").lines();
    let names = lines.filter(|line| !line.starts_with([' ', '#', ']'])).filter_map(|line| {
        let (name, _) = line.split_once(" = ")?;
        Some(name.to_owned())
    });
    names.filter(|name| name != "default").collect()
}

#[test]
fn each_feature_is_documented_in_the_crate_docs() {
    let source = read("src/lib.rs").expect("the source");
    let lines = source.lines().filter_map(|line| line.strip_prefix("//! | `")?.split_once("` | "));
    let documented: BTreeSet<_> = lines.map(|(name, _)| name.to_owned()).collect();
    assert!(documented.len() > 5, "the table was not found");
    assert_eq!(documented, features());
}

#[test]
fn each_feature_is_checked_alone() {
    // The script is not part of the published package.
    let Some(script) = read("../../.ci/nightly") else { return };
    let (_, list) = script.split_once("features=\"").expect("a list of the features");
    let (list, _) = list.split_once('"').expect("the list ends");
    assert_eq!(list.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>(), features());
}
