//! Writes SVG: shapes at coordinates with classes, and marks that tell contenders apart.

use std::fmt::{self, Write as _};

use crate::content::Series;
use crate::escape::Html;

/// Colours of the palette; with more contenders, the shape of the mark changes.
const COLOURS: usize = 8;

/// The width of a letter as a share of the font's size, on the generous side.
const LETTER_WIDTH: f64 = 0.56;

/// The style of pictures that stand alone: plain values, because not every reader of such files
/// knows variables.
const STYLE_ALONE: &str = include_str!("alone.css");

/// The room around a picture that stands alone.
const MARGIN: f64 = 20.0;

/// Where text is held.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Default)]
pub(crate) struct Canvas {
    body: String,
}

/// A coordinate with one digit after the point, and none where it is zero.
struct At(f64);

impl fmt::Display for At {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() as i64;
        if tenths % 10 == 0 {
            write!(formatter, "{}", tenths / 10)
        } else {
            write!(formatter, "{:.1}", tenths as f64 / 10.0)
        }
    }
}

/// The classes that colour a series.
pub(crate) fn colour(series: Series) -> String {
    match series {
        Series::Number(number) => format!("s{}", number % COLOURS),
        Series::Neutral => "sn".to_owned(),
    }
}

/// The text, cut to fit this many pixels at this font size.
pub(crate) fn fit(text: &str, width: f64, font: f64) -> String {
    let letters = (width / (font * LETTER_WIDTH)).max(1.0) as usize;
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(letters.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

impl Canvas {
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        let (x1, y1, x2, y2) = (At(from.0), At(from.1), At(to.0), At(to.1));
        // Writing to a string does not fail.
        let _ =
            write!(self.body, r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{class}"/>"#);
    }

    /// A rectangle from its left upper corner; its class may name a series.
    pub(crate) fn rect(&mut self, corner: (f64, f64), size: (f64, f64), class: &str) {
        let (x, y, width, height) = (At(corner.0), At(corner.1), At(size.0), At(size.1));
        let _ = write!(
            self.body,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" class="{class}"/>"#
        );
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let (x, y, text) = (At(at.0), At(at.1), Html(text));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " mid",
            Anchor::End => " end",
        };
        let _ = write!(self.body, r#"<text x="{x}" y="{y}" class="{class}{anchor}">{text}</text>"#);
    }

    /// Many dots as one path: a stroke of no length with round ends is a dot.
    pub(crate) fn dots(&mut self, points: impl IntoIterator<Item = (f64, f64)>, class: &str) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "M{} {}h0", At(x), At(y));
        }
        if !path.is_empty() {
            let _ = write!(self.body, r#"<path d="{path}" class="{class}"/>"#);
        }
    }

    pub(crate) fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{} {}", if index == 0 { 'M' } else { 'L' }, At(*x), At(*y));
        }
        if !path.is_empty() {
            let _ = write!(self.body, r#"<path d="{path}" class="{class}"/>"#);
        }
    }

    /// The mark of a series: a colour, and a shape where colours do not suffice.
    pub(crate) fn mark(&mut self, at: (f64, f64), radius: f64, series: Series, class: &str) {
        let (x, y) = at;
        let round = match series {
            Series::Number(number) => number / COLOURS % 4,
            Series::Neutral => 0,
        };
        let colour = colour(series);
        let corners: &[(f64, f64)] = match round {
            0 => {
                let (x, y, radius) = (At(x), At(y), At(radius));
                let _ = write!(
                    self.body,
                    r#"<circle cx="{x}" cy="{y}" r="{radius}" class="mark {colour} {class}"/>"#
                );
                return;
            }
            1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            2 => &[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)],
            _ => &[(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)],
        };
        let mut path = String::new();
        for (index, (dx, dy)) in corners.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{command}{} {}", At(x + dx * radius), At(y + dy * radius));
        }
        let _ = write!(self.body, r#"<path d="{path}Z" class="mark {colour} {class}"/>"#);
    }

    /// Opens a group that holds everything of one contender, with its name shown on hovering.
    pub(crate) fn open(&mut self, series: Series, name: &str) {
        let (colour, name) = (colour(series), Html(name));
        let _ =
            write!(self.body, r#"<g class="{colour}" data-name="{name}"><title>{name}</title>"#);
    }

    pub(crate) fn close(&mut self) {
        self.body.push_str("</g>");
    }

    /// The picture, with words for those who do not see it.
    pub(crate) fn finish(self, width: f64, height: f64, words: &str) -> String {
        let (width, height, words) = (At(width), At(height), Html(words));
        format!(
            r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{words}" xmlns="http://www.w3.org/2000/svg">{}</svg>"#,
            self.body
        )
    }
}

impl Canvas {
    /// The picture in a file of its own, on its own background and with its own style.
    pub(crate) fn finish_alone(self, (width, height): (f64, f64), words: &str) -> String {
        let (inner, words) = (self.body, Html(words));
        let (width, height) = (At(width + 2.0 * MARGIN), At(height + 2.0 * MARGIN));
        let margin = At(MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"{words}\">\n\
             <style>\n{STYLE_ALONE}</style>\n\
             <rect x=\"0\" y=\"0\" width=\"{width}\" height=\"{height}\" rx=\"10\" class=\"paper\"/>\n\
             <g transform=\"translate({margin} {margin})\">{inner}</g>\n</svg>\n"
        )
    }
}

/// A mark alone, for tables and legends.
pub(crate) fn mark_alone(series: Series) -> String {
    let mut canvas = Canvas::default();
    canvas.mark((6.0, 6.0), 4.0, series, "");
    format!(
        r#"<svg class="key" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{}</svg>"#,
        canvas.body
    )
}
