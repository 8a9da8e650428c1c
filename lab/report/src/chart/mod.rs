//! Charts: functions from figures to SVG text, one kind of picture per file.
//!
//! Every chart is drawn twice, for wide and for narrow screens, because text that is scaled down
//! is not readable. Colours and fonts come from the page's style by class.

pub(crate) mod canvas;
pub(crate) mod dots;
pub(crate) mod forest;
pub(crate) mod ladder;
pub(crate) mod lanes;
pub(crate) mod lines;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod percentile;
pub(crate) mod scale;

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Wide,
    Narrow,
}

impl Size {
    /// The width in CSS pixels at which the text has its natural size.
    pub(crate) fn width(self) -> f64 {
        match self {
            Size::Wide => 960.0,
            Size::Narrow => 348.0,
        }
    }
}
