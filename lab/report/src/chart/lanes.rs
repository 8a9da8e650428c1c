//! The frame of charts with one lane per contender: the name left, the plot in the middle, and
//! the figures right. On narrow screens, name and figures stand above the plot.

use super::Size;
use super::canvas::{Anchor, Canvas, fit};
use crate::content::Series;

/// The font size of names and figures.
const FONT: f64 = 13.0;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Lanes {
    size: Size,
    /// The height of the plot in a lane.
    plot_height: f64,
    word_width: f64,
    pub(crate) left: f64,
    pub(crate) right: f64,
}

/// One lane: the plot from `top` to `bottom`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lane {
    pub(crate) top: f64,
    pub(crate) bottom: f64,
}

impl Lane {
    pub(crate) fn middle(&self) -> f64 {
        f64::midpoint(self.top, self.bottom)
    }
}

/// What stands beside the plot.
pub(crate) struct Labels<'a> {
    pub(crate) name: &'a str,
    pub(crate) series: Series,
    /// Numbers, aligned at their right end.
    pub(crate) figure: &'a str,
    /// A word or two behind them.
    pub(crate) word: &'a str,
}

impl Lanes {
    /// `figure_width` and `word_width` are the room for figures and words on wide screens.
    pub(crate) fn new(size: Size, plot_height: f64, figure_width: f64, word_width: f64) -> Lanes {
        let (left, right) = match size {
            Size::Wide => (196.0, size.width() - figure_width - word_width - 12.0),
            Size::Narrow => (6.0, size.width() - 6.0),
        };
        Lanes { size, plot_height, word_width, left, right }
    }

    pub(crate) fn height(&self) -> f64 {
        match self.size {
            Size::Wide => self.plot_height + 6.0,
            Size::Narrow => self.plot_height + 24.0,
        }
    }

    /// Writes the labels of the lane that begins at `y`, and says where its plot is.
    pub(crate) fn lane(&self, canvas: &mut Canvas, y: f64, labels: &Labels<'_>) -> Lane {
        let width = self.size.width();
        let Labels { name, series, figure, word } = labels;
        match self.size {
            Size::Wide => {
                let lane = Lane { top: y + 3.0, bottom: y + 3.0 + self.plot_height };
                let base = lane.middle() + 4.5;
                canvas.mark((7.0, lane.middle()), 4.5, *series, "");
                let name = fit(name, self.left - 34.0, FONT);
                canvas.text((20.0, base), Anchor::Start, "name", &name);
                canvas.text((width - self.word_width, base), Anchor::End, "fig", figure);
                canvas.text((width - self.word_width + 10.0, base), Anchor::Start, "word", word);
                lane
            }
            Size::Narrow => {
                let base = y + 15.0;
                canvas.mark((7.0, base - 4.5), 4.5, *series, "");
                let text = format!("{figure} {word}");
                let room = width - 30.0 - text.trim().chars().count() as f64 * 6.6;
                canvas.text((18.0, base), Anchor::Start, "name", &fit(name, room, FONT));
                canvas.text((width - 4.0, base), Anchor::End, "fig", text.trim());
                Lane { top: y + 20.0, bottom: y + 20.0 + self.plot_height }
            }
        }
    }
}
