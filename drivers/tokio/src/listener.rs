//! Accepts connections.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use peregrine_driver::{Socket, SocketOptions};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::task::coop::has_budget_remaining;

use crate::connection::Connection;
use crate::stream::Stream;
use crate::worker::{Worker, increment};

/// A listening socket of one worker. When it is dropped, the kernel closes the connections in its
/// backlog.
pub struct Listener {
    source: Source,
    earlier: Cell<Earlier>,
    /// The Unix socket was shut down, so no further connections can arrive.
    #[cfg(unix)]
    refuses: Cell<bool>,
    worker: Rc<Worker>,
}

enum Source {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

/// Connections that were in the backlog before the listening socket got the options that others
/// inherit. Once the backlog was empty, none of them is left.
///
/// | from | to | when |
/// |---|---|---|
/// | Unknown | Some | a connection was accepted, which may be such a one |
/// | Some | None | the backlog is empty |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Earlier {
    Unknown,
    Some,
    None,
}

/// Whether accepted sockets inherit the options of the listening one.
const INHERITS: bool = cfg!(any(target_os = "linux", target_os = "android"));

impl Listener {
    pub(crate) fn new(socket: Socket, worker: Rc<Worker>) -> io::Result<Self> {
        // Tokio requires non-blocking sockets.
        let source = match socket {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // On Linux accepted sockets inherit the options of the listening one, which saves
                // system calls per connection.
                prepare(SockRef::from(&listener), &worker.sockets)?;
                Source::Tcp(TcpListener::from_std(listener)?)
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Source::Unix(UnixListener::from_std(listener)?)
            }
        };
        Ok(Self {
            source,
            earlier: Cell::new(Earlier::Unknown),
            #[cfg(unix)]
            refuses: Cell::new(false),
            worker,
        })
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        let accepted = match &self.source {
            Source::Tcp(listener) => {
                listener.poll_accept(context).map_ok(|(socket, _)| Connection::Tcp(socket))
            }
            #[cfg(unix)]
            Source::Unix(listener) if self.refuses.get() => Poll::Ready(take_last(listener)),
            #[cfg(unix)]
            Source::Unix(listener) => {
                listener.poll_accept(context).map_ok(|(socket, _)| Connection::Unix(socket))
            }
        };
        // A task without remaining budget is pending although there may be more.
        if accepted.is_pending() && self.earlier.get() == Earlier::Some && has_budget_remaining() {
            self.earlier.set(Earlier::None);
        }
        let accepted = ready!(accepted);
        if self.earlier.get() == Earlier::Unknown {
            self.earlier.set(Earlier::Some);
        }
        self.worker.figures.call();
        Poll::Ready(accepted)
    }
}

impl peregrine_driver::Listener for Listener {
    type Stream = Stream;

    async fn accept(&self) -> io::Result<Stream> {
        let connection = poll_fn(|context| self.poll_accept(context)).await?;
        if let Connection::Tcp(socket) = &connection
            && (!INHERITS || self.earlier.get() != Earlier::None)
        {
            // Fails only if the peer is gone, which the first receive reports.
            let _ = prepare(SockRef::from(socket), &self.worker.sockets);
        }
        increment(&self.worker.figures.accepted);
        Ok(Stream::new(connection, Rc::clone(&self.worker)))
    }

    /// Has no effect on systems without socket filters (other than Linux and Android).
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn refuse_new(&self) {
        match &self.source {
            Source::Tcp(listener) => {
                let _ = SockRef::from(listener).attach_filter(&WITHOUT_SYN);
            }
            Source::Unix(listener) => {
                let is_shut = SockRef::from(listener).shutdown(std::net::Shutdown::Read).is_ok();
                self.refuses.set(is_shut);
            }
        }
    }
}

/// Returns the error for tasks that still wait at a socket without future connections.
#[cfg(unix)]
fn take_last(listener: &UnixListener) -> io::Result<Connection> {
    let (socket, _name) = SockRef::from(listener).accept().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::InvalidInput.into(),
        _ => error,
    })?;
    socket.set_nonblocking(true)?;
    Ok(Connection::Unix(UnixStream::from_std(socket.into())?))
}

/// Sets the options of a TCP connection on its own socket or on its listening socket.
fn prepare(socket: SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_notsent_lowat(options.unsent_bytes_max)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(options.user_timeout_kept())?;
    if let Some(time) = options.keep_alive {
        let keep_alive = TcpKeepalive::new().with_time(time);
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        let keep_alive = keep_alive
            .with_interval(options.keep_alive_interval)
            .with_retries(options.keep_alive_probes);
        socket.set_tcp_keepalive(&keep_alive)?;
    } else {
        // A previous owner of the listening socket, such as the process before a restart, may have
        // enabled it.
        socket.set_keepalive(false)?;
    }
    Ok(())
}

/// Drops segments that start a connection (SYN without ACK) and passes the rest. Segments of
/// handshakes in progress also arrive at the listening socket.
#[cfg(any(target_os = "linux", target_os = "android"))]
const WITHOUT_SYN: [socket2::SockFilter; 5] = [
    // The flags, in byte 13 of the TCP header (RFC 9293 3.1), where the data begins here.
    socket2::SockFilter::new(0x30, 0, 0, 13),
    // Mask SYN and ACK.
    socket2::SockFilter::new(0x54, 0, 0, 0x12),
    // SYN alone continues at the next instruction, everything else at the one after it.
    socket2::SockFilter::new(0x15, 0, 1, 0x02),
    socket2::SockFilter::new(0x06, 0, 0, 0),
    socket2::SockFilter::new(0x06, 0, 0, u32::MAX),
];
