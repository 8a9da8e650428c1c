//! What was measured: one contender in one block, and memory readings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;

/// One contender in one block. A block is the unit of analysis: every contender once, close
/// together in time.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Block {
    /// The block's number, from 0.
    pub number: u32,
    /// The contender's name.
    pub contender: String,
    /// When the block began, in nanoseconds since the run began.
    pub started_ns: u64,
    /// From the first request to the last reply, in nanoseconds.
    pub wall_ns: u64,
    /// Right replies.
    pub requests: u64,
    /// Requests that were sent, whatever came back.
    pub sent: u64,
    /// Requests of an open loop that were sent later than intended by more than the lab allows.
    pub late: u64,
    /// Requests of an open loop that were never sent because no connection was free.
    pub dropped: u64,
    /// The server's CPU time, in nanoseconds.
    pub server_cpu_ns: u64,
    /// The part of it in the program itself; the rest is the kernel's. None if it is not known.
    /// It may be apportioned from coarser counters over several blocks.
    pub server_user_ns: Option<u64>,
    /// The part of it that one thread used, the one that used most; none if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_busiest_ns: Option<u64>,
    /// How long the server waited for a CPU while something else ran there, in nanoseconds.
    pub server_wait_ns: u64,
    /// The client's CPU time, in nanoseconds.
    pub client_cpu_ns: u64,
    /// Bytes of right bodies.
    pub body_bytes: u64,
    /// Bytes received, heads included.
    pub wire_bytes: u64,
    /// How often the server gave up its CPU, and was taken off it; none if not read.
    pub context_switches: Option<u64>,
    /// The server's peak memory so far, in bytes; none if not read.
    pub memory_peak_bytes: Option<u64>,
    /// Latency: from the intended start in an open loop, from sending in a closed one.
    pub latency: Option<Histogram>,
    /// What is left of the latency in a packed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantiles: Option<Quantiles>,
    /// Everything that was wrong, by kind. Kinds that were looked for and not seen stand here
    /// with 0.
    pub errors: BTreeMap<String, u64>,
    /// What was noticed during the block and did not void it.
    pub guards: Vec<String>,
}

impl Block {
    /// Nanoseconds of server CPU time per right reply; none if there was no reply or no counter.
    #[must_use]
    pub fn server_ns_per_request(&self) -> Option<f64> {
        per(self.server_cpu_ns, self.requests)
    }

    /// Nanoseconds of client CPU time per right reply; none if there was no reply or no counter.
    #[must_use]
    pub fn client_ns_per_request(&self) -> Option<f64> {
        per(self.client_cpu_ns, self.requests)
    }

    /// Right replies per second; none if no time passed.
    #[must_use]
    pub fn requests_per_s(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.requests as f64 * 1e9 / self.wall_ns as f64)
    }

    /// How many errors of all kinds there were.
    #[must_use]
    pub fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }
}

fn per(sum: u64, count: u64) -> Option<f64> {
    (sum > 0 && count > 0).then(|| sum as f64 / count as f64)
}

/// The latency of one contender in one block, where the histogram is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantiles {
    /// How many samples there are.
    pub samples: u64,
    /// What half of them do not exceed, in nanoseconds.
    pub p50_ns: u64,
    /// What 99 % of them do not exceed, in nanoseconds.
    pub p99_ns: u64,
    /// What 99.9 % of them do not exceed, in nanoseconds.
    pub p99_9_ns: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}

impl Quantiles {
    /// Those of a histogram; none if it has no samples.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Option<Quantiles> {
        Some(Quantiles {
            samples: histogram.count(),
            p50_ns: histogram.at(0.5)?,
            p99_ns: histogram.at(0.99)?,
            p99_9_ns: histogram.at(0.999)?,
            longest_ns: histogram.longest()?,
        })
    }
}

/// A block that does not count.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Excluded {
    /// The block's number.
    pub number: u32,
    /// The contender's name; empty if the whole block is excluded.
    pub contender: String,
    /// Why, in a sentence.
    pub reason: String,
    /// Whether it was measured again.
    pub is_repeated: bool,
}

/// The memory of one contender with a number of connections open and idle.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryReading {
    /// The contender's name.
    pub contender: String,
    /// Connections that were open.
    pub connections: u32,
    /// The server's own memory with them, in bytes.
    pub bytes: u64,
}
