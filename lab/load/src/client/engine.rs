//! The seam between the load loop and the kernel: streams in, bytes and ends out.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use serde::Serialize;

use super::epoll::Readiness;
use super::ring::Ring;

/// Names an attached stream. It is free for another stream after its detachment.
pub(crate) type Token = usize;

/// What happened on a stream.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// Bytes arrived.
    Data(&'a [u8]),
    /// No more bytes will arrive: the peer closed (no error) or the stream broke.
    Ended(Option<io::Error>),
}

/// A way to move bytes. All of it is used from the thread that made it.
pub(crate) trait Engine {
    /// Takes over a connected stream in blocking mode and begins to receive from it.
    fn attach(&mut self, stream: TcpStream) -> io::Result<Token>;

    /// Sends a copy of `bytes` after everything that was sent before on this stream. A failure to
    /// send shows as the end of the stream.
    fn send(&mut self, token: Token, bytes: &[u8]) -> io::Result<()>;

    /// Closes the stream. No event of it is reported from here on.
    fn detach(&mut self, token: Token);

    /// Submits what is waiting, waits at most `wait` for something to happen, and reports it.
    fn turn(&mut self, wait: Duration, sink: &mut dyn FnMut(Token, Event<'_>)) -> io::Result<()>;
}

/// How the client talks to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineKind {
    /// io_uring: the cheaper one.
    Ring,
    /// epoll: where io_uring is refused.
    Epoll,
}

/// Makes the engine that was asked for, or the best that this machine allows.
pub(crate) fn make(wanted: Option<EngineKind>) -> io::Result<(EngineKind, Box<dyn Engine>)> {
    match wanted {
        Some(EngineKind::Ring) => Ok((EngineKind::Ring, Box::new(Ring::new()?))),
        Some(EngineKind::Epoll) => Ok((EngineKind::Epoll, Box::new(Readiness::new()?))),
        None => match Ring::new() {
            Ok(ring) => Ok((EngineKind::Ring, Box::new(ring))),
            Err(_) => make(Some(EngineKind::Epoll)),
        },
    }
}
