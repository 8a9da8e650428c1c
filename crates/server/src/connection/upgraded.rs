//! Runs another protocol on an upgraded connection (RFC 9110 §7.8): moves bytes in both directions
//! until the protocol ends.

use crate::exchange::Exchange;
use crate::exchange::in_flight::InFlightRequest;
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::{ProbeSchedule, TimeoutKind};
use crate::observe::close_reason::CloseReason;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_driver::Driver;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::{PipeWriter, pipe};
use peregrine_web::upgrade::{SEND_BUFFER_BYTES_MAX, SendBuffer, UpgradeHandler, Upgraded};
use std::task::Context;

/// The upgraded protocol, and its two byte streams.
pub(crate) struct UpgradedConnection {
    /// The exchange whose response switched protocols. It also runs the new protocol.
    exchange: Exchange,
    /// Carries the peer's bytes to the protocol. `None` once the protocol was informed that the
    /// peer has ended its sending side.
    incoming: Option<PipeWriter>,
    /// Carries the protocol's bytes to the peer.
    outgoing: SendBuffer,
    /// Whether to receive more: `incoming` has room, and the peer has not ended its sending side.
    wants_read: bool,
    /// Checks whether the peer is still connected while the server does not receive.
    probe: ProbeSchedule,
}

impl UpgradedConnection {
    /// Prepares the protocol that the handler returned. The first turn polls it.
    pub(crate) fn new(handler: UpgradeHandler, mut exchange: Exchange) -> Self {
        let (writer, reader) = pipe(SEND_BUFFER_BYTES_MAX, None);
        let outgoing = SendBuffer::default();
        let io = Upgraded::new(reader, outgoing.clone());
        exchange.set_upgraded(handler, io);
        let probe = ProbeSchedule::default();
        Self { exchange, incoming: Some(writer), outgoing, wants_read: false, probe }
    }

    /// The request for the upgrade.
    pub(crate) fn in_flight(&self) -> Option<InFlightRequest<'_>> {
        self.exchange.in_flight()
    }

    /// Returns whether, according to the last turn, more of the peer's bytes can be received.
    pub(crate) fn wants_read(&self) -> bool {
        self.wants_read
    }

    /// Moves bytes in both directions, and polls the protocol.
    pub(crate) fn turn<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
    ) -> Action {
        let mut has_progressed = false;
        self.wants_read = self.receive(conn, cx, &mut has_progressed);
        let exchange = &mut self.exchange;
        // Bytes that the protocol sends in this poll need not wake the task: `poll_take` below
        // takes them.
        let result =
            self.outgoing.run_protocol(|| exchange.poll_upgraded(cx, &conn.worker.heartbeat));
        if let Err(panic) = result {
            self.exchange.log_panic("an upgraded protocol", &panic, &conn.info.peer);
            return Action::linger(CloseReason::HandlerPanicked);
        }
        // If output remains, or the protocol has ended, another turn is needed after the driver has
        // accepted the output.
        let mut wants_write = !conn.io.output.plaintext.is_empty();
        if !wants_write && self.outgoing.poll_take(cx, &mut conn.io.output.plaintext).is_ready() {
            has_progressed = true;
            wants_write = !self.exchange.is_upgraded();
        } else if !self.exchange.is_upgraded() && conn.io.output.plaintext.is_empty() {
            return Action::linger(CloseReason::Upgraded);
        }
        self.schedule_probe(conn);
        if has_progressed || conn.io.deadlines.get(TimeoutKind::Silence).is_none() {
            self.reset_silence_timer(conn);
        }
        Action::Wait(Interest { readable: self.wants_read, writable: wants_write })
    }

    /// Passes received bytes to the protocol, and sets `has_progressed` if there were any. Returns
    /// whether to receive more.
    fn receive<D: Driver>(
        &mut self,
        conn: &mut ConnectionContext<'_, D>,
        cx: &mut Context<'_>,
        has_progressed: &mut bool,
    ) -> bool {
        let Some(incoming) = &self.incoming else { return false };
        let capacity = incoming.poll_capacity(cx);
        if capacity.is_pending() {
            return false;
        }
        let unread = conn.io.input.unread();
        if !unread.is_empty() {
            *has_progressed = true;
            // If the protocol has dropped its reader, these bytes are discarded.
            let _ = incoming.send_without_wake(Bytes::copy_from_slice(unread), cx);
            let len = unread.len();
            conn.io.input.consume(len);
            // If there is no room, this call registers the task, which is then woken when there is
            // room again.
            if incoming.poll_capacity(cx).is_pending() {
                return false;
            }
        }
        if conn.is_eof() {
            if let Some(incoming) = self.incoming.take() {
                incoming.finish(HeaderMap::new());
            }
            return false;
        }
        true
    }

    /// Schedules probes while the server does not receive. Without receiving, the server detects a
    /// reset only if it checks the socket from time to time.
    fn schedule_probe<D: Driver>(&mut self, conn: &mut ConnectionContext<'_, D>) {
        if !self.wants_read {
            self.probe.schedule_if_unset(|| conn.worker.driver.now(), &mut conn.io.deadlines);
        } else if conn.io.deadlines.get(TimeoutKind::Probe).is_some() {
            self.probe = ProbeSchedule::default();
            conn.io.deadlines.clear(TimeoutKind::Probe);
        }
    }

    /// Ends both byte streams and drops the protocol, because the connection is over.
    pub(crate) fn abort(&mut self) {
        self.outgoing.close();
        if let Some(incoming) = self.incoming.take() {
            incoming.send_error(BodyError::Disconnected);
        }
        self.exchange.abort();
    }

    /// Restarts the timeout that expires if no bytes move.
    fn reset_silence_timer<D: Driver>(&self, conn: &mut ConnectionContext<'_, D>) {
        if let Some(timeout) = conn.listener.limits.upgraded_idle_timeout {
            let deadline = conn.worker.driver.now().saturating_add(timeout);
            conn.io.deadlines.set(TimeoutKind::Silence, deadline);
        }
    }
}

impl Drop for UpgradedConnection {
    fn drop(&mut self) {
        self.abort();
    }
}
