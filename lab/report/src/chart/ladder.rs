//! Latency against offered load: the knee is where a line leaves the floor. A hollow mark is a
//! rate that the contender did not keep up with.

use super::Size;
use super::lines::{self, Frame, Line};
use super::scale::{Scale, from_zero, log_range, log_ticks};
use crate::content::Series;
use crate::numbers;

pub(crate) struct Climb<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// Rising in rate.
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) rate_per_s: f64,
    pub(crate) p99_ms: f64,
    pub(crate) is_kept: bool,
}

pub(crate) fn draw(climbs: &[Climb<'_>], size: Size) -> String {
    let height = lines::height(size, climbs.len());
    let steps = || climbs.iter().flat_map(|climb| &climb.steps);
    let high = steps().map(|step| step.p99_ms).fold(0.0, f64::max);
    let low = steps().map(|step| step.p99_ms).filter(|it| *it > 0.0).fold(f64::INFINITY, f64::min);
    let (low, high) = if high > 0.0 { log_range(low, high) } else { (0.1, 1.0) };
    let up = Scale::log((low, high), lines::along(height));
    let largest = steps().map(|step| step.rate_per_s).fold(0.0, f64::max);
    let (end, step) = from_zero(largest, if size == Size::Wide { 8 } else { 4 });
    let across = Scale::linear((0.0, end), lines::across(size));
    let rates: Vec<f64> =
        (0..=(end / step).round() as usize).map(|tick| tick as f64 * step).collect();
    let place = |step: &Step| (across.at(step.rate_per_s), up.at(step.p99_ms));
    let drawn: Vec<Line<'_>> = climbs
        .iter()
        .map(|climb| Line {
            name: climb.name,
            series: climb.series,
            points: climb.steps.iter().map(place).collect(),
            marks: climb
                .steps
                .iter()
                .map(|step| (place(step).0, place(step).1, !step.is_kept))
                .collect(),
            note: String::new(),
        })
        .collect();
    let frame = Frame {
        size,
        height,
        x_ticks: lines::ticks(&across, &rates, numbers::rate),
        y_ticks: lines::ticks(&up, &log_ticks(low, high, 10), numbers::latency),
        x_title: "offered requests per second",
        y_title: "p99 latency",
        words: "Latency against offered load",
    };
    lines::draw(&frame, &drawn)
}
