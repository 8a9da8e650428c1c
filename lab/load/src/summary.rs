//! One run in figures, in the same form whichever tool measured it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::generator::{Ceiling, Check, Outcome, Plan, checks};
use crate::latency::Percentile;

/// The version of the run file of a load run.
pub const SCHEMA: &str = "peregrine-load/1";

/// The figures that every load tool reports. What a tool does not say is none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The tool's name.
    pub tool: String,
    /// `closed loop`, or the open loop's schedule.
    pub schedule: String,
    /// Connections.
    pub connections: Option<u64>,
    /// Replies that the tool counts as good. Only the lab's own generator reads them.
    pub replies: u64,
    /// Good replies per second.
    pub rate: f64,
    /// For how long requests were started, in seconds.
    pub seconds: f64,
    /// The mean latency in nanoseconds.
    pub mean_ns: Option<f64>,
    /// Percentiles, by percent.
    pub percentiles: Vec<Percentile>,
    /// The longest latency in nanoseconds.
    pub max_ns: Option<u64>,
    /// Everything that was wrong, by the tool's own word for it.
    pub errors: BTreeMap<String, u64>,
}

/// A run of the lab's own generator, as written into run files.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// The version of this form.
    pub schema: &'static str,
    /// The figures that all tools have.
    pub summary: Summary,
    /// Whether the loop was a closed one: its latency is not what users would see at a rate.
    pub is_closed_loop: bool,
    /// Whether the run was ended early.
    pub is_partial: bool,
    /// Whether every answer was right and every voiding check held.
    pub is_valid: bool,
    /// Whether the client, not the server, may have been the limit; none if nobody looked.
    pub is_client_bound: Option<bool>,
    /// What must hold, and whether it did.
    pub checks: Vec<Check>,
    /// What the same client can do against the null server.
    pub ceiling: Option<Ceiling>,
    /// Requests sent.
    pub sent: u64,
    /// Requests that were answered wrongly or not at all.
    pub failed: u64,
    /// Requests that nobody waited for any longer.
    pub outstanding: u64,
    /// Open loop: requests that were never sent.
    pub dropped: u64,
    /// Open loop: requests sent more than a millisecond late.
    pub late: u64,
    /// Samples of the latency that are lower bounds: timeouts, and what was given up at the end.
    pub censored: u64,
    /// Open loop: how late the client itself noticed starts, by percent, in nanoseconds.
    pub lag: Vec<Percentile>,
    /// Open loop: the largest such lag in nanoseconds.
    pub lag_max_ns: u64,
    /// Bytes of a right reply on average, without TLS.
    pub bytes_per_reply: f64,
    /// Microseconds of client CPU time per right reply.
    pub client_us_per_reply: f64,
    /// The share of its threads' time that the client was on a CPU, from 0 to 1.
    pub client_load: f64,
    /// Connections that were made, the first ones included.
    pub connections_made: u64,
    /// From the beginning of a connection to its readiness, by percent, in nanoseconds.
    pub connecting: Vec<Percentile>,
    /// Connections that the server closed while nothing was asked on them.
    pub closed_idle: u64,
    /// Full TLS handshakes.
    pub handshakes_full: u64,
    /// Resumed TLS handshakes.
    pub handshakes_resumed: u64,
    /// The latency histogram in the V2 form, in hexadecimal digits.
    pub latency_v2: String,
    /// The histogram of the client's own lag, likewise; empty for a closed loop.
    pub lag_v2: String,
}

impl Record {
    /// Sums a run up.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome, ceiling: Option<Ceiling>) -> Record {
        let checks = checks(plan, outcome, ceiling.as_ref());
        let is_voided = checks.iter().any(|check| check.is_voiding && check.holds == Some(false));
        let is_closed_loop = plan.schedule.is_closed();
        Record {
            schema: SCHEMA,
            summary: Summary::new(plan, outcome),
            is_closed_loop,
            is_partial: outcome.is_partial,
            // A run that was stopped leaves requests unanswered by intention.
            is_valid: !is_voided && (outcome.is_valid() || outcome.is_partial),
            is_client_bound: ceiling.map(|ceiling| ceiling.is_client_bound(outcome.rate())),
            checks,
            ceiling,
            sent: outcome.sent,
            failed: outcome.failed,
            outstanding: outcome.outstanding,
            dropped: outcome.dropped,
            late: outcome.late,
            censored: outcome.latency.censored(),
            lag: outcome.lag.percentiles().to_vec(),
            lag_max_ns: nanoseconds(outcome.lag.max()),
            bytes_per_reply: outcome.bytes_per_reply(),
            client_us_per_reply: outcome.client_us_per_reply(),
            client_load: outcome.client_cpu.as_secs_f64()
                / (outcome.wall.as_secs_f64() * plan.threads as f64),
            connections_made: outcome.connecting.count(),
            connecting: outcome.connecting.percentiles().to_vec(),
            closed_idle: outcome.closed_idle,
            handshakes_full: outcome.handshakes_full,
            handshakes_resumed: outcome.handshakes_resumed,
            latency_v2: hexadecimal(&outcome.latency.to_v2()),
            lag_v2: if is_closed_loop { String::new() } else { hexadecimal(&outcome.lag.to_v2()) },
        }
    }
}

impl Summary {
    /// The figures of the lab's own generator.
    #[must_use]
    pub fn new(plan: &Plan, outcome: &Outcome) -> Summary {
        let mean_ns = outcome.latency.mean_ns();
        Summary {
            tool: "lab".to_owned(),
            schedule: plan.schedule.words(),
            connections: Some(plan.connections as u64),
            replies: outcome.replies,
            rate: outcome.rate(),
            seconds: outcome.asked.as_secs_f64(),
            mean_ns: mean_ns.is_finite().then_some(mean_ns),
            percentiles: outcome.latency.percentiles().to_vec(),
            max_ns: (outcome.latency.count() > 0).then(|| nanoseconds(outcome.latency.max())),
            errors: outcome
                .faults
                .seen()
                .map(|(fault, count)| (fault.words().to_owned(), count))
                .collect(),
        }
    }

    /// The percentile at this percent, if the tool says it.
    #[must_use]
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let point = self.percentiles.iter().find(|one| (one.percent - percent).abs() < 1e-9)?;
        point.nanoseconds
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// A time as a reader likes it: three significant digits and a unit.
#[must_use]
pub fn time_words(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "us"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let cases =
            [(0.0, "0.00 ns"), (999.0, "999 ns"), (1500.0, "1.50 us"), (45_600.0, "45.6 us")];
        for (nanoseconds, words) in cases {
            assert_eq!(time_words(nanoseconds), words);
        }
        assert_eq!(time_words(2.5e9), "2.50 s");
    }

    #[test]
    fn bytes_become_two_digits_each() {
        assert_eq!(hexadecimal(&[0, 0x1f, 0xff]), "001fff");
    }
}
