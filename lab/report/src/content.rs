//! The figures of a report. Its JSON form is derived from these types, so fields end in units.

use peregrine_lab_model::Tool;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::claim::{Audit, ClaimResult};
use peregrine_lab_model::contender::Contender;
use peregrine_lab_model::machine::Machine;
use peregrine_lab_model::plan::Plan;
use peregrine_lab_model::verdict::{Decision, Measure, Ratio};
use serde::Serialize;

/// Everything that a report says, before it is written as HTML, Markdown or JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The version of the JSON form.
    pub(crate) schema: u32,
    pub(crate) title: String,
    pub(crate) started_unix_s: u64,
    pub(crate) standing: Standing,
    pub(crate) not_shown: Vec<String>,
    pub(crate) sections: Vec<Section>,
    pub(crate) memory: Vec<MemoryLine>,
    pub(crate) claims: Vec<ClaimResult>,
    pub(crate) audits: Vec<Audit>,
    /// Sentences beside the claims that test none of them.
    pub(crate) beside: Vec<String>,
    pub(crate) benchmarks: Vec<Benchmark>,
    pub(crate) checks: Vec<CheckRow>,
    pub(crate) excluded: Vec<ExcludedRow>,
    pub(crate) errors: Errors,
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) records: Vec<Record>,
}

/// Whether the result may be published, and why not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Standing {
    pub(crate) light: Light,
    pub(crate) reasons: Vec<Reason>,
}

/// The order is from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Light {
    Green,
    Amber,
    Red,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    pub(crate) light: Light,
    pub(crate) text: String,
}

/// One scenario with one number of connections.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Section {
    pub(crate) scenario: String,
    pub(crate) description: String,
    pub(crate) connections: u32,
    /// Streams on each of them, over HTTP/2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) streams: Option<u32>,
    pub(crate) is_tls: bool,
    pub(crate) runs: Vec<Run>,
}

/// One run file, summed up.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Run {
    pub(crate) run: String,
    pub(crate) load: String,
    /// The rate of an open loop.
    pub(crate) rate_per_s: Option<f64>,
    pub(crate) is_closed: bool,
    pub(crate) reference: String,
    /// The noise of the run as a share, by the A/A arm.
    pub(crate) band: Option<f64>,
    /// The second start of the A/A arm, with its cost over the first one's.
    pub(crate) again: Option<(String, Ratio)>,
    pub(crate) rows: Vec<Row>,
    pub(crate) verdicts: Vec<Judged>,
    /// The checks that are what the scenario was made to find out.
    pub(crate) findings: Vec<CheckRow>,
}

/// A benchmark inside a process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Benchmark {
    pub(crate) scenario: String,
    pub(crate) description: String,
    pub(crate) run: String,
    pub(crate) contenders: Vec<(String, Series)>,
    pub(crate) modes: Vec<Mode>,
}

/// One way of timing the operations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Mode {
    pub(crate) mode: String,
    /// Operations with the nanoseconds of each contender, in the order of the contenders.
    pub(crate) rows: Vec<(String, Vec<Option<f64>>)>,
}

/// A contender in a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    pub(crate) series: Series,
    pub(crate) class: &'static str,
    pub(crate) rank: Option<usize>,
    pub(crate) is_client_bound: bool,
    pub(crate) server_us: Option<Spread>,
    pub(crate) user_us: Option<f64>,
    pub(crate) requests_per_s: Option<f64>,
    pub(crate) goodput_mb_per_s: Option<f64>,
    pub(crate) client_us: Option<f64>,
    /// How many times its rate the client could have asked; by the null server.
    pub(crate) headroom: Option<f64>,
    pub(crate) switches_per_request: Option<f64>,
    /// The busiest thread's share of the server's CPU time.
    pub(crate) busiest_share: Option<f64>,
    pub(crate) wire_bytes_per_reply: Option<f64>,
    pub(crate) memory_peak_bytes: Option<u64>,
    pub(crate) late: u64,
    pub(crate) dropped: u64,
    pub(crate) errors: u64,
    pub(crate) latency: Option<Latency>,
    pub(crate) blocks: Vec<BlockPoint>,
}

/// The middle of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) quarter_low: f64,
    pub(crate) quarter_high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct BlockPoint {
    pub(crate) number: u32,
    pub(crate) started_s: f64,
    pub(crate) server_us: Option<f64>,
    pub(crate) requests_per_s: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Latency {
    pub(crate) samples: u64,
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    /// None if fewer than 1,000 samples lie beyond it.
    pub(crate) p99_9_ms: Option<f64>,
    pub(crate) beyond_p99_9: u64,
    pub(crate) max_ms: f64,
    /// Timeouts: they took at least as long as they are counted.
    pub(crate) censored: u64,
    /// Shares of samples with the latency in milliseconds that they do not exceed.
    pub(crate) curve: Vec<(f64, f64)>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Judged {
    pub(crate) contender: String,
    pub(crate) reference: String,
    pub(crate) series: Series,
    pub(crate) measure: Measure,
    pub(crate) ratio: Ratio,
    pub(crate) decision: Decision,
    pub(crate) blocks: u32,
    pub(crate) p_value: Option<f64>,
    pub(crate) sentence: String,
    /// Why it is void, or what else a reader must know.
    pub(crate) note: String,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct MemoryLine {
    pub(crate) contender: String,
    pub(crate) series: Series,
    /// Connections and bytes, rising.
    pub(crate) points: Vec<(u32, u64)>,
    /// From the first to the last point; none if there is only one.
    pub(crate) bytes_per_connection: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CheckRow {
    pub(crate) run: String,
    pub(crate) name: String,
    pub(crate) contender: Option<String>,
    pub(crate) outcome: Outcome,
    pub(crate) detail: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ExcludedRow {
    pub(crate) run: String,
    pub(crate) block: u32,
    pub(crate) contender: String,
    pub(crate) reason: String,
    pub(crate) is_repeated: bool,
}

/// Errors by kind, over all runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Errors {
    pub(crate) kinds: Vec<String>,
    /// Contender, right replies, and a count for each kind.
    pub(crate) rows: Vec<(String, u64, Vec<u64>)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Skipped {
    pub(crate) runs: Vec<String>,
    pub(crate) contender: String,
    pub(crate) reason: String,
}

/// What is needed to repeat a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Record {
    pub(crate) run: String,
    /// Whether it is about a published page, and nothing was measured in it.
    pub(crate) is_page: bool,
    pub(crate) started_unix_s: u64,
    pub(crate) took_s: f64,
    pub(crate) tool: Tool,
    pub(crate) machine: Machine,
    pub(crate) plan: Plan,
    pub(crate) contenders: Vec<Contender>,
}

/// How a contender is drawn, the same in every picture: by its place in the alphabet, so that
/// nobody is favoured. Neutral is the second start of the A/A arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Series {
    Number(usize),
    Neutral,
}
