//! What operators see of a server: the pages of its admin listener, its access log, and spans over
//! OTLP.
//!
//! Workers never wait for any of it. They count in memory of their own (`state.rs`), which a thread
//! of the admin listener turns into pages (`pages.rs`); they hand lines to the thread that writes
//! the access log (`access_log/`), and spans to the thread that sends them (`otlp/`). What these
//! threads cannot take is dropped and counted.
//!
//! The crate knows neither the server's builder nor its handle: `peregrine` gives it bound sockets
//! and the channel of orders, and re-exports [`app`], `Log` and `Otlp`.
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

pub use access_log::{Form, Log};
pub use listener::app;
#[cfg(feature = "otlp")]
pub use otlp::{Otlp, OtlpError};

/// What a server needs to start and to end all this. It may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::access_log::{
        END_TIMEOUT, Ending, Figures, LogError, Logging, Place, QUEUE_BYTES_MAX, Sink,
    };
    pub use crate::listener::Administering;
    #[cfg(feature = "otlp")]
    pub use crate::otlp::{flush, inject, recorded};
    pub use crate::state::{Begun, View, Views};
}
