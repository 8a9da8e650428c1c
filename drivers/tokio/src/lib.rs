//! The portable driver: epoll, through one current-thread tokio runtime per worker. Where tokio has
//! kqueue or IOCP in the place of epoll, the driver has never run.
//!
//! It is a driver of the first class, for every system without io_uring and for containers that
//! forbid it. It contains no unsafe code and knows no HTTP.
//!
//! Readiness is turned into completion here: a receive waits until the socket is readable, and only
//! then leases a buffer from the worker's pool, so an idle connection holds none. A send writes at
//! once and waits only when the kernel's buffer is full.
//!
//! Tasks are tokio's own local tasks. Each has tokio's cooperative budget per poll, which is wanted:
//! without it one peer that sends without pause would keep the thread for itself.
//!
//! Start reading at `worker.rs` ([`Tokio`]), then `stream.rs` and `output.rs`.
#![forbid(unsafe_code)]

mod connection;
mod listener;
mod look;
mod output;
mod pin;
mod pool;
mod stream;
mod worker;

pub use listener::Listener;
pub use pool::Chunk;
pub use stream::Stream;
pub use worker::{Hold, Tokio};
