//! Closing a connection: what was written is sent, and what the peer still sends is thrown away for a
//! while.

use crate::deadlines::Wait;
use crate::ended::Ended;
use crate::link::{Close, For, Link, Turn};
use crate::stage::Stage;
use peregrine_driver::{Driver, Stream};

/// A connection that is being closed.
pub(crate) struct Closing {
    ended: Ended,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// What was written is sent.
    Flush { lingers: bool },
    /// The end of the TLS session is sent.
    Notify { lingers: bool },
    /// The end of our side was sent. What the peer sends is thrown away.
    Linger,
}

impl Closing {
    pub(crate) fn new(close: Close) -> Self {
        Self { ended: close.ended, step: Step::Flush { lingers: close.lingers } }
    }

    /// Why the connection is closed.
    pub(crate) fn into_ended(self) -> Ended {
        self.ended
    }

    /// Does the peer still have to take something?
    pub(crate) fn is_sending(&self) -> bool {
        self.step != Step::Linger
    }

    /// The next step. `None`: the connection may be dropped.
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
                let until = link.worker.driver.now().saturating_add(limits.linger_max);
                link.io.deadlines.clear_all();
                link.io.deadlines.set(Wait::Linger, until);
                self.await_silence(link);
                self.step = Step::Linger;
                Some(Turn::Wait(For { bytes: true, room: false }))
            }
            Step::Linger => {
                if link.is_ended() {
                    return None;
                }
                if !link.io.reader.is_empty() {
                    let unread = link.io.reader.unread().len();
                    link.io.reader.consume(unread);
                    self.await_silence(link);
                }
                Some(Turn::Wait(For { bytes: true, room: false }))
            }
        }
    }

    /// Goes on receiving until the peer pauses for `linger_timeout`.
    fn await_silence<D: Driver>(&self, link: &mut Link<'_, D>) {
        let timeout = link.door.limits.linger_timeout;
        let until = link.worker.driver.now().saturating_add(timeout);
        link.io.deadlines.set(Wait::Silence, until);
    }

    fn notify<D: Driver>(&self, link: &mut Link<'_, D>) {
        // After an alert nothing is said any more, and a response that broke off must not look whole.
        let is_cut_short =
            matches!(self.ended, Ended::ResponseFailed | Ended::ExchangeLate | Ended::Broken(_));
        if is_cut_short || self.ended.is_by_tls() {
            return;
        }
        if let Stage::Tls(tls) = &mut *link.stage {
            tls.session.close(&mut link.io.writer.records);
        }
    }
}
