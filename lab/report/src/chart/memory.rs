//! Memory against open connections, both from zero: the slope is the price of a connection.

use super::Size;
use super::lines::{self, Frame, Line};
use super::scale::{Scale, from_zero};
use crate::content::MemoryLine;
use crate::numbers;

const MEBIBYTE: f64 = 1024.0 * 1024.0;

pub(crate) fn draw(memory: &[MemoryLine], size: Size) -> String {
    let height = lines::height(size, memory.len());
    let points = || memory.iter().flat_map(|line| &line.points);
    let most = points().map(|point| f64::from(point.0)).fold(0.0, f64::max);
    let largest = points().map(|point| point.1 as f64 / MEBIBYTE).fold(0.0, f64::max);
    let (end, step) = from_zero(most, if size == Size::Wide { 6 } else { 4 });
    let (top, rise) = from_zero(largest, 6);
    let across = Scale::linear((0.0, end), lines::across(size));
    let up = Scale::linear((0.0, top), lines::along(height));
    let values = |end: f64, step: f64| -> Vec<f64> {
        (0..=(end / step).round() as usize).map(|tick| tick as f64 * step).collect()
    };
    let drawn: Vec<Line<'_>> = memory
        .iter()
        .map(|line| {
            let points: Vec<(f64, f64)> = line
                .points
                .iter()
                .map(|point| (across.at(point.0.into()), up.at(point.1 as f64 / MEBIBYTE)))
                .collect();
            Line {
                name: &line.contender,
                series: line.series,
                marks: points.iter().map(|(x, y)| (*x, *y, false)).collect(),
                points,
                note: String::new(),
            }
        })
        .collect();
    let frame = Frame {
        size,
        height,
        x_ticks: lines::ticks(&across, &values(end, step), |value| numbers::fixed(value, 0)),
        y_ticks: lines::ticks(&up, &values(top, rise), numbers::short),
        x_title: "open connections",
        y_title: "memory of the server, MiB",
        words: "Memory against open connections",
    };
    lines::draw(&frame, &drawn)
}
