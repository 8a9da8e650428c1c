//! The facts about this machine that a figure means nothing without.

use std::fs;

use serde::Serialize;

/// What a run file says about the machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The CPU's name, as the kernel prints it.
    pub cpu: String,
    /// How many CPUs this process may use.
    pub cpus: usize,
    /// Whether CPUs share cores: the kernel's word (`on`, `off`, `notsupported`), or "unknown".
    pub smt: String,
    /// The kernel's release and version.
    pub kernel: String,
    /// The frequency governor of the first CPU, or "none" where the kernel does not steer it.
    pub governor: String,
    /// The kernel's mitigations that are in force, one per known weakness.
    pub mitigations: Vec<String>,
    /// The clock source.
    pub clock: String,
    /// Whether the processor says that it is a virtual one.
    pub is_virtual: bool,
}

impl Machine {
    /// Reads the facts; what cannot be read is "unknown".
    #[must_use]
    pub fn read() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let value = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let flags = value("flags").unwrap_or_default();
        Machine {
            cpu: value("model name").unwrap_or_else(unknown),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            smt: line("/sys/devices/system/cpu/smt/control").unwrap_or_else(unknown),
            kernel: [line("/proc/sys/kernel/osrelease"), line("/proc/sys/kernel/version")]
                .map(|part| part.unwrap_or_else(unknown))
                .join(" "),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .unwrap_or_else(|| "none".to_owned()),
            mitigations: mitigations(),
            clock: line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_else(unknown),
            is_virtual: flags.split(' ').any(|flag| flag == "hypervisor"),
        }
    }
}

/// How long a CPU was busy, and how long its host kept it from us, in ticks since boot.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuUse {
    /// Everything but idling and waiting; stolen time is not in it.
    pub busy: u64,
    /// Time in which the host ran something else.
    pub stolen: u64,
}

/// How the given CPUs were used since boot, summed up.
#[must_use]
pub fn cpu_use(cpus: &[usize]) -> CpuUse {
    parse_cpu_use(&fs::read_to_string("/proc/stat").unwrap_or_default(), cpus)
}

fn parse_cpu_use(stat: &str, cpus: &[usize]) -> CpuUse {
    let mut sum = CpuUse::default();
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        let Some(number) = number else { continue };
        if !cpus.contains(&number) {
            continue;
        }
        // user nice system idle iowait irq softirq steal
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        if let [user, nice, system, _, _, irq, softirq, steal, ..] = ticks[..] {
            sum.busy += user + nice + system + irq + softirq;
            sum.stolen += steal;
        }
    }
    sum
}

fn mitigations() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return Vec::new();
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let state = line(entry.path().to_str()?)?;
            let name = entry.file_name();
            (state != "Not affected").then(|| format!("{}: {state}", name.to_string_lossy()))
        })
        .collect();
    found.sort_unstable();
    found
}

fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_asked_cpus_are_summed() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\n\
                    cpu0 1 2 3 400 500 4 5 6 0 0\n\
                    cpu1 10 20 30 400 500 40 50 60 0 0\n\
                    cpu10 7 7 7 7 7 7 7 7 7 7\nintr 5\n";
        let used = parse_cpu_use(stat, &[0]);
        assert_eq!((used.busy, used.stolen), (15, 6));
        let used = parse_cpu_use(stat, &[0, 1]);
        assert_eq!((used.busy, used.stolen), (165, 66));
    }

    #[test]
    fn the_machine_under_the_test_has_a_kernel_and_a_cpu() {
        let machine = Machine::read();
        assert!(machine.cpus > 0);
        assert_ne!(machine.kernel, "unknown unknown");
    }
}
