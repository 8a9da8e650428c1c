//! How threads of a server begin.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread. What the standard library does around `body` is compiled for each type of it, so those of every server have one.
pub(crate) fn start(
    name: impl Into<String>,
    body: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.into()).spawn(body)
}
