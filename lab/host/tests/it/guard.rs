//! What disturbed a run, from two snapshots of machines that are not this one.

use peregrine_lab_host::cpu_sets::{CpuSets, Side};
use peregrine_lab_host::guard::{Expected, Guard, Tolerances, Trip, Use, compare};
use peregrine_lab_host::snapshot::Snapshot;

use crate::machine::Machine;

/// The lab (500) loads a server (510) of two processes for ten seconds; the server runs on CPUs 0
/// and 16, the client on 8 and 24. `meanwhile` may change what the second snapshot shows.
fn trips(tolerances: &Tolerances, meanwhile: impl FnOnce(&Machine)) -> Vec<Trip> {
    let machine = Machine::desktop();
    machine.process(500, "lab", 1, 500, 100, 8);
    machine.process(510, "server", 500, 510, 0, 0);
    machine.process(511, "worker", 510, 510, 0, 16);
    machine.process(600, "cc1plus", 1, 600, 40, 0);
    let before = Snapshot::read(&machine.root);
    machine.process(500, "lab", 1, 500, 1000, 8);
    machine.process(510, "server", 500, 510, 500, 0);
    machine.process(511, "worker", 510, 510, 300, 16);
    machine.ticks(100_000, &busy(0));
    machine.tcp(1_001_000, 50, 0);
    meanwhile(&machine);
    let after = Snapshot::read(&machine.root);
    compare(&before, &after, &sets(), &expected(), tolerances)
}

/// The run's own work, and so many ticks of user code on CPU 0 besides.
fn busy(foreign: u64) -> Vec<(usize, u64, u64, u64)> {
    vec![(0, 500 + foreign, 400, 0), (16, 300, 200, 0), (8, 900, 100, 0)]
}

fn sets() -> CpuSets {
    CpuSets { server: [0, 16].into(), client: [8, 24].into(), remarks: Vec::new() }
}

fn expected() -> Expected {
    Expected { servers: vec![510], clients: vec![500] }
}

fn texts(trips: &[Trip]) -> Vec<String> {
    trips.iter().map(Trip::to_string).collect()
}

#[test]
fn a_quiet_run_stands_however_busy_its_own_processes_are() {
    assert_eq!(trips(&Tolerances::default(), |_| {}), []);
}

#[test]
fn a_stranger_on_the_servers_cpus_is_named_with_its_share() {
    let found = trips(&Tolerances::default(), |machine| {
        machine.process(600, "cc1plus", 1, 600, 140, 0);
        machine.ticks(100_000, &busy(100));
    });
    let names = vec![("cc1plus".to_owned(), 1000)];
    let share = 100.0 / 1500.0;
    assert_eq!(found, [Trip::ForeignCpu { side: Side::Server, share, names }]);
    let text = "strangers used 6.7 % of the server's CPUs (cc1plus 1000 ms)";
    assert_eq!(texts(&found), [text]);
}

#[test]
fn a_stranger_that_came_and_went_is_still_counted() {
    let found = trips(&Tolerances::default(), |machine| machine.ticks(100_000, &busy(40)));
    assert_eq!(texts(&found), ["strangers used 2.8 % of the server's CPUs"]);
}

#[test]
fn a_stranger_elsewhere_or_below_the_tolerance_does_not_void_a_run() {
    let elsewhere = trips(&Tolerances::default(), |machine| {
        let mut busy = busy(0);
        busy.push((5, 900, 0, 500));
        machine.ticks(100_000, &busy);
        machine.process(600, "cc1plus", 1, 600, 940, 5);
    });
    assert_eq!(elsewhere, []);
    let few = trips(&Tolerances::default(), |machine| machine.ticks(100_000, &busy(3)));
    assert_eq!(few, []);
    let allowed = Tolerances { foreign_share_max: 0.1, ..Tolerances::default() };
    assert_eq!(trips(&allowed, |machine| machine.ticks(100_000, &busy(100))), []);
}

#[test]
fn what_interrupts_of_the_runs_own_traffic_left_over_is_no_strangers() {
    let with = |parent, cpu| {
        trips(&Tolerances::default(), |machine| {
            machine.process(70, "ksoftirqd/8", parent, 0, 200, cpu);
            let mut busy = busy(0);
            busy[2].1 += 200;
            machine.ticks(100_000, &busy);
        })
    };
    assert_eq!(with(2, 8), []);
    assert!(!with(1, 8).is_empty(), "anybody may be called so");
}

#[test]
fn stolen_time_trips_the_side_it_was_stolen_from() {
    let found = trips(&Tolerances::default(), |machine| {
        let mut busy = busy(0);
        busy[2].3 = 60;
        machine.ticks(100_000, &busy);
    });
    assert_eq!(found, [Trip::Stolen { side: Side::Client, share: 60.0 / 1060.0 }]);
}

#[test]
fn throttling_and_moving_frequencies_trip_on_the_runs_cpus_only() {
    let found = trips(&Tolerances::default(), |machine| {
        let file = |cpu: usize, path: &str, text: &str| {
            machine.file(&format!("/sys/devices/system/cpu/cpu{cpu}/{path}"), text);
        };
        file(8, "thermal_throttle/core_throttle_count", "4");
        file(9, "thermal_throttle/core_throttle_count", "9");
        file(16, "cpufreq/scaling_cur_freq", "2000000");
        file(17, "cpufreq/scaling_cur_freq", "1000000");
        file(24, "cpufreq/scaling_cur_freq", "3300000");
    });
    let expected = [
        Trip::HotThrottled { cpu: 8, times: 4 },
        Trip::Frequency { cpu: 16, before_khz: 3_400_000, after_khz: 2_000_000 },
    ];
    assert_eq!(found, expected);
    assert_eq!(texts(&found)[1], "CPU 16 went from 3400 to 2000 MHz");
}

#[test]
fn lost_segments_and_refused_connections_trip() {
    let disturb = |machine: &Machine| machine.tcp(1_001_000, 500, 7);
    let found = trips(&Tolerances::default(), disturb);
    let expected =
        [Trip::SentAgain { segments: 500, sent: 1_000_000 }, Trip::ListenOverflow { times: 7 }];
    assert_eq!(found, expected);
    let overload = Tolerances {
        listen_overflows_max: 1000,
        sent_again_share_max: 0.5,
        ..Tolerances::default()
    };
    assert_eq!(trips(&overload, disturb), []);
}

#[test]
fn a_quota_that_ran_out_trips() {
    let machine = Machine::container();
    let sets = CpuSets { server: [2].into(), client: [3].into(), remarks: Vec::new() };
    let mut guard = Guard::new(machine.root.clone(), sets, Tolerances::default());
    assert_eq!(guard.boundary(&Expected::default()), []);
    let throttled = |times: u32| {
        machine.file("/sys/fs/cgroup/cpu.stat", &format!("nr_periods 90\nnr_throttled {times}\n"));
    };
    throttled(8);
    assert_eq!(guard.boundary(&Expected::default()), [Trip::QuotaThrottled { times: 5 }]);
    assert_eq!(guard.boundary(&Expected::default()), [], "each run is judged by itself");
    throttled(20);
    guard.begin();
    assert_eq!(guard.boundary(&Expected::default()), [], "what came before the run is not its");
}

#[test]
fn the_use_of_several_runs_is_added_up_before_a_share_is_taken() {
    let machine = Machine::desktop();
    let server = |ticks| machine.process(510, "server", 1, 510, ticks, 0);
    server(0);
    machine.ticks(100_000, &[(0, 0, 0, 0), (16, 0, 0, 0)]);
    let mut guard = Guard::new(machine.root.clone(), sets(), Tolerances::default());
    let mut all = Use::default();
    assert_eq!(all.foreign_share(), None, "nothing was seen yet");
    // The kernel's samples are two ticks short in the first run and have them in the second.
    for (server_ticks, sampled) in [(100, 98), (200, 200)] {
        server(server_ticks);
        machine.ticks(100_000, &[(0, sampled, 0, 0), (16, 0, 0, 0)]);
        assert_eq!(guard.boundary(&expected()), []);
        all += guard.used();
    }
    assert_eq!((all.processes, all.own), (200, 200));
    assert_eq!(all.foreign_share(), Some(0.0));
    // What a server did before its requests were counted is its own all the same; a stranger's is not.
    server(300);
    machine.ticks(100_000, &[(0, 300, 0, 0), (16, 20, 0, 0)]);
    let trips = guard.boundary(&expected());
    assert!(matches!(trips[..], [Trip::ForeignCpu { side: Side::Server, .. }]), "{trips:?}");
    assert_eq!(guard.used().foreign(), 20);
}

#[test]
fn a_stranger_is_seen_though_the_server_is_charged_with_interrupts() {
    let found = trips(&Tolerances::default(), |machine| {
        machine.process(600, "cc1plus", 1, 600, 140, 0);
        // Of the 800 ticks that the servers were charged with, 200 were interrupts.
        let of_interrupts = vec![(0, 400 + 100, 300, 0), (16, 200, 100, 0), (8, 900, 100, 0)];
        machine.ticks(100_000, &of_interrupts);
    });
    let names = vec![("cc1plus".to_owned(), 1000)];
    assert!(
        matches!(&found[..], [Trip::ForeignCpu { side: Side::Server, names: told, .. }] if *told == names),
        "{found:?}"
    );
}

#[test]
fn trips_survive_a_run_file() {
    let found = trips(&Tolerances::default(), |machine| machine.tcp(1_001_000, 500, 7));
    let text = serde_json::to_string(&found).unwrap();
    assert!(text.contains(r#"{"guard":"listen_overflow","times":7}"#), "{text}");
    assert_eq!(serde_json::from_str::<Vec<Trip>>(&text).unwrap(), found);
}
