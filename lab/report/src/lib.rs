//! Reports of the lab: one HTML file, Markdown and JSON with the same content, each a pure
//! function of run files.
//!
//! It measures nothing and judges nothing: ratios, intervals and verdicts are read from the run
//! files. What it adds is medians for tables, ranks that ties share, and the word on whether the
//! result may be published. There is no clock, no network, and no randomness in it.
//!
//! The HTML stands alone: style, drawings and a few lines of script are inside, and it says the
//! same without the script.
//!
//! Where to start: [`Report::new`] takes the run files. `subject` says what each is about,
//! `collect` turns them into figures, `compose` puts the figures into sections, tables and charts,
//! and `page` and `markdown` write those down. Each file in `chart` draws one kind of picture.

#![forbid(unsafe_code)]

mod benchmark;
mod chart;
mod collect;
mod compose;
mod content;
mod document;
mod escape;
mod limits;
mod markdown;
mod numbers;
mod page;
mod rank;
mod records;
mod standing;
mod subject;
mod verdict;

pub use content::Report;

use peregrine_lab_model::RunFile;

impl Report {
    /// The report on these run files, in this order. Files with the same scenario and the same
    /// number of connections share a section: one may be a closed loop, others open loops at
    /// several rates.
    #[must_use]
    pub fn new(files: &[RunFile]) -> Report {
        collect::report(files)
    }

    /// One HTML file that needs no other and no network.
    #[must_use]
    pub fn html(&self) -> String {
        page::write(&compose::document(self))
    }

    /// The same content in Markdown, with a table for each picture.
    #[must_use]
    pub fn markdown(&self) -> String {
        markdown::write(&compose::document(self))
    }

    /// The forest plot of all comparisons by server CPU time per request, as a picture that stands
    /// alone: it brings its own background and its own colours, light and dark. It has at most 40
    /// rows, and says how many it leaves out.
    #[must_use]
    pub fn forest_svg(&self) -> String {
        compose::forest_svg(self)
    }

    /// The figures behind the report as JSON, every block included. Fields end in their unit.
    ///
    /// # Panics
    ///
    /// Never: every map in a report has text for its keys.
    #[must_use]
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("all keys are text");
        text.push('\n');
        text
    }
}
