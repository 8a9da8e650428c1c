//! Closes a connection: sends the remaining output, then receives and discards the peer's data for
//! a while.

use crate::io::context::{Action, Close, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::io::transport::Transport;
use crate::observe::close_reason::CloseReason;
use crate::worker::lifecycle::Lifecycle;
use peregrine_driver::{Driver, Stream};
use std::time::Duration;

/// A connection that is being closed.
pub(crate) struct Closing {
    reason: CloseReason,
    /// Whether a response was truncated although `reason` does not imply it. The close must then
    /// not look like the end of a complete response.
    is_cut_short: bool,
    step: CloseStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseStep {
    /// Sends the remaining output.
    Flush { linger: bool },
    /// Sends the TLS `close_notify`, if there is one.
    CloseNotify { linger: bool },
    /// The sending side was shut down at this time. Data from the peer is discarded.
    Linger(Duration),
}

impl Closing {
    pub(crate) fn new(close: Close, is_cut_short: bool) -> Self {
        let step = CloseStep::Flush { linger: close.linger };
        Self { reason: close.reason, is_cut_short, step }
    }

    /// Why the connection is closed.
    pub(crate) fn into_reason(self) -> CloseReason {
        self.reason
    }

    /// Returns whether output may still have to be sent.
    pub(crate) fn is_flushing(&self) -> bool {
        !matches!(self.step, CloseStep::Linger(_))
    }

    /// Performs the next step. Returns `None` when the connection is closed and can be dropped.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
    ) -> Option<Action> {
        let is_flushed = conn.io.output.is_empty() && conn.stream.is_flushed();
        match self.step {
            CloseStep::Flush { .. } | CloseStep::CloseNotify { .. } if !is_flushed => {
                Some(Action::Wait(Interest { readable: false, writable: true }))
            }
            CloseStep::Flush { linger } => {
                self.send_close_notify(conn);
                self.step = CloseStep::CloseNotify { linger };
                Some(Action::Continue)
            }
            CloseStep::CloseNotify { linger: false } => None,
            CloseStep::CloseNotify { linger: true } if conn.is_eof() => None,
            CloseStep::CloseNotify { linger: true } => {
                conn.stream.finish();
                let limits = &conn.listener.limits;
                let now = conn.worker.driver.now();
                conn.io.deadlines.clear_all();
                conn.io
                    .deadlines
                    .set(TimeoutKind::LingerMax, now.saturating_add(limits.linger_time_max));
                // Discard data that has already arrived: it does not show that the peer is still
                // sending.
                discard_input(conn);
                self.reset_linger_idle(conn);
                self.step = CloseStep::Linger(now);
                self.shorten_for_drain(now, conn);
                Some(Action::Wait(Interest { readable: true, writable: false }))
            }
            CloseStep::Linger(since) => {
                if conn.is_eof() {
                    return None;
                }
                self.shorten_for_drain(since, conn);
                if discard_input(conn) {
                    self.reset_linger_idle(conn);
                }
                Some(Action::Wait(Interest { readable: true, writable: false }))
            }
        }
    }

    /// Sets the deadline at which the server stops receiving if the peer sends nothing until then.
    fn reset_linger_idle<D: Driver>(&self, conn: &mut ConnectionContext<'_, D>) {
        let limits = &conn.listener.limits;
        let timeout = if conn.worker.lifecycle() >= Lifecycle::Draining {
            limits.linger_timeout.min(limits.drain_idle_timeout)
        } else {
            limits.linger_timeout
        };
        let deadline = conn.worker.driver.now().saturating_add(timeout);
        conn.io.deadlines.set(TimeoutKind::LingerIdle, deadline);
    }

    /// Shortens the deadlines while the worker drains. A peer that keeps sending may delay the
    /// drain by at most `linger_timeout`, and a silent peer by at most `drain_idle_timeout`.
    fn shorten_for_drain<D: Driver>(&self, since: Duration, conn: &mut ConnectionContext<'_, D>) {
        let (worker, limits) = (conn.worker, &conn.listener.limits);
        if worker.lifecycle() >= Lifecycle::Draining {
            let start = worker.lifecycle_since().max(since);
            conn.io.deadlines.set_if_earlier(
                TimeoutKind::LingerMax,
                start.saturating_add(limits.linger_timeout),
            );
            let idle_deadline = worker.driver.now().saturating_add(limits.drain_idle_timeout);
            conn.io.deadlines.set_if_earlier(TimeoutKind::LingerIdle, idle_deadline);
        }
    }

    fn send_close_notify<D: Driver>(&self, conn: &mut ConnectionContext<'_, D>) {
        // Nothing may be sent after a TLS alert, and `close_notify` would make a truncated response
        // look complete.
        let is_truncated = self.is_cut_short
            || matches!(
                self.reason,
                CloseReason::ResponseBodyFailed | CloseReason::ExchangeTimeout | CloseReason::Io(_)
            );
        if is_truncated || self.reason.is_tls_failure() {
            return;
        }
        if let Transport::Tls(tls) = &mut *conn.transport {
            tls.session.close(&mut conn.io.output.tls_records);
        }
    }
}

/// Discards received data. Returns false if there was none.
fn discard_input<D: Driver>(conn: &mut ConnectionContext<'_, D>) -> bool {
    let input = &mut conn.io.input;
    let unread = input.unread().len();
    input.consume(unread);
    unread > 0
}
