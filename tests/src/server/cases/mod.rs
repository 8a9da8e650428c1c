//! The server's guarantees, one function each. A function's name states its guarantee.

pub mod attacks;
pub mod background;
pub mod bodies;
pub mod buffers;
pub mod drain;
pub mod early_closes;
pub mod endings;
pub mod events;
pub mod handlers;
pub mod http2;
pub mod kernel;
pub mod large;
pub mod late_bodies;
pub mod limits;
pub mod long_idle;
pub mod neutral;
pub mod overload;
pub mod queue_delay;
pub mod rates;
pub mod requests;
pub mod responses;
pub mod run_to_completion;
pub mod secure;
pub mod shutdown;
pub mod timeouts;
pub mod tunnels;
pub mod upgrades;
pub mod websockets;

use crate::server::app::Shared;
use crate::server::bench::Bench;
use crate::server::server_timeouts::ServerTimeouts;
use peregrine::Limits;
use std::time::Duration;

/// Timeouts long enough that nothing expires within a case.
fn server_timeouts() -> ServerTimeouts {
    let shutdown_timeout = Duration::from_secs(20);
    ServerTimeouts {
        limits: Limits { shutdown_timeout, ..Limits::default() },
        ..ServerTimeouts::default()
    }
}

/// The limits that correspond to these timeouts.
fn limits() -> Limits {
    server_timeouts().limits()
}

/// These limits, with support for clients that shut down their sending side and still wait for a
/// response.
fn half_close() -> Limits {
    let mut limits = limits();
    limits.http1.half_close = true;
    limits
}

/// A server with the application of all cases.
fn begin<B: Bench>(bench: &B) -> (B::Server, Shared) {
    begin_with(bench, limits())
}

/// A server with the application of all cases and these limits.
fn begin_with<B: Bench>(bench: &B, limits: Limits) -> (B::Server, Shared) {
    let shared = Shared::default();
    (bench.start(limits, None, shared.app()), shared)
}
