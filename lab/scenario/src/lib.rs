//! The lab's scenarios: what is asked, which answer is right, and under which load.
//!
//! A scenario is a file in `lab/scenarios`. It is read once, whole, and checked against every
//! limit of the load generator before anything runs, so that a run cannot fail late for a word
//! that was spelled wrong. Answers are written by hand, or computed here from what is sent; they
//! are never taken from a server.
//!
//! It is not a runner: it starts no server and sends nothing. It knows no contender either, and
//! what a framework cannot do stands with that contender.
//!
//! Where to start: [`Scenario`] is a file as a value, [`Exchange`] a request with its only right
//! answer, [`micro`] reads what an in-process benchmark wrote, and `lab/scenarios/README.md`
//! explains the keys.

#![forbid(unsafe_code)]
// The load generator, which the questions are for, speaks to a Linux kernel.
#![cfg(target_os = "linux")]

mod body;
mod error;
mod exchange;
mod keys;
mod limits;
pub mod micro;
mod scenario;
mod variant;

pub use error::{ScenarioError, WorkloadError};
pub use exchange::{Exchange, VARIANTS};
pub use scenario::{Fixture, Kind, Load, Micro, OpenRate, Scenario, TlsMode};
pub use variant::{OPEN_RATES, VariantError};
