//! The two methods of a trial: as the page describes it, and as it should have been.

use peregrine_lab_audit::claim::{Document, Measure, Scenario};
use serde::{Deserialize, Serialize};

/// Connections of the corrected trial where the page had one request in flight: with so few, a
/// client measures its own loop.
pub const CONNECTIONS_CORRECTED: u32 = 64;

/// How long a run lasts if the page does not say, in seconds.
pub const PUBLISHED_SECONDS: f64 = 10.0;

/// The share of the slowest contender's own rate at which latencies are compared.
pub const EQUAL_RATE_SHARE: f64 = 0.5;

/// The page's method, as near as it can be run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// What sends the requests.
    pub client: Client,
    /// Connections.
    pub connections: u32,
    /// Threads of the tool, never more than connections; none if the tool has no such setting.
    pub threads: Option<u32>,
    /// How long one run measures, in seconds.
    pub seconds: f64,
    /// The warm-up before it, in seconds; 0 if the page mentions none.
    pub warmup_s: f64,
    /// Runs per contender.
    pub repeats: u32,
    /// After how many seconds the tool gives up on a reply, if the page or the tool has a limit.
    pub timeout_s: Option<f64>,
    /// Whatever differs from the page, or is not printed there, in sentences.
    pub remarks: Vec<String>,
}

/// What sends the requests of the published method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// wrk itself.
    Wrk,
    /// h2load itself.
    H2load,
    /// oha itself.
    Oha,
    /// The lab's own client in a closed loop, because the page's tool cannot be had.
    ClosedLoop {
        /// The name of the page's tool.
        instead_of: String,
    },
}

/// The lab's method.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Corrected {
    /// Connections per contender, in paired slices of a closed loop.
    pub connections: u32,
    /// Whether latencies are to be compared as well, in an open loop at the same rate for all:
    /// this share of the slowest contender's rate (see [`crate::equal_rate`]). None if no number
    /// of the page is about latency.
    pub equal_rate_share: Option<f64>,
    /// Whatever differs from the page, in sentences.
    pub remarks: Vec<String>,
}

pub(crate) fn methods(page: &Document, scenario: &Scenario) -> (Published, Corrected) {
    let mut remarks = Vec::new();
    let mut corrected_remarks = Vec::new();
    let connections = published_connections(page, scenario, &mut remarks);
    let connections_corrected = if connections == 1 {
        corrected_remarks.push(format!(
            "With one request in flight a client measures its own loop: judged at \
             {CONNECTIONS_CORRECTED} connections."
        ));
        CONNECTIONS_CORRECTED
    } else {
        connections
    };
    let client = client(page, &mut remarks);
    let threads = threads(scenario, &client, connections, &mut remarks);
    let seconds = scenario.duration.as_ref().map(|printed| printed.value());
    if seconds.is_none() {
        remarks.push(format!("The page prints no duration: {PUBLISHED_SECONDS} s."));
    }
    let is_wrk = client == Client::Wrk;
    let published = Published {
        client,
        connections,
        threads,
        seconds: seconds.unwrap_or(PUBLISHED_SECONDS),
        warmup_s: page.design.warm_up.as_ref().map_or(0.0, |fact| leading_number(&fact.text)),
        repeats: page.design.repeats.unwrap_or(1).max(1),
        timeout_s: page.tool.timeout.as_ref().map(|t| t.value()).or(is_wrk.then_some(2.0)),
        remarks,
    };
    let corrected = Corrected {
        connections: connections_corrected,
        equal_rate_share: is_about_latency(page, scenario).then_some(EQUAL_RATE_SHARE),
        remarks: corrected_remarks,
    };
    (published, corrected)
}

/// The page's connections; where it prints none, as many requests as were in flight.
fn published_connections(page: &Document, scenario: &Scenario, remarks: &mut Vec<String>) -> u32 {
    if let Some(connections) = scenario.connections {
        return connections.max(1);
    }
    let in_flight = page
        .rows_of(&scenario.id)
        .filter_map(|row| Some(row.rate.as_ref()?.value() * row.mean.as_ref()?.value()))
        .fold(0.0, f64::max);
    if in_flight > 0.0 {
        remarks.push(format!(
            "The page prints no connections; rates times means give {in_flight:.2} requests in \
             flight."
        ));
    } else {
        remarks.push("The page prints no connections; one is used.".to_owned());
    }
    // Nobody publishes more than a few thousand; the cast saturates.
    (in_flight.round() as u32).max(1)
}

fn client(page: &Document, remarks: &mut Vec<String>) -> Client {
    match page.tool.name.as_str() {
        "wrk" => Client::Wrk,
        "h2load" => Client::H2load,
        "oha" => Client::Oha,
        name => {
            remarks.push(format!("In place of {name}: the lab's client, in a closed loop."));
            Client::ClosedLoop { instead_of: name.to_owned() }
        }
    }
}

fn threads(
    scenario: &Scenario,
    client: &Client,
    connections: u32,
    remarks: &mut Vec<String>,
) -> Option<u32> {
    if matches!(client, Client::ClosedLoop { .. } | Client::Oha) {
        return None;
    }
    let printed = scenario.threads.unwrap_or(1);
    if printed > connections {
        remarks.push(format!(
            "The page names {printed} threads on {connections} connections, which its tool \
             refuses: {connections} threads."
        ));
    }
    Some(printed.clamp(1, connections))
}

/// The number that a text such as `2s per driver` begins with, or 0.
fn leading_number(text: &str) -> f64 {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().unwrap_or(0.0)
}

/// Whether a claim is about latency, or the table has nothing else.
fn is_about_latency(page: &Document, scenario: &Scenario) -> bool {
    let is_claimed = page.claims.iter().any(|claim| {
        *claim.scenario.get_ref() == scenario.id
            && matches!(claim.measure, Measure::Mean | Measure::P99)
    });
    is_claimed || page.rows_of(&scenario.id).all(|row| row.rate.is_none())
}
