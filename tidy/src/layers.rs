//! Which crate may depend on which, which folder of a crate may import which, and why each outside
//! dependency is there.

use crate::imports::{self, Graph};
use crate::tree::{FolderOrder, Package, Rules, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Compares the table of layers with the dependencies from `cargo metadata`.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    compare(&tree.rules, &tree.packages)
}

fn compare(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    let present: BTreeSet<_> = packages.iter().map(|package| package.name.as_str()).collect();
    for name in rules.crates.keys().filter(|name| !present.contains(name.as_str())) {
        complaints.push(format!("tidy/layers.toml names {name}, which is not in the workspace"));
    }
    for package in packages {
        let Some(allowed) = rules.crates.get(&package.name) else {
            complaints.push(format!("{}: add it to tidy/layers.toml", package.name));
            continue;
        };
        let is_lab = package.name.starts_with("peregrine-lab");
        let is_bare = rules.without_dependencies.contains(&package.name);
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            let is_inside = dependency.path.is_some();
            let is_development = dependency.kind.as_deref() == Some("dev");
            let is_free = is_development && !is_lab;
            let is_allowed = allowed.iter().any(|name| name == to || name == "*");
            if is_inside && !is_allowed && !is_free {
                complaints.push(format!("{from} -> {to}: tidy/layers.toml does not allow it"));
            }
            if !is_inside && is_bare && !is_development {
                complaints.push(format!("{from} -> {to}: {from} has no dependencies by design"));
            }
        }
    }
    complaints
}

/// In a crate whose folders `tidy/layers.toml` lists, a folder imports only from folders below it.
pub(crate) fn check_folders(tree: &Tree) -> Vec<String> {
    let check = |order: &FolderOrder| {
        compare_folders(order, &imports::graph(tree.below(&format!("{}/src", order.of))))
    };
    tree.rules.folders.iter().flat_map(check).collect()
}

fn compare_folders(order: &FolderOrder, graph: &Graph) -> Vec<String> {
    let FolderOrder { of, layers } = order;
    let root = vec!["crate".to_owned()];
    let ranks: BTreeMap<_, _> = std::iter::once(&root)
        .chain(layers)
        .zip(0..)
        .flat_map(|(names, rank)| names.iter().map(move |name| (name.as_str(), rank)))
        .collect();
    let present: BTreeSet<_> = graph.keys().map(|name| folder(name)).collect();
    let mut complaints = Vec::new();
    for name in present.iter().filter(|name| !ranks.contains_key(*name)) {
        complaints.push(format!("{of}: add {name} to its folders in tidy/layers.toml"));
    }
    for name in layers.iter().flatten().filter(|name| !present.contains(name.as_str())) {
        complaints.push(format!("{of}: tidy/layers.toml names {name}, which is not there"));
    }
    // The root names everything, to re-export it.
    for (from, targets) in graph.iter().filter(|(from, _)| *from != "crate") {
        for to in targets.iter().filter(|to| folder(to) != folder(from)) {
            let [above, below] = [from, to].map(|name| ranks.get(folder(name)));
            if above.zip(below).is_some_and(|(above, below)| above >= below) {
                complaints.push(format!("{of}: {from} imports {to}, which is not below it"));
            }
        }
    }
    complaints
}

/// The first part of a module's name: a folder or file directly below `src`.
fn folder(module: &str) -> &str {
    module.split_once("::").map_or(module, |(folder, _)| folder)
}

/// Every external dependency must have its reason on its line of the root manifest, and members
/// must inherit it from there. A development dependency that closes a cycle between crates is a
/// path without a version, because cargo omits those from published packages. An unpublished crate
/// may also name a member by its path, because only then can it turn off that crate's default
/// features.
pub(crate) fn check_reasons(tree: &Tree) -> Vec<String> {
    let read = |place: &str| {
        fs::read_to_string(tree.root.join(place)).expect("cargo has read this manifest")
    };
    let mut complaints = without_reason(&read("Cargo.toml"));
    for package in &tree.packages {
        let place = format!("{}/Cargo.toml", package.folder);
        let own = not_inherited(&read(&place)).into_iter();
        complaints.extend(own.map(|name| format!("{place}: inherit `{name}` from the workspace")));
    }
    complaints
}

fn without_reason(manifest: &str) -> Vec<String> {
    let section = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    section
        .lines()
        .filter(|line| line.contains('=') && !line.contains("path = ") && !line.contains("# "))
        .map(|line| format!("Cargo.toml: `{}` needs its reason in a comment", line.trim()))
        .collect()
}

fn not_inherited(manifest: &str) -> Vec<String> {
    let manifest: toml::Table = toml::from_str(manifest).expect("cargo has read this manifest");
    let publish = manifest.get("package").and_then(|package| package.get("publish"));
    let is_unpublished = publish.and_then(toml::Value::as_bool) == Some(false);
    let mut found = Vec::new();
    for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
        let dependencies = manifest.get(table).and_then(toml::Value::as_table);
        for (name, value) in dependencies.into_iter().flatten() {
            let may_be_a_path = (is_unpublished || table == "dev-dependencies")
                && value.get("path").is_some()
                && value.get("version").is_none();
            if value.get("workspace").is_none() && !may_be_a_path {
                found.push(name.clone());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Dependency;

    #[test]
    fn a_dependency_that_the_table_does_not_allow_is_a_complaint() {
        let mut rules = Tree::of(&[]).rules;
        rules.crates = toml::from_str("a = []\nb = ['a']\nperegrine-lab-x = []").expect("TOML");
        rules.without_dependencies = vec!["a".to_owned()];
        let cases = [
            ("b", "a", true, false, 0),
            ("a", "b", true, false, 1),
            ("a", "b", true, true, 0),
            ("a", "serde", false, false, 1),
            ("a", "serde", false, true, 0),
            ("b", "serde", false, false, 0),
            ("peregrine-lab-x", "a", true, true, 1),
            ("unknown", "a", true, false, 1),
        ];
        for (from, to, is_inside, is_development, expected) in cases {
            let path = is_inside.then(|| "crates".to_owned());
            let kind = is_development.then(|| "dev".to_owned());
            let dependency = Dependency { name: to.to_owned(), path, kind };
            let mut all = vec![Package::of(from, "", vec![dependency])];
            let others = ["a", "b", "peregrine-lab-x"].into_iter().filter(|name| *name != from);
            all.extend(others.map(|name| Package::of(name, "", Vec::new())));
            let complaints = compare(&rules, &all);
            assert_eq!(complaints.len(), expected, "{from} -> {to}: {complaints:?}");
        }
        let complaints = compare(&rules, &["a", "b"].map(|name| Package::of(name, "", Vec::new())));
        assert!(complaints.len() == 1 && complaints[0].contains("not in the workspace"));
    }

    #[test]
    fn a_folder_imports_only_from_folders_below_it() {
        let mut tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod top; mod left; mod right; pub use top::Top; struct Root;"),
            ("crates/a/src/top/mod.rs", "mod part; use crate::left::Left; pub struct Top;"),
            ("crates/a/src/top/part.rs", "use super::Top; use crate::right::Right;"),
            ("crates/a/src/left.rs", "use crate::right::Right; pub struct Left;"),
            ("crates/a/src/right.rs", "use crate::Root; pub struct Right;"),
        ]);
        let mut check = |layers: &str| {
            let order = format!("of = 'crates/a'\nlayers = {layers}");
            tree.rules.folders = vec![toml::from_str(&order).expect("TOML")];
            check_folders(&tree)
        };
        let root = "crates/a: right imports crate, which is not below it";
        assert_eq!(check("[['top'], ['left'], ['right']]"), [root]);
        let left = "crates/a: left imports right, which is not below it";
        assert_eq!(check("[['top'], ['left', 'right']]"), [left, root]);
        let top = "crates/a: top::part imports right, which is not below it";
        let top_left = "crates/a: top imports left, which is not below it";
        assert_eq!(check("[['left'], ['right'], ['top']]"), [root, top_left, top]);
        let unlisted = "crates/a: add right to its folders in tidy/layers.toml";
        let unknown = "crates/a: tidy/layers.toml names middle, which is not there";
        assert_eq!(check("[['top'], ['left'], ['middle']]"), [unlisted, unknown]);
    }

    #[test]
    fn a_dependency_needs_a_reason_and_a_member_inherits_it() {
        let manifest = "[workspace.dependencies]\nours = { path = \"x\" }\nserde = \"1\" # why\n\
            other = \"2\"\n[profile.release]\nlto = true";
        let complaints = without_reason(manifest);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("other"));
        let member = "[dependencies]\nserde.workspace = true\nown = \"1\"\n\
            [dev-dependencies]\ncloses = { path = 'x' }";
        assert_eq!(not_inherited(member), ["own"]);
    }
}
