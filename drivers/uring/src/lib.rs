//! The Linux io_uring driver: one thread with one ring and one tokio runtime.
//!
//! Implements the traits of `peregrine-driver`; it does not depend on HTTP. At startup, [`probe`]
//! checks whether this machine supports the driver and, if not, reports why and how to fix it. To
//! run several workers, call `prepare`, which creates the rings of all of them. On systems other
//! than Linux only `probe` exists.
//!
//! Start reading at `worker.rs` (a worker's state) and `event_loop.rs` (its loop), then
//! `stream.rs`, `receive.rs` and `send.rs` (a connection). Memory that the kernel may access is in
//! three places: `buffer_ring.rs` (received bytes), `chunk.rs` (bytes of a large receive) and
//! `operation.rs` (bytes being sent).
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(target_os = "linux")]
mod affinity;
#[cfg(target_os = "linux")]
mod buffer_ring;
#[cfg(target_os = "linux")]
mod chunk;
#[cfg(target_os = "linux")]
mod credentials;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod event_loop;
#[cfg(target_os = "linux")]
mod executor;
#[cfg(target_os = "linux")]
mod listener;
#[cfg(target_os = "linux")]
mod operation;
#[cfg(target_os = "linux")]
mod poll_clock;
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
mod sendfile;
#[cfg(target_os = "linux")]
mod stream;
#[cfg(target_os = "linux")]
mod timer;
#[cfg(target_os = "linux")]
mod worker;

#[cfg(target_os = "linux")]
pub use chunk::Chunk;
#[cfg(target_os = "linux")]
pub use driver::{KeepAwake, Uring};
#[cfg(target_os = "linux")]
pub use listener::UringListener;
#[cfg(target_os = "linux")]
pub use prepare::{PreparedRing, prepare};
pub use probe::{Features, ProbeError, probe};
#[cfg(target_os = "linux")]
pub use stream::UringStream;
