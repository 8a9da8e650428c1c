//! The forest plot: paired ratios with their intervals on a logarithmic axis, the noise of the
//! same program against itself shaded, and the line at 1.

use peregrine_lab_model::verdict::Ratio;

use super::Size;
use super::canvas::{Anchor, Canvas, fit};
use super::lanes::{Labels, Lanes};
use super::scale::Scale;
use crate::content::Series;
use crate::numbers;

/// Ratios that make good ticks.
const TICKS: [f64; 25] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 2.5,
    3.0, 4.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];

/// The least distance of two ticks in pixels.
const TICK_DISTANCE: f64 = 34.0;

const WORD_WIDTH: f64 = 96.0;

/// The most rows of a picture that stands alone.
const ROWS_MAX: usize = 40;

/// The width of a picture that stands alone, without its margin.
const ALONE_WIDTH: f64 = 960.0;

const WORDS: &str = "Paired ratios with their 95 % intervals";

/// One run: who is compared with whom, and how loud the noise is.
pub(crate) struct Group<'a> {
    pub(crate) title: String,
    pub(crate) band: Option<f64>,
    pub(crate) rows: Vec<Row<'a>>,
}

pub(crate) struct Row<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// None if the verdict is void.
    pub(crate) ratio: Option<Ratio>,
    pub(crate) word: &'static str,
}

pub(crate) fn draw(groups: &[Group<'_>], size: Size) -> String {
    let mut canvas = Canvas::default();
    let bottom = paint(&mut canvas, groups, size, 48.0);
    canvas.finish(size.width(), bottom + 4.0, WORDS)
}

/// A picture for places without the report's page around it: with a title, a background and its
/// own colours. Rows beyond [`ROWS_MAX`] are left out, and counted.
pub(crate) fn alone(mut groups: Vec<Group<'_>>, reference: &str) -> String {
    let all: usize = groups.iter().map(|group| group.rows.len()).sum();
    let mut room = ROWS_MAX;
    for group in &mut groups {
        group.rows.truncate(room);
        room -= group.rows.len();
    }
    groups.retain(|group| !group.rows.is_empty());
    let left_out = all - groups.iter().map(|group| group.rows.len()).sum::<usize>();
    let mut canvas = Canvas::default();
    let title = format!("Server CPU time per request against {reference}, less is better");
    let title = fit(&title, ALONE_WIDTH, 17.0);
    canvas.text((0.0, 18.0), Anchor::Start, "title", &title);
    let note = "Paired ratios with 95\u{a0}% intervals, logarithmic axis. Shaded: how far the same \
                program differs from itself (A/A).";
    canvas.text((0.0, 40.0), Anchor::Start, "axis", note);
    let mut bottom = 48.0;
    if groups.is_empty() {
        bottom = 80.0;
        canvas.text((0.0, 68.0), Anchor::Start, "word", "Nothing is compared with anything.");
    } else {
        bottom = paint(&mut canvas, &groups, Size::Wide, bottom + 52.0);
    }
    if left_out > 0 {
        bottom += 20.0;
        let text = format!("… and {left_out} more rows in the report");
        canvas.text((0.0, bottom - 2.0), Anchor::Start, "word", &text);
    }
    canvas.finish_alone((ALONE_WIDTH, bottom + 4.0), &title)
}

/// Draws below `top`, and says where it ends.
fn paint(canvas: &mut Canvas, groups: &[Group<'_>], size: Size, top: f64) -> f64 {
    let lanes = Lanes::new(size, 18.0, 150.0, WORD_WIDTH);
    let (low, high) = range(groups);
    let scale = Scale::log((low, high), (lanes.left, lanes.right));
    let height_of = |group: &Group<'_>| 30.0 + group.rows.len() as f64 * lanes.height();
    let bottom = top + groups.iter().map(height_of).sum::<f64>() + 4.0;
    axis(canvas, &scale, (low, high), (top - 8.0, bottom));
    // Bands first, then the line at 1, then the lanes: names and marks stand above both.
    let mut y = top;
    for group in groups {
        if let Some(band) = group.band {
            let (left, right) = (scale.at(1.0 / (1.0 + band)), scale.at(1.0 + band));
            canvas.rect((left, y + 26.0), (right - left, height_of(group) - 24.0), "band");
        }
        y += height_of(group);
    }
    let one = scale.at(1.0);
    canvas.line((one, top - 8.0), (one, bottom), "one");
    let mut y = top;
    for group in groups {
        y += 30.0;
        let title = fit(&group.title, size.width(), 12.5);
        canvas.text((0.0, y - 9.0), Anchor::Start, "group", &title);
        for row in &group.rows {
            lane(canvas, &lanes, &scale, y, row);
            y += lanes.height();
        }
    }
    let y = top - 36.0;
    canvas.text((scale.at(low), y), Anchor::Start, "axis", "← less CPU per request");
    canvas.text((scale.at(high), y), Anchor::End, "axis", "more →");
    bottom
}

fn range(groups: &[Group<'_>]) -> (f64, f64) {
    let ratios = groups.iter().flat_map(|group| group.rows.iter().filter_map(|row| row.ratio));
    let bands = groups.iter().filter_map(|group| group.band).filter(|band| band.is_finite());
    let widest = bands.fold(0.05, f64::max) + 1.0;
    let (low, high) = ratios
        .flat_map(|ratio| [ratio.low, ratio.high, ratio.estimate])
        .filter(|value| value.is_finite() && *value > 0.0)
        .fold((1.0 / widest, widest), |(low, high), value| (low.min(value), high.max(value)));
    let room = (high / low).powf(0.04);
    (low / room, high * room)
}

fn axis(canvas: &mut Canvas, scale: &Scale, range: (f64, f64), plot: (f64, f64)) {
    let one = scale.at(1.0);
    let mut places = vec![one];
    let is_within = |tick: f64| tick > range.0 && tick < range.1;
    // From 1 outwards, so that it always has its tick and the nearest ones win.
    let mut ticks: Vec<f64> = TICKS.into_iter().filter(|tick| is_within(*tick)).collect();
    ticks.sort_by(|one, other| one.ln().abs().total_cmp(&other.ln().abs()));
    canvas.text((one, plot.0 - 2.0), Anchor::Middle, "tick strong", "1.0");
    for tick in ticks {
        let x = scale.at(tick);
        if places.iter().any(|place| (place - x).abs() < TICK_DISTANCE) {
            continue;
        }
        places.push(x);
        canvas.line((x, plot.0 + 2.0), (x, plot.1), "grid");
        canvas.text((x, plot.0 - 2.0), Anchor::Middle, "tick", &numbers::short(tick));
    }
}

fn lane(canvas: &mut Canvas, lanes: &Lanes, scale: &Scale, y: f64, row: &Row<'_>) {
    canvas.open(row.series, row.name);
    let figure = row.ratio.map_or_else(String::new, |ratio| {
        let estimate = numbers::fixed(ratio.estimate, 3);
        if !numbers::has_interval(&ratio) {
            return estimate;
        }
        format!("{estimate} ({})", numbers::interval(&ratio, "–"))
    });
    let labels = Labels { name: row.name, series: row.series, figure: &figure, word: row.word };
    let lane = lanes.lane(canvas, y, &labels);
    let middle = lane.middle();
    canvas.line((lanes.left, middle), (lanes.right, middle), "guide");
    if let Some(ratio) = row.ratio {
        let (low, high) = (scale.at(ratio.low), scale.at(ratio.high));
        canvas.line((low, middle), (high, middle), "whisker");
        for end in [low, high] {
            canvas.line((end, middle - 4.0), (end, middle + 4.0), "whisker");
        }
        canvas.mark((scale.at(ratio.estimate), middle), 5.0, row.series, "");
    }
    canvas.close();
}
