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

pub use accept::balance::Balancer;
pub use limits::{Http1Limits, Http2Limits, Limits, MemoryMax, OverloadLimits};
pub use listener::config::{BoundListener, ReloadableConfig, SocketSharing};
pub use listener::proxy_protocol::ProxyProtocol;
pub use observe::access_log::{
    AccessLogFormat, AccessLogSink, AccessLogStyle, WorkerAccessLog, route_patterns,
};
pub use observe::close_reason::{CloseReason, InFlightStage};
pub use observe::metrics::WorkerMetrics;
pub use observe::prometheus::{METRIC_FAMILIES, write_metrics};
pub use observe::trace::{SpanRecorder, TraceConfig};
pub use observe::watchdog::{BlockingHandler, Heartbeat, PollWatchdog};
pub use observe::{FdReserve, Instrumentation, WorkerStats};
pub use run::run_worker;
pub use worker::WorkerLimits;
pub use worker::lifecycle::{ForceClosed, Lifecycle, WorkerReport};
pub use worker::locals::WorkerLocals;
pub use worker::shutdown::Shutdown;
