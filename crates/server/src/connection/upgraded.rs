//! A connection after HTTP: bytes both ways until one side is done (RFC 9110 §7.8).

use crate::exchange::Exchange;
use crate::exchange::in_flight::InProgress;
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::{Probes, Wait};
use crate::observe::close_reason::Ended;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_driver::Driver;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::{Writer, pipe};
use peregrine_web::upgrade::{OnUpgrade, Outgoing, UPGRADED_BYTES_MAX, Upgraded};
use std::task::Context;

/// The other protocol, and the two ways to and from it.
pub(crate) struct Upgrade {
    /// The exchange whose response began the protocol, and which has it.
    exchange: Exchange,
    /// To the protocol, until the peer's end was handed on.
    incoming: Option<Writer>,
    /// From the protocol.
    outgoing: Outgoing,
    /// There is room for more of what the peer sends.
    is_reading: bool,
    /// Looks whether the peer is there while there is none.
    probes: Probes,
}

impl Upgrade {
    /// Begins what the handler left to run. It is polled by the first turn.
    pub(crate) fn new(upgrade: OnUpgrade, mut exchange: Exchange) -> Self {
        let (writer, reader) = pipe(UPGRADED_BYTES_MAX, None);
        let outgoing = Outgoing::default();
        let io = Upgraded::new(reader, outgoing.clone());
        exchange.begin_protocol(upgrade, io);
        let probes = Probes::default();
        Self { exchange, incoming: Some(writer), outgoing, is_reading: false, probes }
    }

    /// The request that asked for the protocol.
    pub(crate) fn in_progress(&self) -> Option<InProgress<'_>> {
        self.exchange.in_progress()
    }

    /// Is there room for more of what the peer sends, as far as the last turn knew?
    pub(crate) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Moves bytes both ways, and lets the protocol run.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
    ) -> Turn {
        let mut has_moved = false;
        self.is_reading = self.receive(link, context, &mut has_moved);
        let exchange = &mut self.exchange;
        let ran = self.outgoing.attend(|| exchange.poll_protocol(context, &link.worker.pulse));
        if let Err(panicked) = ran {
            self.exchange.tell_panic("an upgraded protocol", &panicked, &link.info.peer);
            return Turn::linger(Ended::HandlerPanicked);
        }
        // What could not be taken, or is the last, asks for another turn once this is with the driver.
        let mut asks_for_room = !link.io.writer.plain.is_empty();
        if !asks_for_room && self.outgoing.poll_take(context, &mut link.io.writer.plain).is_ready()
        {
            has_moved = true;
            asks_for_room = !self.exchange.has_protocol();
        } else if !self.exchange.has_protocol() && link.io.writer.plain.is_empty() {
            return Turn::linger(Ended::Upgraded);
        }
        self.watch_peer(link);
        if has_moved || link.io.deadlines.of(Wait::Traffic).is_none() {
            self.begin_idling(link);
        }
        Turn::Wait(For { bytes: self.is_reading, room: asks_for_room })
    }

    /// Hands what came to the protocol. Is there room for more?
    fn receive<D: Driver>(
        &mut self,
        link: &mut Link<'_, D>,
        context: &mut Context<'_>,
        has_moved: &mut bool,
    ) -> bool {
        let Some(incoming) = &self.incoming else { return false };
        let room = incoming.poll_room(context);
        if room.is_pending() {
            return false;
        }
        let unread = link.io.reader.unread();
        if !unread.is_empty() {
            *has_moved = true;
            // A protocol that does not read any more loses what comes.
            let _ = incoming.push_before_poll(Bytes::copy_from_slice(unread), context);
            let all = unread.len();
            link.io.reader.consume(all);
            // This asks for a wake-up when there is room again.
            if incoming.poll_room(context).is_pending() {
                return false;
            }
        }
        if link.is_ended() {
            if let Some(incoming) = self.incoming.take() {
                incoming.finish(HeaderMap::new());
            }
            return false;
        }
        true
    }

    /// Where nothing is received, only the kernel knows that the peer broke the connection off. It is asked
    /// now and then.
    fn watch_peer<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        if !self.is_reading {
            self.probes.begin(|| link.worker.driver.now(), &mut link.io.deadlines);
        } else if link.io.deadlines.of(Wait::Probe).is_some() {
            self.probes = Probes::default();
            link.io.deadlines.clear(Wait::Probe);
        }
    }

    /// The connection is over: neither way goes on.
    pub(crate) fn fail(&mut self) {
        self.outgoing.close();
        if let Some(incoming) = self.incoming.take() {
            incoming.fail(BodyError::Disconnected);
        }
        self.exchange.stop();
    }

    fn begin_idling<D: Driver>(&self, link: &mut Link<'_, D>) {
        if let Some(timeout) = link.door.limits.upgraded_idle_timeout {
            let until = link.worker.driver.now().saturating_add(timeout);
            link.io.deadlines.set(Wait::Traffic, until);
        }
    }
}

impl Drop for Upgrade {
    fn drop(&mut self) {
        self.fail();
    }
}
