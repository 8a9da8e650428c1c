//! A connection that waits for a request and holds no buffers.

use super::{Activation, Connection, to_millis};
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::WaitingFor;
use std::task::{Context, Poll};
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Waits until the connection receives bytes, must send, or must close.
    pub(super) fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<Activation<D>> {
        // If the kernel has not accepted all of the last response, sending it must continue.
        if !self.stream.is_writable() {
            return Poll::Ready(Activation::MustSend);
        }
        if let Poll::Ready(received) = self.stream.poll_recv(cx) {
            return Poll::Ready(match received {
                Ok(chunk) if chunk.is_empty() => Activation::Close(CloseReason::PeerClosed),
                Ok(chunk) => Activation::Received(chunk),
                Err(error) => Activation::Close(CloseReason::Io(error.kind())),
            });
        }
        self.poll_idle_timeout(cx)
    }

    /// Waits until the connection must close or, over HTTP/2, must send GOAWAY. If bytes have
    /// arrived before it closes, returns them instead.
    fn poll_idle_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Activation<D>> {
        let (worker, limits) = (&*self.worker, &self.listener.context.limits);
        let is_new = match &self.http2 {
            None => self.protocol.waiting_for() == WaitingFor::FirstByte,
            Some(core) => core.is_new(),
        };
        let timeout = self.idle_timeout(is_new);
        let idle_since = Duration::from_millis(self.idle_since);
        let age_deadline = limits.expires_at(self.accepted_at());
        let drain_deadline = match worker.lifecycle() {
            Lifecycle::Standby | Lifecycle::Serving | Lifecycle::LameDuck => Duration::MAX,
            // A request may already be on its way to this connection, so it stays open a little
            // longer.
            Lifecycle::HandingOver | Lifecycle::Draining => {
                worker.lifecycle_since().max(idle_since).saturating_add(limits.drain_idle_timeout)
            }
            Lifecycle::ForceClosing => Duration::ZERO,
        };
        // After a GOAWAY, its deadline replaces both of the deadlines above.
        let (age_or_goaway_deadline, drain_deadline) = match &self.http2 {
            None => (age_deadline, drain_deadline),
            // Before its first request, an HTTP/2 connection is closed like an HTTP/1 connection.
            // In `Lifecycle::ForceClosing`, no GOAWAY is sent.
            Some(core) if core.is_new() || worker.lifecycle() == Lifecycle::ForceClosing => {
                (age_deadline, drain_deadline)
            }
            Some(core) => match core.goaway_sent_at() {
                // RFC 9113 §6.8: send GOAWAY before closing; the peer may send requests until the
                // GOAWAY arrives.
                None if drain_deadline != Duration::MAX
                    || worker.lifecycle() == Lifecycle::LameDuck
                    || age_deadline <= worker.driver.now() =>
                {
                    return Poll::Ready(Activation::MustSend);
                }
                None => (age_deadline, drain_deadline),
                Some(sent_at) => {
                    let end = sent_at.max(idle_since).saturating_add(limits.drain_idle_timeout);
                    // Which of the two deadlines is set determines the close reason below.
                    let is_draining = worker.lifecycle() >= Lifecycle::LameDuck;
                    if is_draining { (Duration::MAX, end) } else { (end, Duration::MAX) }
                }
            },
        };
        let idle_deadline = idle_since.saturating_add(timeout);
        let deadline = idle_deadline.min(age_or_goaway_deadline).min(drain_deadline);
        let is_drained = drain_deadline != Duration::MAX && drain_deadline <= worker.driver.now();
        // The timer expires at `deadline`, when the connection closes. Over HTTP/2, it also expires
        // at each earlier `shrink_at`, when the connection frees memory. If `idle_since` is only an
        // estimate, the first expiry corrects it, and the wait starts again.
        loop {
            let core = self.http2.as_mut().filter(|_| !is_drained);
            let shrink_at =
                core.as_ref().map_or(Duration::MAX, |core| core.next_shrink_at(idle_since));
            self.timer.set(deadline.min(shrink_at));
            if !is_drained && self.timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The worker may have been busy for a long time, so data may have arrived unnoticed.
            if worker.lifecycle() < Lifecycle::ForceClosing
                && let Some(chunk) = self.stream.try_recv()
            {
                return Poll::Ready(Activation::Received(chunk));
            }
            if std::mem::take(&mut self.is_flush_time_unknown) {
                self.idle_since = to_millis(worker.driver.submitted_at(idle_since));
                return self.poll_idle_timeout(cx);
            }
            match core.filter(|_| shrink_at < deadline) {
                Some(core) => core.shrink(),
                None => break,
            }
        }
        let now = worker.driver.now();
        Poll::Ready(Activation::Close(if drain_deadline <= now {
            CloseReason::Drained
        } else if age_deadline <= now {
            CloseReason::ConnectionAgeMax
        } else if age_or_goaway_deadline <= now {
            // The maximum age was not reached, so GOAWAY was sent because the connection used a
            // reserved slot.
            CloseReason::ConnectionClose
        } else {
            self.idle_timeout_reason(is_new)
        }))
    }

    /// How long the connection may be idle. `is_new`: it has not received a request yet.
    fn idle_timeout(&self, is_new: bool) -> Duration {
        let limits = &self.listener.context.limits;
        match (self.needs_tls_handshake(), is_new) {
            (true, _) => limits.handshake_timeout,
            (false, true) => limits.first_byte_timeout,
            (false, false) => limits.idle_timeout,
        }
    }

    /// The close reason when [`Self::idle_timeout`] has expired.
    fn idle_timeout_reason(&self, is_new: bool) -> CloseReason {
        match (self.needs_tls_handshake(), is_new) {
            (true, _) => CloseReason::HandshakeTimeout,
            (false, true) => CloseReason::FirstByteTimeout,
            (false, false) => CloseReason::IdleTimeout,
        }
    }
}
