//! Folders that look like machines: what `/proc` and `/sys` say on each.

use std::fs;
use std::ops::Range;

use peregrine_lab_host::cpu_list::{self, Cpus};
use peregrine_lab_host::root::Root;
use tempfile::TempDir;

/// A folder that looks like a machine.
pub(crate) struct Machine {
    folder: TempDir,
    pub(crate) root: Root,
    cpus: usize,
}

/// What groups of CPUs share on a machine.
pub(crate) struct Shared {
    pub(crate) cores: Vec<Cpus>,
    pub(crate) caches: Vec<Cpus>,
    pub(crate) sockets: Vec<Cpus>,
}

impl Machine {
    /// A machine of one's own with everything as it should be.
    pub(crate) fn tuned(shared: &Shared) -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        let cpus = shared.cores.iter().map(Cpus::len).sum();
        let machine = Machine { folder, root, cpus };
        machine.topology(shared);
        machine.kernel();
        machine.ticks(100_000, &[]);
        machine.process(1, "init", 0, 1, 500, 0);
        machine
    }

    /// Two virtual CPUs without a word about frequencies.
    pub(crate) fn small_guest() -> Machine {
        let machine = Machine::tuned(&Shared::plain(2, 1, 1));
        machine.file("/proc/cpuinfo", "model name\t: Some EPYC\nflags\t\t: fpu hypervisor tsc\n");
        for cpu in 0..2 {
            machine.remove(&format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq"));
        }
        machine
    }

    /// 16 cores with two threads each (siblings 16 apart) and two caches.
    pub(crate) fn desktop() -> Machine {
        Machine::tuned(&Shared {
            cores: (0..16).map(|core| Cpus::from([core, core + 16])).collect(),
            caches: vec![both(0..8, 16), both(8..16, 16)],
            sockets: vec![(0..32).collect()],
        })
    }

    /// Two sockets of eight cores without SMT; CPU numbers alternate between the sockets.
    pub(crate) fn two_sockets() -> Machine {
        let socket = |first| (0..16).filter(|cpu| cpu % 2 == first).collect::<Cpus>();
        Machine::tuned(&Shared {
            cores: (0..16).map(|cpu| Cpus::from([cpu])).collect(),
            caches: vec![socket(0), socket(1)],
            sockets: vec![socket(0), socket(1)],
        })
    }

    /// A container that may use four of eight CPUs, and a CPU and a half of their time.
    pub(crate) fn container() -> Machine {
        let machine = Machine::tuned(&Shared::plain(8, 1, 1));
        machine.file("/proc/self/status", "Name:\tlab\nCpus_allowed_list:\t2-5\n");
        machine.file("/proc/self/cgroup", "0::/\n");
        machine.file("/sys/fs/cgroup/cpu.max", "150000 100000\n");
        machine.file("/sys/fs/cgroup/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 3\n");
        machine.file("/.dockerenv", "");
        machine.file("/proc/sys/kernel/io_uring_disabled", "2\n");
        machine
            .file("/proc/self/limits", "Max open files            1024         4096      files\n");
        machine
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.root.path(path);
        assert!(path.starts_with(self.folder.path()));
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }

    /// Writes `/proc/stat`: each CPU idled for `idle` ticks, and the given ones (CPU, user,
    /// softirq, steal) did something besides.
    pub(crate) fn ticks(&self, idle: u64, busy: &[(usize, u64, u64, u64)]) {
        let mut text = "cpu  9 9 9 9 9 9 9 9 0 0\n".to_owned();
        for cpu in 0..self.cpus {
            let found = busy.iter().find(|&&(number, ..)| number == cpu);
            let &(_, user, softirq, steal) = found.unwrap_or(&(cpu, 0, 0, 0));
            text += &format!("cpu{cpu} {user} 0 0 {idle} 0 0 {softirq} {steal} 0 0\n");
        }
        self.file("/proc/stat", &text);
    }

    /// Writes a process that ran on `cpu` last.
    pub(crate) fn process(
        &self,
        id: u32,
        name: &str,
        parent: u32,
        group: u32,
        ticks: u64,
        cpu: u32,
    ) {
        let between = "0 0 0 0 0 0 0 0";
        let after = "0 0 20 0 1 0 77 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17";
        let text =
            format!("{id} ({name}) S {parent} {group} {between} {ticks} 0 {after} {cpu} 0 0\n");
        self.file(&format!("/proc/{id}/stat"), &text);
    }

    /// Writes TCP's counters: segments sent and sent again, listen overflows.
    pub(crate) fn tcp(&self, sent: u64, again: u64, overflows: u64) {
        self.file(
            "/proc/net/snmp",
            &format!("Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 {sent} {again}\n"),
        );
        let names = "TcpExt: SyncookiesSent ListenOverflows ListenDrops";
        self.file(
            "/proc/net/netstat",
            &format!("{names}\nTcpExt: 0 {overflows} {overflows}\nIpExt: A\nIpExt: 1\n"),
        );
    }

    fn topology(&self, shared: &Shared) {
        let all: Cpus = (0..self.cpus).collect();
        let all = cpu_list::format(&all);
        self.file("/sys/devices/system/cpu/online", &all);
        self.file("/proc/self/status", &format!("Name:\tlab\nCpus_allowed_list:\t{all}\n"));
        for cpu in 0..self.cpus {
            let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
            let list = |groups: &[Cpus]| {
                cpu_list::format(groups.iter().find(|group| group.contains(&cpu)).unwrap())
            };
            self.file(&format!("{folder}/topology/core_cpus_list"), &list(&shared.cores));
            self.file(&format!("{folder}/topology/package_cpus_list"), &list(&shared.sockets));
            self.file(&format!("{folder}/cache/index0/level"), "1");
            self.file(&format!("{folder}/cache/index0/shared_cpu_list"), &list(&shared.cores));
            self.file(&format!("{folder}/cache/index3/level"), "3");
            self.file(&format!("{folder}/cache/index3/shared_cpu_list"), &list(&shared.caches));
            self.file(&format!("{folder}/cache/uevent"), "");
            self.file(&format!("{folder}/cpufreq/scaling_governor"), "performance\n");
            self.file(&format!("{folder}/cpufreq/scaling_cur_freq"), "3400000\n");
            self.file(&format!("{folder}/thermal_throttle/core_throttle_count"), "0\n");
            self.file(&format!("{folder}/cpuidle/state0/name"), "POLL\n");
            self.file(&format!("{folder}/cpuidle/state0/latency"), "0\n");
            self.file(&format!("{folder}/cpuidle/state1/name"), "C1\n");
            self.file(&format!("{folder}/cpuidle/state1/latency"), "1\n");
        }
    }

    fn kernel(&self) {
        for (path, text) in [
            ("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Ryzen\nflags\t\t: fpu tsc\n"),
            ("/proc/loadavg", "0.05 0.10 0.20 1/300 999\n"),
            (
                "/proc/meminfo",
                "MemTotal: 32000000 kB\nMemAvailable: 30000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            ),
            ("/proc/self/cgroup", "0::/user.slice/session\n"),
            (
                "/proc/self/limits",
                "Limit      Soft Limit    Hard Limit    Units\nMax open files  65536    1048576    files\n",
            ),
            ("/proc/1/cgroup", "0::/init.scope\n"),
            ("/proc/sys/kernel/osrelease", "6.12.3-generic\n"),
            ("/proc/sys/kernel/io_uring_disabled", "0\n"),
            ("/proc/sys/kernel/perf_event_paranoid", "2\n"),
            ("/proc/sys/kernel/randomize_va_space", "2\n"),
            ("/proc/sys/net/core/somaxconn", "4096\n"),
            ("/proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n"),
            ("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("/proc/sys/net/ipv4/tcp_tw_reuse", "2\n"),
            ("/sys/class/net/lo/mtu", "65536\n"),
            ("/sys/devices/system/cpu/cpufreq/boost", "0\n"),
            ("/sys/devices/system/cpu/vulnerabilities/meltdown", "Not affected\n"),
            ("/sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: IBPB\n"),
            ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("/sys/fs/cgroup/user.slice/session/cpu.stat", "usage_usec 5\n"),
            ("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n"),
            ("/usr/bin/cargo", ""),
            ("/usr/local/go/bin/go", ""),
        ] {
            self.file(path, text);
        }
        self.tcp(1000, 0, 0);
    }
}

impl Shared {
    /// Cores without siblings, divided evenly among caches and sockets.
    pub(crate) fn plain(cores: usize, caches: usize, sockets: usize) -> Shared {
        let groups = |count: usize| {
            let size = cores / count;
            (0..count).map(|group| (group * size..(group + 1) * size).collect()).collect()
        };
        Shared { cores: groups(cores), caches: groups(caches), sockets: groups(sockets) }
    }
}

/// CPUs and their siblings so many numbers on.
pub(crate) fn both(cpus: Range<usize>, apart: usize) -> Cpus {
    cpus.clone().chain(cpus.start + apart..cpus.end + apart).collect()
}
