//! Orders CPUs by NUMA node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where Linux lists the CPUs of each NUMA node.
const SYSFS_NODES: &str = "/sys/devices/system/node";

/// Orders CPUs so that those of one NUMA node are consecutive: nodes by number, and the CPUs of
/// each by number. The first workers of a server then share a node, its memory and its cache, as
/// long as it has CPUs left.
///
/// If the system does not report nodes, CPUs are ordered by number.
#[must_use]
pub fn order_by_numa_node(cpus: Vec<usize>) -> Vec<usize> {
    sort_by_node(cpus, &numa_nodes(Path::new(SYSFS_NODES)))
}

/// The node of each CPU.
fn numa_nodes(folder: &Path) -> BTreeMap<usize, usize> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let cpus_of = |entry: fs::DirEntry| {
        let node: usize = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let list = fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some(parse_cpu_list(&list).map(|cpu| (cpu, node)).collect::<Vec<_>>())
    };
    entries.flatten().filter_map(cpus_of).flatten().collect()
}

/// Parses a CPU list such as `0-3,8,10-11`. Malformed parts are skipped.
fn parse_cpu_list(list: &str) -> impl Iterator<Item = usize> {
    let parse_range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    };
    list.trim().split(',').filter_map(parse_range).flatten()
}

fn sort_by_node(mut cpus: Vec<usize>, nodes: &BTreeMap<usize, usize>) -> Vec<usize> {
    // CPUs without a node come last.
    cpus.sort_by_key(|cpu| (nodes.get(cpu).copied().unwrap_or(usize::MAX), *cpu));
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_one_node_are_consecutive() {
        let folder = tempfile::tempdir().unwrap();
        for (node, list) in [("node0", "0-1,4-5\n"), ("node1", "2-3,6\n"), ("node10", "\n")] {
            fs::create_dir(folder.path().join(node)).unwrap();
            fs::write(folder.path().join(node).join("cpulist"), list).unwrap();
        }
        fs::create_dir(folder.path().join("power")).unwrap();
        let nodes = numa_nodes(folder.path());
        assert_eq!(sort_by_node((0..8).rev().collect(), &nodes), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(sort_by_node(vec![6, 4, 2], &nodes), [4, 2, 6], "only usable CPUs");
    }

    #[test]
    fn without_nodes_cpus_are_ordered_by_number() {
        let none = numa_nodes(Path::new("/nowhere/at/all"));
        assert_eq!(sort_by_node(vec![3, 1, 2], &none), [1, 2, 3]);
    }

    #[test]
    fn malformed_parts_of_a_cpu_list_are_skipped() {
        assert_eq!(parse_cpu_list("0-2,x,5,7-,9-8\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
    }

    #[test]
    fn every_cpu_is_kept() {
        let mut ordered = order_by_numa_node((0..64).collect());
        ordered.sort_unstable();
        assert!(ordered.into_iter().eq(0..64));
    }
}
