//! Tests an unchanged application on a simulated network, with faults, seeds and virtual time.
//!
//! [`seeds`] runs a test once for each seed. The server is the production server, with its workers,
//! protocols, limits, timeouts and shutdown. It runs on an in-memory network that splits, delays
//! and loses data as configured. The seed determines which task runs next, where data is split and
//! which connections break. A failure reports its seed and can therefore be reproduced. Time is
//! virtual: when no task can run, the clock jumps to the next timer, so that hours take
//! milliseconds.
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
//! fn a_slow_handler_responds() {
//!     peregrine_simulate::seeds(0..20, async |sim| {
//!         let server = sim.serve(|| App::new().get("/slow", slow));
//!         let response = server.client().get("/slow").send().await.expect("nothing is lost");
//!         response.assert_status(200);
//!         assert!(sim.now() >= Duration::from_secs(600));
//!     });
//! }
//! # a_slow_handler_responds();
//! ```
//!
//! # What is simulated
//!
//! - The network between clients and server, and the server's clock: all its timeouts are virtual.
//! - tokio's time. `tokio::time::{sleep, timeout, interval}` and `tokio::time::Instant` are virtual
//!   everywhere in the run, in handlers and in the tasks that they spawn. So use
//!   `tokio::time::Instant::now()` as the clock in code to be simulated; in production it is the
//!   system's clock. [`Sim::now`] and [`Sim::unix_time`] are for the test.
//! - Several workers, each with its own application, which take turns on the test's thread.
//!
//! # What is not simulated
//!
//! - `std::time::Instant` and `SystemTime` always return real time. This also affects parts of
//!   Peregrine that use those clocks: the lifetimes of sessions, cached responses, idempotency keys
//!   and tokens, and how fast rate limits recover.
//! - Sockets of the application: those of tokio panic, because the runtime has no I/O. Use a
//!   substitute in tests, or a second simulated server.
//! - Files, and databases that need no sockets, are real. `tokio::fs` and
//!   `tokio::task::spawn_blocking` work; virtual time stands still while their work runs. While all
//!   tasks wait for other threads, such as those of an SQLite driver, the simulator does not know
//!   that an event is pending: virtual time jumps to the next timer, or, if there is none, the run
//!   fails as a deadlock.
//! - The admin listener, the access log, certificate files and signals do not exist.
//! - A simulation creates its own runtime: use a plain `#[test]`, because `#[tokio::test]` creates
//!   another one.
//! - A handler that blocks its thread blocks the test. A task of `tokio::spawn` that yields but
//!   never waits prevents virtual time from advancing. No limit ends such a run.
//!
//! # What breaks repetition
//!
//! A seed determines only the decisions of the simulator, not what an application gets from
//! elsewhere: the order of `HashMap` and `HashSet` (use `BTreeMap` or a fixed hasher), random
//! numbers (use [`Sim::random_below`] in tests), the branch that `tokio::select!` polls
//! first (write `biased;`), threads, real clocks, and state that outlives a run, such as statics.
//! When a test has failed, its seed runs a second time, and the message says whether that run
//! failed in the same way. [`Simulation::check_determinism`] does this for all seeds.
#![forbid(unsafe_code)]

// A unit test contains code from the guide, which refers to this crate as `peregrine_simulate`.
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
pub use error::{SimErrorKind, SimRequestError};
pub use failure::Failure;
pub use faults::Faults;
pub use request::SimRequest;
pub use seeds::Seeds;
pub use server::SimServer;
pub use sim::{JoinHandle, Sim};
pub use simulation::{RunReport, Simulation, TestOutcome};

/// Runs `test` once for each seed, with delays, split data and late timers but without loss
/// ([`Faults::harmless`]). Seed 0 has no faults: a failure with seed 0 is not caused by the
/// network. Use [`Simulation`] for other faults and limits.
///
/// The environment variable `PEREGRINE_SEEDS` takes precedence over `seeds`: one seed (`17`) or a
/// range (`0..10000`).
///
/// # Panics
/// If the test fails with one of the seeds. The message contains the seed, the virtual time, the
/// last events, and how to run the seed alone.
#[track_caller]
pub fn seeds<V: TestOutcome>(seeds: impl Into<Seeds>, test: impl AsyncFn(Sim) -> V) {
    Simulation::seeds(seeds).run(test);
}

/// Compiles the code in the guide as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/simulation.md")]
mod guide {}
