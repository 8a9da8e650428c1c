//! A connection that waits for a request and holds no buffers.

use super::{Activation, Connection, milliseconds};
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::WaitingFor;
use std::task::{Context, Poll};
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Waits for the first bytes of a request or a handshake, or for work that needs no bytes.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Activation<D>> {
        // If the driver could not pass all of the last response to the kernel, the connection is
        // not idle.
        if !self.stream.is_writable() {
            return Poll::Ready(Ok(None));
        }
        if let Poll::Ready(received) = self.stream.poll_recv(cx) {
            return Poll::Ready(match received {
                Ok(chunk) if chunk.is_empty() => Err(CloseReason::PeerClosed),
                Ok(chunk) => Ok(Some(chunk)),
                Err(error) => Err(CloseReason::Io(error.kind())),
            });
        }
        self.poll_idle_timeout(cx)
    }

    /// Waits for the time when an idle connection must close or must send GOAWAY.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Activation<D>> {
        let (worker, limits) = (&*self.worker, &self.listener.context.limits);
        let is_new = match &self.http2 {
            None => self.protocol.waiting_for() == WaitingFor::FirstByte,
            Some(core) => core.is_new(),
        };
        let patience = self.idle_timeout(is_new);
        let since = Duration::from_millis(self.idle_since);
        let end_of_life = limits.expires_at(self.accepted_at());
        let drained = match worker.lifecycle() {
            Lifecycle::Standby | Lifecycle::Serving | Lifecycle::LameDuck => Duration::MAX,
            // A request may already be on its way to this connection, so it stays open a little
            // longer.
            Lifecycle::HandingOver | Lifecycle::Draining => {
                worker.lifecycle_since().max(since).saturating_add(limits.drain_idle_timeout)
            }
            Lifecycle::ForceClosing => Duration::ZERO,
        };
        let (end_of_life, drained) = match &self.http2 {
            None => (end_of_life, drained),
            // Before its first request, an HTTP/2 connection is closed like an HTTP/1 connection.
            // `Lifecycle::ForceClosing` sends no GOAWAY.
            Some(core) if core.is_new() || worker.lifecycle() == Lifecycle::ForceClosing => {
                (end_of_life, drained)
            }
            Some(core) => match core.goaway_sent_at() {
                // RFC 9113 §6.8: send GOAWAY before closing; the peer may send requests until the
                // GOAWAY arrives.
                None if drained != Duration::MAX
                    || worker.lifecycle() == Lifecycle::LameDuck
                    || end_of_life <= worker.driver.now() =>
                {
                    return Poll::Ready(Ok(None));
                }
                None => (end_of_life, drained),
                Some(told_at) => {
                    let over = told_at.max(since).saturating_add(limits.drain_idle_timeout);
                    let is_drained = worker.lifecycle() >= Lifecycle::LameDuck;
                    if is_drained { (Duration::MAX, over) } else { (over, Duration::MAX) }
                }
            },
        };
        let until = since.saturating_add(patience).min(end_of_life).min(drained);
        let is_drained = drained != Duration::MAX && drained <= worker.driver.now();
        loop {
            let core = self.http2.as_mut().filter(|_| !is_drained);
            let gives_back = core.as_ref().map_or(Duration::MAX, |core| core.next_shrink_at(since));
            self.timer.set(until.min(gives_back));
            if !is_drained && self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The worker may have been busy for a long time, so data may have arrived unnoticed.
            if worker.lifecycle() < Lifecycle::ForceClosing
                && let Some(chunk) = self.stream.try_recv()
            {
                return Poll::Ready(Ok(Some(chunk)));
            }
            if std::mem::take(&mut self.is_flush_time_unknown) {
                self.idle_since = milliseconds(worker.driver.submitted_at(since));
                return self.poll_idle_timeout(cx);
            }
            match core.filter(|_| gives_back < until) {
                Some(core) => core.shrink(),
                None => break,
            }
        }
        let now = worker.driver.now();
        Poll::Ready(Err(match () {
            () if drained <= now => CloseReason::Drained,
            () if end_of_life <= now => CloseReason::ConnectionAgeMax,
            () if self.needs_tls_handshake() => CloseReason::HandshakeTimeout,
            () if is_new => CloseReason::FirstByteTimeout,
            () => CloseReason::IdleTimeout,
        }))
    }

    /// How long the connection may be idle.
    fn idle_timeout(&self, is_new: bool) -> Duration {
        let limits = &self.listener.context.limits;
        match (self.needs_tls_handshake(), is_new) {
            (true, _) => limits.handshake_timeout,
            (false, true) => limits.first_byte_timeout,
            (false, false) => limits.idle_timeout,
        }
    }
}
