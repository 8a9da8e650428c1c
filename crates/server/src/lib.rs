//! Where driver, protocol and application meet: workers and their connections.
//!
//! Generic over the [`Driver`](peregrine_driver::Driver), so that what runs on io_uring is what runs
//! on tokio and in the simulator. Nothing here names a concrete driver or touches the kernel.
//!
//! Start with `connection/mod.rs` and `connection/work.rs`: the loop that drives one connection. `http1/` is what HTTP/1 does in
//! a turn of it and `http2/` what HTTP/2 does, `exchange.rs` is one request and its response, and
//! `worker.rs` is what all connections of a thread share. [`Limits`] is everything that may be tuned.
#![forbid(unsafe_code)]

mod accept;
mod clock;
mod closing;
mod connection;
mod connections;
mod counts;
mod deadlines;
mod detached;
mod door;
mod ended;
mod exchange;
mod fields;
mod handshakes;
mod http1;
mod http2;
mod inbox;
mod lifecycle;
mod limits;
mod link;
mod listen;
mod live;
mod locals;
mod log;
mod meter;
mod observe;
mod overload;
mod page;
mod panic;
mod probes;
mod proxied;
mod pulse;
mod reader;
mod respond;
mod run;
mod shared;
mod shutdown;
mod span;
mod spread;
mod stage;
mod tally;
mod told;
mod traces;
mod unfinished;
mod upgraded;
mod upload;
mod wheel;
mod wicket;
mod worker;
mod writer;

pub use counts::Counts;
pub use ended::Ended;
pub use lifecycle::{Cut, Order, Report};
pub use limits::{Http1Limits, Http2Limits, Limits};
pub use listen::Listen;
pub use live::Live;
pub use locals::Locals;
pub use log::{Form, Lines, Log, Style, patterns};
pub use observe::{Observed, Reserve, Snapshot};
pub use overload::{MemoryMax, OverloadLimits};
pub use page::{FAMILIES, write};
pub use proxied::ProxyProtocol;
pub use pulse::{Blocked, Pulse, Watch};
pub use run::run;
pub use shared::Shared;
pub use shutdown::Shutdown;
pub use spread::Member;
pub use traces::{Recorder, Traces};
pub use unfinished::Unfinished;
pub use worker::WorkerLimits;
