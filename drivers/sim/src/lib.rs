//! A simulated network: seeded, in memory, with faults and virtual time.
//!
//! [`Sim`] is a driver like the others, so a complete server runs on it unchanged. Every decision
//! (which task runs next, where bytes are cut, which faults occur) comes from one seed. The same
//! seed repeats a run exactly; [`Network::trace_digest`] proves it. The simulation does not model
//! TCP's performance, and never looks at the contents of the data.
//!
//! Time is virtual. If no task can run, time jumps to the next event. If there is no next event
//! while `main` waits, the run panics with the word *deadlock*, the seed, and a list of the waiting
//! tasks.
//!
//! The clock is that of a tokio runtime with paused time, because only the runtime knows when its
//! own tasks and timers are idle; it then advances the time to its next timer. The network's next
//! event is such a timer, so there is one clock for everything, in steps of a millisecond. Tasks of
//! the driver run in the simulator's own executor, inside the runtime's root future, because tokio
//! offers no way to choose their order. The seed does not control threads, real sockets, or
//! `tokio::select!` without `biased`, whose choice is made by tokio.
//!
//! Each direction of a connection is a pipe that accepts any number of bytes for which it has room,
//! or has the buffers of [`SocketBuffers`], which accept and release bytes in steps. Closing,
//! resetting and refusing behave as in TCP: data accepted by a kernel is delivered even after the
//! stream was dropped, unless the stream was reset, and a reset discards data that the client has
//! not read.
//!
//! Start with [`Network`], then read `run.rs` (the loop) and `pipe.rs` (one direction).
#![forbid(unsafe_code)]

mod client;
mod drop_at;
mod endpoint;
mod faults;
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
pub use faults::{Faults, SocketBuffers};
pub use network::{Network, Port};
pub use run::{KeepAwake, Sim};
pub use stream::{Chunk, SimHandoff, SimListener, SimStream};
pub use trace::RunFailure;
