//! A load run in words, for a terminal.

use std::fmt::Write;
use std::time::Duration;

use super::load_options::LoadOptions;
use crate::latency::Percentile;
use crate::summary::{Record, Summary, time_words};

/// How wide the bar of the progress line is.
const BAR_CELLS: usize = 24;

/// A difference of rates above this is worth a remark.
const RATE_DIFFERENCE_MAX: f64 = 0.10;

/// One line that shows how far a run is.
pub(super) fn progress(passed: Duration, whole: Duration, rate: f64, faults: u64) -> String {
    let part = (passed.as_secs_f64() / whole.as_secs_f64()).min(1.0);
    let filled = (part * BAR_CELLS as f64) as usize;
    let bar = "#".repeat(filled) + &".".repeat(BAR_CELLS - filled);
    let left = whole.saturating_sub(passed).as_secs_f64();
    format!("[{bar}] {left:.0} s left, {rate:.0}/s, {faults} faults")
}

/// The whole result.
pub(super) fn describe(options: &LoadOptions, record: &Record) -> String {
    let (plan, summary) = (&options.plan, &record.summary);
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        writeln!(text, "{label:<14}{value}").expect("writing into a string does not fail");
    };
    line("target", format!("{} {}", options.wording.method, options.url));
    let mut manner = format!("{} over {} connections", summary.schedule, plan.connections);
    if plan.depth > 1 {
        manner += &format!(", {} pipelined", plan.depth);
    }
    if let Some(requests) = plan.requests_per_connection {
        manner += &format!(", {requests} requests each");
    }
    line("load", manner);
    let partial = if record.is_partial { " (PARTIAL: stopped early)" } else { "" };
    line("time", format!("{:.2} s{partial}", summary.seconds));
    line("rate", format!("{:.0} right replies/s", summary.rate));
    line("replies", format!("{} right of {} sent", summary.replies, record.sent));
    line("errors", errors(record));
    if !record.is_closed_loop {
        line("dropped", format!("{} never sent, {} sent late", record.dropped, record.late));
    }
    let from = if record.is_closed_loop {
        "closed loop, from sending: not what users would see at a given rate"
    } else {
        "from the intended start"
    };
    line("latency", from.to_owned());
    for point in &summary.percentiles {
        line(&format!("  p{}", point.percent), percentile(point));
    }
    line("  max", summary.max_ns.map_or("-".to_owned(), |max| time_words(max as f64)));
    line("  mean", summary.mean_ns.map_or("-".to_owned(), time_words));
    if record.censored > 0 {
        line("  censored", format!("{} are at least this long, not shorter", record.censored));
    }
    if !record.is_closed_loop {
        let lag = record.lag.iter().rev().find_map(|one| Some((one.percent, one.nanoseconds?)));
        let (percent, nanoseconds) = lag.unwrap_or_default();
        let (most, lag) = (record.lag_max_ns as f64, nanoseconds as f64);
        let text = format!("p{percent} {}, max {}", time_words(lag), time_words(most));
        line("client lag", text);
    }
    let share = record.client_load * 100.0;
    if summary.replies > 0 {
        line("bytes/reply", format!("{:.1}", record.bytes_per_reply));
        let cost = record.client_us_per_reply;
        line("client CPU", format!("{cost:.2} us per reply, {share:.0} % of its threads' time"));
    } else {
        line("client CPU", format!("{share:.0} % of its threads' time"));
    }
    if record.closed_idle > 0 {
        line("closed idle", format!("{} connections, by the server", record.closed_idle));
    }
    if plan.tls.is_some() {
        let (full, resumed) = (record.handshakes_full, record.handshakes_resumed);
        line("handshakes", format!("{full} full, {resumed} resumed"));
    }
    for check in &record.checks {
        let word = match check.holds {
            Some(true) => "ok",
            Some(false) if check.is_voiding => "FAILED",
            Some(false) => "no",
            None => "unknown",
        };
        line("check", format!("{word:<8}{}: {}", check.name, check.detail));
    }
    line("verdict", verdict(record));
    text
}

fn errors(record: &Record) -> String {
    let seen: Vec<String> =
        record.summary.errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let given_up = match record.outstanding {
        0 => String::new(),
        count => format!("; {count} unanswered at the end"),
    };
    if seen.is_empty() { format!("0{given_up}") } else { seen.join(", ") + &given_up }
}

fn percentile(point: &Percentile) -> String {
    match point.nanoseconds {
        Some(nanoseconds) => {
            format!("{:<10}{} samples beyond", time_words(nanoseconds as f64), point.beyond)
        }
        None => format!("{:<10}only {} samples beyond", "hidden", point.beyond),
    }
}

fn verdict(record: &Record) -> String {
    let mut verdicts = Vec::new();
    if record.summary.replies == 0 && record.summary.errors.is_empty() {
        verdicts.push("SILENT: nothing came in time, so nothing can be told; ask for longer");
    } else if !record.is_valid {
        verdicts.push("VOID: this run ranks nobody");
    }
    if record.is_client_bound == Some(true) {
        verdicts.push("CLIENT-BOUND: the client may have been the limit; judge by server CPU");
    }
    if record.is_partial {
        verdicts.push("PARTIAL: stopped before its time");
    }
    if verdicts.is_empty() { "valid".to_owned() } else { verdicts.join("; ") }
}

/// What other tools say, beside our own figures; nothing without others.
pub(super) fn compare(own: &Summary, others: &[Summary]) -> String {
    let mut text = String::new();
    for other in others {
        let time = |value: Option<u64>| value.map_or("-".into(), |ns| time_words(ns as f64));
        let difference = other.rate / own.rate - 1.0;
        let remark = if difference.abs() > RATE_DIFFERENCE_MAX { " DISAGREES" } else { "" };
        let errors: u64 = other.errors.values().sum();
        writeln!(
            text,
            "{:<14}{:.0}/s ({:+.1} %{remark}), p50 {}, p99 {}, max {}, {errors} errors, {}",
            other.tool,
            other.rate,
            difference * 100.0,
            time(other.percentile_ns(50.0)),
            time(other.percentile_ns(99.0)),
            time(other.max_ns),
            other.schedule,
        )
        .expect("writing into a string does not fail");
    }
    text
}
