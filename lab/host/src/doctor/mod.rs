//! Is this machine fit, and what may be said from runs on it?
//!
//! Each check reads files and judges them; nothing on the host is changed. A finding names what it
//! spoils, and the badge follows from that alone: *red* when not even ratios between contenders
//! measured side by side can be trusted, *amber* when some measure cannot be published, *green*
//! when all can.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::root::Root;
use crate::snapshot::Snapshot;
use crate::topology::Topology;

mod disturbance;
mod network;
mod processor;
mod system;
mod text;

/// How long disturbances are watched for.
const SAMPLE_TIME: Duration = Duration::from_millis(200);

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing when reading a result, or unknown.
    Note,
    /// Some measure cannot be published.
    Warning,
    /// No measure means anything until it is mended.
    Unfit,
}

/// What a run can say, and a machine can spoil.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Ratios between contenders measured side by side, and a contender against itself.
    Ratios,
    /// CPU time per request as a figure.
    CpuPerRequest,
    /// Requests per second as a figure.
    Throughput,
    /// Latency as a figure.
    Latency,
    /// Scenarios with thousands of connections, or with new ones all the time.
    ManyConnections,
    /// Contenders that need `io_uring`.
    IoUring,
}

impl Measure {
    /// All measures, the most robust first.
    pub const ALL: [Measure; 6] = [
        Measure::Ratios,
        Measure::CpuPerRequest,
        Measure::Throughput,
        Measure::Latency,
        Measure::ManyConnections,
        Measure::IoUring,
    ];
}

impl fmt::Display for Measure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Measure::Ratios => "side-by-side ratios and A/A",
            Measure::CpuPerRequest => "CPU per request",
            Measure::Throughput => "publishable throughput",
            Measure::Latency => "publishable latency",
            Measure::ManyConnections => "many or short connections",
            Measure::IoUring => "io_uring contenders",
        })
    }
}

/// What may be published from runs on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Badge {
    /// Every measure.
    Green,
    /// Some measures; the summary says which.
    Amber,
    /// None but whether answers are right.
    Red,
}

impl fmt::Display for Badge {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Badge::Green => "green",
            Badge::Amber => "amber",
            Badge::Red => "red",
        })
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check.
    pub check: String,
    /// How good it is.
    pub level: Level,
    /// What was read.
    pub read: String,
    /// Why it matters.
    pub why: String,
    /// How to mend it, if there is something to mend and a way to.
    pub mend: Option<String>,
    /// Which measures it spoils.
    pub spoils: Vec<Measure>,
}

/// Everything that was found, and what follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// What may be published.
    pub badge: Badge,
    /// The same in one sentence.
    pub summary: String,
    /// A sentence for each finding that spoils something.
    pub reasons: Vec<String>,
    /// All findings, in the order of the checks.
    pub findings: Vec<Finding>,
}

/// What checks look at.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Where files are read.
    pub root: &'a Root,
    /// The CPUs.
    pub topology: Topology,
    /// The counters at the start of the sample.
    pub before: &'a Snapshot,
    /// The counters at its end.
    pub after: &'a Snapshot,
    /// Folders in which programs are looked for.
    pub program_folders: Vec<String>,
    /// The ids of processes that are not strangers; their families count with them.
    pub own: Vec<u32>,
}

impl Facts<'_> {
    /// Facts of a machine whose counters were read twice.
    #[must_use]
    pub fn new<'a>(root: &'a Root, before: &'a Snapshot, after: &'a Snapshot) -> Facts<'a> {
        let path = std::env::var("PATH").unwrap_or_default();
        Facts {
            root,
            topology: Topology::read(root),
            before,
            after,
            program_folders: path.split(':').map(str::to_owned).collect(),
            own: vec![std::process::id()],
        }
    }

    /// Whether the processor says that a hypervisor stands between it and us.
    fn is_virtual(&self) -> bool {
        let cpuinfo = self.root.text("/proc/cpuinfo").unwrap_or_default();
        let mut flags = cpuinfo.lines().filter(|line| line.starts_with("flags"));
        let is_flagged = flags
            .next()
            .is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
        is_flagged || self.root.exists("/sys/hypervisor/type")
    }
}

/// Examines this machine. It takes about 200 ms, in which disturbances are watched.
#[must_use]
pub fn examine() -> Diagnosis {
    let root = Root::this_machine();
    let (before, after) = Snapshot::pair(&root, SAMPLE_TIME);
    diagnose(&Facts::new(&root, &before, &after))
}

/// Runs every check on `facts`.
#[must_use]
pub fn diagnose(facts: &Facts<'_>) -> Diagnosis {
    let tables = [processor::CHECKS, disturbance::CHECKS, network::CHECKS, system::CHECKS];
    let findings: Vec<Finding> =
        tables.into_iter().flatten().map(|check| check.run(facts)).collect();
    let is_unfit = findings.iter().any(|finding| finding.level == Level::Unfit);
    let is_spoilt = |measure: &Measure| {
        is_unfit || findings.iter().any(|finding| finding.spoils.contains(measure))
    };
    let (spoilt, good): (Vec<Measure>, Vec<Measure>) =
        Measure::ALL.into_iter().partition(is_spoilt);
    let badge = match () {
        () if spoilt.contains(&Measure::Ratios) => Badge::Red,
        () if spoilt.is_empty() => Badge::Green,
        () => Badge::Amber,
    };
    let reasons = findings
        .iter()
        .filter(|finding| finding.level >= Level::Warning)
        .map(|finding| format!("{}: {}. {}", finding.check, finding.read, finding.why))
        .collect();
    Diagnosis { badge, summary: summary(facts, badge, &good, &spoilt), reasons, findings }
}

fn summary(facts: &Facts<'_>, badge: Badge, good: &[Measure], spoilt: &[Measure]) -> String {
    let count = facts.topology.allowed.len();
    let kind = if facts.is_virtual() { "virtual " } else { "" };
    let plural = if count == 1 { "" } else { "s" };
    let machine = format!("{count} {kind}CPU{plural}");
    let list = |measures: &[Measure]| {
        measures.iter().map(Measure::to_string).collect::<Vec<_>>().join(", ")
    };
    match badge {
        Badge::Green => format!("{machine}: good for every measure"),
        Badge::Amber => {
            format!("{machine}: good for correctness, {}; not for {}", list(good), list(spoilt))
        }
        Badge::Red => format!("{machine}: good for correctness only; publish no figure from it"),
    }
}

/// A check: what it is called, why it matters, how to mend what it finds, and how it looks.
struct Check {
    name: &'static str,
    why: &'static str,
    /// Empty where nothing can be done.
    mend: &'static str,
    look: fn(&Facts<'_>) -> Found,
}

/// What a check saw.
struct Found {
    level: Level,
    read: String,
    spoils: &'static [Measure],
}

impl Check {
    fn run(&self, facts: &Facts<'_>) -> Finding {
        let found = (self.look)(facts);
        let has_mend = found.level > Level::Ok && found.read != UNKNOWN && !self.mend.is_empty();
        Finding {
            check: self.name.to_owned(),
            level: found.level,
            read: found.read,
            why: self.why.to_owned(),
            mend: has_mend.then(|| self.mend.to_owned()),
            spoils: found.spoils.to_vec(),
        }
    }
}

/// What is read where the kernel tells nothing.
const UNKNOWN: &str = "unknown";

impl Found {
    fn ok(read: impl Into<String>) -> Found {
        Found { level: Level::Ok, read: read.into(), spoils: &[] }
    }

    fn note(read: impl Into<String>) -> Found {
        Found { level: Level::Note, ..Found::ok(read) }
    }

    fn warning(read: impl Into<String>, spoils: &'static [Measure]) -> Found {
        Found { level: Level::Warning, read: read.into(), spoils }
    }

    fn unfit(read: impl Into<String>) -> Found {
        Found { level: Level::Unfit, ..Found::ok(read) }
    }

    fn unknown() -> Found {
        Found::note(UNKNOWN)
    }

    /// A note instead of "ok" if a condition does not hold.
    fn ok_if(holds: bool, read: impl Into<String>) -> Found {
        if holds { Found::ok(read) } else { Found::note(read) }
    }
}
