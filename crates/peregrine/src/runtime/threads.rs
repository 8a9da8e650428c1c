//! Starts the threads of a server.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. `body` is boxed because `spawn` is generic: all threads share one instance of
/// its code.
pub(crate) fn spawn_thread(
    name: impl Into<String>,
    body: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(body)
}
