//! Closes a connection: sends the remaining output, then receives and discards the peer's data for
//! a while.

use crate::io::context::{Close, For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::io::transport::Stage;
use crate::observe::close_reason::Ended;
use crate::worker::lifecycle::Order;
use peregrine_driver::{Driver, Stream};
use std::time::Duration;

/// A connection that is being closed.
pub(crate) struct Closing {
    ended: Ended,
    /// Whether a response was truncated. The close must then not look like the end of a complete
    /// response.
    is_cut_short: bool,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Sends the remaining output.
    Flush { lingers: bool },
    /// Sends the TLS `close_notify`.
    Notify { lingers: bool },
    /// The sending side was shut down at this time. Data from the peer is discarded.
    Linger(Duration),
}

impl Closing {
    pub(crate) fn new(close: Close, is_cut_short: bool) -> Self {
        let step = Step::Flush { lingers: close.lingers };
        Self { ended: close.ended, is_cut_short, step }
    }

    /// Why the connection is closed.
    pub(crate) fn into_ended(self) -> Ended {
        self.ended
    }

    /// Returns whether output may still have to be sent.
    pub(crate) fn is_sending(&self) -> bool {
        !matches!(self.step, Step::Linger(_))
    }

    /// Takes the next step. Returns `None` if the connection may be dropped.
    pub(crate) fn turn<D: Driver>(&mut self, link: &mut Link<'_, D>) -> Option<Turn> {
        let is_sent = link.io.writer.is_empty() && link.stream.is_sent();
        match self.step {
            Step::Flush { .. } | Step::Notify { .. } if !is_sent => {
                Some(Turn::Wait(For { bytes: false, room: true }))
            }
            Step::Flush { lingers } => {
                self.notify(link);
                self.step = Step::Notify { lingers };
                Some(Turn::Again)
            }
            Step::Notify { lingers: false } => None,
            Step::Notify { lingers: true } if link.is_ended() => None,
            Step::Notify { lingers: true } => {
                link.stream.finish();
                let limits = &link.door.limits;
                let now = link.worker.driver.now();
                link.io.deadlines.clear_all();
                link.io.deadlines.set(Wait::Linger, now.saturating_add(limits.linger_max));
                // Discard data that arrived earlier: it does not show that the peer continues to
                // send.
                throw_away(link);
                self.await_silence(link);
                self.step = Step::Linger(now);
                self.hasten(now, link);
                Some(Turn::Wait(For { bytes: true, room: false }))
            }
            Step::Linger(since) => {
                if link.is_ended() {
                    return None;
                }
                self.hasten(since, link);
                if throw_away(link) {
                    self.await_silence(link);
                }
                Some(Turn::Wait(For { bytes: true, room: false }))
            }
        }
    }

    /// Sets the deadline at which the server stops receiving if the peer sends nothing until then.
    fn await_silence<D: Driver>(&self, link: &mut Link<'_, D>) {
        let limits = &link.door.limits;
        let timeout = match link.worker.order() >= Order::Drain {
            true => limits.linger_timeout.min(limits.drain_idle_timeout),
            false => limits.linger_timeout,
        };
        let until = link.worker.driver.now().saturating_add(timeout);
        link.io.deadlines.set(Wait::Silence, until);
    }

    /// Shortens the deadlines while the worker drains. A peer that keeps sending may delay the
    /// drain by at most `linger_timeout`, and a silent peer by at most `drain_idle_timeout`.
    fn hasten<D: Driver>(&self, since: Duration, link: &mut Link<'_, D>) {
        let (worker, limits) = (link.worker, &link.door.limits);
        if worker.order() >= Order::Drain {
            let from = worker.ordered_at().max(since);
            link.io.deadlines.hasten(Wait::Linger, from.saturating_add(limits.linger_timeout));
            let silence = worker.driver.now().saturating_add(limits.drain_idle_timeout);
            link.io.deadlines.hasten(Wait::Silence, silence);
        }
    }

    fn notify<D: Driver>(&self, link: &mut Link<'_, D>) {
        // Nothing may be sent after a TLS alert, and `close_notify` would make a truncated response
        // look complete.
        let is_cut_short = self.is_cut_short
            || matches!(self.ended, Ended::ResponseFailed | Ended::ExchangeLate | Ended::Broken(_));
        if is_cut_short || self.ended.is_by_tls() {
            return;
        }
        if let Stage::Tls(tls) = &mut *link.stage {
            tls.session.close(&mut link.io.writer.records);
        }
    }
}

/// Discards received data. Returns false if there was none.
fn throw_away<D: Driver>(link: &mut Link<'_, D>) -> bool {
    let reader = &mut link.io.reader;
    let unread = reader.unread().len();
    reader.consume(unread);
    unread > 0
}
