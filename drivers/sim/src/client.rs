//! A simulated peer.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::link::Link;

/// The most bytes that one receive of a client returns.
const RECEIVE_BYTES_MAX: usize = 65_536;

/// A client's end of a connection. Dropping it closes the connection.
pub struct Client {
    link: Link,
}

impl Client {
    pub(crate) fn new(link: Link) -> Self {
        Self { link }
    }

    /// Sends all of `bytes`. If the future is dropped, they are sent all the same.
    ///
    /// # Errors
    /// The connection broke (`ConnectionReset`), or the sending side was ended (`BrokenPipe`).
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let target = self.link.queue(bytes)?;
        poll_fn(|context| self.link.poll_sent(context, target)).await?;
        let network = &self.link.network;
        if network.with(|state| state.random.chance(state.faults.half_close_per_mille)) {
            self.half_close().await?;
        }
        Ok(())
    }

    /// The next bytes from the server, empty at the end, and then again and again.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn recv(&self) -> io::Result<Vec<u8>> {
        poll_fn(|context| self.link.poll_recv(context, RECEIVE_BYTES_MAX)).await
    }

    /// The same for who polls, at most `bytes_max`.
    pub fn poll_recv(
        &self,
        context: &mut Context<'_>,
        bytes_max: usize,
    ) -> Poll<io::Result<Vec<u8>>> {
        self.link.poll_recv(context, bytes_max.max(1))
    }

    /// Hands over bytes. They are sent when [`poll_sent`](Self::poll_sent) has reached the result.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn queue(&self, bytes: &[u8]) -> io::Result<u64> {
        Ok(self.link.queue(bytes)?)
    }

    /// Ready when everything up to `target` was sent.
    pub fn poll_sent(&self, context: &mut Context<'_>, target: u64) -> Poll<io::Result<()>> {
        self.link.poll_sent(context, target)
    }

    /// The same as [`half_close`](Self::half_close) for who polls.
    pub fn poll_half_close(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_finish(context)
    }

    /// Would a receive return at once: bytes, the end, or an error?
    #[must_use]
    pub fn has_something(&self) -> bool {
        self.link.has_something()
    }

    /// The connection's number, by which the [story](crate::Network::story) names it.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.link.id
    }

    /// The same, but at most `bytes_max`: the rest stays in the client's kernel.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn recv_at_most(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        poll_fn(|context| self.link.poll_recv(context, bytes_max.max(1))).await
    }

    /// Everything until the server's end.
    ///
    /// # Errors
    /// The connection broke; what came before is lost.
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

    /// Ends the sending side after everything sent before. Receiving goes on.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn half_close(&self) -> io::Result<()> {
        poll_fn(|context| self.link.poll_finish(context)).await
    }

    /// What the server sees as its peer's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.link.client_address()
    }

    /// Breaks the connection off: the server sees a reset, and later calls here fail.
    pub fn reset(&self) {
        self.link.reset();
    }

    /// Lets nothing that is sent from here on arrive before `duration` of virtual time has passed.
    pub fn stall(&self, duration: Duration) {
        self.link.stall(duration);
    }
}
