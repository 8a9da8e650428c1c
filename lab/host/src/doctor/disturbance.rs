//! Checks of what else goes on: other programs, other guests, quotas, and memory pressure.

use super::Measure::{CpuPerRequest, Latency, Ratios, Throughput};
use super::{Check, Facts, Found};
use crate::cpu_list;
use crate::processes;
use crate::snapshot::ControlGroup;

/// Stolen time above which figures, and above which everything, is in doubt.
const STOLEN_SHARES: (f64, f64) = (0.01, 0.05);

/// The same for time that strangers use, as a share of all CPUs.
const FOREIGN_SHARES: (f64, f64) = (0.02, 0.25);

/// So many ticks may be chance in a sample as short as ours.
const SLACK_TICKS: u64 = 2;

/// How many strangers are named.
const NAMES: usize = 3;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "steal",
        why: "Time that the hypervisor gives to other guests is missing from ours, at random.",
        mend: "choose a quieter hour or a machine of your own",
        look: stolen,
    },
    Check {
        name: "load",
        why: "Work that waits for CPUs will take them from server and client.",
        mend: "end other work, and wait a minute",
        look: load,
    },
    Check {
        name: "foreign-cpu",
        why: "Other programs take time and push data out of the caches.",
        mend: "end the programs named",
        look: foreign,
    },
    Check {
        name: "cpu-quota",
        why: "When the quota is used up, everything stands still until the next period, some 100 ms \
              later: stops that no contender is to blame for.",
        mend: "run without a CPU limit, or with a set of CPUs instead",
        look: quota,
    },
    Check {
        name: "cpuset",
        why: "Only these CPUs can be divided between server and client.",
        mend: "",
        look: cpu_set,
    },
    Check {
        name: "memory",
        why: "Short memory makes the kernel search and write back during runs.",
        mend: "end other work",
        look: memory,
    },
    Check {
        name: "swap",
        why: "Pages that come back from a disk show as latency.",
        mend: "swapoff -a",
        look: swap,
    },
    Check {
        name: "transparent-huge-pages",
        why: "With `always`, memory per connection counts what the kernel rounded up.",
        mend: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        look: huge_pages,
    },
];

fn stolen(facts: &Facts<'_>) -> Found {
    let used = facts.after.cpu_ticks_since(facts.before, &facts.topology.allowed);
    if facts.after.cpus.is_empty() {
        return Found::unknown();
    }
    let share = used.stolen as f64 / used.total().max(1) as f64;
    let read = format!("{:.1} % of the sample", share * 100.0);
    if used.stolen > SLACK_TICKS && share > STOLEN_SHARES.1 {
        return Found::unfit(read);
    }
    if used.stolen >= SLACK_TICKS && share > STOLEN_SHARES.0 {
        return Found::warning(read, &[Throughput, Latency]);
    }
    Found::ok(read)
}

fn load(facts: &Facts<'_>) -> Found {
    let Some(line) = facts.root.line("/proc/loadavg") else { return Found::unknown() };
    let Some(load) = line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok())
    else {
        return Found::unknown();
    };
    let count = facts.topology.allowed.len().max(1);
    let read = format!("{load} over the last minute, for {count} CPUs");
    let is_high = load / count as f64 > 0.5;
    if is_high { Found::warning(read, &[Throughput, Latency]) } else { Found::ok(read) }
}

fn foreign(facts: &Facts<'_>) -> Found {
    let after = facts.after;
    if after.processes.is_empty() {
        return Found::unknown();
    }
    let own = processes::families(&after.processes, &facts.own);
    let used = |id| after.process_ticks_since(facts.before, id);
    let mut strangers: Vec<(u64, &str)> = after
        .processes
        .values()
        .filter(|process| !own.contains(&process.id))
        .map(|process| (used(process.id), process.name.as_str()))
        .filter(|&(ticks, _)| ticks > 0)
        .collect();
    strangers.sort_unstable_by(|left, right| right.cmp(left));
    let window = after.cpu_ticks_since(facts.before, &facts.topology.allowed).total();
    let count = facts.topology.allowed.len().max(1) as u64;
    let ticks: u64 = strangers.iter().map(|&(ticks, _)| ticks).sum();
    // Readings are not taken at one instant, so a busy machine may seem more than full.
    let share = (ticks as f64 / window.max(1) as f64).min(1.0);
    // As `top` has it: 100 % is one CPU.
    let percent = |ticks: u64| ticks as f64 * 100.0 / (window as f64 / count as f64).max(1.0);
    let names = strangers.iter().take(NAMES);
    let names: Vec<String> =
        names.map(|&(ticks, name)| format!("{name} {:.0} % of a CPU", percent(ticks))).collect();
    let read = match names.is_empty() {
        true => "none in the sample".to_owned(),
        false => format!("{:.1} % of all CPUs: {}", share * 100.0, names.join(", ")),
    };
    if ticks > SLACK_TICKS && share > FOREIGN_SHARES.1 {
        Found::unfit(read)
    } else if ticks > SLACK_TICKS && share > FOREIGN_SHARES.0 {
        Found::warning(read, &[CpuPerRequest, Throughput, Latency])
    } else {
        Found::ok(read)
    }
}

fn quota(facts: &Facts<'_>) -> Found {
    if !facts.root.exists("/proc/self/cgroup") {
        return Found::unknown();
    }
    let Some(cpus) = ControlGroup::find(facts.root).quota_cpus(facts.root) else {
        return Found::ok("none");
    };
    let read = format!("{cpus:.2} CPUs' worth of time on {} CPUs", facts.topology.allowed.len());
    if cpus >= facts.topology.allowed.len() as f64 {
        return Found::ok(read);
    }
    Found::warning(read, &[Ratios, CpuPerRequest, Throughput, Latency])
}

fn cpu_set(facts: &Facts<'_>) -> Found {
    let online = facts.root.line("/sys/devices/system/cpu/online");
    let Some(online) = online.and_then(|list| cpu_list::parse(&list).ok()) else {
        return Found::unknown();
    };
    let allowed = &facts.topology.allowed;
    let read = format!("{} of {}", cpu_list::format(allowed), cpu_list::format(&online));
    Found::ok_if(online.is_subset(allowed), read)
}

/// A line of `/proc/meminfo` in MiB.
fn meminfo_mib(facts: &Facts<'_>, name: &str) -> Option<u64> {
    let value = facts.root.field("/proc/meminfo", name)?;
    Some(value.strip_suffix("kB")?.trim().parse::<u64>().ok()? / 1024)
}

fn memory(facts: &Facts<'_>) -> Found {
    let (Some(total), Some(available)) =
        (meminfo_mib(facts, "MemTotal"), meminfo_mib(facts, "MemAvailable"))
    else {
        return Found::unknown();
    };
    let read = format!("{available} of {total} MiB available");
    let is_short = available < 1024 || available < total / 10;
    if is_short { Found::warning(read, &[Throughput, Latency]) } else { Found::ok(read) }
}

fn swap(facts: &Facts<'_>) -> Found {
    let (Some(total), Some(free)) =
        (meminfo_mib(facts, "SwapTotal"), meminfo_mib(facts, "SwapFree"))
    else {
        return Found::unknown();
    };
    let used = total.saturating_sub(free);
    let read = format!("{used} of {total} MiB used");
    Found::ok_if(used == 0, if total == 0 { "none".to_owned() } else { read })
}

fn huge_pages(facts: &Facts<'_>) -> Found {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(line) = facts.root.line(path) else { return Found::unknown() };
    let chosen = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    let Some((chosen, _)) = chosen else { return Found::unknown() };
    Found::ok_if(chosen != "always", chosen)
}
