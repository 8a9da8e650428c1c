//! What follows from the printed numbers of one row.

use serde::Serialize;

use crate::claim::{Discipline, Document, Row};
use crate::quantity::{Interval, digits_text};

/// Derived figures of a row; each is absent if the page does not print what it needs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RowFigures {
    /// `scenario/contender`.
    pub row: String,
    /// The contender's name on the page.
    pub label: String,
    /// Connections of the client.
    pub connections: Option<f64>,
    /// Requests per second, as printed.
    pub rate: Option<String>,
    /// Mean latency, as printed.
    pub mean: Option<String>,
    /// Requests in flight on average: rate times mean (Little's law).
    pub in_flight: Option<Interval>,
    /// Requests in flight per connection; above 1 is impossible in a closed loop.
    pub busy_share: Option<Interval>,
    /// Connections divided by rate, in seconds: how long one connection took from one request to
    /// its next, the client's own time included. In a closed loop no mean latency can exceed it.
    pub cycle_seconds: Option<Interval>,
    /// Bytes per reply: transfer rate divided by request rate.
    pub bytes_per_reply: Option<Interval>,
    /// Failed requests of all printed kinds, if the page prints any or its tool would have.
    pub errors: Option<f64>,
}

impl RowFigures {
    /// Derives the figures of a row.
    #[must_use]
    pub fn of(document: &Document, row: &Row) -> Self {
        let connections = document.connections(row);
        let rate = row.rate.as_ref().map(|printed| printed.interval());
        let in_flight = row.mean.as_ref().zip(rate).map(|(mean, rate)| mean.interval().times(rate));
        // Nothing is known per request of a row without requests.
        let divisor = rate.filter(|rate| rate.low > 0.0);
        let is_closed = document.tool.discipline == Discipline::Closed;
        let transfer = row.transfer.as_ref().map(|printed| printed.interval());
        let id = row.contender.get_ref();
        let label = document.contenders.iter().find(|contender| contender.id == *id);
        Self {
            row: row.name(),
            label: label.map_or_else(|| id.clone(), |contender| contender.label.clone()),
            connections,
            rate: row.rate.as_ref().map(|printed| printed.text().to_owned()),
            mean: row.mean.as_ref().map(|printed| printed.text().to_owned()),
            in_flight,
            busy_share: in_flight.zip(connections).map(|(n, c)| n.over(Interval::exact(c))),
            cycle_seconds: connections
                .zip(divisor)
                .filter(|_| is_closed)
                .map(|(connections, rate)| Interval::exact(connections).over(rate)),
            bytes_per_reply: transfer.zip(divisor).map(|(transfer, rate)| transfer.over(rate)),
            errors: errors_of(document, row),
        }
    }
}

/// The failed requests of a row, if a reader can know them.
fn errors_of(document: &Document, row: &Row) -> Option<f64> {
    use crate::claim::ErrorsShown;
    let kinds = [
        &row.errors,
        &row.non_2xx,
        &row.connect_errors,
        &row.read_errors,
        &row.write_errors,
        &row.timeouts,
    ];
    let printed: Vec<f64> = kinds.into_iter().flatten().map(|count| count.value()).collect();
    if printed.is_empty() && document.tool.errors != ErrorsShown::WhenAny {
        return None;
    }
    // The sum of no floating point numbers is minus zero, which would be printed so.
    Some(printed.iter().fold(0.0, |sum, count| sum + count))
}

/// An interval for a reader: one number if both ends read the same, else both.
#[must_use]
pub fn interval_text(interval: Interval, text: impl Fn(f64) -> String) -> String {
    let (low, high) = (text(interval.low), text(interval.high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// An interval of plain numbers for a reader.
#[must_use]
pub fn number_text(interval: Interval) -> String {
    interval_text(interval, digits_text)
}

/// A share for a reader, in per cent with one decimal.
#[must_use]
pub fn percent_text(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
