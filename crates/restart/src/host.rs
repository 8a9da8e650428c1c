//! What an upgrade in place needs from its server.

use crate::internal::RestartState;
use peregrine_server::Lifecycle;
use std::error::Error;
use std::fmt;
use std::io;

/// A server that can be upgraded in place.
pub trait UpgradeHost: Send + Sync {
    /// Returns the server's current lifecycle state.
    fn lifecycle(&self) -> Lifecycle;

    /// Returns the server's state for upgrades and for its service manager.
    fn restart(&self) -> &RestartState;

    /// Lets the workers accept connections, unless a shutdown was requested.
    fn start_serving(&self);

    /// Drains without a lame-duck phase, because the successor has taken over.
    fn hand_over(&self);

    /// Reloads the configuration and certificates.
    fn run_reload(&self);

    /// Reports to the `tracing` subscriber, or prints to the terminal unless `quiet`.
    fn report(&self, text: &str, quiet: bool);
}

/// The predecessor of this process did not pass on its sockets.
#[derive(Debug)]
pub struct HandoverError(pub io::Error);

impl fmt::Display for HandoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot take over from the process that started this one: {}", self.0)
    }
}

impl Error for HandoverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}
