//! The server: workers, their connections, and the path from a request's bytes to its handler.
//!
//! Everything here is generic over a [`Driver`](peregrine_driver::Driver), so the same code runs on
//! io_uring, on Tokio and in the simulator. This crate makes no system calls. Each worker runs on
//! one thread and accepts connections. Each connection is a task that alternates between running
//! its protocol and waiting for the driver. Start with `connection/mod.rs`. [`Limits`] lists
//! everything that can be tuned.
#![forbid(unsafe_code)]

mod accept;
mod admission;
mod connection;
mod exchange;
mod http1;
mod http2;
mod io;
mod limits;
mod listener;
mod observe;
mod panic;
mod run;
mod timer_wheel;
mod worker;

pub use accept::balance::Member;
pub use limits::{Http1Limits, Http2Limits, Limits, MemoryMax, OverloadLimits};
pub use listener::config::{Listen, Live, Shared};
pub use listener::proxy_protocol::ProxyProtocol;
pub use observe::access_log::{Form, Lines, Log, Style, patterns};
pub use observe::close_reason::{Ended, Unfinished};
pub use observe::metrics::Counts;
pub use observe::prometheus::{FAMILIES, write};
pub use observe::trace::{Recorder, Traces};
pub use observe::watchdog::{Blocked, Pulse, Watch};
pub use observe::{Observed, Reserve, Snapshot};
pub use run::run;
pub use worker::WorkerLimits;
pub use worker::lifecycle::{Cut, Order, Report};
pub use worker::locals::Locals;
pub use worker::shutdown::Shutdown;
