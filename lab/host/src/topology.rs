//! Which CPUs there are, and what they share: a core, a last-level cache, a socket.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cpu_list::{self, Cpus};
use crate::root::Root;

/// The CPUs that this process may use, and what they share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The CPUs that this process may use.
    pub allowed: Cpus,
    /// The allowed CPUs by core, in order of their first one. More than one: SMT siblings.
    pub cores: Vec<Cpus>,
    /// The allowed CPUs by shared last-level cache, in order of their first one.
    pub caches: Vec<Cpus>,
    /// The allowed CPUs by socket, in order of their first one.
    pub sockets: Vec<Cpus>,
    /// Whether the kernel told what is shared. If not, each CPU counts as a core of its own and
    /// all count as one cache and one socket.
    pub is_known: bool,
}

impl Topology {
    /// Reads the topology. Where the kernel tells no CPU at all, the standard library is asked how
    /// many there are.
    #[must_use]
    pub fn read(root: &Root) -> Topology {
        let allowed = allowed(root);
        let read = |cpu: usize, path: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/{path}");
            cpu_list::parse(&root.line(&path)?).ok()
        };
        let core = |cpu| {
            read(cpu, "topology/core_cpus_list")
                .or_else(|| read(cpu, "topology/thread_siblings_list"))
        };
        let socket = |cpu| {
            read(cpu, "topology/package_cpus_list")
                .or_else(|| read(cpu, "topology/core_siblings_list"))
        };
        let is_known = allowed.iter().all(|&cpu| core(cpu).is_some());
        let all = |_| allowed.clone();
        let cores = groups(&allowed, |cpu| core(cpu).unwrap_or_else(|| Cpus::from([cpu])));
        let sockets = groups(&allowed, |cpu| socket(cpu).unwrap_or_else(|| all(cpu)));
        let caches = groups(&allowed, |cpu| {
            last_level_cache(root, cpu).or_else(|| socket(cpu)).unwrap_or_else(|| all(cpu))
        });
        Topology { cores, caches, sockets, is_known, allowed }
    }

    /// Whether any two allowed CPUs share a core.
    #[must_use]
    pub fn has_siblings(&self) -> bool {
        self.cores.iter().any(|core| core.len() > 1)
    }
}

fn allowed(root: &Root) -> Cpus {
    let online = root.line("/sys/devices/system/cpu/online");
    root.field("/proc/self/status", "Cpus_allowed_list")
        .or(online)
        .and_then(|list| cpu_list::parse(&list).ok())
        .unwrap_or_else(|| {
            (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
        })
}

/// The CPUs that share the cache of the highest level with `cpu`.
fn last_level_cache(root: &Root, cpu: usize) -> Option<Cpus> {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cache");
    let level = |name: &String| root.number(&format!("{folder}/{name}/level"));
    let last = root.names(&folder).into_iter().filter(|name| level(name).is_some());
    let last = last.max_by_key(level)?;
    cpu_list::parse(&root.line(&format!("{folder}/{last}/shared_cpu_list"))?).ok()
}

/// Divides the allowed CPUs into groups, each CPU in exactly one.
fn groups(allowed: &Cpus, group: impl Fn(usize) -> Cpus) -> Vec<Cpus> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for &cpu in allowed {
        if seen.contains(&cpu) {
            continue;
        }
        let mut members: Cpus =
            group(cpu).intersection(allowed).copied().filter(|cpu| !seen.contains(cpu)).collect();
        members.insert(cpu);
        seen.extend(members.iter().copied());
        found.push(members);
    }
    found
}
