//! The portable driver: epoll, through one current-thread tokio runtime per worker. On systems
//! where tokio uses kqueue or IOCP, the driver has never been run.
//!
//! It is fully supported, for systems without io_uring and for containers that forbid it. It
//! contains no unsafe code and does not depend on HTTP.
//!
//! The driver turns readiness into completion: a receive waits until the socket is readable and
//! only then leases a buffer from the worker's pool, so an idle connection holds none. A send
//! writes immediately and waits only if the kernel's buffer is full.
//!
//! Tasks are tokio's own local tasks. Each has tokio's cooperative budget per poll, which is
//! intended: without it one peer that sends continuously could monopolise the thread.
//!
//! Start reading at `worker.rs` ([`Tokio`]), then `stream.rs` and `send_queue.rs`.
#![forbid(unsafe_code)]

mod affinity;
mod buffer_pool;
mod listener;
mod poll_clock;
mod send_queue;
mod socket;
mod stream;
mod worker;

pub use buffer_pool::Chunk;
pub use listener::TokioListener;
pub use stream::TokioStream;
pub use worker::{KeepAwake, Tokio};
