//! The claim file: one published page, number by number, as data.
//!
//! Only what the page prints stands in it. What is absent is absent on the page, and the audit
//! says so. `lab/claims/README.md` explains the keys to those who write such files.

use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::quantity::{Count, Printed, Rate, Share, Size, Time};

/// A published page: its source, its set-up as printed, its numbers, and its sentences.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// The version of this format; 1.
    pub schema: u32,
    /// A short name, the same as the file's.
    pub id: String,
    /// Where the numbers were printed.
    pub source: Source,
    /// What sent the requests.
    pub tool: Tool,
    /// The hardware and software as printed.
    #[serde(default)]
    pub environment: Environment,
    /// How the runs were arranged, as printed.
    #[serde(default)]
    pub design: Design,
    /// What was compared.
    #[serde(default)]
    pub contenders: Vec<Contender>,
    /// What was asked of each contender, and with how many connections.
    #[serde(default)]
    pub scenarios: Vec<Scenario>,
    /// The numbers, one row per contender and scenario.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Tables of times per operation, measured in process.
    #[serde(default)]
    pub microbenchmarks: Vec<Microbenchmark>,
    /// Numbers that the page prints a second time, often with other digits.
    #[serde(default)]
    pub restated: Vec<Restated>,
    /// The page's sentences, as ratios that a run can confirm or refute.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// A short quotation or fact, with the line of the source text where it stands.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fact {
    /// The words as printed.
    pub text: String,
    /// The line, counted from 1.
    pub line: Option<u32>,
}

/// Where the numbers were printed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// The page's title and product.
    pub title: String,
    /// The file name of the stored text that `line` keys count in.
    pub text_file: Option<String>,
    /// SHA-256 of that text, as 64 hexadecimal digits.
    pub sha256: Option<String>,
    /// The contender that the page's publisher makes, if it makes one.
    pub home: Option<String>,
    /// Words with which the author takes the numbers back.
    pub withdrawn: Option<Fact>,
}

/// What sent the requests.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// The program's name; `wrk` has rules of its own.
    pub name: String,
    /// When a request is sent.
    pub discipline: Discipline,
    /// The version as printed.
    pub version: Option<Fact>,
    /// After which time an answer no longer counts.
    pub timeout: Option<Printed<Time>>,
    /// How the page treats errors.
    pub errors: ErrorsShown,
}

/// When a load tool sends the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// A connection sends its next request when the previous one was answered.
    Closed,
    /// Requests are sent by the clock, answered or not.
    Open,
}

/// Whether a reader can tell how many requests failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorsShown {
    /// Each row prints its errors, zero included.
    Always,
    /// The tool's own output is shown, which mentions errors only if there were any.
    WhenAny,
    /// The page has no column for errors.
    Never,
}

/// The hardware and software as printed. An absent key is a gap of the page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The processor's model.
    pub processor: Option<Fact>,
    /// Hardware threads of the machine.
    pub hardware_threads: Option<u32>,
    /// Main memory.
    pub memory: Option<Fact>,
    /// Operating system and, where printed, its release.
    pub system: Option<Fact>,
    /// The kernel's version.
    pub kernel: Option<Fact>,
    /// Compiler or runtime versions.
    pub toolchain: Option<Fact>,
    /// Anything else of the machine that the page states (virtual machine, overclocking).
    #[serde(default)]
    pub remarks: Vec<Fact>,
}

/// How the runs were arranged, as printed. An absent key is a gap of the page.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Design {
    /// Runs per row; 1 only if the page says so.
    pub repeats: Option<u32>,
    /// The warm-up before each measurement.
    pub warm_up: Option<Fact>,
    /// The spread between repeats.
    pub spread: Option<Fact>,
    /// The order in which contenders ran.
    pub order: Option<Fact>,
    /// Words from which it follows that client and server shared a machine.
    pub same_machine: Option<Fact>,
    /// The cores that were reserved for the client.
    pub client_cores: Option<Fact>,
    /// Build profile and flags.
    pub build: Option<Fact>,
    /// Words that show that the shown run or column was chosen after measuring.
    pub selected: Option<Fact>,
    /// Words that promise the same payload from every contender.
    pub same_payload: Option<Fact>,
    /// Words that say a contender did not run as it would in production.
    #[serde(default)]
    pub handicaps: Vec<Fact>,
    /// What the page says about how to read it, where that is to its credit or explains a number.
    #[serde(default)]
    pub remarks: Vec<Fact>,
}

/// One of the things that were compared.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contender {
    /// The name that rows use; that of its folder in `lab/contenders` where there is one.
    pub id: String,
    /// The name on the page.
    pub label: String,
    /// The version as printed.
    pub version: Option<Fact>,
    /// The version as known from elsewhere, where the page prints none. The audit does not count
    /// it as printed.
    pub version_elsewhere: Option<String>,
    /// Why nobody can run it, if the lab knows: not the page's words.
    pub unobtainable: Option<String>,
    /// What is run in its place where it cannot be had, beside the claims: not the page's words.
    pub stand_in: Option<StandIn>,
}

/// Another contender, for information where the page's own cannot be had.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandIn {
    /// The name of its folder in `lab/contenders`, or of a router in the router benchmark.
    pub id: String,
    /// Its name in sentences.
    pub label: String,
    /// Why this one, in a clause such as `what this driver runs on`.
    pub because: String,
}

/// What was asked, and with how many connections.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A short name that rows and claims use.
    pub id: String,
    /// The name of the lab's scenario that repeats it.
    pub name: String,
    /// The request in words.
    pub request: String,
    /// Connections held open by the client.
    pub connections: Option<u32>,
    /// Threads of the load tool.
    pub threads: Option<u32>,
    /// How long one measurement lasted.
    pub duration: Option<Printed<Time>>,
    /// The command line, if the page prints it or its parts.
    pub command: Option<Fact>,
    /// Why the lab cannot repeat it, if so: not the page's words.
    pub unrepeatable: Option<String>,
}

/// The numbers of one contender in one scenario, each as printed.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The scenario's id.
    pub scenario: Spanned<String>,
    /// The contender's id.
    pub contender: Spanned<String>,
    /// Requests per second.
    pub rate: Option<Printed<Rate>>,
    /// Mean latency.
    pub mean: Option<Printed<Time>>,
    /// Standard deviation of the latency.
    pub deviation: Option<Printed<Time>>,
    /// Lowest latency.
    pub min: Option<Printed<Time>>,
    /// Half of the latencies are at or below it.
    pub p50: Option<Printed<Time>>,
    /// 75 % of the latencies are at or below it.
    pub p75: Option<Printed<Time>>,
    /// 90 % of the latencies are at or below it.
    pub p90: Option<Printed<Time>>,
    /// 95 % of the latencies are at or below it.
    pub p95: Option<Printed<Time>>,
    /// 99 % of the latencies are at or below it.
    pub p99: Option<Printed<Time>>,
    /// Highest latency.
    pub max: Option<Printed<Time>>,
    /// Share of latencies within one standard deviation of the mean.
    pub within_deviation: Option<Printed<Share>>,
    /// Mean rate of one thread of the tool.
    pub thread_rate: Option<Printed<Rate>>,
    /// Standard deviation of one thread's rate.
    pub thread_rate_deviation: Option<Printed<Rate>>,
    /// Highest rate of one thread.
    pub thread_rate_max: Option<Printed<Rate>>,
    /// Share of a thread's rates within one standard deviation.
    pub thread_rate_within: Option<Printed<Share>>,
    /// Requests counted in the whole run.
    pub requests: Option<Printed<Count>>,
    /// Length of the run as measured.
    pub duration: Option<Printed<Time>>,
    /// Bytes read in the whole run.
    pub bytes_read: Option<Printed<Size>>,
    /// Bytes read per second.
    pub transfer: Option<Printed<Size>>,
    /// Failed requests of any kind.
    pub errors: Option<Printed<Count>>,
    /// Replies with an error status.
    pub non_2xx: Option<Printed<Count>>,
    /// Connections that could not be made.
    pub connect_errors: Option<Printed<Count>>,
    /// Failed reads.
    pub read_errors: Option<Printed<Count>>,
    /// Failed writes.
    pub write_errors: Option<Printed<Count>>,
    /// Requests that were not answered in time.
    pub timeouts: Option<Printed<Count>>,
}

impl Row {
    /// `scenario/contender`, as findings name the row.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.scenario.get_ref(), self.contender.get_ref())
    }

    /// The latency below which the given share of requests lies, lowest share first: minimum,
    /// percentiles, maximum, each if printed.
    #[must_use]
    pub fn percentiles(&self) -> Vec<(&'static str, f64, &Printed<Time>)> {
        [
            ("min", 0.0, &self.min),
            ("p50", 0.50, &self.p50),
            ("p75", 0.75, &self.p75),
            ("p90", 0.90, &self.p90),
            ("p95", 0.95, &self.p95),
            ("p99", 0.99, &self.p99),
            ("max", 1.0, &self.max),
        ]
        .into_iter()
        .filter_map(|(name, share, printed)| Some((name, share, printed.as_ref()?)))
        .collect()
    }
}

/// A table of times per operation: a row per operation, a column per contender.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Microbenchmark {
    /// A short name that claims use.
    pub scenario: String,
    /// The table's title.
    pub title: String,
    /// The contenders' ids, in the order of the values.
    pub columns: Vec<String>,
    /// The rows.
    pub operations: Vec<Operation>,
}

/// One row of such a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Operation {
    /// What was looked up or done.
    pub name: String,
    /// The case of the lab's router benchmark that is nearest to it, if one is.
    pub case: Option<String>,
    /// A time per column of the table.
    pub times: Spanned<Vec<Printed<Time>>>,
}

/// A number that the page prints again, or prints in a summary only.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Restated {
    /// The scenario's id.
    pub scenario: Spanned<String>,
    /// The contender's id.
    pub contender: Spanned<String>,
    /// Which number is meant.
    pub measure: Measure,
    /// The operation, if the number is a time per operation.
    pub operation: Option<String>,
    /// The number as printed here.
    pub text: String,
    /// The line where it stands.
    pub line: Option<u32>,
}

/// Which number of a row a claim or restatement is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Requests per second.
    Rate,
    /// Mean latency.
    Mean,
    /// Highest latency.
    Max,
    /// The 99th percentile of the latency.
    P99,
    /// Bytes per second.
    Transfer,
    /// Time per operation of a microbenchmark.
    TimePerOperation,
    /// Heap allocations per operation.
    Allocations,
}

impl Measure {
    /// Whether a smaller number is the better one.
    #[must_use]
    pub fn less_is_better(self) -> bool {
        !matches!(self, Self::Rate | Self::Transfer)
    }
}

/// A sentence of the page as something that can be computed and measured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// A short name, unique in the file.
    pub id: Spanned<String>,
    /// The words; absent if the claim is only implied by two rows of a table.
    pub quote: Option<String>,
    /// The line of the words.
    pub line: Option<u32>,
    /// The scenario's id.
    pub scenario: Spanned<String>,
    /// Connections, if the scenario has them; they repeat the scenario's number.
    pub connections: Option<u32>,
    /// Which number is compared.
    pub measure: Measure,
    /// The contender that the sentence is about.
    pub subject: Spanned<String>,
    /// The contender it is compared with; absent for a statement about one contender.
    pub object: Option<Spanned<String>>,
    /// The operations of a microbenchmark that it is about; all of them if absent.
    pub operations: Option<Vec<String>>,
    /// How the printed number is to be read.
    pub form: Form,
    /// The number as printed.
    pub printed: Option<Spanned<String>>,
    /// What a run would have to show: the subject's number divided by the object's.
    pub ratio: Option<f64>,
    /// The other end of the ratio, if the sentence gives a range; not below `ratio`.
    pub ratio_to: Option<f64>,
}

/// How the number of a claim is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// `45.7 %`: the subject's number is so much larger, `subject / object - 1`.
    PercentMore,
    /// `67.6 %`: the subject's number is so much smaller, `1 - subject / object`.
    PercentLess,
    /// `6×`: the subject is so many times better.
    Factor,
    /// `3-5×`: as before, from the least to the greatest of several operations.
    FactorRange,
    /// `9.1 ns`: the mean of the subject's times.
    Average,
    /// `7-12 ns`: the least and the greatest of the subject's times.
    Span,
    /// `20 ns`: all of the subject's times are below.
    Below,
    /// No number: the two are said to be the same for practical purposes.
    Equivalent,
    /// No number: the subject is said to do worse.
    Worse,
    /// No sentence: the ratio of two printed rows, for a later run to compare with.
    Implied,
}

impl Document {
    /// The row of a contender in a scenario.
    #[must_use]
    pub fn row(&self, scenario: &str, contender: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.scenario.get_ref() == scenario && row.contender.get_ref() == contender)
    }

    /// The scenario with this id.
    #[must_use]
    pub fn scenario(&self, id: &str) -> Option<&Scenario> {
        self.scenarios.iter().find(|scenario| scenario.id == id)
    }

    /// The connections of a row's scenario, if known.
    #[must_use]
    pub fn connections(&self, row: &Row) -> Option<f64> {
        self.scenario(row.scenario.get_ref())?.connections.map(f64::from)
    }

    /// The rows of a scenario, in the file's order.
    pub fn rows_of<'a>(&'a self, scenario: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.scenario.get_ref() == scenario)
    }

    /// The time of one operation of a microbenchmark.
    #[must_use]
    pub fn operation(
        &self,
        scenario: &str,
        column: &str,
        operation: &str,
    ) -> Option<&Printed<Time>> {
        let table = self.microbenchmarks.iter().find(|table| {
            table.scenario == scenario && table.operations.iter().any(|o| o.name == operation)
        })?;
        let index = table.columns.iter().position(|name| name == column)?;
        let row = table.operations.iter().find(|row| row.name == operation)?;
        row.times.get_ref().get(index)
    }
}
