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
use peregrine_tls::TlsConnectionError as TlsReject;
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
        session: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<CloseReason>> {
        // Receive before an upgraded protocol's first turn, so that one turn is usually enough.
        if matches!(&session.phase, Phase::Upgraded(upgrade) if upgrade.wants_read())
            && let Poll::Ready(event) = self.poll_readable(session, cx)
            && let Some(ended) = self.on_wake(session, event)
        {
            return Poll::Ready(Some(ended));
        }
        loop {
            // After its last turn, a connection only sends what is already written, unless it is
            // closing.
            if session.io.had_final_turn && !matches!(session.phase, Phase::Closing(_)) {
                return self.flush_final(session, cx).map(Some);
            }
            let what = match self.turn(session, cx) {
                // The received bytes may contain thousands of requests, so each exchange counts.
                Some(Action::Continue) => {
                    self.budget_used += 1;
                    if self.budget_used < BUDGET_PER_POLL {
                        continue;
                    }
                    Interest::default()
                }
                Some(Action::Yield(what)) => {
                    self.budget_used = self.budget_used.max(BUDGET_PER_POLL);
                    what
                }
                Some(Action::Wait(what)) => what,
                Some(Action::Idle) => {
                    let flushed = self.flush(session);
                    match flushed {
                        // While the peer is still receiving a response, the connection is not idle.
                        Ok(_) if session.io.output.is_empty() && self.stream.is_writable() => {
                            return Poll::Ready(None);
                        }
                        Ok(_) => Interest { readable: true, writable: true },
                        Err(event) => match self.on_wake(session, event) {
                            Some(ended) => return Poll::Ready(Some(ended)),
                            None => continue,
                        },
                    }
                }
                Some(Action::Upgrade(upgrade)) => {
                    session.io.deadlines.clear_all();
                    session.io.keep_awake = Some(self.worker.driver.keep_awake());
                    session.phase = Phase::Upgraded(Box::new(UpgradedConnection::new(
                        upgrade,
                        session.http1.take_exchange(),
                    )));
                    continue;
                }
                // The peer has left and no earlier response is on its way, so nothing needs to be
                // sent.
                Some(Action::Close(Close { reason: ended @ CloseReason::PeerAborted, .. }))
                    if session.io.output.is_empty() && self.stream.is_flushed() =>
                {
                    return Poll::Ready(Some(self.abort(session, ended)));
                }
                Some(Action::Close(Close { reason: CloseReason::HandshakeTimeout, .. })) => {
                    return Poll::Ready(Some(self.abort(session, CloseReason::HandshakeTimeout)));
                }
                Some(Action::Close(close)) => {
                    self.start_close(session, close);
                    continue;
                }
                None => return Poll::Ready(Some(self.finish_close(session))),
            };
            let is_enough = self.is_budget_spent(session);
            let before = session.io.input.bytes_received();
            let event = ready!(self.wait_with_budget(session, what, is_enough, cx));
            let came = session.io.input.bytes_received().wrapping_sub(before);
            self.budget_used = self.budget_used.saturating_add(budget_for(came));
            if let Some(ended) = self.on_wake(session, event) {
                return Poll::Ready(Some(ended));
            }
        }
    }

    /// Counts a turn of the protocol. Returns whether the connection must yield.
    fn is_budget_spent(&mut self, session: &ActiveState<D>) -> bool {
        self.budget_used +=
            if session.io.output.has_shared() { BUDGET_PER_SHARED_WRITE } else { 1 };
        if coop::take_yield_request() {
            self.budget_used = self.budget_used.max(BUDGET_PER_POLL + 1);
        }
        self.budget_used > BUDGET_PER_POLL
    }

    /// Waits until something happens. If the connection must yield (`satisfies`), it waits until
    /// other tasks have been polled.
    fn wait_with_budget(
        &mut self,
        session: &mut ActiveState<D>,
        what: Interest,
        is_enough: bool,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        let mut waited = if is_enough {
            // Receive even if the response always has more to send.
            let came = if what.readable { self.poll_readable(session, cx) } else { Poll::Pending };
            match came {
                Poll::Pending | Poll::Ready(WakeReason::Ready) => {}
                broken => return broken,
            }
            self.wait(session, Interest::default(), cx)
        } else {
            self.wait(session, what, cx)
        };
        if is_enough && matches!(waited, Poll::Ready(WakeReason::Ready)) {
            // Yield before writing more, but still check deadlines and the lifecycle.
            waited = self.await_deadline(session, cx);
        }
        if waited.is_pending() {
            session.io.had_final_turn = self.worker.lifecycle() >= Lifecycle::ForceClosing;
            if is_enough {
                self.yield_now(cx);
            }
        }
        waited
    }

    /// Yields: the connection is polled again only after other tasks have been polled.
    fn yield_now(&mut self, cx: &mut Context<'_>) {
        self.budget_used = 0;
        let driver = &self.worker.driver;
        if D::SELF_WAKE_YIELDS {
            return driver.yield_now(cx);
        }
        let opens = self.yield_gate.get_or_insert_default().close(cx);
        driver.yield_now(&mut Context::from_waker(&opens));
    }

    /// Sends what is already written, and produces nothing more. Otherwise an endless response
    /// would never be cut.
    fn flush_final(
        &mut self,
        session: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<CloseReason> {
        loop {
            let event = ready!(self.wait(session, Interest::default(), cx));
            if let Some(ended) = self.on_wake(session, event) {
                return Poll::Ready(ended);
            }
        }
    }
}

impl<D: Driver> Connection<D> {
    /// Receives bytes or the end of the peer's sending side. Never ready if that side has ended
    /// before.
    pub(super) fn poll_readable(
        &mut self,
        session: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) -> Poll<WakeReason> {
        if session.io.input.is_eof(&self.transport) {
            return Poll::Pending;
        }
        Poll::Ready(match ready!(self.stream.poll_recv(cx)) {
            Ok(chunk) if chunk.is_empty() => {
                session.io.input.set_eof();
                WakeReason::Ready
            }
            Ok(chunk) => match self.on_chunk(session, chunk) {
                Ok(()) => WakeReason::Ready,
                Err(reject) => WakeReason::Tls(reject),
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
        session: &mut ActiveState<D>,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<(), TlsReject> {
        let io = &mut session.io;
        self.worker.instrumentation.record_receive(chunk.len());
        io.input.push(chunk, &mut self.transport, &mut io.output.tls_records)
    }
}
