//! Where driver, protocol and application meet: workers and their connections.
//!
//! Generic over the [`Driver`](peregrine_driver::Driver), so that what runs on io_uring is what runs
//! on tokio and in the simulator. Nothing here names a concrete driver or touches the kernel.
//!
//! Start with `connection.rs`: one connection from its first byte to its last. `exchange.rs` is one
//! request on it; `worker.rs` is what all connections of a thread share; [`Limits`] is everything
//! that may be tuned.
#![forbid(unsafe_code)]

mod accept;
mod connection;
mod deadline;
mod ended;
mod exchange;
mod handshakes;
mod inbox;
mod limits;
mod link;
mod observe;
mod pulse;
mod respond;
mod shutdown;
mod stage;
mod upgrade;
mod upload;
mod worker;

pub use ended::Ended;
pub use limits::Limits;
pub use observe::{Observed, Snapshot};
pub use pulse::{Blocked, Pulse, Watch};
pub use shutdown::Shutdown;
pub use worker::{Cut, Door, Order, Report, run};
