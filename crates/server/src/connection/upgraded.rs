//! Runs another protocol on an upgraded connection (RFC 9110 §7.8): moves bytes in both directions
//! until the protocol ends.

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

/// The upgraded protocol, and its two byte streams.
pub(crate) struct Upgrade {
    /// The exchange whose response switched protocols. It also runs the new protocol.
    exchange: Exchange,
    /// Carries the peer's bytes to the protocol. `None` once the protocol was informed that the
    /// peer has ended its sending side.
    incoming: Option<Writer>,
    /// Carries the protocol's bytes to the peer.
    outgoing: Outgoing,
    /// Whether `incoming` has room for more of the peer's bytes.
    is_reading: bool,
    /// Checks whether the peer is still connected while `incoming` is full.
    probes: Probes,
}

impl Upgrade {
    /// Prepares the protocol that the handler returned. The first turn polls it.
    pub(crate) fn new(upgrade: OnUpgrade, mut exchange: Exchange) -> Self {
        let (writer, reader) = pipe(UPGRADED_BYTES_MAX, None);
        let outgoing = Outgoing::default();
        let io = Upgraded::new(reader, outgoing.clone());
        exchange.begin_protocol(upgrade, io);
        let probes = Probes::default();
        Self { exchange, incoming: Some(writer), outgoing, is_reading: false, probes }
    }

    /// The request that requested the upgrade.
    pub(crate) fn in_progress(&self) -> Option<InProgress<'_>> {
        self.exchange.in_progress()
    }

    /// Returns whether the last turn left room for more of the peer's bytes.
    pub(crate) fn is_reading(&self) -> bool {
        self.is_reading
    }

    /// Moves bytes in both directions, and polls the protocol.
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
        // If output remains, or the protocol has ended, another turn is needed after the driver has
        // taken the output.
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

    /// Passes received bytes to the protocol. Returns whether it has room for more.
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
            // If the protocol has dropped its reader, these bytes are discarded.
            let _ = incoming.push_before_poll(Bytes::copy_from_slice(unread), context);
            let all = unread.len();
            link.io.reader.consume(all);
            // If there is no room, this registers the task to be woken when there is room again.
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

    /// Schedules probes while the server does not receive. Without receiving, the server learns of
    /// a reset only if it checks the socket from time to time.
    fn watch_peer<D: Driver>(&mut self, link: &mut Link<'_, D>) {
        if !self.is_reading {
            self.probes.begin(|| link.worker.driver.now(), &mut link.io.deadlines);
        } else if link.io.deadlines.of(Wait::Probe).is_some() {
            self.probes = Probes::default();
            link.io.deadlines.clear(Wait::Probe);
        }
    }

    /// Ends both byte streams and drops the protocol, because the connection is over.
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
