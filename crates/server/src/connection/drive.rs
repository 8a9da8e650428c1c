//! Limits how much one connection may do before the worker polls other tasks.
//!
//! Each turn of the protocol costs one unit of a budget of [`EVENTS_PER_POLL`]; every 4 KiB received
//! costs one more, and a large zero-copy write costs a third of the budget. When the budget is
//! spent, the connection yields until the driver has polled the kernel. Bytes that arrive in the
//! meantime are still read, so a response that never ends cannot hide a disconnect.

use super::active_state::{Phase, Session};
use super::upgraded::Upgrade;
use super::{Connection, Event};
use crate::io::context::{Close, For, Turn};
use crate::observe::close_reason::Ended;
use crate::worker::lifecycle::Order;
use peregrine_driver::{Driver, Stream};
use peregrine_tls::Reject as TlsReject;
use peregrine_web::turn;
use std::task::{Context, Poll, ready};

/// Things that may happen to a connection before others have their turn.
const EVENTS_PER_POLL: usize = 64;

/// So many bytes that come count as one more of them: 256 KiB are enough for one turn, since who sends small parts as
/// fast as they are read makes a lot of work of them.
const BYTES_PER_EVENT: u64 = 4 * 1024;

/// A part of large content counts as so many of them, so that others have their turn after four: a peer
/// that takes everything at once never makes the connection wait.
const EVENTS_PER_PART: usize = EVENTS_PER_POLL / 3;

/// As how many events bytes count that came.
pub(super) fn events_of(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_PER_EVENT).unwrap_or(usize::MAX)
}

impl<D: Driver> Connection<D> {
    /// Works until there is nothing to do. Ready when the connection is idle or, with its reason, over.
    pub(super) fn work(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Ended>> {
        // What came goes to another protocol in its first turn, which is mostly the only one.
        if matches!(&session.phase, Phase::Upgraded(upgrade) if upgrade.is_reading())
            && let Poll::Ready(event) = self.poll_bytes(session, context)
            && let Some(ended) = self.on_event(session, event)
        {
            return Poll::Ready(Some(ended));
        }
        loop {
            // A connection that is being closed makes nothing more.
            if session.io.had_last_turn && !matches!(session.phase, Phase::Closing(_)) {
                return self.last_words(session, context).map(Some);
            }
            let what = match self.turn(session, context) {
                // Among others after each exchange: there may be thousands in what has come.
                Some(Turn::Again) => {
                    self.events += 1;
                    if self.events < EVENTS_PER_POLL {
                        continue;
                    }
                    For::default()
                }
                Some(Turn::Yield(what)) => {
                    self.events = self.events.max(EVENTS_PER_POLL);
                    what
                }
                Some(Turn::Wait(what)) => what,
                Some(Turn::Rest) => {
                    let flushed = self.flush(session);
                    match flushed {
                        // A peer that takes a response slowly is not idle.
                        Ok(_) if session.io.writer.is_empty() && self.stream.has_room() => {
                            return Poll::Ready(None);
                        }
                        Ok(_) => For { bytes: true, room: true },
                        Err(event) => match self.on_event(session, event) {
                            Some(ended) => return Poll::Ready(Some(ended)),
                            None => continue,
                        },
                    }
                }
                Some(Turn::Upgrade(upgrade)) => {
                    session.io.deadlines.clear_all();
                    session.io.hold = Some(self.worker.driver.hold());
                    session.phase = Phase::Upgraded(Box::new(Upgrade::new(
                        upgrade,
                        session.http1.take_exchange(),
                    )));
                    continue;
                }
                // Nobody is owed a goodbye, unless an earlier answer is on its way.
                Some(Turn::Close(Close { ended: ended @ Ended::PeerLeft, .. }))
                    if session.io.writer.is_empty() && self.stream.is_sent() =>
                {
                    return Poll::Ready(Some(self.abandon(session, ended)));
                }
                Some(Turn::Close(Close { ended: ended @ Ended::HandshakeLate, .. })) => {
                    return Poll::Ready(Some(self.abandon(session, ended)));
                }
                Some(Turn::Close(close)) => {
                    self.end(session, close);
                    continue;
                }
                None => return Poll::Ready(Some(self.over(session))),
            };
            let is_enough = self.has_done_enough(session);
            let before = session.io.reader.received();
            let event = ready!(self.wait_in_turn(session, what, is_enough, context));
            let came = session.io.reader.received().wrapping_sub(before);
            self.events = self.events.saturating_add(events_of(came));
            if let Some(ended) = self.on_event(session, event) {
                return Poll::Ready(Some(ended));
            }
        }
    }

    /// Counts a turn of the protocol. Is it others' turn?
    fn has_done_enough(&mut self, session: &Session<D>) -> bool {
        self.events += if session.io.writer.is_sharing() { EVENTS_PER_PART } else { 1 };
        if turn::take_asked() {
            self.events = self.events.max(EVENTS_PER_POLL + 1);
        }
        self.events > EVENTS_PER_POLL
    }

    /// Waits until something happens, or until others have had their turn, if there were enough events.
    fn wait_in_turn(
        &mut self,
        session: &mut Session<D>,
        what: For,
        is_enough: bool,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        let mut waited = if is_enough {
            // A peer is heard beside a response that always has more.
            let came = if what.bytes { self.poll_bytes(session, context) } else { Poll::Pending };
            match came {
                Poll::Pending | Poll::Ready(Event::Woken) => {}
                broken => return broken,
            }
            self.wait(session, For::default(), context)
        } else {
            self.wait(session, what, context)
        };
        if is_enough && matches!(waited, Poll::Ready(Event::Woken)) {
            // Others have their turn before more is written, and deadlines and orders are heard.
            waited = self.await_deadline(session, context);
        }
        if waited.is_pending() {
            session.io.had_last_turn = self.worker.order() >= Order::Cut;
            if is_enough {
                self.others_first(context);
            }
        }
        waited
    }

    /// Has the connection polled again when others have had their turn, and not before.
    fn others_first(&mut self, context: &mut Context<'_>) {
        self.events = 0;
        let driver = &self.worker.driver;
        if D::IS_FAIR_TO_OTHERS {
            return driver.others_first(context);
        }
        let opens = self.gate.get_or_insert_default().shut(context);
        driver.others_first(&mut Context::from_waker(&opens));
    }

    /// After the last turn, nothing more is made: whoever always has more to send would never be cut.
    fn last_words(&mut self, session: &mut Session<D>, context: &mut Context<'_>) -> Poll<Ended> {
        loop {
            let event = ready!(self.wait(session, For::default(), context));
            if let Some(ended) = self.on_event(session, event) {
                return Poll::Ready(ended);
            }
        }
    }
}

impl<D: Driver> Connection<D> {
    /// Waits for bytes, or for the peer's end, unless that has come.
    pub(super) fn poll_bytes(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        if session.io.reader.is_ended(&self.stage) {
            return Poll::Pending;
        }
        Poll::Ready(match ready!(self.stream.poll_recv(context)) {
            Ok(chunk) if chunk.is_empty() => {
                session.io.reader.end();
                Event::Woken
            }
            Ok(chunk) => match self.take(session, chunk) {
                Ok(()) => Event::Woken,
                Err(reject) => Event::NoTls(reject),
            },
            Err(error) => Event::Broken(error.kind()),
        })
    }

    /// Takes what the driver received.
    ///
    /// # Errors
    /// The bytes are no TLS.
    pub(super) fn take(
        &mut self,
        session: &mut Session<D>,
        chunk: <D::Stream as Stream>::Chunk,
    ) -> Result<(), TlsReject> {
        let io = &mut session.io;
        self.worker.observed.receive(chunk.len());
        io.reader.take(chunk, &mut self.stage, &mut io.writer.records)
    }
}
