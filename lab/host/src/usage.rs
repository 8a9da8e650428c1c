//! What a process and all it started have used: CPU time, context switches, memory, descriptors.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::processes::{self, ProcessState};
use crate::root::{Root, field};

/// The processes of some servers, as of one look. Look again after a server started workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Family {
    members: BTreeSet<u32>,
}

/// Counters of a family at one moment. Threads are told apart so that one that ends between two
/// readings does not make the sum go backwards.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    threads: BTreeMap<(u32, u32), Spent>,
    /// The CPU clocks of processes, in nanoseconds: with what threads used that have ended.
    clocks: BTreeMap<u32, u64>,
    processes: BTreeMap<u32, (u64, u64)>,
}

/// What was spent between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// On a CPU, in nanoseconds: the sum over the CPU clocks of processes, which hold the time of threads that
    /// have ended; where a process has none to read, over its threads that are there.
    pub used_ns: u64,
    /// The part of it that the busiest thread used, in nanoseconds.
    #[serde(default)]
    pub busiest_ns: u64,
    /// Ready, while something else ran on the CPU, in nanoseconds.
    pub waited_ns: u64,
    /// In user code, in ticks of 10 ms.
    pub user_ticks: u64,
    /// In the kernel, in ticks of 10 ms.
    pub system_ticks: u64,
    /// Context switches because a thread had nothing to do.
    pub switches_voluntary: u64,
    /// Context switches because something else was to run.
    pub switches_forced: u64,
}

/// The memory and descriptors of a family at one moment. What the kernel does not tell is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// Anonymous resident memory (`RssAnon`): what the programs allocated, in bytes. It may lag
    /// behind by some pages per thread.
    pub anonymous_bytes: Option<u64>,
    /// The largest resident size so far (`VmHWM`), files included, in bytes; a sum over processes
    /// whose peaks need not have been at one time.
    pub peak_bytes: Option<u64>,
    /// Anonymous memory by a walk of the page tables (`smaps_rollup`): exact, but it takes
    /// milliseconds per gigabyte and stops the process meanwhile.
    pub exact_anonymous_bytes: Option<u64>,
    /// Resident memory with shared pages divided among their users (`smaps_rollup`), in bytes.
    pub proportional_bytes: Option<u64>,
    /// Open descriptors.
    pub descriptors: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// Processes.
    pub processes: u64,
}

impl Family {
    /// Looks for everything that the processes with the ids `heads` started.
    #[must_use]
    pub fn of(root: &Root, heads: &[u32]) -> Family {
        Family { members: processes::families(&processes::all(root), heads) }
    }

    /// The ids of all members.
    #[must_use]
    pub fn members(&self) -> &BTreeSet<u32> {
        &self.members
    }

    /// Reads every thread's counters.
    #[must_use]
    pub fn read(&self, root: &Root) -> Reading {
        self.reading(root, true)
    }

    /// Reads every thread's time on a CPU and in wait for one, and nothing else: one short file for
    /// each thread, for readings that come every few milliseconds. Ticks and switches stay zero, so
    /// compare it with readings of its kind.
    #[must_use]
    pub fn read_cpu(&self, root: &Root) -> Reading {
        self.reading(root, false)
    }

    fn reading(&self, root: &Root, is_whole: bool) -> Reading {
        let mut reading = Reading::default();
        for &member in &self.members {
            if is_whole && let Some(process) = ProcessState::read(root, member) {
                let ticks = (process.user_ticks, process.system_ticks);
                reading.processes.insert(member, ticks);
            }
            if let Some(used_ns) = root.cpu_clock(member) {
                reading.clocks.insert(member, used_ns);
            }
            for thread in threads(root, member) {
                let folder = format!("/proc/{member}/task/{thread}");
                let Some(mut spent) = root
                    .line(&format!("{folder}/schedstat"))
                    .and_then(|text| parse_schedstat(&text))
                else {
                    continue;
                };
                if is_whole {
                    let status = root.text(&format!("{folder}/status")).unwrap_or_default();
                    let count = |name| field(&status, name).and_then(|value| value.parse().ok());
                    spent.switches_voluntary = count("voluntary_ctxt_switches").unwrap_or(0);
                    spent.switches_forced = count("nonvoluntary_ctxt_switches").unwrap_or(0);
                }
                reading.threads.insert((member, thread), spent);
            }
        }
        reading
    }

    /// Reads memory and descriptors. `is_exact` also walks the page tables.
    #[must_use]
    pub fn holdings(&self, root: &Root, is_exact: bool) -> Holdings {
        let mut sum = Holdings::default();
        for &member in &self.members {
            let Some(status) = root.text(&format!("/proc/{member}/status")) else { continue };
            sum.processes += 1;
            sum.threads += threads(root, member).len() as u64;
            add(&mut sum.anonymous_bytes, kilobytes(&status, "RssAnon"));
            add(&mut sum.peak_bytes, kilobytes(&status, "VmHWM"));
            let folder = format!("/proc/{member}/fd");
            let descriptors = root.exists(&folder).then(|| root.names(&folder).len() as u64);
            add(&mut sum.descriptors, descriptors);
            if is_exact {
                let rollup = root.text(&format!("/proc/{member}/smaps_rollup")).unwrap_or_default();
                add(&mut sum.exact_anonymous_bytes, kilobytes(&rollup, "Anonymous"));
                add(&mut sum.proportional_bytes, kilobytes(&rollup, "Pss"));
            }
        }
        sum
    }
}

impl Reading {
    /// What was spent since `earlier`. What a thread waited and switched that began and ended between the two is
    /// nowhere.
    #[must_use]
    pub fn since(&self, earlier: &Reading) -> Spent {
        let mut sum = Spent::default();
        for (thread, now) in &self.threads {
            let then = earlier.threads.get(thread).copied().unwrap_or_default();
            let used_ns = now.used_ns.saturating_sub(then.used_ns);
            if !self.clocks.contains_key(&thread.0) {
                sum.used_ns += used_ns;
            }
            sum.busiest_ns = sum.busiest_ns.max(used_ns);
            sum.waited_ns += now.waited_ns.saturating_sub(then.waited_ns);
            sum.switches_voluntary +=
                now.switches_voluntary.saturating_sub(then.switches_voluntary);
            sum.switches_forced += now.switches_forced.saturating_sub(then.switches_forced);
        }
        for (process, now) in &self.clocks {
            let then = earlier.clocks.get(process).copied().unwrap_or_default();
            sum.used_ns += now.saturating_sub(then);
        }
        for (process, now) in &self.processes {
            let then = earlier.processes.get(process).copied().unwrap_or_default();
            sum.user_ticks += now.0.saturating_sub(then.0);
            sum.system_ticks += now.1.saturating_sub(then.1);
        }
        sum
    }
}

fn threads(root: &Root, process: u32) -> Vec<u32> {
    let names = root.names(&format!("/proc/{process}/task"));
    names.into_iter().filter_map(|name| name.parse().ok()).collect()
}

fn parse_schedstat(text: &str) -> Option<Spent> {
    let mut words = text.split_whitespace().map(str::parse);
    let (used_ns, waited_ns) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(Spent { used_ns, waited_ns, ..Spent::default() })
}

/// A value in kB as bytes.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?;
    let kilobytes: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// A sum of which one unknown part does not make the rest unknown, but all unknown parts do.
fn add(sum: &mut Option<u64>, part: Option<u64>) {
    if let Some(part) = part {
        *sum = Some(sum.unwrap_or(0) + part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_ended_does_not_make_the_sum_go_back() {
        let reading = |threads: &[(u32, u64)], ticks| Reading {
            threads: threads
                .iter()
                .map(|&(id, used_ns)| ((1, id), Spent { used_ns, ..Spent::default() }))
                .collect(),
            clocks: BTreeMap::new(),
            processes: [(1, ticks)].into(),
        };
        let earlier = reading(&[(1, 100), (2, 5000)], (3, 4));
        let later = reading(&[(1, 150), (3, 7)], (5, 4));
        let spent = later.since(&earlier);
        assert_eq!((spent.used_ns, spent.user_ticks, spent.system_ticks), (57, 2, 0));
        assert_eq!(spent.busiest_ns, 50, "of the threads that are there, the first");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_a_thread_used_that_has_ended_counts() {
        let root = Root::this_machine();
        let family = Family::of(&root, &[std::process::id()]);
        let (first, at_first) = (family.read_cpu(&root), std::time::Instant::now());
        let work = || {
            let mut sum = 0_u64;
            // What one thread uses is read by itself, so that a busy machine does not matter.
            while own_clock().as_millis() < 50 {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
        };
        std::thread::spawn(work).join().unwrap();
        let spent = family.read_cpu(&root).since(&first);
        assert!(spent.used_ns >= 50_000_000, "{spent:?} in {:?}", at_first.elapsed());
    }

    #[cfg(target_os = "linux")]
    fn own_clock() -> std::time::Duration {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        clock.now().expect("a thread has a clock").into()
    }

    #[test]
    fn memory_that_no_process_tells_is_unknown_and_not_zero() {
        let mut sum = None;
        add(&mut sum, None);
        assert_eq!(sum, None);
        add(&mut sum, Some(3));
        add(&mut sum, None);
        assert_eq!(sum, Some(3));
        assert_eq!(kilobytes("Pss_Anon: 5 kB\nPss:    7 kB\n", "Pss"), Some(7168));
    }
}
