//! What the load tool itself makes possible or hides.

use crate::claim::Document;
use crate::finding::{Check, Finding, Severity};
use crate::quantity::time_text;

/// Finds command lines that the tool refuses.
///
/// wrk gives each thread its own connections and exits with "number of connections must be >=
/// threads" otherwise. A page that prints such a pair did not run what it describes.
#[must_use]
pub fn threads_over_connections(document: &Document) -> Vec<Finding> {
    if document.tool.name != "wrk" {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for scenario in &document.scenarios {
        let (Some(threads), Some(connections)) = (scenario.threads, scenario.connections) else {
            continue;
        };
        if threads <= connections {
            continue;
        }
        let rows = document.rows_of(&scenario.id).map(|row| row.name()).collect();
        let detail = format!(
            "{threads} threads > {connections} connections: wrk ends with an error before it sends \
             anything, so these rows come from another command than the printed one."
        );
        let summary = "wrk refuses more threads than connections.";
        findings.push(Finding::new(
            Severity::Impossible,
            Check::ThreadsOverConnections,
            rows,
            summary,
            detail,
        ));
    }
    findings
}

/// Finds maxima that are the tool's timeout.
///
/// A reply that comes later than the timeout is counted as a timeout and left out of the
/// histogram. A maximum at the timeout thus says that the tail was cut there: the true maximum is
/// unknown, and so is the number of replies that never came unless timeouts are printed.
#[must_use]
pub fn maximum_at_timeout(document: &Document) -> Vec<Finding> {
    // Timers fire a little early or late; within a hundredth the maximum is the timeout.
    const NEAR: f64 = 0.99;
    let Some(timeout) = &document.tool.timeout else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for scenario in &document.scenarios {
        let cut: Vec<_> = document
            .rows_of(&scenario.id)
            .filter(|row| {
                let max = row.max.as_ref().map(|max| max.interval().high);
                max.is_some_and(|max| max >= NEAR * timeout.value())
            })
            .collect();
        if cut.is_empty() {
            continue;
        }
        let counted = cut.iter().filter(|row| row.timeouts.is_some()).count();
        let maxima: Vec<String> = cut
            .iter()
            .filter_map(|row| {
                Some(format!("{} {}", row.contender.get_ref(), row.max.as_ref()?.text()))
            })
            .collect();
        let detail = format!(
            "Maxima {} at a timeout of {}: later replies were dropped from the histogram, and {}. \
             No maximum or mean here is that of all requests.",
            maxima.join(", "),
            time_text(timeout.value()),
            if counted == cut.len() { "counted as timeouts" } else { "timeouts are not printed" },
        );
        let rows = cut.iter().map(|row| row.name()).collect();
        let summary = "The maximum is the tool's timeout: the tail was cut off.";
        findings.push(Finding::new(
            Severity::Misleading,
            Check::MaximumAtTimeout,
            rows,
            summary,
            detail,
        ));
    }
    findings
}

/// Finds runs in which the client may have taken the server's processor time.
///
/// A load generator costs as much processor time per request as a fast server. On the same
/// cores the two compete, and the ranking shows who yields better to the client.
#[must_use]
pub fn shared_cores(document: &Document) -> Vec<Finding> {
    let Some(words) = &document.design.same_machine else {
        return Vec::new();
    };
    if document.design.client_cores.is_some() {
        return Vec::new();
    }
    let threads = document.scenarios.iter().filter_map(|scenario| scenario.threads).max();
    let competition = match (threads, document.environment.hardware_threads) {
        (Some(client), Some(machine)) => format!(
            " {client} threads of the client and the server share {machine} hardware threads."
        ),
        (Some(client), None) => format!(
            " {client} threads of the client and the server share a machine whose size is not printed."
        ),
        (None, Some(machine)) => {
            format!(" Client and server share {machine} hardware threads.")
        }
        (None, None) => String::new(),
    };
    let detail = format!("\"{}\"; no cores are set apart for either.{competition}", words.text);
    let summary = "Client and server ran on the same machine without separate cores.";
    vec![Finding::new(Severity::Misleading, Check::SharedCores, Vec::new(), summary, detail)]
}
