//! Limits how much work one connection may do before the worker polls other tasks.
//!
//! A connection has a budget of [`BUDGET_PER_POLL`] units. Each turn of the protocol costs one
//! unit, every 4 KiB received costs one more, and a large zero-copy write costs a third of the
//! budget. When the budget is used up, the connection yields until the driver has polled the
//! kernel. Before it yields, it still receives bytes, so a response that never ends cannot hide a
//! disconnect.

use super::active_state::{ActiveState, Phase};
use super::upgraded::UpgradedConnection;
use super::{Connection, WakeReason};
use crate::io::context::{Action, Close, Interest};
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use peregrine_tls::TlsConnectionError;
use peregrine_web::coop;
use std::task::{Context, Poll, ready};

/// A connection yields when it has used more than this many units.
const BUDGET_PER_POLL: usize = 64;

/// Every 4 KiB received costs one unit, so a connection yields after about 256 KiB, or earlier,
/// because each turn costs a unit too. Otherwise a peer that sends many small messages quickly
/// could occupy the worker.
const BYTES_PER_BUDGET_UNIT: u64 = 4 * 1024;

/// A turn costs this many units if it has written a large chunk of content, so a connection yields
/// after four such turns. Without this rule, a connection whose peer receives everything without
/// delay would neither wait nor yield.
const BUDGET_PER_CHUNK_WRITE: usize = BUDGET_PER_POLL / 3;

/// How many units of the budget `bytes` received bytes cost.
pub(super) fn budget_for(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_PER_BUDGET_UNIT).unwrap_or(usize::MAX)
}

impl<D: Driver> Connection<D> {
    /// Alternates turns and waits until the connection must be suspended. Returns `Ready(None)`
    /// when the connection is idle, and `Ready` with the reason when it is over.
    pub(super) fn drive(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<CloseReason>> {
        // For an upgraded protocol, receive before the first turn of this poll, so that one turn is
        // usually enough.
        if matches!(&state.phase, Phase::Upgraded(upgraded) if upgraded.wants_read())
            && let Poll::Ready(wake_reason) = self.poll_readable(state, cx)
            && let Some(reason) = self.on_wake(state, wake_reason)
        {
            return Poll::Ready(Some(reason));
        }
        loop {
            // After its final turn, a connection that is not closing only sends the output that is
            // already written.
            if state.io.had_final_turn && !matches!(state.phase, Phase::Closing(_)) {
                return self.flush_final(state, cx).map(Some);
            }
            let interest = match self.turn(state, cx) {
                // The received bytes may contain thousands of requests, so each turn counts.
                Some(Action::Continue) => {
                    self.budget_used += 1;
                    if self.budget_used < BUDGET_PER_POLL {
                        continue;
                    }
                    Interest::default()
                }
                Some(Action::Yield(interest)) => {
                    // `count_turn` below charges at least one more unit, so the connection yields.
                    self.budget_used = self.budget_used.max(BUDGET_PER_POLL);
                    interest
                }
                Some(Action::Wait(interest)) => interest,
                Some(Action::Idle) => {
                    let flushed = self.flush(state);
                    match flushed {
                        // While the peer is still receiving a response, the connection is not idle.
                        Ok(_) if state.io.output.is_empty() && self.stream.is_writable() => {
                            return Poll::Ready(None);
                        }
                        Ok(_) => Interest { readable: true, writable: true },
                        Err(wake_reason) => match self.on_wake(state, wake_reason) {
                            Some(reason) => return Poll::Ready(Some(reason)),
                            None => continue,
                        },
                    }
                }
                Some(Action::Upgrade(handler)) => {
                    state.io.deadlines.clear_all();
                    state.io.keep_awake = Some(self.worker.driver.keep_awake());
                    state.phase = Phase::Upgraded(Box::new(UpgradedConnection::new(
                        handler,
                        state.http1.take_exchange(),
                    )));
                    continue;
                }
                // The peer has disconnected and no earlier response is being sent, so nothing needs
                // to be flushed.
                Some(Action::Close(Close {
                    reason: reason @ CloseReason::PeerAborted, ..
                })) if state.io.output.is_empty() && self.stream.is_flushed() => {
                    return Poll::Ready(Some(self.abort(state, reason)));
                }
                // As in `on_timeout`, a stalled handshake gets no orderly close.
                Some(Action::Close(Close { reason: CloseReason::HandshakeTimeout, .. })) => {
                    return Poll::Ready(Some(self.abort(state, CloseReason::HandshakeTimeout)));
                }
                Some(Action::Close(close)) => {
                    self.start_close(state, close);
                    continue;
                }
                None => return Poll::Ready(Some(self.take_close_reason(state))),
            };
            let must_yield = self.count_turn(state);
            let received_before = state.io.input.bytes_received();
            let wake_reason = ready!(self.wait_with_budget(state, interest, must_yield, cx));
            let received = state.io.input.bytes_received().wrapping_sub(received_before);
            self.budget_used = self.budget_used.saturating_add(budget_for(received));
            if let Some(reason) = self.on_wake(state, wake_reason) {
                return Poll::Ready(Some(reason));
            }
        }
    }

    /// Charges the budget for a turn of the protocol. Returns whether the connection must yield,
    /// because the budget is used up or application code has requested it.
    fn count_turn(&mut self, state: &ActiveState<D>) -> bool {
        self.budget_used += if state.io.output.has_chunk() { BUDGET_PER_CHUNK_WRITE } else { 1 };
        if coop::take_yield_request() {
            self.budget_used = self.budget_used.max(BUDGET_PER_POLL + 1);
        }
        self.budget_used > BUDGET_PER_POLL
    }

    /// As [`Connection::wait`], but if `must_yield`, the connection also waits until other tasks
    /// have been polled.
    fn wait_with_budget(
        &mut self,
        state: &mut ActiveState<D>,
        interest: Interest,
        must_yield: bool,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let mut wake_reason = if must_yield {
            // Receive even if the response always has more to send.
            let received =
                if interest.readable { self.poll_readable(state, cx) } else { Poll::Pending };
            match received {
                Poll::Pending | Poll::Ready(WakeReason::Ready) => {}
                failed => return failed,
            }
            self.wait(state, Interest::default(), cx)
        } else {
            self.wait(state, interest, cx)
        };
        if must_yield && matches!(wake_reason, Poll::Ready(WakeReason::Ready)) {
            // Yield before writing more, but still check deadlines and the lifecycle.
            wake_reason = self.await_deadline(state, cx);
        }
        if wake_reason.is_pending() {
            state.io.had_final_turn = self.worker.lifecycle() >= Lifecycle::ForceClosing;
            if must_yield {
                self.yield_now(cx);
            }
        }
        wake_reason
    }

    /// Yields: the connection is polled again only after other tasks have been polled.
    fn yield_now(&mut self, cx: &mut Context<'_>) {
        self.budget_used = 0;
        let driver = &self.worker.driver;
        if D::SELF_WAKE_YIELDS {
            return driver.yield_now(cx);
        }
        let waker = self.yield_gate.get_or_insert_default().close(cx);
        driver.yield_now(&mut Context::from_waker(&waker));
    }

    /// Sends the output that is already written, but runs no more turns, because an endless
    /// response would never end.
    fn flush_final(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<CloseReason> {
        loop {
            let wake_reason = ready!(self.wait(state, Interest::default(), cx));
            if let Some(reason) = self.on_wake(state, wake_reason) {
                return Poll::Ready(reason);
            }
        }
    }
}

impl<D: Driver> Connection<D> {
    /// Receives bytes or the end of the peer's sending side. Always pending after that end.
    pub(super) fn poll_readable(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        if state.io.input.is_eof(&self.transport) {
            return Poll::Pending;
        }
        Poll::Ready(match ready!(self.stream.poll_recv(cx)) {
            Ok(chunk) if chunk.is_empty() => {
                state.io.input.set_eof();
                WakeReason::Ready
            }
            Ok(chunk) => match self.on_chunk(state, chunk) {
                Ok(()) => WakeReason::Ready,
                Err(error) => WakeReason::Tls(error),
            },
            Err(error) => WakeReason::Io(error.kind()),
        })
    }

    /// Adds received bytes to the input, after decrypting them if the connection uses TLS.
    ///
    /// # Errors
    /// The TLS session does not accept the bytes.
    pub(super) fn on_chunk(
        &mut self,
        state: &mut ActiveState<D>,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<(), TlsConnectionError> {
        let io = &mut state.io;
        self.worker.instrumentation.record_receive(chunk.len());
        io.input.push(chunk, &mut self.transport, &mut io.output.tls_records)
    }
}
