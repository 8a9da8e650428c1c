//! Latency by percentile: each step to the right has ten times fewer samples beyond it.

use super::Size;
use super::lines::{self, Frame, Line};
use super::scale::{Scale, log_range, log_ticks};
use crate::content::Series;
use crate::numbers;

pub(crate) struct Curve<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// Shares of samples and milliseconds.
    pub(crate) points: &'a [(f64, f64)],
}

/// Shares with a tick of their own.
const SHARES: [(f64, &str); 6] = [
    (0.0, "0 %"),
    (0.5, "50 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
    (0.9999, "99.99 %"),
];

/// The least distance of two ticks in pixels.
const TICK_DISTANCE: f64 = 36.0;

pub(crate) fn draw(curves: &[Curve<'_>], size: Size) -> String {
    let height = lines::height(size, curves.len());
    let latencies =
        || curves.iter().flat_map(|curve| curve.points).map(|point| point.1).filter(|it| *it > 0.0);
    let (low, high) = (latencies().fold(f64::INFINITY, f64::min), latencies().fold(0.0, f64::max));
    let (low, high) = if high > 0.0 { log_range(low, high) } else { (0.1, 1.0) };
    let up = Scale::log((low, high), lines::along(height));
    let furthest = curves.iter().filter_map(|curve| curve.points.last()).map(|point| point.0);
    let end = rarity(furthest.fold(0.99, f64::max));
    let across = Scale::linear((0.0, end), lines::across(size));
    let shares = SHARES.iter().filter(|(share, _)| rarity(*share) <= end + 0.01);
    let place = |(share, latency): &(f64, f64)| (across.at(rarity(*share)), up.at(*latency));
    let drawn: Vec<Line<'_>> = curves
        .iter()
        .map(|curve| Line {
            name: curve.name,
            series: curve.series,
            points: curve.points.iter().map(place).collect(),
            marks: marks(curve.points).map(place).map(|(x, y)| (x, y, false)).collect(),
            note: String::new(),
        })
        .collect();
    let frame = Frame {
        size,
        height,
        x_ticks: spaced(shares.map(|(share, text)| (across.at(rarity(*share)), (*text).into()))),
        y_ticks: lines::ticks(&up, &log_ticks(low, high, 10), numbers::latency),
        x_title: "share of requests that were at least as fast",
        y_title: "latency",
        words: "Latency by percentile",
    };
    lines::draw(&frame, &drawn)
}

/// The points nearest to the shares with a tick, but for the first: marks tell lines of the same
/// colour apart.
fn marks(points: &[(f64, f64)]) -> impl Iterator<Item = &(f64, f64)> {
    let furthest = points.last().map_or(0.0, |point| point.0);
    SHARES[1..].iter().filter(move |(share, _)| *share <= furthest).filter_map(|(share, _)| {
        let distance = |point: &(f64, f64)| (rarity(point.0) - rarity(*share)).abs();
        points.iter().min_by(|one, other| distance(one).total_cmp(&distance(other)))
    })
}

/// The ticks that are not too near to the one after them: of two, the rarer share is the telling
/// one.
fn spaced(ticks: impl DoubleEndedIterator<Item = (f64, String)>) -> Vec<(f64, String)> {
    let mut kept: Vec<(f64, String)> = Vec::new();
    for tick in ticks.rev() {
        if kept.last().is_none_or(|last| last.0 - tick.0 >= TICK_DISTANCE) {
            kept.push(tick);
        }
    }
    kept.reverse();
    kept
}

/// How many powers of ten fewer samples lie beyond a share.
fn rarity(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}
