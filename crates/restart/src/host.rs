//! What an upgrade in place needs of its server.

use crate::internal::Restart;
use peregrine_server::Order;
use std::error::Error;
use std::fmt;
use std::io;

/// A server that can be upgraded in place.
pub trait UpgradeHost: Send + Sync {
    /// The last order that the server was given.
    fn present(&self) -> Order;

    /// The state of restarts that the server owns.
    fn restart(&self) -> &Restart;

    /// Lets workers accept that have waited for the predecessor, unless the server was ordered to
    /// end.
    fn open(&self);

    /// Drains at once, because another process serves in place of this one.
    fn leave(&self);

    /// Reloads settings and certificates.
    fn read_again(&self);

    /// Reports to the `tracing` subscriber, or prints to the terminal unless `quiet`.
    fn tell(&self, text: &str, quiet: bool);
}

/// The predecessor of this process does not hand over its sockets.
#[derive(Debug)]
pub struct TakeOverError(pub io::Error);

impl fmt::Display for TakeOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot take over from the process that started this one: {}", self.0)
    }
}

impl Error for TakeOverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
