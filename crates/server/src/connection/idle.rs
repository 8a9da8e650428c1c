//! A connection that waits for a request and holds no buffers.

use super::{Connection, FirstBytes, milliseconds};
use crate::observe::close_reason::Ended;
use crate::worker::lifecycle::Order;
use peregrine_driver::{Driver, Stream};
use peregrine_proto::h1::Waiting;
use std::task::{Context, Poll};
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Waits for the first bytes of a request or a handshake, or for work that needs no bytes.
    pub(super) fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<FirstBytes<D>> {
        // If the driver could not pass all of the last response to the kernel, the connection is
        // not idle.
        if !self.stream.has_room() {
            return Poll::Ready(Ok(None));
        }
        if let Poll::Ready(received) = self.stream.poll_recv(context) {
            return Poll::Ready(match received {
                Ok(chunk) if chunk.is_empty() => Err(Ended::PeerClosed),
                Ok(chunk) => Ok(Some(chunk)),
                Err(error) => Err(Ended::Broken(error.kind())),
            });
        }
        self.poll_end(context)
    }

    /// Waits for the time when an idle connection must close or must send GOAWAY.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<FirstBytes<D>> {
        let (worker, limits) = (&*self.worker, &self.entrance.door.limits);
        let is_new = match &self.http2 {
            None => self.protocol.waiting() == Waiting::FirstByte,
            Some(core) => core.is_new(),
        };
        let patience = self.patience(is_new);
        let since = Duration::from_millis(self.since);
        let end_of_life = limits.end_of_life(self.born());
        let drained = match worker.order() {
            Order::Wait | Order::Serve | Order::LameDuck => Duration::MAX,
            // A request may already be on its way to this connection, so it stays open a little
            // longer.
            Order::Leave | Order::Drain => {
                worker.ordered_at().max(since).saturating_add(limits.drain_idle_timeout)
            }
            Order::Cut => Duration::ZERO,
        };
        let (end_of_life, drained) = match &self.http2 {
            None => (end_of_life, drained),
            // Before its first request, an HTTP/2 connection is closed like an HTTP/1 connection.
            // `Order::Cut` sends no GOAWAY.
            Some(core) if core.is_new() || worker.order() == Order::Cut => (end_of_life, drained),
            Some(core) => match core.told_at() {
                // RFC 9113 §6.8: send GOAWAY before closing; the peer may send requests until the
                // GOAWAY arrives.
                None if drained != Duration::MAX
                    || worker.order() == Order::LameDuck
                    || end_of_life <= worker.driver.now() =>
                {
                    return Poll::Ready(Ok(None));
                }
                None => (end_of_life, drained),
                Some(told_at) => {
                    let over = told_at.max(since).saturating_add(limits.drain_idle_timeout);
                    let is_drained = worker.order() >= Order::LameDuck;
                    if is_drained { (Duration::MAX, over) } else { (over, Duration::MAX) }
                }
            },
        };
        let until = since.saturating_add(patience).min(end_of_life).min(drained);
        let is_drained = drained != Duration::MAX && drained <= worker.driver.now();
        loop {
            let core = self.http2.as_mut().filter(|_| !is_drained);
            let gives_back = core.as_ref().map_or(Duration::MAX, |core| core.gives_back_at(since));
            self.alarm.set(until.min(gives_back));
            if !is_drained && self.alarm.poll(context).is_pending() {
                return Poll::Pending;
            }
            // The worker may have been busy for a long time, so data may have arrived unnoticed.
            if worker.order() < Order::Cut
                && let Some(chunk) = self.stream.recv_now()
            {
                return Poll::Ready(Ok(Some(chunk)));
            }
            if std::mem::take(&mut self.is_leaving) {
                self.since = milliseconds(worker.driver.left_at(since));
                return self.poll_end(context);
            }
            match core.filter(|_| gives_back < until) {
                Some(core) => core.give_back(),
                None => break,
            }
        }
        let now = worker.driver.now();
        Poll::Ready(Err(match () {
            () if drained <= now => Ended::Drained,
            () if end_of_life <= now => Ended::Lifetime,
            () if self.is_to_shake_hands() => Ended::HandshakeLate,
            () if is_new => Ended::FirstByteLate,
            () => Ended::Idle,
        }))
    }

    /// How long the connection may be idle.
    fn patience(&self, is_new: bool) -> Duration {
        let limits = &self.entrance.door.limits;
        match (self.is_to_shake_hands(), is_new) {
            (true, _) => limits.handshake_timeout,
            (false, true) => limits.first_byte_timeout,
            (false, false) => limits.idle_timeout,
        }
    }
}
