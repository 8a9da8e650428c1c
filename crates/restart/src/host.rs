//! What an upgrade in place needs from its server.

use crate::internal::Restart;
use peregrine_server::Order;
use std::error::Error;
use std::fmt;
use std::io;

/// A server that can be upgraded in place.
pub trait UpgradeHost: Send + Sync {
    /// The current order to the server.
    fn present(&self) -> Order;

    /// The server's state for upgrades and for its service manager.
    fn restart(&self) -> &Restart;

    /// Lets the workers accept connections, unless there was an order to shut down.
    fn open(&self);

    /// Drains without a lame-duck phase, because the successor has taken over.
    fn leave(&self);

    /// Reloads the configuration and certificates.
    fn read_again(&self);

    /// Reports to the `tracing` subscriber, or prints to the terminal unless `quiet`.
    fn tell(&self, text: &str, quiet: bool);
}

/// The predecessor of this process did not pass on its sockets.
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
