//! Tests on a simulated network: an application, as it is, with faults, seeds and virtual time.
//!
//! [`seeds`] runs a test once for each seed. Its server is the one of production (its workers, protocols, limits,
//! timeouts and shutdown), on a network in memory that cuts, delays and loses what it is told to. Who runs next, where
//! bytes are cut and what breaks follows from the seed, so that a failure can be had again; it names its seed. Time is
//! virtual: when nobody can run, it jumps to when somebody can, so that hours take milliseconds.
//!
//! ```
//! use peregrine::prelude::*;
//! use std::time::Duration;
//!
//! async fn slow() -> &'static str {
//!     tokio::time::sleep(Duration::from_secs(600)).await;
//!     "done"
//! }
//!
//! # #[cfg_attr(any(), test)]
//! fn a_slow_answer_comes() {
//!     peregrine_simulate::seeds(0..20, async |sim| {
//!         let server = sim.serve(|| App::new().get("/slow", slow));
//!         let response = server.client().get("/slow").send().await.expect("nothing is lost");
//!         response.assert_status(200);
//!         assert!(sim.now() >= Duration::from_secs(600));
//!     });
//! }
//! # a_slow_answer_comes();
//! ```
//!
//! # What is simulated
//!
//! - The network between clients and server, and the server's clock: all its timeouts are virtual.
//! - tokio's time. `tokio::time::{sleep, timeout, interval}` and `tokio::time::Instant` are virtual everywhere in the
//!   run, in handlers and in tasks that they spawn. `tokio::time::Instant::now()` is thereby the clock for code that is to
//!   be simulated: it is the system's clock in production. [`Sim::now`] and [`Sim::unix_time`] are for the test.
//! - Several workers, each with its own application, in turns on the test's thread.
//!
//! # What is not
//!
//! - `std::time::Instant` and `SystemTime` tell real time: nothing can change that. This holds for batteries that ask
//!   the system's clock too: how long sessions, cached responses, idempotency keys and tokens live, and how fast rate
//!   limits forgive.
//! - Sockets of the application: those of tokio panic, since there is no kernel to ask. Files, and data bases that need no
//!   sockets, are real; while a task waits for one of these alone, the network knows nothing that could happen: time runs
//!   away, or the run ends as a deadlock. Tests have something else in their place, or a second server of the simulation.
//!   `tokio::task::spawn_blocking` works: time stands still meanwhile.
//! - The admin listener, the access log, files of certificates and signals are left out.
//! - A simulation has a runtime of its own: tests are plain `#[test]`, since `#[tokio::test]` has another one.
//! - A handler that blocks its thread blocks the test, and a task of `tokio::spawn` that never waits (but yields) keeps
//!   the run from going on. No limit helps against these two.
//!
//! # What breaks repetition
//!
//! A seed decides all that the simulator decides. What an application takes from elsewhere it does not: the order of
//! `HashMap` and `HashSet` (use `BTreeMap`, or a fixed hasher), random numbers (use [`Sim::random`] in tests), the
//! branch that `tokio::select!` tries first (write `biased;`), threads, real clocks, and whatever outlives a run, as
//! statics do. When a test has failed, its seed runs a second time, and the message says whether that failed in the same
//! way. [`Simulation::twice`] does this for all seeds.
#![forbid(unsafe_code)]

// A page of the guide is tested here, and says `peregrine_simulate`.
#[cfg(test)]
extern crate self as peregrine_simulate;

mod client;
mod connection;
mod error;
mod failure;
mod faults;
mod request;
mod response;
mod seeds;
mod server;
mod sim;
mod simulation;
#[cfg(test)]
mod tests;

pub use client::SimClient;
pub use connection::SimConnection;
pub use error::{Lost, Why};
pub use failure::Failure;
pub use faults::Faults;
pub use request::SimRequest;
pub use seeds::Seeds;
pub use server::SimServer;
pub use sim::{Sim, Task};
pub use simulation::{Passed, Simulation, Verdict};

/// Runs `test` once for each seed, with delays, cuts and late timers but without loss ([`Faults::harmless`]). Seed 0 has
/// none of these: what fails there has nothing to do with the network. For other faults and limits there is
/// [`Simulation`].
///
/// The environment variable `PEREGRINE_SEEDS` takes precedence over `seeds`: one seed (`17`), or a range (`0..10000`).
///
/// # Panics
/// The test fails with one of the seeds. The message names it, the virtual time, the last events, and how to run it
/// alone.
#[track_caller]
pub fn seeds<V: Verdict>(seeds: impl Into<Seeds>, test: impl AsyncFn(Sim) -> V) {
    Simulation::seeds(seeds).run(test);
}

/// The code in the guide is compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/simulation.md")]
mod guide {}
