//! The Linux io_uring driver: one ring, one thread, one tokio runtime on it.
//!
//! It implements the traits of `peregrine-driver` and knows no HTTP. Ask [`probe`] once, at start,
//! whether this machine has what the driver needs; if not, the answer says why and what helps. Who
//! wants several workers asks `prepare`, which makes the rings of all of them.
//! On other systems `probe` is all there is.
//!
//! Start reading at `worker.rs` (what a worker is made of) and `park.rs` (its loop); then
//! `stream.rs`, `receive.rs` and `send.rs` for a connection. Memory that the kernel may touch is in
//! three places: `buffers.rs` (received bytes), `chunk.rs` (those of a large receive) and
//! `operation.rs` (bytes being sent).
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(target_os = "linux")]
mod buffers;
#[cfg(target_os = "linux")]
mod chunk;
#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
mod credentials;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod file;
#[cfg(target_os = "linux")]
mod listener;
#[cfg(target_os = "linux")]
mod look;
#[cfg(target_os = "linux")]
mod operation;
#[cfg(target_os = "linux")]
mod park;
#[cfg(target_os = "linux")]
mod prepare;
mod probe;
#[cfg(target_os = "linux")]
mod receive;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
mod send;
#[cfg(target_os = "linux")]
mod stream;
#[cfg(target_os = "linux")]
mod task;
#[cfg(target_os = "linux")]
mod timer;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(target_os = "linux")]
pub use chunk::Chunk;
#[cfg(target_os = "linux")]
pub use driver::{Hold, Uring};
#[cfg(target_os = "linux")]
pub use listener::UringListener;
#[cfg(target_os = "linux")]
pub use prepare::{Prepared, prepare};
pub use probe::{Features, Refusal, probe};
#[cfg(target_os = "linux")]
pub use stream::UringStream;
