//! Another protocol, passed through.

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

/// So much is taken from the upstream at a time.
const READ_BYTES: usize = 16 * 1024;
/// After so many moves others have their turn.
const MOVES_PER_TURN: u32 = 64;

/// Moves bytes both ways until the upstream has ended and all is sent, or until either end breaks. A client that ends its side is told to the
/// upstream, which may still answer, unless it says nothing for `idle_timeout`: a client that has left looks the same.
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
    // How it ended is of no use to anybody.
    let _ = poll_fn(|context| tunnel.poll(context)).await;
}

struct Tunnel {
    client: Ours,
    upstream: TokioIo<Theirs>,
    /// From the client, and not written yet.
    upwards: Bytes,
    is_client_done: bool,
    is_unflushed: bool,
    is_shut: bool,
    buffer: Box<[u8]>,
    is_upstream_done: bool,
    idle_timeout: Duration,
    /// Set while nothing moves, once the client has ended its side.
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

    /// Waits, but not for ever where one side has ended.
    fn poll_patience(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_client_done {
            return Poll::Pending;
        }
        let until = later(Instant::now(), self.idle_timeout);
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        ready!(alarm.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// One move to the upstream.
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

    /// One move to the client.
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
