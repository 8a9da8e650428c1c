//! Observability for operators: the pages of the admin listener, the access log, and span export.
//!
//! Workers never wait for any of these. They publish their data in shared memory (`state.rs`),
//! which the admin listener's thread renders as pages (`pages.rs`). They queue log lines for the
//! thread that writes the access log (`access_log/`), and spans for the thread that exports them
//! over OTLP (`otlp/`). Lines and spans that do not fit into their queue are dropped and counted.
//!
//! This crate does not use the server's builder or its handle: `peregrine` passes it bound sockets
//! and the channel of the server's lifecycle, and re-exports [`app`], `AccessLogOptions` and
//! `Otlp`.
#![forbid(unsafe_code)]

mod access_log;
#[cfg(feature = "tls")]
mod certificates;
mod listener;
#[cfg(feature = "otlp")]
mod otlp;
mod pages;
mod process;
#[cfg(feature = "metrics")]
mod recorder;
mod state;

pub use access_log::{AccessLogFormat, AccessLogOptions};
pub use listener::app;
#[cfg(feature = "otlp")]
pub use otlp::{Otlp, OtlpError};

/// Items that `peregrine` needs to start and stop the threads. They can change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::access_log::{
        AccessLogError, AccessLogFlush, AccessLogMetrics, DEFAULT_FLUSH_TIMEOUT,
        DEFAULT_QUEUE_BYTES_MAX, LogControl, Sink, StartedAccessLog,
    };
    pub use crate::listener::RunningAdmin;
    #[cfg(feature = "otlp")]
    pub use crate::otlp::{flush, inject, with_otel_recorder};
    pub use crate::state::{AdminState, WorkerReporter, WorkerView};
}
