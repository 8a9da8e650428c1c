//! The frame of charts with one line per contender: axes, and names at the ends of the lines that
//! make room for each other. On narrow screens the legend beside the chart has the names.

use super::Size;
use super::canvas::{Anchor, Canvas, fit};
use super::scale::Scale;
use crate::content::Series;

/// The least distance of two names in pixels.
const NAME_DISTANCE: f64 = 15.0;

/// The room for names.
const NAME_WIDTH: f64 = 170.0;

pub(crate) struct Frame<'a> {
    pub(crate) size: Size,
    pub(crate) height: f64,
    /// Places and texts of the ticks.
    pub(crate) x_ticks: Vec<(f64, String)>,
    pub(crate) y_ticks: Vec<(f64, String)>,
    pub(crate) x_title: &'a str,
    pub(crate) y_title: &'a str,
    pub(crate) words: &'a str,
}

pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    pub(crate) points: Vec<(f64, f64)>,
    /// Points with a mark, and whether the mark is hollow.
    pub(crate) marks: Vec<(f64, f64, bool)>,
    /// Behind the name.
    pub(crate) note: String,
}

/// The plot's left and right end.
pub(crate) fn across(size: Size) -> (f64, f64) {
    match size {
        Size::Wide => (58.0, size.width() - NAME_WIDTH - 16.0),
        Size::Narrow => (46.0, size.width() - 10.0),
    }
}

/// The plot's bottom and top for a height.
pub(crate) fn along(height: f64) -> (f64, f64) {
    (height - 44.0, 26.0)
}

/// The height that gives every name of so many lines its place.
pub(crate) fn height(size: Size, lines: usize) -> f64 {
    match size {
        Size::Wide => (lines as f64 * (NAME_DISTANCE + 5.0) + 80.0).max(360.0),
        Size::Narrow => (lines as f64 * 6.0 + 260.0).max(300.0),
    }
}

/// A scale's places for ticks with their texts.
pub(crate) fn ticks(
    scale: &Scale,
    values: &[f64],
    text: impl Fn(f64) -> String,
) -> Vec<(f64, String)> {
    values.iter().map(|value| (scale.at(*value), text(*value))).collect()
}

pub(crate) fn draw(frame: &Frame<'_>, lines: &[Line<'_>]) -> String {
    let mut canvas = Canvas::default();
    let (left, right) = across(frame.size);
    let (bottom, top) = along(frame.height);
    for (y, text) in &frame.y_ticks {
        canvas.line((left, *y), (right, *y), "grid");
        canvas.text((left - 7.0, y + 4.0), Anchor::End, "tick", text);
    }
    for (x, text) in &frame.x_ticks {
        canvas.line((*x, top), (*x, bottom), "grid");
        canvas.text((*x, bottom + 16.0), Anchor::Middle, "tick", text);
    }
    canvas.line((left, bottom), (right, bottom), "base");
    canvas.text((0.0, 12.0), Anchor::Start, "axis", frame.y_title);
    let middle = f64::midpoint(left, right);
    canvas.text((middle, bottom + 36.0), Anchor::Middle, "axis", frame.x_title);
    let places = name_places(lines, (top + 4.0, bottom));
    for (line, place) in lines.iter().zip(places) {
        canvas.open(line.series, line.name);
        canvas.curve(&line.points, "line");
        for (x, y, is_hollow) in &line.marks {
            canvas.mark((*x, *y), 3.6, line.series, if *is_hollow { "hollow" } else { "" });
        }
        if let (Size::Wide, Some(end)) = (frame.size, line.points.last()) {
            let lead = [(end.0 + 4.0, end.1), (right + 6.0, end.1), (right + 20.0, place)];
            canvas.curve(&lead, "lead");
            canvas.mark((right + 26.0, place), 3.6, line.series, "");
            let text = fit(&format!("{}{}", line.name, line.note), NAME_WIDTH - 26.0, 12.5);
            canvas.text((right + 35.0, place + 4.0), Anchor::Start, "name", &text);
        }
        canvas.close();
    }
    canvas.finish(frame.size.width(), frame.height, frame.words)
}

/// Where each name stands: near its line's end, in the order of the ends, and never on another.
fn name_places(lines: &[Line<'_>], (top, bottom): (f64, f64)) -> Vec<f64> {
    let end = |line: &Line<'_>| line.points.last().map_or(bottom, |point| point.1);
    let mut order: Vec<usize> = (0..lines.len()).collect();
    order.sort_by(|one, other| end(&lines[*one]).total_cmp(&end(&lines[*other])));
    let mut places = vec![0.0; lines.len()];
    // Downwards each takes the next free place; upwards the last ones give way at the bottom.
    let mut free = top;
    for index in &order {
        places[*index] = end(&lines[*index]).max(free);
        free = places[*index] + NAME_DISTANCE;
    }
    let mut free = bottom;
    for index in order.iter().rev() {
        places[*index] = places[*index].min(free);
        free = places[*index] - NAME_DISTANCE;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_stand_on_each_other() {
        let line = |y: f64| Line {
            name: "x",
            series: Series::Neutral,
            points: vec![(0.0, y)],
            marks: Vec::new(),
            note: String::new(),
        };
        let lines: Vec<Line<'_>> =
            (0..20).map(|index| line(290.0 + f64::from(index % 3))).collect();
        let mut places = name_places(&lines, (30.0, 320.0));
        places.sort_by(f64::total_cmp);
        assert!(places[0] >= 30.0 && places[19] <= 320.0, "{places:?}");
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= NAME_DISTANCE - 0.01));
    }
}
