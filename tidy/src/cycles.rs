//! Finds import cycles: modules of a crate that import each other can only be understood together.
//!
//! `tidy/layers.toml` lists the cycles that are allowed for now. The list must match the code: a
//! cycle that grows, shrinks or disappears is a complaint.

use crate::imports::{self, Graph};
use crate::tree::{AllowedCycle, Tree};
use std::collections::BTreeSet;

/// The maximum number of imports printed per cycle. Large cycles have hundreds.
const EDGES_SHOWN_MAX: usize = 12;

/// Complains about cycles that are not allowed, and allowed cycles that do not exist.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut folders: BTreeSet<&str> = tree.rules.cycles.iter().map(|of| of.of.as_str()).collect();
    let is_checked = |folder: &&str| {
        ["crates/", "drivers/", "lab/"].iter().any(|start| folder.starts_with(start))
    };
    let packages = tree.packages.iter().map(|package| package.folder.as_str());
    folders.extend(packages.filter(is_checked));
    for folder in folders {
        let graph = imports::graph(tree.below(&format!("{folder}/src")));
        let allowed = tree.rules.cycles.iter().filter(|cycle| cycle.of == folder);
        complaints.extend(compare(folder, &graph, &allowed.collect::<Vec<_>>()));
    }
    complaints
}

fn compare(folder: &str, graph: &Graph, allowed: &[&AllowedCycle]) -> Vec<String> {
    let mut complaints = Vec::new();
    let cycles = cycles(graph);
    for cycle in &cycles {
        let overlapping = allowed.iter().filter(|allowed| !allowed.modules.is_disjoint(cycle));
        let listed: BTreeSet<_> = overlapping.flat_map(|allowed| &allowed.modules).collect();
        let joined: BTreeSet<_> = cycle.iter().filter(|name| !listed.contains(name)).collect();
        if !joined.is_empty() {
            let edges = cycle.iter().flat_map(|from| graph[from].iter().map(move |to| (from, to)));
            let edges = edges.filter(|(from, to)| {
                cycle.contains(*to) && (joined.contains(from) || joined.contains(to))
            });
            let edges = edges.map(|(from, to)| format!("{from} -> {to}"));
            let edges: Vec<_> = edges.take(EDGES_SHOWN_MAX).collect();
            let what = if listed.is_empty() { "an import cycle" } else { "an import cycle grew" };
            complaints.push(format!("{folder}: {what}: {}", edges.join(", ")));
        } else if !allowed.iter().any(|allowed| allowed.modules == *cycle) {
            complaints.push(format!(
                "{folder}: a cycle in tidy/layers.toml shrank, split or merged; list {cycle:?}"
            ));
        }
    }
    for allowed in allowed {
        if allowed.reason.is_empty() {
            complaints.push(format!("{folder}: a cycle in tidy/layers.toml needs its reason"));
        }
        if cycles.iter().all(|cycle| cycle.is_disjoint(&allowed.modules)) {
            let gone = &allowed.modules;
            complaints
                .push(format!("{folder}: remove the cycle of {gone:?} from tidy/layers.toml"));
        }
    }
    complaints
}

/// Groups of modules that reach each other through imports.
fn cycles(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reached = |from: &String| {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(name) = open.pop() {
            open.extend(graph[name].iter().filter(|to| reached.insert((*to).clone())));
        }
        reached
    };
    let reached: Vec<_> = graph.keys().map(|name| (name, reached(name))).collect();
    let mut found = BTreeSet::new();
    for (from, forward) in reached.iter().filter(|(from, forward)| forward.contains(*from)) {
        let back = |(name, of): &&(&String, BTreeSet<String>)| {
            forward.contains(*name) && of.contains(*from)
        };
        found.insert(reached.iter().filter(back).map(|(name, _)| (*name).clone()).collect());
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(&str, &str)]) -> Graph {
        let mut graph = Graph::new();
        for (from, to) in edges {
            graph.entry((*to).to_owned()).or_default();
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    }

    fn allowed(modules: &[&str]) -> AllowedCycle {
        let modules = modules.iter().map(|name| (*name).to_owned()).collect();
        AllowedCycle { of: "x".to_owned(), reason: "old".to_owned(), modules }
    }

    #[test]
    fn a_cycle_is_found_without_the_modules_that_only_lead_there() {
        assert!(cycles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let found = cycles(&graph(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "b"),
            ("c", "d"),
            ("d", "e"),
            ("e", "d"),
        ]));
        assert_eq!(found, [["b", "c"], ["d", "e"]].map(|names| names.map(str::to_owned).into()));
    }

    #[test]
    fn a_cycle_must_be_listed_as_it_is() {
        let cycle = graph(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]);
        let check =
            |lists: &[AllowedCycle]| compare("x", &cycle, &lists.iter().collect::<Vec<_>>());
        assert_eq!(check(&[allowed(&["a", "b", "c"])]), [""; 0]);
        assert_eq!(check(&[]), ["x: an import cycle: a -> b, b -> c, c -> a"]);
        assert_eq!(check(&[allowed(&["a", "b"])]), ["x: an import cycle grew: b -> c, c -> a"]);
        assert!(check(&[allowed(&["a", "b", "c", "d"])])[0].contains("shrank"));
        let gone = check(&[allowed(&["a", "b", "c"]), allowed(&["d", "e"])]);
        assert!(
            gone.len() == 1 && gone[0].contains("remove the cycle of {\"d\", \"e\"}"),
            "{gone:?}"
        );
    }

    #[test]
    fn the_files_of_every_crate_are_looked_at() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "mod b; mod c;"),
            ("crates/a/src/b.rs", "use crate::c::C; pub struct B;"),
            ("crates/a/src/c.rs", "use super::b::B; pub struct C;"),
        ]);
        assert_eq!(check(&tree), ["crates/a: an import cycle: b -> c, c -> b"]);
    }
}
