//! Modules of a crate that import each other in a circle can only be understood all at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Crates whose modules are held to have no circle.
const CRATES: &[&str] = &["crates/server"];

/// Complains about circles among the imports inside of crates that are to have none.
pub(crate) fn check(root: &Path) -> Vec<String> {
    CRATES.iter().flat_map(|name| circles_of(&root.join(name).join("src"), name)).collect()
}

fn circles_of(source: &Path, name: &str) -> Option<String> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let entries = fs::read_dir(source).ok()?.flatten().map(|entry| entry.path());
    for path in entries {
        let module = path.file_stem()?.to_string_lossy().into_owned();
        let files = if path.is_dir() {
            fs::read_dir(&path).ok()?.flatten().map(|entry| entry.path()).collect()
        } else {
            vec![path]
        };
        let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
        let of = imports.entry(module).or_default();
        texts.for_each(|text| of.extend(modules_in(&text)));
    }
    let left = in_circles(imports);
    let of = |(module, imports): (&String, &BTreeSet<String>)| {
        let imports: Vec<_> = imports.iter().map(String::as_str).collect();
        format!("{module} -> {}", imports.join(", "))
    };
    let lines: Vec<_> = left.iter().map(of).collect();
    (!lines.is_empty()).then(|| {
        format!("{name}: these modules import each other in a circle: {}", lines.join("; "))
    })
}

/// Modules of the same crate that the code of a file names; its tests and comments may name any.
fn modules_in(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let module_of = |rest: &str| {
        rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
    };
    let found = lines.flat_map(|line| line.split("crate::").skip(1).map(module_of));
    found.filter(|module| module.starts_with(|c: char| c.is_ascii_lowercase())).collect()
}

/// What is left when modules that import none of those left are taken out, again and again.
fn in_circles(
    mut imports: BTreeMap<String, BTreeSet<String>>,
) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let names: BTreeSet<_> = imports.keys().cloned().collect();
        for (module, of) in &mut imports {
            of.retain(|other| other != module && names.contains(other));
        }
        let before = imports.len();
        imports.retain(|_, of| !of.is_empty());
        if imports.len() == before {
            return imports;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> BTreeMap<String, BTreeSet<String>> {
        let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, to) in edges {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    #[test]
    fn a_circle_is_found_and_a_chain_is_none() {
        assert!(in_circles(graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let left = in_circles(graph(&[("a", "b"), ("b", "c"), ("c", "b")]));
        assert_eq!(left.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn comments_and_tests_import_nothing() {
        let text = "/// See [`crate::a`].\nuse crate::b::C;\nlet d = crate::d::e();\n#[cfg(test)]\nuse crate::f;";
        assert_eq!(modules_in(text).into_iter().collect::<Vec<_>>(), ["b", "d"]);
    }
}
