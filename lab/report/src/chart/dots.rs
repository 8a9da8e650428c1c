//! Server CPU per request: a bar from zero for the median, split into user and system, and every
//! block as a dot.

use super::Size;
use super::canvas::{Anchor, Canvas};
use super::lanes::{Labels, Lanes};
use super::scale::{Scale, from_zero};
use crate::content::Series;
use crate::numbers;

/// The room for the unit, and for the unit with a label such as CLIENT-BOUND.
const WORD_WIDTHS: (f64, f64) = (34.0, 126.0);

/// Blocks are spread over the height of a lane by their number, in this many steps, so that equal
/// values do not hide each other.
const SPREAD_STEPS: usize = 7;

pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// Microseconds per request, all of it.
    pub(crate) median: f64,
    /// The user part of the median, if known.
    pub(crate) user: Option<f64>,
    pub(crate) blocks: Vec<f64>,
    pub(crate) word: &'static str,
}

pub(crate) fn draw(rows: &[Row<'_>], size: Size) -> String {
    let mut canvas = Canvas::default();
    let is_labelled = rows.iter().any(|row| row.word.contains(' '));
    let word_width = if is_labelled { WORD_WIDTHS.1 } else { WORD_WIDTHS.0 };
    let lanes = Lanes::new(size, 20.0, 66.0, word_width);
    let largest = rows.iter().flat_map(|row| &row.blocks).copied().fold(0.0, f64::max);
    let ticks = if size == Size::Wide { 8 } else { 5 };
    let (end, step) = from_zero(largest, ticks);
    let scale = Scale::linear((0.0, end), (lanes.left, lanes.right));
    let top = 8.0;
    let bottom = top + rows.len() as f64 * lanes.height() + 4.0;
    for tick in 0..=(end / step).round() as usize {
        let value = tick as f64 * step;
        let class = if tick == 0 { "base" } else { "grid" };
        canvas.line((scale.at(value), top), (scale.at(value), bottom), class);
        let text = numbers::short(value);
        canvas.text((scale.at(value), bottom + 15.0), Anchor::Middle, "tick", &text);
    }
    for (index, row) in rows.iter().enumerate() {
        lane(&mut canvas, &lanes, &scale, top + index as f64 * lanes.height(), row);
    }
    let middle = f64::midpoint(lanes.left, lanes.right);
    let unit = "server CPU, µs per request";
    canvas.text((middle, bottom + 33.0), Anchor::Middle, "axis", unit);
    canvas.finish(size.width(), bottom + 40.0, "Server CPU time per request, with every block")
}

fn lane(canvas: &mut Canvas, lanes: &Lanes, scale: &Scale, y: f64, row: &Row<'_>) {
    canvas.open(row.series, row.name);
    let figure = numbers::fixed(row.median, 2);
    let labels = Labels { name: row.name, series: row.series, figure: &figure, word: row.word };
    let lane = lanes.lane(canvas, y, &labels);
    let zero = scale.at(0.0);
    let (top, height) = (lane.top + 3.0, lane.bottom - lane.top - 6.0);
    canvas.rect((zero, top), (scale.at(row.median) - zero, height), "bar");
    if let Some(user) = row.user {
        canvas.rect((zero, top), (scale.at(user) - zero, height), "bar user");
    }
    let room = lane.bottom - lane.top - 4.0;
    let points = row.blocks.iter().enumerate().map(|(index, value)| {
        // Steps of 3 visit all places before one comes again, because 3 and 7 have no divisor.
        let step = index * 3 % SPREAD_STEPS;
        let share = step as f64 / (SPREAD_STEPS - 1) as f64;
        (scale.at(*value), lane.top + 2.0 + room * share)
    });
    canvas.dots(points, "dots");
    let middle = scale.at(row.median);
    canvas.line((middle, lane.top), (middle, lane.bottom), "median");
    canvas.close();
}
