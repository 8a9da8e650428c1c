//! Forwards an upgraded connection.

use crate::attempt::later;
use bytes::{Buf, Bytes};
use hyper::upgrade::Upgraded as Theirs;
use hyper_util::rt::TokioIo;
use peregrine_web::turn::others_first;
use peregrine_web::upgrade::Upgraded as Ours;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// The maximum number of bytes read from the upstream at once.
const READ_BYTES: usize = 16 * 1024;
/// The maximum number of reads and writes before other tasks run.
const MOVES_PER_TURN: u32 = 64;

/// Moves bytes in both directions until the upstream has ended and all bytes are sent, or until
/// either end fails. When the client closes its side, the upstream's side is closed too. The
/// upstream may still respond, unless it pauses for `idle_timeout`: a disconnected client looks the
/// same.
pub(crate) async fn tunnel(client: Ours, upstream: Theirs, idle_timeout: Duration) {
    let mut tunnel = Tunnel {
        client,
        upstream: TokioIo::new(upstream),
        upwards: Bytes::new(),
        is_client_done: false,
        is_unflushed: false,
        is_shut: false,
        buffer: vec![0; READ_BYTES].into_boxed_slice(),
        is_upstream_done: false,
        idle_timeout,
        alarm: None,
    };
    // The outcome is not needed.
    let _ = poll_fn(|context| tunnel.poll(context)).await;
}

struct Tunnel {
    client: Ours,
    upstream: TokioIo<Theirs>,
    /// Received from the client and not written yet.
    upwards: Bytes,
    is_client_done: bool,
    is_unflushed: bool,
    is_shut: bool,
    buffer: Box<[u8]>,
    is_upstream_done: bool,
    idle_timeout: Duration,
    /// Set while nothing is moved, after the client has closed its side.
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Tunnel {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..MOVES_PER_TURN {
            let up = self.poll_up(context)?;
            if self.is_upstream_done {
                return self.client.poll_taken(context);
            }
            let down = self.poll_down(context)?;
            if up.is_pending() && down.is_pending() {
                return self.poll_patience(context);
            }
            self.alarm = None;
        }
        others_first(context);
        Poll::Pending
    }

    /// Waits. If the client has closed its side, the wait is limited.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_client_done {
            return Poll::Pending;
        }
        let until = later(Instant::now(), self.idle_timeout);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Moves bytes to the upstream once.
    fn poll_up(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let upstream = Pin::new(&mut self.upstream);
        if !self.upwards.is_empty() {
            let written = ready!(upstream.poll_write(context, &self.upwards))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.upwards.advance(written);
            self.is_unflushed = true;
            return Poll::Ready(Ok(()));
        }
        if !self.is_client_done {
            match self.client.poll_recv(context) {
                Poll::Ready(received) => {
                    match received? {
                        Some(bytes) => self.upwards = bytes,
                        None => self.is_client_done = true,
                    }
                    return Poll::Ready(Ok(()));
                }
                Poll::Pending if !self.is_unflushed => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.upstream).poll_flush(context))?;
            self.is_unflushed = false;
            return Poll::Ready(Ok(()));
        }
        if !self.is_shut {
            ready!(Pin::new(&mut self.upstream).poll_shutdown(context))?;
            self.is_shut = true;
        }
        Poll::Pending
    }

    /// Moves bytes to the client once.
    fn poll_down(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.client.poll_room(context))?;
        let mut buffer = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.upstream).poll_read(context, &mut buffer))?;
        match buffer.filled() {
            [] => self.is_upstream_done = true,
            bytes => self.client.push(bytes),
        }
        Poll::Ready(Ok(()))
    }
}
