//! The seam between the load loop and the kernel: streams in, bytes and ends out.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::Serialize;

use super::epoll::Readiness;
use super::ring::Ring;

/// Names an attached stream. It is free for another stream after its detachment.
pub(crate) type Token = usize;

/// What happened on a stream.
#[derive(Debug)]
pub(crate) enum Event<'a> {
    /// A connection that was begun is made, and bytes can be sent on it.
    Connected,
    /// Bytes arrived.
    Data(&'a [u8]),
    /// No more bytes will arrive: the peer closed (no error), the stream broke, or the connection
    /// could not be made.
    Ended(Option<io::Error>),
}

/// A way to move bytes. All of it is used from the thread that made it.
pub(crate) trait Engine {
    /// Takes over a connected stream in blocking mode and begins to receive from it.
    fn attach(&mut self, stream: TcpStream) -> io::Result<Token>;

    /// Begins to connect. [`Event::Connected`] or [`Event::Ended`] tells how it went.
    ///
    /// An error is one of this machine: no descriptor or no port is left.
    fn connect(&mut self, address: SocketAddr) -> io::Result<Token>;

    /// Sends a copy of `bytes` after everything that was sent before on this stream. A failure to
    /// send shows as the end of the stream.
    fn send(&mut self, token: Token, bytes: &[u8]) -> io::Result<()>;

    /// Closes the stream. No event of it is reported from here on.
    fn detach(&mut self, token: Token);

    /// Makes the closing of this stream a reset, which leaves no port of this machine waiting.
    fn set_reset_on_close(&mut self, token: Token);

    /// Submits what is waiting, waits at most `wait` for something to happen, and reports it.
    fn turn(&mut self, wait: Duration, sink: &mut dyn FnMut(Token, Event<'_>)) -> io::Result<()>;
}

/// A non-blocking stream that has begun to connect.
pub(crate) fn begin_to_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        // A refusal that is known at once is read from the socket like one that comes later.
        Ok(()) | Err(Errno::INPROGRESS | Errno::CONNREFUSED) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// How a connection that was begun has gone; the stream is writable or broken.
pub(crate) fn connected(stream: &TcpStream) -> io::Result<()> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => stream.peer_addr().map(drop),
    }
}

/// See [`Engine::set_reset_on_close`].
pub(crate) fn set_reset_on_close(stream: &TcpStream) {
    // A stream that is gone already needs no reset.
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
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
