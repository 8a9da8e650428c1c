//! Ends a connection, with an orderly close or without one.

use super::active_state::{ActiveState, Phase};
use super::lingering::Closing;
use super::{Connection, WakeReason};
use crate::exchange::in_flight::InFlightRequest;
use crate::io::context::{Action, Close};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::{CloseReason, InFlightStage};
use crate::observe::metrics::TlsFailure;
use crate::worker::detached;
use crate::worker::lifecycle::ForceClosed;
use peregrine_driver::{Driver, Stream};
use peregrine_tls::TlsConnectionError as TlsReject;
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::panic::catch_log_panic;
use std::io;
use std::task::Poll;

impl<D: Driver> Connection<D> {
    /// Handles an event that is not passed to a protocol's turn. Returns the reason if the
    /// connection is over.
    pub(super) fn on_wake(
        &mut self,
        session: &mut ActiveState<D>,
        event: WakeReason,
    ) -> Option<CloseReason> {
        match event {
            WakeReason::Ready => None,
            // A closing connection discards all received bytes, even if they are not valid TLS.
            WakeReason::Tls(_) if matches!(session.phase, Phase::Closing(_)) => None,
            WakeReason::Tls(reject) => {
                self.fail_tls(session, &reject);
                None
            }
            WakeReason::ForceClose => Some(self.force_close(session)),
            WakeReason::Io(io::ErrorKind::UnexpectedEof) => {
                catch_log_panic(|| {
                    tracing::error!(target: "peregrine", peer = %self.info.peer,
                    "a file was truncated while it was sent, or could not be read, so the response \
                     was cut short: replace files by renaming new ones over them")
                });
                Some(self.abort(session, CloseReason::ResponseBodyFailed))
            }
            WakeReason::Io(kind) => Some(match &session.phase {
                Phase::Http1 if session.http1.is_busy() => {
                    self.abort(session, CloseReason::PeerAborted)
                }
                Phase::Http2 if session.http2.is_busy() => {
                    self.abort(session, CloseReason::PeerAborted)
                }
                _ => self.abort(session, CloseReason::Io(kind)),
            }),
            WakeReason::Timeout(TimeoutKind::Send) => {
                Some(self.abort(session, CloseReason::WriteStalled))
            }
            WakeReason::Timeout(wait) => self.on_timeout(session, wait),
        }
    }

    pub(super) fn on_timeout(
        &mut self,
        session: &mut ActiveState<D>,
        wait: TimeoutKind,
    ) -> Option<CloseReason> {
        let close = match &mut session.phase {
            Phase::ProxyHeader(_) => {
                let ended = self.proxy_header_close_reason();
                if matches!(ended, CloseReason::HandshakeTimeout) {
                    self.worker.instrumentation.record_limit("handshake_timeout");
                }
                return Some(self.abort(session, ended));
            }
            Phase::TlsHandshake(_) => {
                self.worker.instrumentation.record_limit("handshake_timeout");
                return Some(self.abort(session, CloseReason::HandshakeTimeout));
            }
            Phase::Upgraded(_) if wait == TimeoutKind::Probe => {
                // The turn schedules the next probe.
                let has_left = self.stream.is_broken();
                return has_left.then(|| self.abort(session, CloseReason::PeerAborted));
            }
            Phase::Upgraded(_) => {
                self.worker.instrumentation.record_limit("upgraded_idle_timeout");
                Close { reason: CloseReason::IdleTimeout, linger: false }
            }
            Phase::Closing(_) => return Some(self.finish_close(session)),
            Phase::ProtocolDetection | Phase::Http1 => {
                session.phase = Phase::Http1;
                match session.http1.on_timeout(wait, &mut self.context(&mut session.io)) {
                    Action::Close(close) => close,
                    _ => return None,
                }
            }
            Phase::Http2 => {
                let turn = session.http2.on_timeout(wait, &mut self.context(&mut session.io));
                self.detach_http2_handlers(session);
                match turn {
                    Action::Close(close) => close,
                    _ => return None,
                }
            }
        };
        self.start_close(session, close);
        None
    }

    /// Returns the session to the pool. If memory is short, the pool is cleared.
    pub(super) fn deactivate(&self, session: Box<ActiveState<D>>) {
        self.listener.active_states.put(session);
        if memory::pressure() >= MemoryPressure::Moderate {
            self.listener.active_states.clear();
        }
        self.worker.admission.publish_memory();
    }

    /// Ends the connection and logs the reason.
    pub(super) fn finish(&mut self, session: Box<ActiveState<D>>, ended: &CloseReason) -> Poll<()> {
        self.deactivate(session);
        self.guard.record_close(ended);
        let peer = &self.info.peer;
        catch_log_panic(|| tracing::debug!(target: "peregrine", %peer, %ended, "connection ended"));
        Poll::Ready(())
    }

    /// Returns whether the worker may keep the memory that this connection has just added. Near the
    /// limit, only two kinds of connection may grow: those with a request that must never be
    /// rejected, and those in reserved slots, which may send such a request.
    #[inline]
    pub(super) fn may_reserve_more(&self, session: &ActiveState<D>) -> bool {
        match memory::pressure() {
            MemoryPressure::Low | MemoryPressure::Moderate | MemoryPressure::High => true,
            MemoryPressure::Critical => self.reserved_slot.is_some() || session.is_never_shed(),
            MemoryPressure::OverLimit => false,
        }
    }

    /// Handles a connection in a reserved slot. If memory and ordinary slots are available again,
    /// the connection gives up the reserved slot and continues. Otherwise it is closed if another
    /// connection needs its slot and no request of its own is being answered. Ready if the
    /// connection is over.
    #[cold]
    pub(super) fn poll_eviction(&mut self) -> Poll<()> {
        if !self.listener.context.needs_reserved_slot(self.worker.reserved_connections) {
            self.reserved_slot = None;
            return Poll::Pending;
        }
        let is_over = self.reserved_slot.as_ref().is_some_and(|place| place.is_evicted());
        let is_busy = self.active.as_ref().is_some_and(|session| session.is_busy());
        if !is_over || is_busy {
            return Poll::Pending;
        }
        // RFC 9113 §6.8: GOAWAY tells the peer which of its requests it may retry. If the driver
        // has no room for it, the peer is reading too slowly, and the connection closes without
        // GOAWAY.
        let close = Close { reason: CloseReason::Evicted, linger: false };
        let is_heard = self.stream.is_writable();
        match self.active.take() {
            Some(mut session) if is_heard && matches!(session.phase, Phase::Http2) => {
                self.start_close(&mut session, close);
                self.active = Some(session);
                Poll::Pending
            }
            None if is_heard && self.http2.is_some() => {
                self.active = Some(self.activate(Err(close.reason)));
                Poll::Pending
            }
            Some(mut session) => {
                let ended = self.abort(&mut session, close.reason);
                self.finish(session, &ended)
            }
            None => {
                self.guard.record_close(&close.reason);
                Poll::Ready(())
            }
        }
    }

    /// Resets the connection because it needs more memory than the worker may hold.
    #[cold]
    pub(super) fn close_over_memory(&mut self, mut session: Box<ActiveState<D>>) -> Poll<()> {
        self.stream.reset_on_drop();
        let ended = self.abort(&mut session, CloseReason::MemoryMax);
        self.finish(session, &ended)
    }

    /// Begins to close the connection.
    pub(super) fn start_close(&mut self, session: &mut ActiveState<D>, close: Close) {
        let is_refusal = matches!(
            close.reason,
            CloseReason::Rejected(_)
                | CloseReason::Http2Rejected(_)
                | CloseReason::ProxyHeaderRejected(_)
                | CloseReason::UntrustedProxy
        );
        if is_refusal || close.reason.is_tls() {
            self.worker.instrumentation.record_rejection(&close.reason);
        }
        let is_cut_short =
            matches!(close.reason, CloseReason::PeerAborted) && session.http1.is_close_delimited();
        if is_cut_short
            || matches!(close.reason, CloseReason::WriteStalled | CloseReason::ExchangeTimeout)
        {
            self.stream.reset_on_drop();
        }
        if matches!(session.phase, Phase::Http1) {
            self.detach_http1_handler(session);
            session.http1.abort();
        }
        if matches!(session.phase, Phase::Http2) {
            self.fail_streams(session);
            // Nothing may be sent after a TLS alert.
            if !close.reason.is_tls() {
                session.http2.send_final_goaway(&mut session.io.output.plaintext);
            }
        }
        session.io.keep_awake = None;
        session.io.deadlines.clear_all();
        session.phase = Phase::Closing(Closing::new(close, is_cut_short));
    }

    /// Ends the connection without an orderly close.
    pub(super) fn abort(
        &mut self,
        session: &mut ActiveState<D>,
        ended: CloseReason,
    ) -> CloseReason {
        self.reset_if_truncated(session);
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            // If the response may have arrived, the reason for closing is more informative than
            // `ended`.
            Phase::Closing(closing) if !closing.is_flushing() => return closing.into_reason(),
            Phase::Upgraded(mut upgrade) => upgrade.fail(),
            Phase::Http1 => self.detach_http1_handler(session),
            Phase::Http2 => self.fail_streams(session),
            Phase::ProtocolDetection
            | Phase::ProxyHeader(_)
            | Phase::TlsHandshake(_)
            | Phase::Closing(_) => {}
        }
        ended
    }

    /// Fails all HTTP/2 streams.
    fn fail_streams(&mut self, session: &mut ActiveState<D>) {
        session.http2.fail_all();
        self.detach_http2_handlers(session);
    }

    /// Spawns a worker task for each HTTP/2 handler that must run to its end although its stream is
    /// over.
    pub(super) fn detach_http2_handlers(&mut self, session: &mut ActiveState<D>) {
        for (exchange, left) in session.http2.take_detachable() {
            session.has_detached_handler = true;
            let peer = self.info.peer.to_string();
            detached::spawn_detached(&self.worker, exchange, left, peer, self.accepted_at());
        }
    }

    /// Takes the reason from a connection in [`Phase::Closing`].
    pub(super) fn finish_close(&mut self, session: &mut ActiveState<D>) -> CloseReason {
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            Phase::Closing(closing) => closing.into_reason(),
            _ => unreachable!("only a closing connection ends by itself"),
        }
    }

    /// Ends the connection in the middle of its work, and adds its unfinished requests to the
    /// shutdown report.
    pub(super) fn force_close(&mut self, session: &mut ActiveState<D>) -> CloseReason {
        if let Phase::Closing(closing) = &session.phase
            && (!closing.is_flushing() || session.has_detached_handler)
        {
            return self.finish_close(session);
        }
        self.reset_if_truncated(session);
        // The report omits requests whose responses were delivered.
        let is_sent = session.io.output.is_empty() && self.stream.is_flushed();
        let now = self.worker.driver.now();
        let peer = || self.info.peer.to_string();
        let age = now.saturating_sub(self.accepted_at());
        let name = |request: InFlightRequest<'_>| ForceClosed {
            peer: peer(),
            request: Some(request.name.to_string()),
            stage: request.stage,
            in_flight_for: request.pending_since.map(|since| now.saturating_sub(since)),
            connection_age: age,
        };
        let mut cut = self.worker.force_closed.borrow_mut();
        let before = cut.len();
        cut.extend(session.http2.in_flight(is_sent).map(name));
        if cut.len() == before {
            let request = match &session.phase {
                Phase::Upgraded(upgrade) => upgrade.in_flight(),
                _ => session.http1.in_flight(is_sent),
            };
            let unfinished = match &session.phase {
                Phase::TlsHandshake(_) => InFlightStage::Handshake,
                Phase::Closing(_) => InFlightStage::Delivery,
                _ => InFlightStage::Head,
            };
            let nameless = || ForceClosed {
                peer: peer(),
                request: None,
                stage: unfinished,
                in_flight_for: None,
                connection_age: age,
            };
            cut.push(request.map_or_else(nameless, name));
        }
        CloseReason::ForceClosed
    }

    /// Resets the connection if its last response is incomplete. An orderly close would tell the
    /// peer that everything was sent.
    fn reset_if_truncated(&self, session: &ActiveState<D>) {
        if !self.stream.is_flushed() || session.http1.is_close_delimited() {
            self.stream.reset_on_drop();
        }
    }

    /// If the HTTP/1 handler must run to its end, spawns a worker task that continues it.
    pub(super) fn detach_http1_handler(&mut self, session: &mut ActiveState<D>) {
        session.http1.fail();
        if let Some(exchange) = session.http1.take_detachable() {
            session.has_detached_handler = true;
            let deadlines = &session.io.deadlines;
            let all = [TimeoutKind::Handler, TimeoutKind::Exchange].map(|wait| deadlines.get(wait));
            let left = all.into_iter().flatten().min();
            let peer = self.info.peer.to_string();
            detached::spawn_detached(&self.worker, exchange, left, peer, self.accepted_at());
        }
    }

    pub(super) fn fail_tls(&mut self, session: &mut ActiveState<D>, reject: &TlsReject) {
        self.worker.instrumentation.metrics().tls_failures.increment(TlsFailure {
            in_handshake: self.transport.is_handshaking(),
            reason: reject.label(),
            alert: reject.alert().unwrap_or_default(),
        });
        let ended = match (reject, reject.client_certificate_error()) {
            (TlsReject::PlainHttp, _) => CloseReason::PlaintextOnTlsPort,
            (_, Some(fault)) => {
                CloseReason::ClientCertificate { label: fault, cause: reject.to_string() }
            }
            (_, None) => CloseReason::TlsFailed(reject.to_string()),
        };
        if let Phase::Upgraded(upgrade) = &mut session.phase {
            upgrade.fail();
        }
        // The TLS session cannot encrypt any more, but its alert must still arrive.
        session.io.output.discard_plaintext();
        self.start_close(session, Close { reason: ended, linger: true });
    }
}
