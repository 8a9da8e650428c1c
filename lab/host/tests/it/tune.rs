//! Tuning and restoring machines that are not this one.

use std::fs;

use peregrine_lab_host::cpu_sets::CpuSets;
use peregrine_lab_host::tune::{TuneError, Tuning};
use tempfile::TempDir;

use crate::machine::{Machine, Shared};

const QUEUE: &str = "/proc/sys/net/core/somaxconn";
const HANDSHAKES: &str = "/proc/sys/net/ipv4/tcp_max_syn_backlog";
const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

fn governor(cpu: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")
}

fn preference(cpu: usize) -> String {
    format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/energy_performance_preference")
}

/// Servers on CPU 0, clients on CPUs 1 and 2; CPU 3 is not used.
fn sets() -> CpuSets {
    CpuSets { server: [0].into(), client: [1, 2].into(), remarks: Vec::new() }
}

/// Four CPUs that save power.
fn sleepy() -> Machine {
    let machine = Machine::tuned(&Shared::plain(4, 1, 1));
    for cpu in 0..4 {
        machine.file(&governor(cpu), "powersave\n");
    }
    machine
}

/// What tuning might write, and one file that it must not.
fn values(machine: &Machine) -> Vec<Option<String>> {
    let governors = (0..4).map(governor);
    let paths = governors.chain([QUEUE, HANDSHAKES, PORTS].map(str::to_owned));
    paths.map(|path| machine.root.text(&path)).collect()
}

fn apply(machine: &Machine, folder: &TempDir) -> Tuning {
    Tuning::apply(&machine.root, &sets(), folder.path()).unwrap()
}

fn is_empty(folder: &TempDir) -> bool {
    fs::read_dir(folder.path()).unwrap().next().is_none()
}

/// What a run leaves that is killed: its settings and its record.
fn kill(machine: &Machine, folder: &TempDir) {
    let tuning = apply(machine, folder);
    let tuned = values(machine);
    let path = folder.path().join("tuning.json");
    let record = fs::read(&path).unwrap();
    drop(tuning);
    fs::write(path, record).unwrap();
    for (cpu, text) in tuned[..4].iter().enumerate() {
        machine.file(&governor(cpu), text.as_deref().unwrap());
    }
    for (path, text) in [QUEUE, HANDSHAKES, PORTS].into_iter().zip(&tuned[4..]) {
        machine.file(path, text.as_deref().unwrap());
    }
}

#[test]
fn each_change_is_told_and_undone_when_dropped() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    machine.file(&governor(1), "schedutil\n");
    let before = values(&machine);
    let tuning = apply(&machine, &folder);
    assert_eq!(
        tuning.changes(),
        [
            "the frequency governor of CPUs 0,2 was set from powersave to performance",
            "the frequency governor of CPU 1 was set from schedutil to performance",
            "net.core.somaxconn was raised from 4096 to 65535",
            "net.ipv4.tcp_max_syn_backlog was raised from 4096 to 65535",
            "net.ipv4.ip_local_port_range was widened from 32768-60999 to 1024-65535",
        ]
    );
    assert!(tuning.remarks().is_empty());
    let line = |path: &str| machine.root.line(path).unwrap();
    let governors = [0, 1, 2, 3].map(|cpu| line(&governor(cpu)));
    assert_eq!(governors, ["performance", "performance", "performance", "powersave"]);
    assert_eq!([QUEUE, HANDSHAKES, PORTS].map(line), ["65535", "65535", "1024 65535"]);
    drop(tuning);
    let words = |values: Vec<Option<String>>| -> Vec<String> {
        values.into_iter().flatten().map(|text| text.replace('\t', " ")).collect()
    };
    assert_eq!(words(values(&machine)), words(before));
    assert!(is_empty(&folder));
}

#[test]
fn what_is_good_already_is_not_written_and_leaves_no_record() {
    let (machine, folder) = (Machine::tuned(&Shared::plain(4, 1, 1)), tempfile::tempdir().unwrap());
    machine.file(QUEUE, "100000\n");
    machine.file(HANDSHAKES, "65535\n");
    machine.file(PORTS, "1000\t65535\n");
    let before = values(&machine);
    let tuning = apply(&machine, &folder);
    assert!(tuning.changes().is_empty());
    assert_eq!(values(&machine), before);
    assert!(is_empty(&folder));
    tuning.restore().unwrap();
    assert_eq!(values(&machine), before);
}

#[test]
fn a_machine_without_these_settings_is_left_without_them() {
    let (machine, folder) = (Machine::small_guest(), tempfile::tempdir().unwrap());
    for path in [QUEUE, HANDSHAKES, PORTS] {
        machine.remove(path);
    }
    assert!(apply(&machine, &folder).changes().is_empty());
    assert!(values(&machine).iter().all(Option::is_none));
}

#[test]
fn a_governor_that_the_kernel_does_not_offer_is_a_remark() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    let offered = "/sys/devices/system/cpu/cpu2/cpufreq/scaling_available_governors";
    machine.file(offered, "schedutil powersave \n");
    let tuning = apply(&machine, &folder);
    let expected = "the frequency governor of CPU 2 stays powersave: the kernel offers only \
                    schedutil powersave";
    assert_eq!(tuning.remarks(), [expected]);
    assert!(tuning.changes()[0].starts_with("the frequency governor of CPUs 0-1 was set"));
    assert_eq!(machine.root.line(&governor(2)).as_deref(), Some("powersave"));
}

#[test]
fn an_energy_preference_that_followed_the_governor_comes_back_with_it() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    for cpu in 0..4 {
        machine.file(&preference(cpu), "balance_power\n");
    }
    let tuning = apply(&machine, &folder);
    machine.file(&preference(0), "performance\n");
    tuning.restore().unwrap();
    assert_eq!(machine.root.line(&preference(0)).as_deref(), Some("balance_power"));
}

#[test]
fn a_value_that_somebody_else_changed_meanwhile_stays() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    let tuning = apply(&machine, &folder);
    machine.file(QUEUE, "20000\n");
    machine.remove(&governor(1));
    tuning.restore().unwrap();
    assert_eq!(machine.root.line(QUEUE).as_deref(), Some("20000"));
    assert_eq!(machine.root.line(HANDSHAKES).as_deref(), Some("4096"));
    assert_eq!(machine.root.line(&governor(1)), None);
    assert!(is_empty(&folder));
}

#[test]
fn what_a_killed_run_left_is_put_right_by_the_next_one_and_its_own_changes_are_told_in_full() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    kill(&machine, &folder);
    let tuning = apply(&machine, &folder);
    assert_eq!(tuning.remarks().len(), 6, "{:?}", tuning.remarks());
    let queue = "net.core.somaxconn was put back from 65535 to 4096, after a run that was killed";
    assert!(tuning.remarks().contains(&queue.to_owned()));
    assert_eq!(tuning.changes().len(), 4);
    tuning.restore().unwrap();
    assert_eq!(machine.root.line(QUEUE).as_deref(), Some("4096"));
    assert_eq!(machine.root.line(&governor(2)).as_deref(), Some("powersave"));
    assert!(is_empty(&folder));
}

#[test]
fn a_record_can_be_mended_alone_and_only_once() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    let mend = || Tuning::mend(&machine.root, folder.path()).unwrap();
    assert!(mend().is_empty());
    assert!(is_empty(&folder), "looking for a record must not make one");
    kill(&machine, &folder);
    assert_eq!(mend().len(), 6);
    assert_eq!(machine.root.line(PORTS).as_deref(), Some("32768 60999"));
    assert!(mend().is_empty() && is_empty(&folder));
}

#[test]
fn a_second_run_cannot_tune_or_mend_while_the_first_goes_on() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    let first = apply(&machine, &folder);
    let tuned = values(&machine);
    let second = Tuning::apply(&machine.root, &sets(), folder.path()).unwrap_err();
    assert!(matches!(second, TuneError::Busy(_)), "{second}");
    let mended = Tuning::mend(&machine.root, folder.path()).unwrap_err();
    assert!(mended.to_string().contains("another run has tuned this machine"), "{mended}");
    assert_eq!(values(&machine), tuned);
    first.restore().unwrap();
    apply(&machine, &folder).restore().unwrap();
}

#[test]
fn a_record_that_is_damaged_or_names_other_files_is_refused_and_nothing_is_changed() {
    let (machine, folder) = (sleepy(), tempfile::tempdir().unwrap());
    let before = values(&machine);
    let change = r#"{"setting":"/etc/passwd","before":"x","set":"y"}"#;
    for text in [
        "{".to_owned(),
        r#"{"schema":2,"changes":[]}"#.to_owned(),
        format!(r#"{{"schema":1,"changes":[{change}]}}"#),
    ] {
        fs::write(folder.path().join("tuning.json"), &text).unwrap();
        let error = Tuning::apply(&machine.root, &sets(), folder.path()).unwrap_err();
        assert!(matches!(error, TuneError::Damaged(..)), "{text}: {error}");
        assert_eq!(values(&machine), before);
        assert_eq!(fs::read_to_string(folder.path().join("tuning.json")).unwrap(), text);
    }
}
