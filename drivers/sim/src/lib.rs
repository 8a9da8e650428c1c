//! A network without a kernel: seeded, in memory, with faults and virtual time.
//!
//! [`Sim`] is a driver like the others, so that a whole server runs on it unchanged, and every
//! decision (who runs next, where bytes are cut, what breaks) comes from one seed. The same seed
//! repeats a run exactly; [`Network::trace`] proves it. It is no model of TCP's performance, and it
//! never looks at bytes.
//!
//! Time is virtual. When nothing can run it jumps to the next event, and if there is none while
//! `main` waits, the run panics with the word *deadlock*, the seed, and what waits.
//!
//! The clock is that of a tokio runtime whose time is paused, because only the runtime knows when
//! its own tasks and timers are idle; it then moves the time to its next timer. The network's next
//! event is such a timer, so there is one clock for all, in steps of a millisecond. Tasks of the
//! driver run in the simulator's own executor, inside the runtime's root future: tokio offers no
//! way to choose their order. Not covered: threads, real sockets, and `tokio::select!` without
//! `biased`, whose choice is tokio's own.
//!
//! A direction is a pipe that moves byte by byte, or has the buffers of [`Sockets`], which take and
//! give bytes in lumps. Closing, resetting and refusing are those of TCP: what a kernel has taken is
//! delivered after the stream is gone, unless it was reset, and a reset takes away what the client
//! has not read.
//!
//! Start with [`Network`], then read `run.rs` (the loop) and `pipe.rs` (one direction).
#![forbid(unsafe_code)]

mod client;
mod drop_at;
mod faults;
mod link;
mod network;
mod pipe;
mod random;
mod run;
mod state;
mod stream;
mod tasks;
mod trace;

pub use client::Client;
pub use drop_at::DropAt;
pub use faults::{Faults, Sockets};
pub use network::{Network, Port};
pub use run::{Hold, Sim};
pub use stream::{Chunk, Listener, Passed, Stream};
pub use trace::Stuck;
