//! Who may depend on whom, and why what is outside is inside.

use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

/// `tidy/layers.toml`.
#[derive(Deserialize)]
pub(crate) struct Layers {
    pub(crate) crates: BTreeMap<String, Vec<String>>,
    pub(crate) rules: Rules,
}

#[derive(Deserialize)]
pub(crate) struct Rules {
    pub(crate) without_dependencies: Vec<String>,
    pub(crate) unsafe_allowed: Vec<String>,
    pub(crate) shown_to_users: Vec<String>,
    pub(crate) file_names_refused: Vec<String>,
    pub(crate) file_lines_max: usize,
}

impl Layers {
    pub(crate) fn read(root: &Path) -> Self {
        let path = root.join("tidy/layers.toml");
        let text = fs::read_to_string(&path).expect("tidy/layers.toml is part of the repository");
        toml::from_str(&text).expect("tidy/layers.toml has the form that layers.rs reads")
    }
}

/// A package of the workspace as cargo describes it.
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) folder: String,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    is_inside: bool,
    is_development: bool,
}

pub(crate) fn packages(root: &Path) -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("a workspace has packages");
    packages.iter().map(package).collect()
}

fn package(value: &Value) -> Package {
    let manifest = Path::new(value["manifest_path"].as_str().expect("a package has a manifest"));
    let folder = manifest.parent().expect("a manifest lies in a folder");
    let dependencies = value["dependencies"].as_array().into_iter().flatten();
    Package {
        name: value["name"].as_str().expect("a package has a name").to_owned(),
        folder: folder.to_string_lossy().into_owned(),
        dependencies: dependencies
            .map(|dependency| Dependency {
                name: dependency["name"].as_str().expect("a dependency has a name").to_owned(),
                is_inside: !dependency["path"].is_null(),
                is_development: dependency["kind"] == "dev",
            })
            .collect(),
    }
}

/// Compares the table of layers with what cargo says.
pub(crate) fn check(root: &Path) -> Vec<String> {
    compare(&Layers::read(root), &packages(root))
}

fn compare(layers: &Layers, packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    let present: BTreeSet<_> = packages.iter().map(|package| package.name.as_str()).collect();
    for name in layers.crates.keys().filter(|name| !present.contains(name.as_str())) {
        complaints.push(format!("tidy/layers.toml names {name}, which is not in the workspace"));
    }
    for package in packages {
        let Some(allowed) = layers.crates.get(&package.name) else {
            complaints.push(format!("{}: add it to tidy/layers.toml", package.name));
            continue;
        };
        let is_lab = package.name.starts_with("peregrine-lab");
        let is_bare = layers.rules.without_dependencies.contains(&package.name);
        for dependency in &package.dependencies {
            let (from, to) = (&package.name, &dependency.name);
            let is_free = dependency.is_development && !is_lab;
            let is_allowed = allowed.iter().any(|name| name == to || name == "*");
            if dependency.is_inside && !is_allowed && !is_free {
                complaints
                    .push(format!("{from} -> {to} is an arrow that tidy/layers.toml forbids"));
            }
            if !dependency.is_inside && is_bare && !dependency.is_development {
                complaints.push(format!("{from} -> {to}: {from} has no dependencies by design"));
            }
        }
    }
    complaints
}

/// Every dependency from outside has its reason on its line of the root manifest, and members take
/// theirs from there. A development dependency that leads in a circle is a path without a version, for
/// that is left out of what is published. A crate that is not published may name a member by its path
/// as well: only so can it turn off the default features of `peregrine`.
pub(crate) fn check_reasons(root: &Path) -> Vec<String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).expect("the workspace has a manifest");
    let mut complaints = without_reason(&text);
    for package in packages(root) {
        let path = Path::new(&package.folder).join("Cargo.toml");
        let text = fs::read_to_string(&path).expect("cargo found this manifest");
        let manifest: toml::Table = toml::from_str(&text).expect("cargo read this manifest");
        let publish = manifest.get("package").and_then(|package| package.get("publish"));
        let is_unpublished = publish.and_then(toml::Value::as_bool) == Some(false);
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let dependencies = manifest.get(table).and_then(toml::Value::as_table);
            for (name, value) in dependencies.into_iter().flatten() {
                let is_left_out = (is_unpublished || table == "dev-dependencies")
                    && value.get("path").is_some()
                    && value.get("version").is_none();
                if value.get("workspace").is_none() && !is_left_out {
                    let place = path.display();
                    complaints.push(format!("{place}: take `{name}` from the workspace"));
                }
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn layers() -> Layers {
        let text = "[crates]\na = []\nb = ['a']\nperegrine-lab-x = []\n[rules]\n\
            without_dependencies = ['a']\nunsafe_allowed = []\nshown_to_users = []\nfile_names_refused = []\n\
            file_lines_max = 1";
        toml::from_str(text).expect("the table is valid")
    }

    fn package(name: &str, to: &str, is_inside: bool, is_development: bool) -> Package {
        let dependency = Dependency { name: to.to_owned(), is_inside, is_development };
        Package { name: name.to_owned(), folder: String::new(), dependencies: vec![dependency] }
    }

    #[test]
    fn an_arrow_that_is_not_in_the_table_is_a_complaint() {
        let cases = [
            (package("b", "a", true, false), 0),
            (package("a", "b", true, false), 1),
            (package("a", "b", true, true), 0),
            (package("a", "serde", false, false), 1),
            (package("a", "serde", false, true), 0),
            (package("b", "serde", false, false), 0),
            (package("peregrine-lab-x", "a", true, true), 1),
            (package("unknown", "a", true, false), 1),
        ];
        for (package, expected) in cases {
            let mut all = vec![package];
            for name in ["a", "b", "peregrine-lab-x"] {
                if all[0].name != name {
                    let none = Vec::new();
                    all.push(Package {
                        name: name.to_owned(),
                        folder: String::new(),
                        dependencies: none,
                    });
                }
            }
            let complaints = compare(&layers(), &all);
            assert_eq!(complaints.len(), expected, "{}: {complaints:?}", all[0].name);
        }
    }

    #[test]
    fn a_dependency_without_a_reason_is_a_complaint() {
        let manifest = "[workspace.dependencies]\nours = { path = \"x\" }\nserde = \"1\" # why\n\
            other = \"2\"\n[profile.release]\nlto = true";
        let complaints = without_reason(manifest);
        assert_eq!(complaints.len(), 1, "{complaints:?}");
        assert!(complaints[0].contains("other"));
    }
}
