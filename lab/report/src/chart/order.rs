//! Throughput in the order of the run: each block against the contender's own median, so that
//! drift of the machine shows in all lanes at once.

use super::Size;
use super::canvas::{Anchor, Canvas};
use super::lanes::{Labels, Lanes};
use super::scale::{Scale, from_zero};
use crate::content::Series;
use crate::numbers;

const WORD_WIDTH: f64 = 84.0;

/// The smallest and largest deviation from the median that fill a lane, as shares. Blocks beyond
/// the largest stand at the edge.
const DEVIATION: (f64, f64) = (0.05, 0.30);

pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// Requests per second.
    pub(crate) median: f64,
    /// Seconds since the run began, and requests per second.
    pub(crate) blocks: Vec<(f64, f64)>,
}

/// The deviation from the median that fills a lane of these rows, as a share.
pub(crate) fn deviation(rows: &[Row<'_>]) -> f64 {
    let deviations = rows
        .iter()
        .flat_map(|row| row.blocks.iter().map(|(_, rate)| (rate / row.median - 1.0).abs()));
    let largest = deviations.filter(|share| share.is_finite()).fold(0.0, f64::max);
    ((largest * 100.0).ceil() / 100.0).clamp(DEVIATION.0, DEVIATION.1)
}

pub(crate) fn draw(rows: &[Row<'_>], size: Size) -> String {
    let mut canvas = Canvas::default();
    let lanes = Lanes::new(size, 30.0, 84.0, WORD_WIDTH);
    let last = rows.iter().flat_map(|row| &row.blocks).map(|(time, _)| *time).fold(0.0, f64::max);
    let (end, step) = from_zero(last, if size == Size::Wide { 8 } else { 5 });
    let scale = Scale::linear((0.0, end), (lanes.left, lanes.right));
    let deviation = deviation(rows);
    let top = 6.0;
    let bottom = top + rows.len() as f64 * lanes.height() + 2.0;
    for tick in 0..=(end / step).round() as usize {
        let value = tick as f64 * step;
        canvas.line((scale.at(value), top), (scale.at(value), bottom), "grid");
        let text = numbers::short(value);
        canvas.text((scale.at(value), bottom + 15.0), Anchor::Middle, "tick", &text);
    }
    for (index, row) in rows.iter().enumerate() {
        let y = top + index as f64 * lanes.height();
        canvas.open(row.series, row.name);
        let figure = numbers::fixed(row.median, 0);
        let word = if size == Size::Wide { "requests/s" } else { "/s" };
        let labels = Labels { name: row.name, series: row.series, figure: &figure, word };
        let lane = lanes.lane(&mut canvas, y, &labels);
        canvas.rect((lanes.left, lane.top), (lanes.right - lanes.left, 30.0), "field");
        canvas.line((lanes.left, lane.middle()), (lanes.right, lane.middle()), "own");
        let across = Scale::linear((-deviation, deviation), (lane.bottom - 2.0, lane.top + 2.0));
        let points = row
            .blocks
            .iter()
            .map(|(time, rate)| (scale.at(*time), across.at(rate / row.median - 1.0)));
        canvas.dots(points, "dots");
        canvas.close();
    }
    let middle = f64::midpoint(lanes.left, lanes.right);
    canvas.text((middle, bottom + 33.0), Anchor::Middle, "axis", "seconds since the run began");
    canvas.finish(size.width(), bottom + 40.0, "Throughput of every block in run order")
}
