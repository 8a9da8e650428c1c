//! Published claims, tried again: from a page to trials, and from their results to a word per claim.
//!
//! A page of numbers becomes a [`Program`]: per table a trial, to be run twice. Once as published,
//! with the page's tool, connections and duration, so that a reader sees what that method gives
//! here. And once corrected: all contenders at the same time in paired slices, judged by server CPU
//! time per request, with latency at an equal rate of an open loop. Only the second decides.
//!
//! What comes back is one of *confirmed*, *smaller*, *not reproduced*, *reversed* and *not testable
//! here* for every claim, with the reason. A contender that cannot be had is never replaced in a
//! claim; what stands in for it is reported apart, and said not to test anything.
//!
//! It starts nothing, reads no clock and opens no file: the same input gives the same words.
//!
//! Where to start: [`program()`] is the way in, [`conclude()`] the way out, [`stand_ins()`] and
//! [`rows_again()`] the extras, and [`budget`] decides how long each trial may take. `lab/claims/README.md` explains claim files.

#![forbid(unsafe_code)]

pub mod budget;
pub mod conclude;
mod effect;
pub mod method;
pub mod observed;
mod operations;
pub mod program;
mod roster;
pub mod stand_in;
pub mod tables;
mod words;

pub use budget::{Budget, Costs, Planned, PlannedTrial, plan};
pub use conclude::conclude;
pub use method::{Client, Corrected, Published};
pub use observed::{
    CorrectedFigures, LatencyFigures, Observed, OperationTime, PairJudged, PairMeasure,
    PublishedFigures, RouterTimes, equal_rate, judge_pairs,
};
pub use program::{
    Method, Missing, Pair, Program, Trial, Unrepeated, Untestable, Version, program,
};
pub use roster::{Available, State};
pub use stand_in::{StandIn, stand_ins};
pub use tables::{PrintedRow, RowAgain, rows_again};
