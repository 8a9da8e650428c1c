//! [`SimConnection`]: a raw connection to a simulated server.

use super::sim::Sim;
use peregrine_driver_sim::Client;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The maximum number of bytes that one call sends or receives.
const CHUNK_BYTES_MAX: usize = 65_536;

/// The client's end of a connection, which transfers raw bytes: for any protocol, and for
/// misbehaving clients. Dropping it closes the connection.
///
/// It implements tokio's `AsyncRead` and `AsyncWrite`, so any client that accepts such a stream can
/// use it: hyper's for HTTP/2, tokio-tungstenite for WebSockets, or tokio-rustls around it for a
/// listener with TLS.
pub struct SimConnection {
    client: Client,
    sim: Sim,
    /// The number of bytes queued for sending so far.
    bytes_queued: Cell<u64>,
    /// The number of bytes that can still be sent before the test cuts the connection.
    send_left: Cell<Option<u64>>,
    /// The number of bytes that can still be received before the test cuts the connection.
    receive_left: Cell<Option<u64>>,
}

impl SimConnection {
    pub(super) fn new(client: Client, sim: Sim) -> Self {
        let (send_left, receive_left) = (Cell::new(None), Cell::new(None));
        Self { client, sim, bytes_queued: Cell::new(0), send_left, receive_left }
    }

    /// Breaks the connection after this many more bytes have been sent. The server receives them,
    /// and then a reset.
    pub fn cut_after_sent(&self, bytes: u64) {
        self.send_left.set(Some(bytes));
    }

    /// Breaks the connection after this many more bytes have been received.
    pub fn cut_after_received(&self, bytes: u64) {
        self.receive_left.set(Some(bytes));
    }

    /// Breaks the connection now: the server sees a reset.
    pub fn reset(&self) {
        self.client.reset();
    }

    /// Delays everything that is sent from now on until `time` has passed.
    pub fn stall(&self, time: Duration) {
        self.client.stall(time);
    }

    /// Returns the client's address, as the server sees it.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.client.address()
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// The connection was refused, broke, or was cut by the test.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut unsent = bytes;
        while !unsent.is_empty() {
            let sent = poll_fn(|cx| self.poll_send(cx, unsent)).await?;
            unsent = &unsent[sent..];
        }
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Receives the next bytes from the server. Returns an empty vector once the server has closed
    /// its side.
    ///
    /// # Errors
    /// The connection was refused, broke, or was cut by the test.
    pub async fn recv(&self) -> io::Result<Vec<u8>> {
        poll_fn(|cx| self.poll_recv(cx, CHUNK_BYTES_MAX)).await
    }

    /// Receives everything until the server closes its side.
    ///
    /// # Errors
    /// As [`recv`](Self::recv); the bytes received before the error are lost.
    pub async fn recv_to_end(&self) -> io::Result<Vec<u8>> {
        let mut received = Vec::new();
        loop {
            let bytes = self.recv().await?;
            if bytes.is_empty() {
                return Ok(received);
            }
            received.extend(bytes);
        }
    }

    /// Closes the sending side after everything queued has been sent. Receiving remains possible.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub async fn shutdown_write(&self) -> io::Result<()> {
        self.client.half_close().await
    }

    pub(super) fn id(&self) -> u64 {
        self.client.id()
    }

    /// Whether data, an end or a reset has arrived.
    pub(super) fn is_readable(&self) -> bool {
        self.client.is_readable()
    }

    fn cut(&self, operation: &str) -> io::Error {
        self.sim.log(format!("connection {}: cut by the test while {operation}", self.id()));
        self.client.reset();
        io::Error::new(io::ErrorKind::ConnectionReset, "the test cut the connection")
    }

    fn poll_send(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // Backpressure: queued bytes must be sent first.
        ready!(self.poll_sent(cx))?;
        let remaining = self.send_left.get();
        let bytes_max = remaining
            .map_or(usize::MAX, |remaining| usize::try_from(remaining).unwrap_or(usize::MAX));
        let size = bytes.len().min(CHUNK_BYTES_MAX).min(bytes_max);
        self.bytes_queued.set(self.client.queue(&bytes[..size])?);
        let sent = u64::try_from(size).expect("a length has at most 64 bits");
        self.send_left.set(remaining.map(|remaining| remaining - sent));
        Poll::Ready(Ok(size))
    }

    /// Is ready when everything has been sent. Then cuts the connection if that is due.
    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.client.poll_flushed_to(cx, self.bytes_queued.get()))?;
        if self.send_left.get() == Some(0) {
            self.send_left.set(None);
            return Poll::Ready(Err(self.cut("sending")));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Vec<u8>>> {
        let remaining = self.receive_left.get();
        if remaining == Some(0) {
            self.receive_left.set(None);
            return Poll::Ready(Err(self.cut("receiving")));
        }
        let limit = remaining.map_or(bytes_max, |remaining| {
            usize::try_from(remaining).unwrap_or(bytes_max).min(bytes_max)
        });
        let bytes = ready!(self.client.poll_recv(cx, limit))?;
        let received = u64::try_from(bytes.len()).expect("a length has at most 64 bits");
        self.receive_left.set(remaining.map(|remaining| remaining - received));
        Poll::Ready(Ok(bytes))
    }
}

impl AsyncRead for SimConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0 {
            let bytes = ready!(self.poll_recv(cx, buffer.remaining()))?;
            buffer.put_slice(&bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for SimConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() { Poll::Ready(Ok(0)) } else { self.poll_send(cx, bytes) }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_sent(cx))?;
        self.client.poll_half_close(cx)
    }
}

impl fmt::Debug for SimConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimConnection").field("id", &self.id()).finish_non_exhaustive()
    }
}
