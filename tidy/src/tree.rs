//! The input of the checks, read once: the rules, the workspace, and every Rust file.

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The source tree.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) rules: Rules,
    pub(crate) packages: Vec<Package>,
    /// The text of each Rust file, by its path relative to the root.
    pub(crate) files: BTreeMap<String, String>,
}

/// `tidy/layers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) crates: BTreeMap<String, Vec<String>>,
    pub(crate) without_dependencies: Vec<String>,
    pub(crate) unsafe_allowed: Vec<String>,
    pub(crate) shown_to_users: Vec<String>,
    pub(crate) file_names_refused: Vec<String>,
    pub(crate) file_lines_max: usize,
    #[serde(default)]
    pub(crate) cycles: Vec<AllowedCycle>,
    #[serde(default)]
    pub(crate) folders: Vec<FolderOrder>,
}

/// The folders and root files of one crate, from top to bottom.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FolderOrder {
    /// The folder of the crate.
    pub(crate) of: String,
    /// The modules of one layer do not import each other.
    pub(crate) layers: Vec<Vec<String>>,
}

/// Modules of one crate that may import each other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AllowedCycle {
    /// The folder of the crate.
    pub(crate) of: String,
    pub(crate) reason: String,
    pub(crate) modules: BTreeSet<String>,
}

/// A package of the workspace, from `cargo metadata`.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    manifest_path: String,
    pub(crate) dependencies: Vec<Dependency>,
    /// The folder, relative to the root.
    #[serde(skip)]
    pub(crate) folder: String,
}

#[derive(Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// The path, if it is in the workspace.
    pub(crate) path: Option<String>,
    /// `dev` or `build`; `None` for normal dependencies.
    pub(crate) kind: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Self {
        let rules = fs::read_to_string(root.join("tidy/layers.toml"));
        let rules = rules.expect("tidy/layers.toml is part of the repository");
        let rules = toml::from_str(&rules)
            .unwrap_or_else(|error| panic!("tidy/layers.toml matches `Rules`: {error}"));
        let mut files = BTreeMap::new();
        for folder in ["crates", "drivers", "tests", "fuzz", "examples", "lab", "tidy"] {
            walk(root, &root.join(folder), &mut files);
        }
        Self { root: root.to_owned(), rules, packages: packages(root), files }
    }

    /// The files in a folder, by their paths relative to it.
    pub(crate) fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files.iter().filter_map(move |(place, text)| {
            Some((place.strip_prefix(folder)?.strip_prefix('/')?, text.as_str()))
        })
    }
}

fn walk(root: &Path, folder: &Path, files: &mut BTreeMap<String, String>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.ends_with("target") {
            walk(root, &path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let place = path.strip_prefix(root).expect("it was found below the root");
            let text = fs::read_to_string(&path).expect("Rust files are UTF-8");
            files.insert(place.display().to_string(), text);
        }
    }
}

fn packages(root: &Path) -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo runs");
    let metadata = serde_json::from_slice(&output.stdout);
    let Metadata { mut packages } = metadata.expect("cargo prints the packages as JSON");
    for package in &mut packages {
        let folder = Path::new(&package.manifest_path).parent().expect("a manifest is in a folder");
        package.folder = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
    }
    packages
}

#[cfg(test)]
impl Tree {
    /// A tree with one package in `crates/a`, for tests of checks.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let rules = "crates = {}\nwithout_dependencies = []\nunsafe_allowed = []\n\
            shown_to_users = ['a']\nfile_names_refused = ['util']\nfile_lines_max = 2";
        let files = files.iter().map(|(place, text)| ((*place).to_owned(), (*text).to_owned()));
        Self {
            root: PathBuf::from("/nowhere"),
            rules: toml::from_str(rules).expect("the rules are valid"),
            packages: vec![Package::of("a", "crates/a", Vec::new())],
            files: files.collect(),
        }
    }
}

#[cfg(test)]
impl Package {
    pub(crate) fn of(name: &str, folder: &str, dependencies: Vec<Dependency>) -> Self {
        let [name, folder] = [name, folder].map(str::to_owned);
        Self { name, folder, dependencies, manifest_path: String::new() }
    }
}
