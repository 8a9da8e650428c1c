//! All processes of the machine at one moment: who they are and what they have used.

use std::collections::{BTreeMap, BTreeSet};

use crate::root::Root;

/// The length of a tick in `/proc/*/stat` and `/proc/stat`. The kernel fixes it for user space on
/// every architecture that the lab runs on.
pub const TICK_NS: u64 = 10_000_000;

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessState {
    /// Its id.
    pub id: u32,
    /// Its name as the kernel keeps it: at most 15 bytes.
    pub name: String,
    /// The kernel's letter for its state; `Z` is one that has ended and was not collected.
    pub state: char,
    /// The id of its parent.
    pub parent: u32,
    /// The id of its process group.
    pub group: u32,
    /// CPU time of its living and ended threads in user code, in ticks.
    pub user_ticks: u64,
    /// CPU time of its living and ended threads in the kernel, in ticks.
    pub system_ticks: u64,
    /// When it began, in ticks since boot. With the id it tells a process from a later one that
    /// was given the same id.
    pub started_ticks: u64,
    /// The CPU on which its main thread ran last.
    pub cpu: usize,
}

impl ProcessState {
    /// Reads one process, or nothing if it has ended.
    #[must_use]
    pub fn read(root: &Root, id: u32) -> Option<ProcessState> {
        parse_stat(&root.text(&format!("/proc/{id}/stat"))?)
    }

    /// CPU time in nanoseconds, to the tick.
    #[must_use]
    pub fn used_ns(&self) -> u64 {
        (self.user_ticks + self.system_ticks) * TICK_NS
    }
}

/// Every process by its id. Those that end during the reading are left out.
#[must_use]
pub fn all(root: &Root) -> BTreeMap<u32, ProcessState> {
    let ids = root.names("/proc").into_iter().filter_map(|name| name.parse().ok());
    ids.filter_map(|id| Some((id, ProcessState::read(root, id)?))).collect()
}

/// The given processes with all their descendants and everything in their process groups, so that
/// a daemon that left its parent is found as long as it stayed in the group.
#[must_use]
pub fn families(processes: &BTreeMap<u32, ProcessState>, heads: &[u32]) -> BTreeSet<u32> {
    let mut members: BTreeSet<u32> = heads.iter().copied().collect();
    loop {
        let before = members.len();
        for process in processes.values() {
            if members.contains(&process.parent) || heads.contains(&process.group) {
                members.insert(process.id);
            }
        }
        // A child may have a smaller id than its parent once ids have wrapped round.
        if members.len() == before {
            return members;
        }
    }
}

fn parse_stat(text: &str) -> Option<ProcessState> {
    // The name stands in brackets and may hold brackets and spaces itself.
    let (start, end) = (text.find('(')?, text.rfind(')')?);
    let id = text[..start].trim().parse().ok()?;
    let fields: Vec<&str> = text.get(end + 1..)?.split_whitespace().collect();
    // The manual page counts from 1, and the state is its field 3.
    let field = |number: usize| fields.get(number - 3);
    let number = |at: usize| field(at)?.parse::<u64>().ok();
    Some(ProcessState {
        id,
        name: text[start + 1..end].to_owned(),
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        // Threads of the kernel show -1 or 0 where they have none.
        group: field(5)?.parse().unwrap_or(0),
        user_ticks: number(14)?,
        system_ticks: number(15)?,
        started_ticks: number(22)?,
        cpu: number(39).unwrap_or(0) as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of `/proc/PID/stat`.
    fn stat(id: u32, name: &str, parent: u32, group: u32) -> String {
        let rest = "0 0 0 0 0 0 0 0 7 3 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 5 0 0";
        format!("{id} ({name}) S {parent} {group} {rest}\n")
    }

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let process = parse_stat(&stat(12, "a) S (b", 4, 12)).unwrap();
        assert_eq!((process.id, process.name.as_str(), process.state), (12, "a) S (b", 'S'));
        assert_eq!((process.parent, process.group, process.cpu), (4, 12, 5));
        assert_eq!((process.user_ticks, process.system_ticks, process.started_ticks), (7, 3, 99));
        assert_eq!(process.used_ns(), 100_000_000);
        assert_eq!(parse_stat("12 (x) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_family_has_descendants_of_any_depth_and_who_stayed_in_the_group() {
        let lines = [
            stat(10, "server", 1, 10),
            stat(5, "grandchild", 90, 5),
            stat(90, "child", 10, 90),
            stat(91, "daemon", 1, 10),
            stat(92, "stranger", 1, 92),
        ];
        let processes = lines.iter().map(|line| {
            let process = parse_stat(line).unwrap();
            (process.id, process)
        });
        let family = families(&processes.collect(), &[10]);
        assert_eq!(family.into_iter().collect::<Vec<_>>(), [5, 10, 90, 91]);
    }
}
