//! The machine's counters at one moment. Two snapshots say what happened between them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cpu_list::Cpus;
use crate::processes::{self, ProcessState};
use crate::root::Root;

/// Counters of the whole machine at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When it was read.
    pub at: Instant,
    /// What each CPU did since boot.
    pub cpus: BTreeMap<usize, CpuTicks>,
    /// All processes.
    pub processes: BTreeMap<u32, ProcessState>,
    /// The frequency of each CPU in kHz, where the kernel tells.
    pub frequencies_khz: BTreeMap<usize, u64>,
    /// How often each CPU was slowed down because it was hot, where the kernel tells.
    pub hot_events: BTreeMap<usize, u64>,
    /// How often this process's control group ran out of its CPU quota, where it has one.
    pub quota_stops: Option<u64>,
    /// TCP's counters of this network namespace, where the kernel tells.
    pub tcp: Option<TcpCounters>,
}

/// What a CPU did since boot, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTicks {
    /// User code and system calls of processes, niced ones too.
    pub process: u64,
    /// Interrupts, the network's among them.
    pub interrupt: u64,
    /// Nothing, or waiting for a disk.
    pub idle: u64,
    /// Time in which the hypervisor ran somebody else.
    pub stolen: u64,
}

/// TCP's counters since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpCounters {
    /// Segments sent, without those sent again.
    pub sent: u64,
    /// Segments sent again.
    pub sent_again: u64,
    /// Connections that found a listener's queue full.
    pub listen_overflows: u64,
    /// Connections that a listener dropped for any reason.
    pub listen_drops: u64,
}

impl Snapshot {
    /// Reads all counters. It costs about 10 us per process of the machine, so it belongs at the
    /// boundaries of runs and blocks, not inside them.
    #[must_use]
    pub fn read(root: &Root) -> Snapshot {
        let stat = root.text("/proc/stat").unwrap_or_default();
        let cpus = parse_cpus(&stat);
        let per_cpu = |path: &str| {
            let read = |&cpu: &usize| {
                Some((cpu, root.number(&format!("/sys/devices/system/cpu/cpu{cpu}/{path}"))?))
            };
            cpus.keys().filter_map(read).collect()
        };
        Snapshot {
            at: Instant::now(),
            processes: processes::all(root),
            frequencies_khz: per_cpu("cpufreq/scaling_cur_freq"),
            hot_events: per_cpu("thermal_throttle/core_throttle_count"),
            quota_stops: ControlGroup::find(root).quota_stops(root),
            tcp: tcp(root),
            cpus,
        }
    }

    /// Two snapshots `apart` from each other.
    #[must_use]
    pub fn pair(root: &Root, apart: Duration) -> (Snapshot, Snapshot) {
        let before = Snapshot::read(root);
        std::thread::sleep(apart);
        (before, Snapshot::read(root))
    }

    /// What the given CPUs did since `earlier`, summed up.
    #[must_use]
    pub fn cpu_ticks_since(&self, earlier: &Snapshot, cpus: &Cpus) -> CpuTicks {
        let mut sum = CpuTicks::default();
        for cpu in cpus {
            let (Some(after), Some(before)) = (self.cpus.get(cpu), earlier.cpus.get(cpu)) else {
                continue;
            };
            // Idle time is known to step back a little on some kernels.
            sum.process += after.process.saturating_sub(before.process);
            sum.interrupt += after.interrupt.saturating_sub(before.interrupt);
            sum.idle += after.idle.saturating_sub(before.idle);
            sum.stolen += after.stolen.saturating_sub(before.stolen);
        }
        sum
    }

    /// The CPU time in ticks that a process used since `earlier`, all of it if it began since.
    #[must_use]
    pub fn process_ticks_since(&self, earlier: &Snapshot, id: u32) -> u64 {
        let Some(after) = self.processes.get(&id) else { return 0 };
        let total = after.user_ticks + after.system_ticks;
        match earlier.processes.get(&id) {
            Some(before) if before.started_ticks == after.started_ticks => {
                total.saturating_sub(before.user_ticks + before.system_ticks)
            }
            _ => total,
        }
    }
}

impl CpuTicks {
    /// Everything together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.process + self.interrupt + self.idle + self.stolen
    }
}

/// Where the kernel keeps the limits of this process's control group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlGroup {
    /// Its folder in the unified hierarchy (version 2), without a slash at the end.
    pub unified: Option<String>,
    /// Its folder under the `cpu` controller of version 1.
    pub cpu_controller: Option<String>,
}

impl ControlGroup {
    /// Looks it up in `/proc/self/cgroup`. A folder that is not visible, as in a container without
    /// its own namespace, is replaced by the root of the mount, which is what is visible of it.
    #[must_use]
    pub fn find(root: &Root) -> ControlGroup {
        let mut found = ControlGroup::default();
        let visible = |mount: &str, path: &str, file: &str| {
            let folders = [format!("{mount}{}", path.trim_end_matches('/')), mount.to_owned()];
            folders.into_iter().find(|folder| root.exists(&format!("{folder}/{file}")))
        };
        for line in root.text("/proc/self/cgroup").unwrap_or_default().lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() {
                found.unified = visible("/sys/fs/cgroup", path, "cpu.stat");
            } else if controllers.split(',').any(|controller| controller == "cpu") {
                let mount = format!("/sys/fs/cgroup/{controllers}");
                found.cpu_controller = visible(&mount, path, "cpu.stat")
                    .or_else(|| visible("/sys/fs/cgroup/cpu", path, "cpu.stat"));
            }
        }
        found
    }

    /// How many CPUs' worth of time the group and those above it may use, if that is limited.
    #[must_use]
    pub fn quota_cpus(&self, root: &Root) -> Option<f64> {
        let mut least: Option<f64> = None;
        let mut folder = self.unified.clone().unwrap_or_default();
        while folder.starts_with("/sys/fs/cgroup") {
            let words = root.line(&format!("{folder}/cpu.max")).unwrap_or_default();
            let mut words = words.split_whitespace().map(|word| word.parse::<f64>().ok());
            if let (Some(Some(quota)), Some(Some(period))) = (words.next(), words.next()) {
                least = Some(least.map_or(quota / period, |least| least.min(quota / period)));
            }
            folder.truncate(folder.rfind('/').unwrap_or(0));
        }
        if let Some(folder) = &self.cpu_controller {
            let read = |file: &str| root.line(&format!("{folder}/{file}"))?.parse::<f64>().ok();
            if let (Some(quota), Some(period)) =
                (read("cpu.cfs_quota_us"), read("cpu.cfs_period_us"))
                && quota > 0.0
            {
                least = Some(least.map_or(quota / period, |least| least.min(quota / period)));
            }
        }
        least
    }

    fn quota_stops(&self, root: &Root) -> Option<u64> {
        let folders = [&self.unified, &self.cpu_controller].into_iter().flatten();
        let read = |folder: &String| {
            root.field(&format!("{folder}/cpu.stat"), "nr_throttled")?.parse::<u64>().ok()
        };
        folders.filter_map(read).reduce(|sum, stops| sum + stops)
    }
}

fn parse_cpus(stat: &str) -> BTreeMap<usize, CpuTicks> {
    let mut cpus = BTreeMap::new();
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        let Some(number) = number else { continue };
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        if let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = ticks[..] {
            let ticks = CpuTicks {
                process: user + nice + system,
                interrupt: irq + softirq,
                idle: idle + iowait,
                stolen: steal,
            };
            cpus.insert(number, ticks);
        }
    }
    cpus
}

fn tcp(root: &Root) -> Option<TcpCounters> {
    let snmp = root.text("/proc/net/snmp")?;
    let netstat = root.text("/proc/net/netstat").unwrap_or_default();
    Some(TcpCounters {
        sent: counter(&snmp, "Tcp:", "OutSegs")?,
        sent_again: counter(&snmp, "Tcp:", "RetransSegs")?,
        listen_overflows: counter(&netstat, "TcpExt:", "ListenOverflows").unwrap_or(0),
        listen_drops: counter(&netstat, "TcpExt:", "ListenDrops").unwrap_or(0),
    })
}

/// A value in a table of two lines: one with the names, one with the values below.
fn counter(text: &str, prefix: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    let index = names.split_whitespace().position(|word| word == name)?;
    values.split_whitespace().nth(index)?.parse().ok()
}
