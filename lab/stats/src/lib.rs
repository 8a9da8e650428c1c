//! The lab's statistics: from paired blocks to a verdict that a statistician would sign.
//!
//! The unit of analysis is a block: every contender once, close together in time. Slow drift of
//! the machine moves a whole block, so log-ratios within blocks keep what absolute figures lose.
//! From them come a Hodges-Lehmann estimate, a BCa bootstrap interval, a signed-rank test with
//! Holm's correction over the family, and one of four words: *faster*, *slower*, *equivalent* or
//! *cannot tell*, the last with the number of blocks that would help.
//!
//! Everything here is a pure function over slices of numbers: no clock, no file, no dependency.
//! What is random takes a seed, and the same seed gives the same result on every machine.
//! It is not a general statistics library, and it does not know what the numbers measure.
//!
//! Where to start: [`verdicts::judge`] puts everything together; [`estimates`], [`intervals`],
//! [`signed_rank`] and [`family`] are its parts. [`orders`] and [`power`] plan a run, [`ranks`]
//! orders contenders without pretending, and [`little`] audits figures that others have published.

#![forbid(unsafe_code)]

pub mod estimates;
pub mod family;
pub mod intervals;
pub mod little;
pub mod normal;
pub mod orders;
pub mod power;
pub mod random;
pub mod rank_sum;
pub mod ranks;
pub mod runs;
pub mod signed_rank;
pub mod verdicts;

mod midranks;
