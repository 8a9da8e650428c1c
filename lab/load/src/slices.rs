//! Paired time slices: all servers run at once, and one client gives each a short slice in turn.
//!
//! The cost of a request drifts by a quarter within minutes on a shared machine. Neighbouring
//! slices share that drift, so ratios within a block (each contender once) resolve about one per
//! cent where separate runs resolve ten. Every switch leaves caches cold, which makes all servers
//! a little dearer than alone; it is the same for all, and figures compare within one run only.

use std::io;
use std::time::Duration;

use peregrine_lab_stats::orders;
use serde::Serialize;

use crate::client::fault::Faults;
use crate::client::{Client, Group, Stop};
use crate::process::{CpuReading, CpuTime, Process, Ticks};

/// How long a server may finish what it does after its last reply, before its counters are read.
const SETTLE_TIME: Duration = Duration::from_micros(300);

/// The design of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Plan {
    /// How many slices each contender gets; 50 to 120 are usual.
    pub slices: usize,
    /// How long a slice asks, in milliseconds; 25 to 60 are usual.
    pub slice_ms: u64,
    /// How many unmeasured slices each contender gets first.
    pub warmup_slices: usize,
    /// Decides the order and every resampling.
    pub seed: u64,
}

/// A server under measurement.
#[derive(Debug)]
pub struct Runner {
    /// Its process.
    pub process: Process,
    /// The client's connections to it.
    pub group: Group,
}

/// What happened in one slice.
#[derive(Debug, Clone, Serialize)]
pub struct Slice {
    /// Which block it belongs to, from 0.
    pub block: usize,
    /// Which contender was asked, by its place in the run file.
    pub contender: usize,
    /// Right replies.
    pub requests: u64,
    /// From the first request to the last reply, in nanoseconds.
    pub wall_ns: u64,
    /// The CPU time of the contender that was asked, in nanoseconds.
    pub server_cpu_ns: u64,
    /// How long the contender that was asked waited for a CPU while something else ran there, in
    /// nanoseconds.
    pub server_wait_ns: u64,
    /// The CPU time of the client, in nanoseconds.
    pub client_cpu_ns: u64,
    /// The CPU time of each contender, in nanoseconds: all but one are idle and should use none.
    pub all_cpu_ns: Vec<u64>,
    /// Everything that was wrong, by kind.
    pub faults: Faults,
}

impl Slice {
    /// Microseconds of server CPU time per right reply. Not a number if there was none, or if the
    /// counters stood still.
    #[must_use]
    pub fn server_us_per_request(&self) -> f64 {
        if self.requests == 0 || self.server_cpu_ns == 0 {
            return f64::NAN;
        }
        self.server_cpu_ns as f64 / 1e3 / self.requests as f64
    }
}

/// What a run measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// Every slice, in the order of time.
    pub slices: Vec<Slice>,
    /// User and system time of each contender over all measured slices.
    pub ticks: Vec<Ticks>,
}

/// Measures all runners by the plan, in the order of [`orders::balanced`]. The calling thread is the client's.
///
/// # Errors
///
/// The kernel's, if the client cannot go on, or an error that names a server that has ended.
pub fn measure(client: &mut Client, runners: &mut [Runner], plan: &Plan) -> io::Result<Measured> {
    let stop = Stop::After(Duration::from_millis(plan.slice_ms));
    for _ in 0..plan.warmup_slices {
        for runner in runners.iter() {
            client.run(runner.group, stop)?;
        }
    }
    for runner in runners.iter_mut() {
        runner.process.refresh();
    }
    let mut measured = Measured::default();
    let ticks_before: Vec<Ticks> = runners.iter().map(|runner| runner.process.ticks()).collect();
    let mut before = read_all(runners);
    let order = orders::balanced(runners.len(), plan.slices, plan.seed);
    for (block, row) in order.into_iter().enumerate() {
        for contender in row {
            let tally = client.run(runners[contender].group, stop)?;
            std::thread::sleep(SETTLE_TIME);
            let after = read_all(runners);
            let times: Vec<CpuTime> =
                after.iter().zip(&before).map(|(now, then)| now.since(then)).collect();
            measured.slices.push(Slice {
                block,
                contender,
                requests: tally.replies,
                wall_ns: nanoseconds(tally.wall),
                server_cpu_ns: times[contender].used_ns,
                server_wait_ns: times[contender].waited_ns,
                client_cpu_ns: nanoseconds(tally.client_cpu),
                all_cpu_ns: times.iter().map(|time| time.used_ns).collect(),
                faults: tally.faults,
            });
            before = after;
        }
        if let Some(ended) = runners.iter_mut().position(|runner| runner.process.has_ended()) {
            return Err(io::Error::other(format!("server {ended} ended during the run")));
        }
    }
    measured.ticks = runners
        .iter()
        .zip(ticks_before)
        .map(|(runner, before)| {
            let now = runner.process.ticks();
            Ticks {
                user: now.user.saturating_sub(before.user),
                system: now.system.saturating_sub(before.system),
            }
        })
        .collect();
    Ok(measured)
}

fn read_all(runners: &[Runner]) -> Vec<CpuReading> {
    runners.iter().map(|runner| runner.process.cpu()).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a run is shorter than 500 years")
}
