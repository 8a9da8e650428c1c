//! The doctor's findings on machines that are not this one.

use peregrine_lab_host::doctor::{Badge, Diagnosis, Facts, Finding, Level, Measure, diagnose};
use peregrine_lab_host::root::Root;
use peregrine_lab_host::snapshot::Snapshot;

use crate::machine::{Machine, Shared};

/// Diagnoses a machine on which `meanwhile` happens during the sample.
fn diagnosis_with(machine: &Machine, meanwhile: impl FnOnce(&Machine)) -> Diagnosis {
    let before = Snapshot::read(&machine.root);
    machine.ticks(100_020, &[]);
    meanwhile(machine);
    let after = Snapshot::read(&machine.root);
    let mut facts = Facts::new(&machine.root, &before, &after);
    facts.program_folders = vec!["/usr/bin".into(), "/usr/local/go/bin".into()];
    facts.own = vec![500];
    diagnose(&facts)
}

fn diagnosis(machine: &Machine) -> Diagnosis {
    diagnosis_with(machine, |_| {})
}

fn finding<'a>(diagnosis: &'a Diagnosis, check: &str) -> &'a Finding {
    diagnosis.findings.iter().find(|finding| finding.check == check).unwrap()
}

/// The checks that are not content, with their levels.
fn complaints(diagnosis: &Diagnosis) -> Vec<(&str, Level)> {
    let complaints = diagnosis.findings.iter().filter(|finding| finding.level > Level::Note);
    complaints.map(|finding| (finding.check.as_str(), finding.level)).collect()
}

#[test]
fn a_tuned_desktop_is_good_for_every_measure() {
    let diagnosis = diagnosis(&Machine::desktop());
    assert_eq!(complaints(&diagnosis), []);
    assert_eq!(diagnosis.badge, Badge::Green);
    assert_eq!(diagnosis.summary, "32 CPUs: good for every measure");
    assert_eq!(finding(&diagnosis, "smt").level, Level::Note);
    assert_eq!(finding(&diagnosis, "l3-groups").read, "[0-7,16-23] [8-15,24-31] on 1 socket(s)");
}

#[test]
fn a_server_of_two_sockets_is_good_for_every_measure() {
    let diagnosis = diagnosis(&Machine::two_sockets());
    assert_eq!(diagnosis.badge, Badge::Green);
    assert!(finding(&diagnosis, "l3-groups").read.ends_with("on 2 socket(s)"));
}

#[test]
fn two_virtual_cpus_are_good_for_correctness_ratios_and_cpu_per_request() {
    let diagnosis = diagnosis(&Machine::small_guest());
    assert_eq!(diagnosis.badge, Badge::Amber);
    assert_eq!(
        diagnosis.summary,
        "2 virtual CPUs: good for correctness, side-by-side ratios and A/A, CPU per request, many \
         or short connections, io_uring contenders; not for publishable throughput, publishable \
         latency"
    );
    let warned = [("cores", Level::Warning), ("virtualisation", Level::Warning)];
    assert_eq!(complaints(&diagnosis), warned);
    assert_eq!(diagnosis.reasons.len(), 2);
    assert!(diagnosis.reasons[0].starts_with("cores: 2 usable (CPUs 0-1). Server, client"));
}

#[test]
fn a_container_with_a_quota_can_publish_nothing() {
    let diagnosis = diagnosis(&Machine::container());
    assert_eq!(diagnosis.badge, Badge::Red);
    let expected = ["cpu-quota", "open-files", "io-uring"].map(|check| (check, Level::Warning));
    assert_eq!(complaints(&diagnosis), expected);
    let quota = finding(&diagnosis, "cpu-quota");
    assert_eq!(quota.read, "1.50 CPUs' worth of time on 4 CPUs");
    assert!(quota.spoils.contains(&Measure::Ratios) && quota.mend.is_some());
    assert_eq!(finding(&diagnosis, "cpuset").read, "2-5 of 0-7");
    assert_eq!(finding(&diagnosis, "container").read, "yes: /.dockerenv");
}

#[test]
fn a_quota_of_an_older_hierarchy_is_found_too() {
    let machine = Machine::desktop();
    machine.file("/proc/self/cgroup", "4:cpu,cpuacct:/box\n0::/\n");
    machine.file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.stat", "nr_throttled 0\n");
    machine.file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "200000\n");
    machine.file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    let read = |machine: &Machine| finding(&diagnosis(machine), "cpu-quota").read.clone();
    assert_eq!(read(&machine), "2.00 CPUs' worth of time on 32 CPUs");
    machine.file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
    assert_eq!(read(&machine), "none");
}

#[test]
fn each_bad_setting_is_found_and_judged() {
    let cpu0 = "/sys/devices/system/cpu/cpu0";
    let cases = [
        (format!("{cpu0}/cpufreq/scaling_governor"), "powersave", "governor", Level::Warning),
        (format!("{cpu0}/cpuidle/state1/latency"), "300", "c-states", Level::Warning),
        ("/sys/devices/system/cpu/cpufreq/boost".into(), "1", "boost", Level::Note),
        (
            "/sys/devices/system/cpu/vulnerabilities/meltdown".into(),
            "Vulnerable",
            "mitigations",
            Level::Note,
        ),
        (
            "/sys/devices/system/clocksource/clocksource0/current_clocksource".into(),
            "hpet",
            "clocksource",
            Level::Warning,
        ),
        ("/proc/loadavg".into(), "3.5 9 9 1/2 3", "load", Level::Warning),
        (
            "/proc/meminfo".into(),
            "MemTotal: 32000000 kB\nMemAvailable: 900000 kB\n",
            "memory",
            Level::Warning,
        ),
        ("/proc/meminfo".into(), "SwapTotal: 2048 kB\nSwapFree: 1024 kB\n", "swap", Level::Note),
        (
            "/sys/kernel/mm/transparent_hugepage/enabled".into(),
            "[always] madvise never",
            "transparent-huge-pages",
            Level::Note,
        ),
        ("/proc/sys/net/core/somaxconn".into(), "128", "somaxconn", Level::Warning),
        (
            "/proc/sys/net/ipv4/tcp_max_syn_backlog".into(),
            "128",
            "tcp-max-syn-backlog",
            Level::Note,
        ),
        (
            "/proc/sys/net/ipv4/ip_local_port_range".into(),
            "50000 60000",
            "ip-local-port-range",
            Level::Warning,
        ),
        ("/proc/sys/net/ipv4/tcp_tw_reuse".into(), "0", "tcp-tw-reuse", Level::Warning),
        ("/sys/class/net/lo/mtu".into(), "1500", "loopback-mtu", Level::Note),
        ("/proc/self/limits".into(), "Max open files 1024 524288 files", "open-files", Level::Note),
        ("/proc/sys/kernel/osrelease".into(), "5.4.0", "kernel", Level::Note),
        ("/proc/sys/kernel/io_uring_disabled".into(), "1", "io-uring", Level::Warning),
        ("/proc/sys/kernel/perf_event_paranoid".into(), "4", "perf-events", Level::Note),
        ("/proc/sys/kernel/randomize_va_space".into(), "0", "address-randomisation", Level::Note),
        ("/proc/1/cgroup".into(), "0::/docker/af01", "container", Level::Note),
    ];
    for (path, text, check, level) in cases {
        let machine = Machine::tuned(&Shared::plain(4, 2, 1));
        let before = diagnosis(&machine);
        assert_eq!(finding(&before, check).level, Level::Ok, "{check} before");
        machine.file(&path, text);
        let after = diagnosis(&machine);
        assert_eq!(finding(&after, check).level, level, "{check}: {:?}", finding(&after, check));
        assert_eq!(level >= Level::Warning, after.badge != Badge::Green, "{check}");
    }
}

#[test]
fn what_tuning_mends_is_said_to_be_mended_by_it_and_nothing_else_is() {
    let machine = Machine::container();
    for path in ["core/somaxconn", "ipv4/tcp_max_syn_backlog", "ipv4/tcp_tw_reuse"] {
        machine.file(&format!("/proc/sys/net/{path}"), "0\n");
    }
    machine.file("/proc/sys/net/ipv4/ip_local_port_range", "50000\t60000\n");
    machine.file("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave\n");
    let diagnosis = diagnosis(&machine);
    let tuned = diagnosis.findings.iter().filter(|finding| {
        finding.mend.as_ref().is_some_and(|mend| mend.starts_with("run with --tune, "))
    });
    let tuned: Vec<&str> = tuned.map(|finding| finding.check.as_str()).collect();
    let expected = ["governor", "somaxconn", "tcp-max-syn-backlog", "ip-local-port-range"];
    assert_eq!(tuned, expected);
}

#[test]
fn missing_toolchains_are_noted() {
    let machine = Machine::desktop();
    machine.remove("/usr/local/go/bin/go");
    let diagnosis = diagnosis(&machine);
    assert_eq!(finding(&diagnosis, "go").read, "no go in PATH");
    assert_eq!(finding(&diagnosis, "rust").read, "/usr/bin/cargo");
}

#[test]
fn a_lone_core_is_unfit() {
    let machine = Machine::desktop();
    machine.file("/proc/self/status", "Cpus_allowed_list:\t3,19\n");
    let diagnosis = diagnosis(&machine);
    assert_eq!(finding(&diagnosis, "cores").level, Level::Unfit);
    assert_eq!(diagnosis.badge, Badge::Red);
    assert!(diagnosis.summary.ends_with("publish no figure from it"), "{}", diagnosis.summary);
}

#[test]
fn strangers_are_named_with_what_they_used_and_the_lab_itself_is_none() {
    let machine = Machine::small_guest();
    machine.process(500, "doctor", 1, 500, 0, 0);
    machine.process(600, "cc1plus", 1, 600, 1000, 1);
    machine.process(700, "Web Content", 1, 700, 50, 1);
    // 20 ticks on each of two CPUs pass.
    let diagnosis = diagnosis_with(&machine, |machine| {
        machine.process(500, "doctor", 1, 500, 9, 0);
        machine.process(501, "doctor's child", 500, 501, 9, 0);
        machine.process(600, "cc1plus", 1, 600, 1015, 1);
        machine.process(700, "Web Content", 1, 700, 51, 1);
    });
    let foreign = finding(&diagnosis, "foreign-cpu");
    assert_eq!(foreign.read, "40.0 % of all CPUs: cc1plus 75 % of a CPU, Web Content 5 % of a CPU");
    assert_eq!(foreign.level, Level::Unfit);
}

#[test]
fn stolen_time_and_moving_frequencies_are_found() {
    let machine = Machine::small_guest();
    let steal = |ticks| {
        let machine = Machine::small_guest();
        let diagnosis =
            diagnosis_with(&machine, |machine| machine.ticks(100_020, &[(1, 0, 0, ticks)]));
        finding(&diagnosis, "steal").level
    };
    assert_eq!([0, 1, 2, 3].map(steal), [Level::Ok, Level::Ok, Level::Warning, Level::Unfit]);
    assert_eq!(finding(&diagnosis(&machine), "frequency-drift").read, "unknown");
    let diagnosis = diagnosis_with(&Machine::desktop(), |machine| {
        machine.file("/sys/devices/system/cpu/cpu7/cpufreq/scaling_cur_freq", "2700000");
    });
    let drift = finding(&diagnosis, "frequency-drift");
    assert_eq!(drift.read, "CPU 7 moved most, from 3400 to 2700 MHz (21 %)");
    assert_eq!(drift.level, Level::Warning);
}

#[test]
fn where_nothing_can_be_read_everything_is_said_to_be_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::at(folder.path());
    let empty = Snapshot::read(&root);
    let mut facts = Facts::new(&root, &empty, &empty);
    facts.program_folders.clear();
    let diagnosis = diagnose(&facts);
    for finding in &diagnosis.findings {
        let is_counted = ["cores", "l3-groups"].contains(&finding.check.as_str());
        assert!(is_counted || finding.level == Level::Note, "{finding:?}");
    }
}

#[test]
fn a_diagnosis_is_written_as_text_and_survives_json() {
    let diagnosis = diagnosis(&Machine::small_guest());
    let text = diagnosis.to_string();
    assert!(text.starts_with("AMBER: 2 virtual CPUs: good for correctness"), "{text}");
    assert!(text.contains("\n WARN  virtualisation "), "{text}");
    assert!(text.contains("To mend it: measure on a machine of your own"), "{text}");
    assert!(text.lines().skip(1).all(|line| line.chars().count() <= 110), "{text}");
    for finding in &diagnosis.findings {
        assert!(finding.level > Level::Ok || finding.mend.is_none(), "{finding:?}");
        assert!(!finding.why.is_empty() && !finding.read.is_empty(), "{finding:?}");
    }
    let json = serde_json::to_string(&diagnosis).unwrap();
    assert!(json.contains(r#""badge":"amber""#), "{json}");
    assert_eq!(serde_json::from_str::<Diagnosis>(&json).unwrap(), diagnosis);
}

#[test]
fn this_machine_can_be_examined() {
    let diagnosis = peregrine_lab_host::doctor::examine();
    assert!(diagnosis.findings.len() > 25);
    if cfg!(target_os = "linux") {
        assert_ne!(finding(&diagnosis, "kernel").read, "unknown");
    }
}
