//! Runs of the lab: contenders on their own CPUs, taking turns under one load, from recipe and
//! scenario to run file.
//!
//! It is where host and load meet. It judges nothing by itself (the statistics do), draws nothing
//! (the report does), and knows no contender: a contender is a process that answers as its
//! scenario says.
//!
//! One loop serves every design. In a *rotation*, arms take turns in balanced random order, each
//! block holding every arm once, and counters are read at each switch. What varies is who asks
//! ([`asker`]: kept connections for short slices, or a whole run of the generator) and whether
//! servers stay up together (paired) or each block has a fresh process alone on the machine
//! (separate).
//!
//! Where to start: [`session::measure`] is a run of one scenario, [`rotation`] the loop,
//! [`stage`] where servers are started, [`verify`] the gate before any timing, and [`judge`] what
//! becomes of the blocks. [`kinds`] holds scenarios that are more than a load: idle connections,
//! overload, shutdown.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod arms;
pub mod asker;
pub mod calls;
pub mod conduct;
pub mod error;
pub mod facts;
pub mod judge;
pub mod kinds;
pub mod ladder;
pub mod micro;
pub mod progress;
pub mod record;
pub mod relayed;
pub mod rotation;
pub mod session;
pub mod stage;
pub mod verify;
pub mod wanted;
