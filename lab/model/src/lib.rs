//! The run file: one JSON document per run, holding everything that a report needs.
//!
//! One [`RunFile`] is one scenario under one load, with all its contenders. A report takes many.
//! The one who measures fills it in, statistics included; the one who reports only reads it. It
//! is not a data base, and nothing here measures, computes a verdict, or draws.
//!
//! Forms and time: fields that this version does not know are ignored, optional fields may be
//! missing, and unknown words in lists of words read as `other`. A change that breaks readers
//! raises [`SCHEMA`], and [`RunFile::read`] names both versions when it refuses a file.
//!
//! What is kept for good is packed ([`pack`]): many runs in one compressed file, with one thinned
//! histogram per contender in the place of one per block.
//!
//! Where to start: [`RunFile`], then [`Block`] and [`Verdict`].

#![forbid(unsafe_code)]

pub mod block;
pub mod check;
pub mod claim;
pub mod contender;
pub mod histogram;
pub mod machine;
pub mod micro;
pub mod pack;
pub mod plan;
pub mod verdict;

mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use read::ReadError;

use crate::block::{Block, Excluded, MemoryReading};
use crate::check::Check;
use crate::claim::{Audit, ClaimResult};
use crate::contender::Contender;
use crate::histogram::Histogram;
use crate::machine::Machine;
use crate::micro::Operation;
use crate::plan::Plan;
use crate::verdict::{Again, Verdict};

/// The version of the run file's form that this library writes, and the newest it reads. In the
/// second form latencies may stand beside the blocks.
pub const SCHEMA: u32 = 2;

/// One scenario under one load, with all its contenders.
///
/// The only required field beside `schema` is `run`; everything else has an empty default, so
/// that a partial result of an interrupted run is a readable file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunFile {
    /// The version of the form: [`SCHEMA`].
    pub schema: u32,
    /// A name for this run, unique within a report.
    pub run: String,
    /// When it began, in seconds since 1970.
    #[serde(default)]
    pub started_unix_s: u64,
    /// How long it took, in seconds.
    #[serde(default)]
    pub took_s: f64,
    /// Whether it was stopped before its plan was done.
    #[serde(default)]
    pub is_partial: bool,
    /// The lab itself.
    #[serde(default)]
    pub tool: Tool,
    /// The machine and its state.
    #[serde(default)]
    pub machine: Machine,
    /// What was to be measured, and how.
    #[serde(default)]
    pub plan: Plan,
    /// The contenders, those that were skipped included.
    #[serde(default)]
    pub contenders: Vec<Contender>,
    /// What was measured, in the order of time. Excluded blocks are not in here.
    #[serde(default)]
    pub blocks: Vec<Block>,
    /// The latencies of each contender over all of its blocks, in a packed file; the blocks of
    /// others have their own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latencies: BTreeMap<String, Histogram>,
    /// The blocks that do not count, each with its reason.
    #[serde(default)]
    pub excluded: Vec<Excluded>,
    /// The memory of servers with many connections open.
    #[serde(default)]
    pub memory: Vec<MemoryReading>,
    /// What the client reached against a server that does nothing.
    #[serde(default)]
    pub calibration: Option<Calibration>,
    /// The same contender twice; nothing smaller than the difference between the two is ranked.
    #[serde(default)]
    pub again: Option<Again>,
    /// What may be said.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// What was checked about the run itself.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// Times of operations inside a process, for a scenario that asks no server.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// What a paper check found in published numbers.
    #[serde(default)]
    pub audits: Vec<Audit>,
    /// Which published claims hold here.
    #[serde(default)]
    pub claims: Vec<ClaimResult>,
    /// What a reader will want to know beside the claims and that tests none of them, in
    /// sentences: such as the same ratio with another program in the place of one that cannot be
    /// had.
    #[serde(default)]
    pub beside: Vec<String>,
}

/// The lab itself, as it ran.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tool {
    /// The lab's version.
    pub version: String,
    /// The commit it was built from, in hexadecimal digits; empty if unknown.
    pub commit: String,
    /// Whether the sources differed from that commit.
    pub is_modified: bool,
    /// The lab's own command line.
    pub command: Vec<String>,
}

/// The client's limit: what it reached against a server that answers fixed bytes. A client without
/// a single reply has no cost per request: that is not a number, and `null` in the file.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Calibration {
    /// Right replies per second.
    #[serde(deserialize_with = "verdict::number_or_null")]
    pub requests_per_s: f64,
    /// Client CPU time per request, in nanoseconds.
    #[serde(deserialize_with = "verdict::number_or_null")]
    pub client_cpu_ns_per_request: f64,
}

impl RunFile {
    /// An empty run of this name, in the current form.
    #[must_use]
    pub fn new(run: impl Into<String>) -> RunFile {
        RunFile { schema: SCHEMA, run: run.into(), ..RunFile::default() }
    }

    /// The contender of this name, if the run has it.
    #[must_use]
    pub fn contender(&self, name: &str) -> Option<&Contender> {
        self.contenders.iter().find(|contender| contender.name == name)
    }

    /// The blocks of one contender, in the order of time.
    pub fn blocks_of(&self, name: &str) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.contender == name)
    }

    /// The latencies of one contender over all of its blocks.
    #[must_use]
    pub fn latency_of(&self, name: &str) -> Histogram {
        let mut all = self.latencies.get(name).cloned().unwrap_or_default();
        self.blocks_of(name).filter_map(|block| block.latency.as_ref()).for_each(|one| {
            all.merge(one);
        });
        all
    }
}
