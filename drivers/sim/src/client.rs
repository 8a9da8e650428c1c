//! A simulated peer.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::endpoint::SimEndpoint;

/// The maximum number of bytes that one receive of a client returns.
const RECEIVE_BYTES_MAX: usize = 65_536;

/// The client's end of a connection. Dropping it closes the connection.
pub struct Client {
    endpoint: SimEndpoint,
}

impl Client {
    pub(crate) fn new(endpoint: SimEndpoint) -> Self {
        Self { endpoint }
    }

    /// Sends all of `bytes`. If the future is dropped, they are sent anyway.
    ///
    /// # Errors
    /// The connection broke (`ConnectionReset`), or the sending side was shut down (`BrokenPipe`).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let target = self.endpoint.queue(bytes)?;
        poll_fn(|cx| self.endpoint.poll_flushed_to(cx, target)).await?;
        let network = &self.endpoint.network;
        if network.with(|state| state.random.chance(state.faults.half_close_per_mille)) {
            self.half_close().await?;
        }
        Ok(())
    }

    /// Receives the next bytes from the server. Empty at the end, and on every later call.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn recv(&self) -> io::Result<Vec<u8>> {
        poll_fn(|cx| self.endpoint.poll_recv(cx, RECEIVE_BYTES_MAX)).await
    }

    /// Like [`recv`](Self::recv), as a poll function and for at most `bytes_max` bytes.
    pub fn poll_recv(&self, cx: &mut Context<'_>, bytes_max: usize) -> Poll<io::Result<Vec<u8>>> {
        self.endpoint.poll_recv(cx, bytes_max.max(1))
    }

    /// Queues bytes. Returns a target: the bytes have been sent once
    /// [`poll_flushed_to`](Self::poll_flushed_to) is ready for this target.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn queue(&self, bytes: &[u8]) -> io::Result<u64> {
        Ok(self.endpoint.queue(bytes)?)
    }

    /// Ready when everything up to `target` was sent.
    pub fn poll_flushed_to(&self, cx: &mut Context<'_>, target: u64) -> Poll<io::Result<()>> {
        self.endpoint.poll_flushed_to(cx, target)
    }

    /// Like [`half_close`](Self::half_close), as a poll function.
    pub fn poll_half_close(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.endpoint.poll_finish(cx)
    }

    /// Returns whether a receive would complete immediately with bytes, the end, or an error.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.endpoint.is_readable()
    }

    /// The connection's id, as used in the [event log](crate::Network::event_log).
    #[must_use]
    pub fn id(&self) -> u64 {
        self.endpoint.id
    }

    /// Like [`recv`](Self::recv), for at most `bytes_max` bytes: the rest stays in the client's
    /// kernel.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn recv_at_most(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        poll_fn(|cx| self.endpoint.poll_recv(cx, bytes_max.max(1))).await
    }

    /// Receives everything until the server has finished sending.
    ///
    /// # Errors
    /// The connection broke; the data received before is lost.
    pub async fn recv_all(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let bytes = self.recv().await?;
            if bytes.is_empty() {
                return Ok(all);
            }
            all.extend(bytes);
        }
    }

    /// Shuts down the sending side after everything sent before. Receiving is still possible.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn half_close(&self) -> io::Result<()> {
        poll_fn(|cx| self.endpoint.poll_finish(cx)).await
    }

    /// The address that the server sees as its peer.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.endpoint.client_address()
    }

    /// Resets the connection: the server sees a reset, and later calls on the client fail.
    pub fn reset(&self) {
        self.endpoint.reset();
    }

    /// Delays everything that is sent from now on by at least `duration` of virtual time.
    pub fn stall(&self, duration: Duration) {
        self.endpoint.stall(duration);
    }
}
