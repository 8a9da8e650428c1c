//! Limits how much work one connection may do before the worker polls other tasks.
//!
//! A connection has a budget of [`EVENTS_PER_POLL`] events. Each turn of the protocol counts as one
//! event, every 4 KiB received counts as one more, and a large zero-copy write counts as a third of
//! the budget. When the budget is used up, the connection yields until the driver has polled the
//! kernel. Before it yields, it still receives bytes, so a response that never ends cannot hide a
//! disconnect.

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

/// Events after which a connection yields.
const EVENTS_PER_POLL: usize = 64;

/// Every 4 KiB received counts as one event, so a connection yields after 256 KiB. Otherwise a peer
/// that sends many small messages quickly could occupy the worker.
const BYTES_PER_EVENT: u64 = 4 * 1024;

/// A large piece of content counts as this many events, so a connection yields after four pieces.
/// Without this rule, a connection whose peer receives everything at once would never wait and
/// never yield.
const EVENTS_PER_PART: usize = EVENTS_PER_POLL / 3;

/// How many events this number of received bytes counts as.
pub(super) fn events_of(bytes: u64) -> usize {
    usize::try_from(bytes / BYTES_PER_EVENT).unwrap_or(usize::MAX)
}

impl<D: Driver> Connection<D> {
    /// Works until the connection must wait. Returns `Ready(None)` when the connection is idle, and
    /// `Ready` with the reason when it is over.
    pub(super) fn work(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Ended>> {
        // Receive before an upgraded protocol's first turn, so that one turn is usually enough.
        if matches!(&session.phase, Phase::Upgraded(upgrade) if upgrade.is_reading())
            && let Poll::Ready(event) = self.poll_bytes(session, context)
            && let Some(ended) = self.on_event(session, event)
        {
            return Poll::Ready(Some(ended));
        }
        loop {
            // After its last turn, a connection only sends what is already written, unless it is
            // closing.
            if session.io.had_last_turn && !matches!(session.phase, Phase::Closing(_)) {
                return self.last_words(session, context).map(Some);
            }
            let what = match self.turn(session, context) {
                // The received bytes may contain thousands of requests, so each exchange counts.
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
                        // While the peer is still receiving a response, the connection is not idle.
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
                // The peer has left and no earlier response is on its way, so nothing needs to be
                // sent.
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

    /// Counts a turn of the protocol. Returns whether the connection must yield.
    fn has_done_enough(&mut self, session: &Session<D>) -> bool {
        self.events += if session.io.writer.is_sharing() { EVENTS_PER_PART } else { 1 };
        if turn::take_asked() {
            self.events = self.events.max(EVENTS_PER_POLL + 1);
        }
        self.events > EVENTS_PER_POLL
    }

    /// Waits until something happens. If the connection must yield (`is_enough`), it waits until
    /// other tasks have been polled.
    fn wait_in_turn(
        &mut self,
        session: &mut Session<D>,
        what: For,
        is_enough: bool,
        context: &mut Context<'_>,
    ) -> Poll<Event> {
        let mut waited = if is_enough {
            // Receive even if the response always has more to send.
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
            // Yield before writing more, but still check deadlines and orders.
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

    /// Yields: the connection is polled again only after other tasks have been polled.
    fn others_first(&mut self, context: &mut Context<'_>) {
        self.events = 0;
        let driver = &self.worker.driver;
        if D::IS_FAIR_TO_OTHERS {
            return driver.others_first(context);
        }
        let opens = self.gate.get_or_insert_default().shut(context);
        driver.others_first(&mut Context::from_waker(&opens));
    }

    /// Sends what is already written, and produces nothing more. Otherwise an endless response
    /// would never be cut.
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
    /// Receives bytes or the end of the peer's sending side. Never ready if that side has ended
    /// before.
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

    /// Adds bytes that the driver received.
    ///
    /// # Errors
    /// The TLS session does not accept the bytes.
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
