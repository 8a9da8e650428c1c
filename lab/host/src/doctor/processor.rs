//! Checks of the processor: what it is, what its CPUs share, and whether it keeps its speed.

use std::collections::BTreeMap;

use super::Measure::{CpuPerRequest, Latency, Throughput};
use super::{Check, Facts, Found};
use crate::cpu_list::{self, Cpus};

/// Waking from a deeper state than this shows in latencies on loopback.
const WAKE_US_MAX: u64 = 50;

/// How far frequencies may move within the sample.
const FREQUENCY_CHANGE_MAX: f64 = 0.10;

pub(super) const CHECKS: &[Check] = &[
    Check { name: "cpu", why: "Figures hold for this processor only.", mend: "", look: model },
    Check {
        name: "cores",
        why: "Server, client and everything else need cores of their own; with fewer than four the \
              client limits the server, and the kernel's own work lands on both.",
        mend: "measure on a machine with at least four cores",
        look: cores,
    },
    Check {
        name: "smt",
        why: "Siblings share one core: what runs on one slows the other. CPU sets keep them together.",
        mend: "echo off > /sys/devices/system/cpu/smt/control",
        look: siblings,
    },
    Check {
        name: "l3-groups",
        why: "Server and client disturb each other less with a last-level cache each.",
        mend: "",
        look: caches,
    },
    Check {
        name: "virtualisation",
        why: "Other guests share the caches, the memory and the frequency, unseen.",
        mend: "measure on a machine of your own",
        look: virtualisation,
    },
    Check {
        name: "governor",
        why: "A governor that lowers the frequency makes the same work cost more CPU time, the more \
              so the faster a server is.",
        mend: "run with --tune, which puts it back afterwards, or cpupower frequency-set -g performance",
        look: governor,
    },
    Check {
        name: "boost",
        why: "Boosted frequencies depend on heat and on what other cores do; runs drift.",
        mend: "echo 0 > /sys/devices/system/cpu/cpufreq/boost, or echo 1 > \
               /sys/devices/system/cpu/intel_pstate/no_turbo",
        look: boost,
    },
    Check {
        name: "frequency-drift",
        why: "CPU time per request follows the frequency.",
        mend: "fix the frequency, and wait until the machine is idle and cool",
        look: frequency_drift,
    },
    Check {
        name: "c-states",
        why: "Waking from a deep sleep adds its time to latencies at low load.",
        mend: "cpupower idle-set -D 50",
        look: sleep_states,
    },
    Check {
        name: "mitigations",
        why: "They make system calls dearer; compare with machines that have the same ones.",
        mend: "",
        look: mitigations,
    },
    Check {
        name: "clocksource",
        why: "Where the clock is not read in user space, each reading is a system call, in the \
              client as in the server.",
        mend: "",
        look: clock,
    },
];

fn model(facts: &Facts<'_>) -> Found {
    let names = ["model name", "Model", "cpu model", "CPU part"];
    let name = names.iter().find_map(|name| facts.root.field("/proc/cpuinfo", name));
    name.map_or_else(Found::unknown, Found::ok)
}

fn cores(facts: &Facts<'_>) -> Found {
    let count = facts.topology.cores.len();
    let cpus = cpu_list::format(&facts.topology.allowed);
    let read = format!("{count} usable (CPUs {cpus})");
    match count {
        0 | 1 => Found::unfit(read),
        2 | 3 => Found::warning(read, &[Throughput, Latency]),
        _ => Found::ok(read),
    }
}

fn siblings(facts: &Facts<'_>) -> Found {
    if !facts.topology.is_known {
        return Found::unknown();
    }
    if !facts.topology.has_siblings() {
        return Found::ok("no two usable CPUs share a core");
    }
    Found::note(format!("shared cores: {}", lists(&facts.topology.cores)))
}

fn caches(facts: &Facts<'_>) -> Found {
    let topology = &facts.topology;
    let sockets = topology.sockets.len();
    let read = format!("{} on {sockets} socket(s)", lists(&topology.caches));
    Found::ok_if(topology.caches.len() > 1, read)
}

fn lists(groups: &[Cpus]) -> String {
    groups
        .iter()
        .map(|group| format!("[{}]", cpu_list::format(group)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn virtualisation(facts: &Facts<'_>) -> Found {
    if !facts.root.exists("/proc/cpuinfo") {
        return Found::unknown();
    }
    if !facts.is_virtual() {
        return Found::ok("none seen");
    }
    let product = ["sys_vendor", "product_name"]
        .iter()
        .filter_map(|name| facts.root.line(&format!("/sys/class/dmi/id/{name}")))
        .collect::<Vec<_>>()
        .join(" ");
    let read =
        if product.is_empty() { "a guest".to_owned() } else { format!("a guest: {product}") };
    Found::warning(read, &[Throughput, Latency])
}

/// How many usable CPUs have each value of a file in their folders.
fn by_value(facts: &Facts<'_>, file: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for cpu in &facts.topology.allowed {
        if let Some(value) = facts.root.line(&format!("/sys/devices/system/cpu/cpu{cpu}/{file}")) {
            *counts.entry(value).or_default() += 1;
        }
    }
    counts
}

fn governor(facts: &Facts<'_>) -> Found {
    let governors = by_value(facts, "cpufreq/scaling_governor");
    let read: Vec<String> =
        governors.iter().map(|(name, count)| format!("{name} on {count} CPUs")).collect();
    if governors.is_empty() {
        return Found::note("the kernel does not steer the frequency here");
    }
    if governors.keys().all(|name| name == "performance") {
        return Found::ok(read.join(", "));
    }
    Found::warning(read.join(", "), &[CpuPerRequest, Throughput, Latency])
}

fn boost(facts: &Facts<'_>) -> Found {
    let no_turbo = facts.root.number("/sys/devices/system/cpu/intel_pstate/no_turbo");
    let boost = facts.root.number("/sys/devices/system/cpu/cpufreq/boost");
    match no_turbo.map(|off| off == 0).or(boost.map(|on| on == 1)) {
        None => Found::unknown(),
        Some(true) => Found::note("on"),
        Some(false) => Found::ok("off"),
    }
}

fn frequency_drift(facts: &Facts<'_>) -> Found {
    let mut worst: Option<(usize, u64, u64, f64)> = None;
    for &cpu in &facts.topology.allowed {
        let khz = |frequencies: &BTreeMap<usize, u64>| frequencies.get(&cpu).copied();
        let (Some(before), Some(after)) =
            (khz(&facts.before.frequencies_khz), khz(&facts.after.frequencies_khz))
        else {
            continue;
        };
        let change = before.abs_diff(after) as f64 / before.max(1) as f64;
        if worst.is_none_or(|(.., most)| change > most) {
            worst = Some((cpu, before, after, change));
        }
    }
    let Some((cpu, before, after, change)) = worst else { return Found::unknown() };
    let read = format!(
        "CPU {cpu} moved most, from {} to {} MHz ({:.0} %)",
        before / 1000,
        after / 1000,
        change * 100.0
    );
    if change > FREQUENCY_CHANGE_MAX {
        return Found::warning(read, &[CpuPerRequest, Throughput, Latency]);
    }
    Found::ok(read)
}

fn sleep_states(facts: &Facts<'_>) -> Found {
    let Some(cpu) = facts.topology.allowed.first() else { return Found::unknown() };
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
    let deepest = facts
        .root
        .names(&folder)
        .into_iter()
        .filter(|state| facts.root.number(&format!("{folder}/{state}/disable")) != Some(1))
        .filter_map(|state| {
            let latency = facts.root.number(&format!("{folder}/{state}/latency"))?;
            Some((latency, facts.root.line(&format!("{folder}/{state}/name")).unwrap_or(state)))
        })
        .max();
    let Some((latency_us, name)) = deepest else { return Found::unknown() };
    let read = format!("the deepest allowed is {name}, {latency_us} us to wake");
    if latency_us > WAKE_US_MAX { Found::warning(read, &[Latency]) } else { Found::ok(read) }
}

fn mitigations(facts: &Facts<'_>) -> Found {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let names = facts.root.names(folder);
    if names.is_empty() {
        return Found::unknown();
    }
    let state = |name: &String| facts.root.line(&format!("{folder}/{name}"));
    let with = |prefix: &str| {
        names.iter().filter(|name| state(name).is_some_and(|s| s.starts_with(prefix))).count()
    };
    let (mitigated, vulnerable) = (with("Mitigation"), with("Vulnerable"));
    Found::ok_if(
        vulnerable == 0,
        format!("{mitigated} in force, {vulnerable} known weaknesses left open"),
    )
}

fn clock(facts: &Facts<'_>) -> Found {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let Some(name) = facts.root.line(path) else { return Found::unknown() };
    let is_quick = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"]
        .contains(&name.as_str());
    if is_quick { Found::ok(name) } else { Found::warning(name, &[CpuPerRequest, Latency]) }
}
