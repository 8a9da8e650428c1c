//! Starts a server's threads.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. `body` is boxed so that the generic `spawn` is compiled only once.
pub(crate) fn spawn_thread(
    name: impl Into<String>,
    body: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(body)
}
