//! Forwards an upgraded connection.

use crate::attempt::saturating_add;
use bytes::{Buf, Bytes};
use hyper::upgrade::Upgraded as UpstreamUpgraded;
use hyper_util::rt::TokioIo;
use peregrine_web::coop::yield_now;
use peregrine_web::upgrade::Upgraded as ClientUpgraded;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The maximum number of bytes per read from the upstream.
const READ_BYTES: usize = 16 * 1024;
/// The maximum number of reads and writes before other tasks run.
const COPIES_PER_POLL: u32 = 64;

/// Copies bytes in both directions until the upstream has closed its side and all bytes are sent,
/// or until either connection fails. When the client closes its side, the tunnel shuts down its own
/// side of the upstream's connection. The upstream can still send, but the tunnel ends when the
/// upstream pauses for `idle_timeout`, because a client that has disconnected looks the same.
pub(crate) async fn copy_bidirectional(
    client: ClientUpgraded,
    upstream: UpstreamUpgraded,
    idle_timeout: Duration,
) {
    let mut tunnel = Tunnel {
        client,
        upstream: TokioIo::new(upstream),
        pending_to_upstream: Bytes::new(),
        has_client_closed: false,
        needs_flush: false,
        has_shut_down_upstream: false,
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        has_upstream_closed: false,
        idle_timeout,
        idle_timer: None,
    };
    // Both connections are closed, whether the tunnel ended or failed.
    let _ = poll_fn(|cx| tunnel.poll(cx)).await;
}

struct Tunnel {
    client: ClientUpgraded,
    upstream: TokioIo<UpstreamUpgraded>,
    /// Received from the client and not written yet.
    pending_to_upstream: Bytes,
    has_client_closed: bool,
    needs_flush: bool,
    has_shut_down_upstream: bool,
    buffer: Box<[u8]>,
    has_upstream_closed: bool,
    idle_timeout: Duration,
    /// Set while nothing is copied, after the client has closed its side.
    idle_timer: Option<Pin<Box<Sleep>>>,
}

impl Tunnel {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..COPIES_PER_POLL {
            let to_upstream = self.poll_copy_to_upstream(cx)?;
            if self.has_upstream_closed {
                return self.client.poll_flush(cx);
            }
            let to_client = self.poll_copy_to_client(cx)?;
            if to_upstream.is_pending() && to_client.is_pending() {
                return self.poll_idle_timeout(cx);
            }
            self.idle_timer = None;
        }
        yield_now(cx);
        Poll::Pending
    }

    /// Waits for more bytes. After the client has closed its side, fails once `idle_timeout` has
    /// passed.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.has_client_closed {
            return Poll::Pending;
        }
        let until = saturating_add(Instant::now(), self.idle_timeout);
        let timer = self.idle_timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Takes one step of copying to the upstream: receives, writes, flushes or shuts down.
    fn poll_copy_to_upstream(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let upstream = Pin::new(&mut self.upstream);
        if !self.pending_to_upstream.is_empty() {
            let written = ready!(upstream.poll_write(cx, &self.pending_to_upstream))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending_to_upstream.advance(written);
            self.needs_flush = true;
            return Poll::Ready(Ok(()));
        }
        if !self.has_client_closed {
            match self.client.poll_recv(cx) {
                Poll::Ready(received) => {
                    match received? {
                        Some(bytes) => self.pending_to_upstream = bytes,
                        None => self.has_client_closed = true,
                    }
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending if !self.needs_flush => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        if self.needs_flush {
            ready!(Pin::new(&mut self.upstream).poll_flush(cx))?;
            self.needs_flush = false;
            return Poll::Ready(Ok(()));
        }
        if !self.has_shut_down_upstream {
            ready!(Pin::new(&mut self.upstream).poll_shutdown(cx))?;
            self.has_shut_down_upstream = true;
        }
        Poll::Pending
    }

    /// Copies the bytes of one read to the client.
    fn poll_copy_to_client(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.client.poll_capacity(cx))?;
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.upstream).poll_read(cx, &mut buffer))?;
        match buffer.filled() {
            [] => self.has_upstream_closed = true,
            bytes => self.client.start_send(bytes),
        }
        Poll::Ready(Ok(()))
    }
}
