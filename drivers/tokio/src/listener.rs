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

use crate::socket::AsyncSocket;
use crate::stream::TokioStream;
use crate::worker::{TokioWorker, increment};

/// A listening socket of one worker. When it is dropped, the kernel closes the connections in its
/// backlog.
pub struct TokioListener {
    source: ListenSocket,
    preexisting: Cell<Preexisting>,
    /// Whether the Unix socket was shut down, so that no further connections can arrive.
    #[cfg(unix)]
    is_shut_down: Cell<bool>,
    worker: Rc<TokioWorker>,
}

enum ListenSocket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix(UnixListener),
}

/// Whether the backlog may contain connections that arrived before the options were set on the
/// listening socket, and so did not inherit them. Once the backlog has been empty, it cannot.
///
/// | from | to | when |
/// |---|---|---|
/// | Unknown | Possible | a first connection was accepted |
/// | Possible | Drained | the backlog is empty |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preexisting {
    Unknown,
    Possible,
    Drained,
}

/// Whether accepted sockets inherit the options of the listening socket.
const ACCEPT_INHERITS_OPTIONS: bool = cfg!(any(target_os = "linux", target_os = "android"));

impl TokioListener {
    pub(crate) fn new(socket: Socket, worker: Rc<TokioWorker>) -> io::Result<Self> {
        // Tokio requires non-blocking sockets.
        let source = match socket {
            Socket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                // On Linux, accepted sockets inherit the options of the listening socket, which
                // saves system calls per connection.
                apply_options(SockRef::from(&listener), &worker.socket_options)?;
                ListenSocket::Tcp(TcpListener::from_std(listener)?)
            }
            #[cfg(unix)]
            Socket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                ListenSocket::Unix(UnixListener::from_std(listener)?)
            }
        };
        Ok(Self {
            source,
            preexisting: Cell::new(Preexisting::Unknown),
            #[cfg(unix)]
            is_shut_down: Cell::new(false),
            worker,
        })
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<AsyncSocket>> {
        let accepted = match &self.source {
            ListenSocket::Tcp(listener) => {
                listener.poll_accept(cx).map_ok(|(socket, _)| AsyncSocket::Tcp(socket))
            }
            #[cfg(unix)]
            ListenSocket::Unix(listener) if self.is_shut_down.get() => {
                Poll::Ready(accept_remaining(listener))
            }
            #[cfg(unix)]
            ListenSocket::Unix(listener) => {
                listener.poll_accept(cx).map_ok(|(socket, _)| AsyncSocket::Unix(socket))
            }
        };
        // Without remaining budget, the result is `Pending` even if a connection is waiting.
        if accepted.is_pending()
            && self.preexisting.get() == Preexisting::Possible
            && has_budget_remaining()
        {
            self.preexisting.set(Preexisting::Drained);
        }
        let accepted = ready!(accepted);
        if self.preexisting.get() == Preexisting::Unknown {
            self.preexisting.set(Preexisting::Possible);
        }
        self.worker.stats.record_syscall();
        Poll::Ready(accepted)
    }
}

impl peregrine_driver::Listener for TokioListener {
    type Stream = TokioStream;

    async fn accept(&self) -> io::Result<TokioStream> {
        let connection = poll_fn(|cx| self.poll_accept(cx)).await?;
        if let AsyncSocket::Tcp(socket) = &connection
            && (!ACCEPT_INHERITS_OPTIONS || self.preexisting.get() != Preexisting::Drained)
        {
            // Fails only if the peer is gone, and then the first receive reports an error.
            let _ = apply_options(SockRef::from(socket), &self.worker.socket_options);
        }
        increment(&self.worker.stats.accepted);
        Ok(TokioStream::new(connection, Rc::clone(&self.worker)))
    }

    /// Has no effect on systems without socket filters (other than Linux and Android).
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn refuse_new_connections(&self) {
        match &self.source {
            ListenSocket::Tcp(listener) => {
                // If the kernel does not support filters, new connections are still accepted.
                let _ = SockRef::from(listener).attach_filter(&DROP_SYN_FILTER);
            }
            ListenSocket::Unix(listener) => {
                let is_shut = SockRef::from(listener).shutdown(std::net::Shutdown::Read).is_ok();
                self.is_shut_down.set(is_shut);
            }
        }
    }
}

/// Accepts from a socket that was shut down. Once its backlog is empty, no further connections can
/// arrive, so this fails with `InvalidInput`.
#[cfg(unix)]
fn accept_remaining(listener: &UnixListener) -> io::Result<AsyncSocket> {
    let (socket, _name) = SockRef::from(listener).accept().map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::ErrorKind::InvalidInput.into(),
        _ => error,
    })?;
    socket.set_nonblocking(true)?;
    Ok(AsyncSocket::Unix(UnixStream::from_std(socket.into())?))
}

/// Sets the options of a TCP connection on its own socket or on its listening socket.
fn apply_options(socket: SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(options.nodelay)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_notsent_lowat(options.notsent_lowat_bytes)?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    socket.set_tcp_user_timeout(options.tcp_user_timeout_clamped())?;
    if let Some(time) = options.tcp_keepalive {
        let keep_alive = TcpKeepalive::new().with_time(time);
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        let keep_alive = keep_alive
            .with_interval(options.tcp_keepalive_interval)
            .with_retries(options.tcp_keepalive_retries);
        socket.set_tcp_keepalive(&keep_alive)?;
    } else {
        // A previous owner of the listening socket, such as the process before a restart, may have
        // enabled it.
        socket.set_keepalive(false)?;
    }
    Ok(())
}

/// Drops segments that start a connection (SYN without ACK) and passes all others, because segments
/// of handshakes in progress also arrive at the listening socket.
#[cfg(any(target_os = "linux", target_os = "android"))]
const DROP_SYN_FILTER: [socket2::SockFilter; 5] = [
    // Load the flags: byte 13 of the TCP header (RFC 9293 3.1), at which the filter's data begins.
    socket2::SockFilter::new(0x30, 0, 0, 13),
    // Mask SYN and ACK.
    socket2::SockFilter::new(0x54, 0, 0, 0x12),
    // For SYN alone, continue with the next instruction; otherwise skip it.
    socket2::SockFilter::new(0x15, 0, 1, 0x02),
    // Drop the segment.
    socket2::SockFilter::new(0x06, 0, 0, 0),
    // Pass the whole segment.
    socket2::SockFilter::new(0x06, 0, 0, u32::MAX),
];
