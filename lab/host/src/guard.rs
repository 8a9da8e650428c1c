//! What disturbed a run: two snapshots compared, and the reasons to void what lies between them.
//!
//! A tripped guard voids a run, which is then repeated; it does not correct it. Limits and slack are
//! in [`Tolerances`], so that a scenario that wants an overflow can allow it.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use crate::cpu_list::{self, Cpus};
use crate::cpu_sets::{CpuSets, Side};
use crate::processes;
use crate::root::Root;
use crate::snapshot::Snapshot;

/// How much of each disturbance a run may hold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tolerances {
    /// CPU time of strangers on a side's CPUs, as a share of those CPUs. The default is 0.01.
    pub foreign_share_max: f64,
    /// Time that the hypervisor took from a side's CPUs, as a share. The default is 0.01.
    pub stolen_share_max: f64,
    /// How far a CPU's frequency may move, as a share. The default is 0.10.
    pub frequency_change_max: f64,
    /// Segments sent again, per segment sent. The default is 0.0001.
    pub sent_again_share_max: f64,
    /// Connections that listeners turned away. The default is 0.
    pub listen_overflows_max: u64,
    /// CPU counters move in ticks of 10 ms and are sampled: this many ticks of foreign or stolen
    /// time never trip a guard, however short the run. The default is 3.
    pub slack_ticks: u64,
}

impl Default for Tolerances {
    fn default() -> Tolerances {
        Tolerances {
            foreign_share_max: 0.01,
            stolen_share_max: 0.01,
            frequency_change_max: 0.10,
            sent_again_share_max: 0.0001,
            listen_overflows_max: 0,
            slack_ticks: 3,
        }
    }
}

/// A disturbance beyond its tolerance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "guard", rename_all = "snake_case")]
pub enum Trip {
    /// Strangers ran on a side's CPUs.
    ForeignCpu {
        /// Whose CPUs.
        side: Side,
        /// The strangers' part of those CPUs' time.
        share: f64,
        /// The largest of them, with the CPU time they used anywhere, in milliseconds.
        names: Vec<(String, u64)>,
    },
    /// The hypervisor took time from a side's CPUs.
    Stolen {
        /// Whose CPUs.
        side: Side,
        /// The stolen part of those CPUs' time.
        share: f64,
    },
    /// The control group's CPU quota ran out.
    QuotaThrottled {
        /// How often.
        times: u64,
    },
    /// A CPU was slowed down because it was hot.
    HotThrottled {
        /// Which CPU.
        cpu: usize,
        /// How often.
        times: u64,
    },
    /// A CPU's frequency moved.
    Frequency {
        /// Which CPU.
        cpu: usize,
        /// Before, in kHz.
        before_khz: u64,
        /// After, in kHz.
        after_khz: u64,
    },
    /// Segments were sent again.
    SentAgain {
        /// How many.
        segments: u64,
        /// Out of how many sent.
        sent: u64,
    },
    /// Listeners turned connections away, as they do when their queue is full.
    ListenOverflow {
        /// How many.
        times: u64,
    },
}

impl fmt::Display for Trip {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trip::ForeignCpu { side, share, names } => {
                write!(formatter, "strangers used {:.1} % of the {side}'s CPUs", share * 100.0)?;
                let names = names.iter().map(|(name, ms)| format!("{name} {ms} ms"));
                let names: Vec<String> = names.collect();
                if names.is_empty() { Ok(()) } else { write!(formatter, " ({})", names.join(", ")) }
            }
            Trip::Stolen { side, share } => {
                write!(formatter, "the hypervisor took {:.1} % of the {side}'s CPUs", share * 100.0)
            }
            Trip::QuotaThrottled { times } => {
                write!(formatter, "the control group's CPU quota ran out {times} times")
            }
            Trip::HotThrottled { cpu, times } => {
                write!(formatter, "CPU {cpu} was slowed down {times} times because it was hot")
            }
            Trip::Frequency { cpu, before_khz, after_khz } => write!(
                formatter,
                "CPU {cpu} went from {} to {} MHz",
                before_khz / 1000,
                after_khz / 1000
            ),
            Trip::SentAgain { segments, sent } => {
                write!(formatter, "{segments} of {sent} TCP segments were sent again")
            }
            Trip::ListenOverflow { times } => {
                write!(formatter, "listeners turned {times} connections away")
            }
        }
    }
}

/// Whose CPU time is expected on each side.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The ids of the servers; their families are counted with them.
    pub servers: Vec<u32>,
    /// The ids of the clients, this program's own where it makes the load itself.
    pub clients: Vec<u32>,
}

/// What some CPUs did, in ticks of 10 ms. Several of these are added up before a share is taken: the
/// kernel samples, and the errors of short runs take each other away only as long as none is cut off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Everything together, idle time too.
    pub total: u64,
    /// All processes, with the kernel's own threads and without interrupts.
    pub processes: u64,
    /// The processes that are expected there. It may be more than all of them: where the kernel does
    /// not measure interrupts apart, a process is charged with those that met it.
    pub own: u64,
    /// Of other processes, those that still live and were last seen there.
    pub strangers: u64,
    /// What the hypervisor took.
    pub stolen: u64,
}

impl Use {
    fn between(
        before: &Snapshot,
        after: &Snapshot,
        cpus: &Cpus,
        own: &BTreeSet<u32>,
        known: &BTreeSet<u32>,
    ) -> Use {
        let used = after.cpu_ticks_since(before, cpus);
        let others = after.processes.values();
        let strangers = others
            .filter(|process| cpus.contains(&process.cpu) && !known.contains(&process.id))
            .map(|process| after.process_ticks_since(before, process.id));
        Use {
            total: used.total(),
            // Interrupts are left out: on loopback they are the run's own, and whether the kernel also
            // counts them as time of the process that they met depends on how it was built.
            processes: used.process,
            own: own.iter().map(|&id| after.process_ticks_since(before, id)).sum(),
            strangers: strangers.sum(),
            stolen: used.stolen,
        }
    }

    /// What processes used that are not expected there: what is left of all without the expected
    /// ones, which misses strangers behind interrupts, or what strangers say of themselves, which
    /// misses those that have ended.
    #[must_use]
    pub fn foreign(&self) -> u64 {
        // One that was last seen there may have run elsewhere before.
        let seen = self.strangers.min(self.processes);
        self.processes.saturating_sub(self.own).max(seen)
    }

    /// The same as a share of everything; nothing if no time has passed.
    #[must_use]
    pub fn foreign_share(&self) -> Option<f64> {
        self.share(self.foreign())
    }

    /// The share that the hypervisor took; nothing if no time has passed.
    #[must_use]
    pub fn stolen_share(&self) -> Option<f64> {
        self.share(self.stolen)
    }

    fn share(&self, part: u64) -> Option<f64> {
        (self.total > 0).then(|| part as f64 / self.total as f64)
    }
}

impl AddAssign for Use {
    fn add_assign(&mut self, more: Use) {
        self.total += more.total;
        self.processes += more.processes;
        self.own += more.own;
        self.strangers += more.strangers;
        self.stolen += more.stolen;
    }
}

/// Reads the counters at the boundaries of runs and says what disturbed the time between.
#[derive(Debug)]
pub struct Guard {
    root: Root,
    sets: CpuSets,
    tolerances: Tolerances,
    last: Snapshot,
    used: Use,
}

impl Guard {
    /// Begins to watch: the first run begins at once.
    #[must_use]
    pub fn new(root: Root, sets: CpuSets, tolerances: Tolerances) -> Guard {
        let last = Snapshot::read(&root);
        Guard { root, sets, tolerances, last, used: Use::default() }
    }

    /// Begins a run anew: what happened since the last boundary counts for nothing.
    pub fn begin(&mut self) {
        self.last = Snapshot::read(&self.root);
    }

    /// Ends a run and begins the next one. An empty list says that the run stands.
    pub fn boundary(&mut self, expected: &Expected) -> Vec<Trip> {
        let now = Snapshot::read(&self.root);
        let trips = compare(&self.last, &now, &self.sets, expected, &self.tolerances);
        let (servers, clients) = families(&self.last, &now, &self.sets, expected);
        let known = servers.union(&clients).copied().collect();
        self.used = Use::between(&self.last, &now, &self.sets.server, &servers, &known);
        self.last = now;
        trips
    }

    /// What the servers' CPUs did in the run that ended last.
    #[must_use]
    pub fn used(&self) -> Use {
        self.used
    }
}

/// The guards that tripped between two snapshots.
#[must_use]
pub fn compare(
    before: &Snapshot,
    after: &Snapshot,
    sets: &CpuSets,
    expected: &Expected,
    tolerances: &Tolerances,
) -> Vec<Trip> {
    let mut trips = Vec::new();
    let (servers, clients) = families(before, after, sets, expected);
    let known: BTreeSet<u32> = servers.union(&clients).copied().collect();
    for (side, cpus, members) in
        [(Side::Server, &sets.server, &servers), (Side::Client, &sets.client, &clients)]
    {
        let used = Use::between(before, after, cpus, members, &known);
        let share = used.foreign_share().unwrap_or(0.0);
        if used.foreign() > tolerances.slack_ticks && share > tolerances.foreign_share_max {
            let names = strangers(before, after, cpus, &known);
            trips.push(Trip::ForeignCpu { side, share, names });
        }
        let share = used.stolen_share().unwrap_or(0.0);
        if used.stolen > tolerances.slack_ticks && share > tolerances.stolen_share_max {
            trips.push(Trip::Stolen { side, share });
        }
    }
    trips.extend(throttling(before, after, sets, tolerances));
    trips.extend(network(before, after, tolerances));
    trips
}

/// The servers with all that they started, and the clients with theirs; with each the kernel's threads
/// that do what interrupts on their CPUs left over: on loopback that is the run's own traffic.
fn families(
    before: &Snapshot,
    after: &Snapshot,
    sets: &CpuSets,
    expected: &Expected,
) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let family = |heads: &[u32]| {
        let mut members = processes::families(&after.processes, heads);
        members.extend(processes::families(&before.processes, heads));
        members
    };
    let mut servers = family(&expected.servers);
    let mut clients = family(&expected.clients);
    // Servers are children of the client that starts them, but work on their own CPUs.
    clients.retain(|id| !servers.contains(id));
    servers.extend(interrupt_threads(after, &sets.server));
    clients.extend(interrupt_threads(after, &sets.client));
    (servers, clients)
}

/// Children of the kernel's own process are its threads.
const KERNEL: u32 = 2;

fn interrupt_threads(now: &Snapshot, cpus: &Cpus) -> impl Iterator<Item = u32> {
    let names: BTreeSet<_> = cpus.iter().map(|cpu| format!("ksoftirqd/{cpu}")).collect();
    let all = now.processes.values();
    all.filter(move |process| process.parent == KERNEL && names.contains(&process.name))
        .map(|process| process.id)
}

/// The three strangers that used most, among those last seen on `cpus`.
fn strangers(
    before: &Snapshot,
    after: &Snapshot,
    cpus: &Cpus,
    known: &BTreeSet<u32>,
) -> Vec<(String, u64)> {
    let mut found: Vec<(String, u64)> = after
        .processes
        .values()
        .filter(|process| cpus.contains(&process.cpu) && !known.contains(&process.id))
        .map(|process| {
            let ticks = after.process_ticks_since(before, process.id);
            (process.name.clone(), ticks * processes::TICK_NS / 1_000_000)
        })
        .filter(|&(_, ms)| ms > 0)
        .collect();
    found.sort_by_key(|&(_, ms)| std::cmp::Reverse(ms));
    found.truncate(3);
    found
}

fn throttling(
    before: &Snapshot,
    after: &Snapshot,
    sets: &CpuSets,
    tolerances: &Tolerances,
) -> Vec<Trip> {
    let mut trips = Vec::new();
    if let (Some(before), Some(after)) = (before.quota_stops, after.quota_stops)
        && after > before
    {
        trips.push(Trip::QuotaThrottled { times: after - before });
    }
    for &cpu in sets.server.union(&sets.client) {
        if let (Some(before), Some(after)) =
            (before.hot_events.get(&cpu), after.hot_events.get(&cpu))
            && after > before
        {
            trips.push(Trip::HotThrottled { cpu, times: after - before });
        }
        if let (Some(&before_khz), Some(&after_khz)) =
            (before.frequencies_khz.get(&cpu), after.frequencies_khz.get(&cpu))
        {
            let change = before_khz.abs_diff(after_khz) as f64 / before_khz.max(1) as f64;
            if change > tolerances.frequency_change_max {
                trips.push(Trip::Frequency { cpu, before_khz, after_khz });
            }
        }
    }
    trips
}

fn network(before: &Snapshot, after: &Snapshot, tolerances: &Tolerances) -> Vec<Trip> {
    let mut trips = Vec::new();
    let (Some(before), Some(after)) = (before.tcp, after.tcp) else { return trips };
    let segments = after.sent_again.saturating_sub(before.sent_again);
    let sent = after.sent.saturating_sub(before.sent);
    if segments as f64 > sent as f64 * tolerances.sent_again_share_max {
        trips.push(Trip::SentAgain { segments, sent });
    }
    let overflows = after.listen_overflows.saturating_sub(before.listen_overflows);
    let drops = after.listen_drops.saturating_sub(before.listen_drops);
    let times = overflows.max(drops);
    if times > tolerances.listen_overflows_max {
        trips.push(Trip::ListenOverflow { times });
    }
    trips
}

/// What a run was measured on, for a message.
impl fmt::Display for CpuSets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, client) = (cpu_list::format(&self.server), cpu_list::format(&self.client));
        write!(formatter, "server on CPUs {server}, client on CPUs {client}")
    }
}
