//! What was to be measured, and how.

use serde::{Deserialize, Serialize};

/// The plan of a run, as it was fixed before the first request.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The scenario's name.
    pub scenario: String,
    /// What the scenario asks, in a sentence.
    pub description: String,
    /// The hash of the scenario's file: SHA-256 in hexadecimal digits, or empty.
    pub scenario_sha256: String,
    /// Connections per server.
    pub connections: u32,
    /// Streams under way on a connection, over HTTP/2; none over HTTP/1.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streams: Option<u32>,
    /// Whether the bytes go through TLS.
    pub is_tls: bool,
    /// When requests are sent.
    pub schedule: Schedule,
    /// How contenders take turns.
    pub design: Design,
    /// The contender that the others are compared with; empty if nothing is compared.
    pub reference: String,
    /// Decides the order and every resampling.
    pub seed: u64,
    /// How many blocks each contender gets.
    pub blocks: u32,
    /// How long a block measures, in nanoseconds.
    pub block_ns: u64,
    /// How long each contender is warmed up, in nanoseconds.
    pub warmup_ns: u64,
    /// How long the whole run may take, in seconds; none if it was not bounded.
    pub budget_s: Option<f64>,
    /// The smallest difference that the plan was to tell, as a share (0.02 is 2 %).
    pub effect_min: Option<f64>,
    /// When a reply is too late, in nanoseconds. Later ones are censored samples.
    pub timeout_ns: Option<u64>,
    /// The client's name, such as "lab, io_uring" or "wrk 4.1.0".
    pub client: String,
}

impl Plan {
    /// How much is under way, as in "32 connections" or "32 connections x 100 streams".
    #[must_use]
    pub fn level(&self) -> String {
        let word = |count: u32, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let connections = word(self.connections, "connection");
        match self.streams {
            Some(streams) => format!("{connections} x {}", word(streams, "stream")),
            None => connections,
        }
    }
}

/// When requests are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Schedule {
    /// Each connection sends its next requests when it has the replies to the last ones. Latency
    /// under such a load says nothing about what users would wait.
    Closed {
        /// How many requests a connection sends together.
        depth: u32,
    },
    /// Equal distances.
    Constant {
        /// Requests per second, over all connections.
        rate_per_s: f64,
    },
    /// Exponentially distributed distances, as independent users give.
    Poisson {
        /// The mean of requests per second, over all connections.
        rate_per_s: f64,
    },
    /// A rate that rises or falls evenly.
    Ramp {
        /// Requests per second at the start.
        from_per_s: f64,
        /// Requests per second at the end.
        to_per_s: f64,
    },
    /// One rate after the other, each for the same time.
    Steps {
        /// Requests per second of each step.
        rates_per_s: Vec<f64>,
    },
    /// A schedule that this version does not know.
    #[serde(other)]
    Other,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule::Closed { depth: 1 }
    }
}

impl Schedule {
    /// The one rate of an open loop, in requests per second; none for a closed loop and for
    /// schedules with more than one rate.
    #[must_use]
    pub fn rate_per_s(&self) -> Option<f64> {
        match self {
            Schedule::Constant { rate_per_s } | Schedule::Poisson { rate_per_s } => {
                Some(*rate_per_s)
            }
            _ => None,
        }
    }
}

/// How contenders take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// All servers are up at once, and short slices of load rotate between them.
    #[default]
    Paired,
    /// Each block is a fresh process, alone on the machine; contenders are interleaved.
    Separate,
    /// A design that this version does not know.
    #[serde(other)]
    Other,
}
