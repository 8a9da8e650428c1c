//! Little's law: requests in flight = rate x mean latency.

use crate::claim::{Discipline, Document, Row};
use crate::figures::{RowFigures, interval_text, number_text};
use crate::finding::{Check, Finding, Severity};
use crate::quantity::{Interval, digits_text, grouped_text, time_text};

/// Below this share of busy connections a row is questioned. A client that does nothing but send
/// and read keeps more than nine in ten of its connections waiting for the server; a few per cent
/// go to its own work between a reply and the next request.
pub const BUSY_SHARE_MIN: f64 = 0.85;

/// A run's first requests may be sent a moment before the tool starts its clock, and those on the
/// way at its end are counted by some tools and not by others. On a run of ten seconds this moves
/// the rate by a few milliseconds' worth, so an excess below half a per cent proves nothing.
pub const EDGE_SHARE: f64 = 0.005;

/// Finds mean latencies that a closed loop cannot have.
///
/// A closed loop has at most one request in flight per connection, so rate x mean cannot exceed
/// the number of connections, whatever the server does. A page that breaks the bound prints at
/// least one number that was not measured; wrk, for one, adds made-up samples to its histogram
/// when a reply was late. The bound is compared at the ends of the rounding intervals, and an
/// excess within [`EDGE_SHARE`] is only noted.
///
/// Where no mean is printed, the least mean that the percentiles allow takes its place.
#[must_use]
pub fn little_bound(document: &Document) -> Vec<Finding> {
    if document.tool.discipline != Discipline::Closed {
        return Vec::new();
    }
    document.rows.iter().filter_map(|row| bound_of(document, row)).collect()
}

fn bound_of(document: &Document, row: &Row) -> Option<Finding> {
    let figures = RowFigures::of(document, row);
    let connections = figures.connections?;
    let rate = row.rate.as_ref()?;
    let (mean, origin) = match &row.mean {
        Some(mean) => (mean.interval(), mean.text().to_owned()),
        None => {
            let least = least_mean(row)?;
            (Interval::exact(least), format!("at least {} by its percentiles", time_text(least)))
        }
    };
    let in_flight = mean.times(rate.interval());
    // A part in 10^9 is the arithmetic's own error, not the page's.
    if in_flight.low <= connections * (1.0 + 1e-9) {
        return None;
    }
    let is_edge = in_flight.low <= connections * (1.0 + EDGE_SHARE);
    let cycle = connections / rate.interval().low;
    let detail = format!(
        "{}/s x {origin} = {} in flight on {} connections: {} of what is possible. The mean cannot \
         exceed {} / {}/s = {}.",
        rate.text(),
        number_text(in_flight),
        grouped_text(connections),
        share_text(in_flight.over(Interval::exact(connections))),
        grouped_text(connections),
        rate.text(),
        time_text(cycle),
    );
    let (severity, summary) = if is_edge {
        (Severity::Note, "As many requests in flight as connections, by a hair more.")
    } else {
        (Severity::Impossible, "More requests in flight than connections.")
    };
    Some(Finding::new(severity, Check::LittleBound, vec![row.name()], summary, detail))
}

/// Finds rows where far fewer requests were in flight than there were connections.
///
/// In a closed loop without think time nearly every connection should wait for its reply at any
/// moment. If many do not, the client was busy with itself, connections were starved or being
/// reopened, or slow replies are not in the mean. The row's low latency is then no merit of the
/// server.
#[must_use]
pub fn busy_connections(document: &Document) -> Vec<Finding> {
    if document.tool.discipline != Discipline::Closed {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for row in &document.rows {
        let figures = RowFigures::of(document, row);
        let (Some(connections), Some(in_flight), Some(busy), Some(cycle)) =
            (figures.connections, figures.in_flight, figures.busy_share, figures.cycle_seconds)
        else {
            continue;
        };
        if busy.high >= BUSY_SHARE_MIN || connections <= 1.0 {
            continue;
        }
        let detail = format!(
            "{}/s x {} = {} of {} connections were waiting for a reply ({}). One cycle of a \
             connection took {}; what is not in the mean was spent in the client, in opening \
             connections, or in replies that were not counted.",
            figures.rate.as_deref().unwrap_or_default(),
            figures.mean.as_deref().unwrap_or_default(),
            number_text(in_flight),
            grouped_text(connections),
            share_text(busy),
            time_text(cycle.middle()),
        );
        let summary = "Many connections were not busy: the mean leaves out part of each cycle.";
        findings.push(Finding::new(
            Severity::Misleading,
            Check::BusyConnections,
            vec![row.name()],
            summary,
            detail,
        ));
    }
    findings
}

/// Finds pages on which every row had about one request in flight.
///
/// With one request in flight a benchmark measures the length of one round trip, most of which is
/// the kernel's and the client's; a server's capacity never comes into play, and all contenders
/// look alike. If every row of a page shows it, the client was the limit.
#[must_use]
pub fn one_in_flight(document: &Document) -> Vec<Finding> {
    let in_flight: Vec<(String, Interval, Option<f64>)> = document
        .rows
        .iter()
        .map(|row| RowFigures::of(document, row))
        .filter_map(|figures| Some((figures.row, figures.in_flight?, figures.connections)))
        .collect();
    let is_one = |interval: &Interval| interval.low > 0.9 && interval.high < 1.1;
    let is_declared = in_flight.iter().all(|(_, _, connections)| *connections == Some(1.0));
    if in_flight.len() < 2 || is_declared || !in_flight.iter().all(|(_, n, _)| is_one(n)) {
        return Vec::new();
    }
    let low = in_flight.iter().map(|(_, n, _)| n.low).fold(f64::INFINITY, f64::min);
    let high = in_flight.iter().map(|(_, n, _)| n.high).fold(0.0, f64::max);
    let detail = format!(
        "rate x mean lies between {} and {} in all {} rows: the client waited for each reply before \
         it sent the next request, so the rows compare one round trip, not the capacity of servers.",
        digits_text(low),
        digits_text(high),
        in_flight.len(),
    );
    let summary = "One request in flight in every row: the client was the limit.";
    let rows = in_flight.into_iter().map(|(row, _, _)| row).collect();
    vec![Finding::new(Severity::Misleading, Check::OneInFlight, rows, summary, detail)]
}

/// The least mean that a row's percentiles allow: each request took at least the percentile
/// below it.
pub(super) fn least_mean(row: &Row) -> Option<f64> {
    let known = row.percentiles();
    if known.is_empty() {
        return None;
    }
    let ends = known.iter().skip(1).map(|(_, share, _)| *share).chain([1.0]);
    Some(known.iter().zip(ends).map(|((_, share, p), end)| (end - share) * p.interval().low).sum())
}

fn share_text(share: Interval) -> String {
    // Two decimals hide an excess that is smaller than they are.
    let is_near_one = (share.middle() - 1.0).abs() < 0.005;
    interval_text(
        share,
        |value| if is_near_one { format!("{value:.4}") } else { format!("{value:.2}") },
    )
}
