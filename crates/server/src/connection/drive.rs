//! Limits how much work one connection may do before the worker polls other tasks.
//!
//! A connection has a budget of [`BUDGET_PER_POLL`] events. Each turn of the protocol counts as one
//! event, every 4 KiB received counts as one more, and a large zero-copy write counts as a third of
//! the budget. When the budget is used up, the connection yields until the driver has polled the
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

/// Events after which a connection yields.
const BUDGET_PER_POLL: usize = 64;

/// Every 4 KiB received counts as one event, so a connection yields after 256 KiB. Otherwise a peer
/// that sends many small messages quickly could occupy the worker.
const BYTES_PER_BUDGET_UNIT: u64 = 4 * 1024;

/// A large piece of content counts as this many events, so a connection yields after four pieces.
/// Without this rule, a connection whose peer receives everything at once would never wait and
/// never yield.
const BUDGET_PER_SHARED_WRITE: usize = BUDGET_PER_POLL / 3;

/// How many events this number of received bytes counts as.
pub(super) fn budget_for(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_PER_BUDGET_UNIT).unwrap_or(usize::MAX)
}

impl<D: Driver> Connection<D> {
    /// Works until the connection must wait. Returns `Ready(None)` when the connection is idle, and
    /// `Ready` with the reason when it is over.
    pub(super) fn drive(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<CloseReason>> {
        // Receive before an upgraded protocol's first turn, so that one turn is usually enough.
        if matches!(&state.phase, Phase::Upgraded(upgrade) if upgrade.wants_read())
            && let Poll::Ready(event) = self.poll_readable(state, cx)
            && let Some(reason) = self.on_wake(state, event)
        {
            return Poll::Ready(Some(reason));
        }
        loop {
            // After its last turn, a connection only sends the output that is already written,
            // unless it is closing.
            if state.io.had_final_turn && !matches!(state.phase, Phase::Closing(_)) {
                return self.flush_final(state, cx).map(Some);
            }
            let interest = match self.turn(state, cx) {
                // The received bytes may contain thousands of requests, so each exchange counts.
                Some(Action::Continue) => {
                    self.budget_used += 1;
                    if self.budget_used < BUDGET_PER_POLL {
                        continue;
                    }
                    Interest::default()
                }
                Some(Action::Yield(interest)) => {
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
                        Err(event) => match self.on_wake(state, event) {
                            Some(reason) => return Poll::Ready(Some(reason)),
                            None => continue,
                        },
                    }
                }
                Some(Action::Upgrade(upgrade)) => {
                    state.io.deadlines.clear_all();
                    state.io.keep_awake = Some(self.worker.driver.keep_awake());
                    state.phase = Phase::Upgraded(Box::new(UpgradedConnection::new(
                        upgrade,
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
                Some(Action::Close(Close { reason: CloseReason::HandshakeTimeout, .. })) => {
                    return Poll::Ready(Some(self.abort(state, CloseReason::HandshakeTimeout)));
                }
                Some(Action::Close(close)) => {
                    self.start_close(state, close);
                    continue;
                }
                None => return Poll::Ready(Some(self.finish_close(state))),
            };
            let must_yield = self.is_budget_spent(state);
            let received_before = state.io.input.bytes_received();
            let event = ready!(self.wait_with_budget(state, interest, must_yield, cx));
            let received = state.io.input.bytes_received().wrapping_sub(received_before);
            self.budget_used = self.budget_used.saturating_add(budget_for(received));
            if let Some(reason) = self.on_wake(state, event) {
                return Poll::Ready(Some(reason));
            }
        }
    }

    /// Counts a turn of the protocol. Returns whether the connection must yield.
    fn is_budget_spent(&mut self, state: &ActiveState<D>) -> bool {
        self.budget_used += if state.io.output.has_shared() { BUDGET_PER_SHARED_WRITE } else { 1 };
        if coop::take_yield_request() {
            self.budget_used = self.budget_used.max(BUDGET_PER_POLL + 1);
        }
        self.budget_used > BUDGET_PER_POLL
    }

    /// Waits for the next event. If `must_yield`, the connection also waits until other tasks have
    /// been polled.
    fn wait_with_budget(
        &mut self,
        state: &mut ActiveState<D>,
        interest: Interest,
        must_yield: bool,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let mut event = if must_yield {
            // Receive even if the response always has more to send.
            let receive_event =
                if interest.readable { self.poll_readable(state, cx) } else { Poll::Pending };
            match receive_event {
                Poll::Pending | Poll::Ready(WakeReason::Ready) => {}
                failed => return failed,
            }
            self.wait(state, Interest::default(), cx)
        } else {
            self.wait(state, interest, cx)
        };
        if must_yield && matches!(event, Poll::Ready(WakeReason::Ready)) {
            // Yield before writing more, but still check deadlines and the lifecycle.
            event = self.await_deadline(state, cx);
        }
        if event.is_pending() {
            state.io.had_final_turn = self.worker.lifecycle() >= Lifecycle::ForceClosing;
            if must_yield {
                self.yield_now(cx);
            }
        }
        event
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

    /// Sends the output that is already written, and produces no more. Otherwise an endless
    /// response would never end.
    fn flush_final(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<CloseReason> {
        loop {
            let event = ready!(self.wait(state, Interest::default(), cx));
            if let Some(reason) = self.on_wake(state, event) {
                return Poll::Ready(reason);
            }
        }
    }
}

impl<D: Driver> Connection<D> {
    /// Receives bytes or the end of the peer's sending side. Never ready if that side has ended
    /// before.
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

    /// Adds bytes that the driver received.
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
