//! Ends a connection, with an orderly close or without one.

use super::active_state::{ActiveState, Phase};
use super::lingering::Closing;
use super::{Activation, Connection, WakeReason};
use crate::exchange::in_flight::InFlightRequest;
use crate::io::context::{Action, Close};
use crate::io::timeouts::TimeoutKind;
use crate::observe::close_reason::{CloseReason, InFlightStage};
use crate::observe::metrics::TlsFailure;
use crate::worker::detached;
use crate::worker::lifecycle::ForceClosed;
use peregrine_driver::{Driver, Stream};
use peregrine_tls::TlsConnectionError;
use peregrine_web::memory::{self, MemoryPressure};
use peregrine_web::panic::catch_subscriber_panic;
use std::io;
use std::task::Poll;

impl<D: Driver> Connection<D> {
    /// Handles the end of a wait, before the next turn. Returns the close reason if the connection
    /// is over.
    pub(super) fn on_wake(
        &mut self,
        state: &mut ActiveState<D>,
        wake_reason: WakeReason,
    ) -> Option<CloseReason> {
        match wake_reason {
            WakeReason::Ready => None,
            // A closing connection discards all received bytes, even if they are not valid TLS.
            WakeReason::Tls(_) if matches!(state.phase, Phase::Closing(_)) => None,
            WakeReason::Tls(error) => {
                self.fail_tls(state, &error);
                None
            }
            WakeReason::ForceClose => Some(self.force_close(state)),
            // Only sending a file fails with this error: see `Stream::send_file`.
            WakeReason::Io(io::ErrorKind::UnexpectedEof) => {
                catch_subscriber_panic(|| {
                    tracing::error!(target: "peregrine", peer = %self.info.peer,
                    "a file was truncated while it was sent, or could not be read, so the response \
                     was cut short: replace files by renaming new ones over them")
                });
                Some(self.abort(state, CloseReason::ResponseBodyFailed))
            }
            WakeReason::Io(kind) => Some(match &state.phase {
                Phase::Http1 if state.http1.is_responding() => {
                    self.abort(state, CloseReason::PeerAborted)
                }
                Phase::Http2 if state.http2.is_responding() => {
                    self.abort(state, CloseReason::PeerAborted)
                }
                _ => self.abort(state, CloseReason::Io(kind)),
            }),
            WakeReason::Timeout(TimeoutKind::Send) => {
                Some(self.abort(state, CloseReason::WriteStalled))
            }
            WakeReason::Timeout(kind) => self.on_timeout(state, kind),
        }
    }

    /// Handles an expired deadline. Returns the close reason if the connection is over.
    pub(super) fn on_timeout(
        &mut self,
        state: &mut ActiveState<D>,
        kind: TimeoutKind,
    ) -> Option<CloseReason> {
        let close = match &mut state.phase {
            Phase::ProxyHeader(_) => {
                let reason = self.proxy_header_close_reason();
                if matches!(reason, CloseReason::HandshakeTimeout) {
                    self.worker.instrumentation.record_limit("handshake_timeout");
                }
                return Some(self.abort(state, reason));
            }
            Phase::TlsHandshake(_) => {
                self.worker.instrumentation.record_limit("handshake_timeout");
                return Some(self.abort(state, CloseReason::HandshakeTimeout));
            }
            Phase::Upgraded(_) if kind == TimeoutKind::Probe => {
                // If the peer is still connected, the next turn schedules another probe.
                let is_broken = self.stream.is_broken();
                return is_broken.then(|| self.abort(state, CloseReason::PeerAborted));
            }
            Phase::Upgraded(_) => {
                self.worker.instrumentation.record_limit("upgraded_idle_timeout");
                Close { reason: CloseReason::IdleTimeout, linger: false }
            }
            Phase::Closing(_) => return Some(self.take_close_reason(state)),
            Phase::ProtocolDetection | Phase::Http1 => {
                // An incomplete HTTP/2 preface gets the same response as an incomplete head.
                state.phase = Phase::Http1;
                match state.http1.on_timeout(kind, &mut self.context(&mut state.io)) {
                    Action::Close(close) => close,
                    _ => return None,
                }
            }
            Phase::Http2 => {
                let action = state.http2.on_timeout(kind, &mut self.context(&mut state.io));
                self.detach_http2_handlers(state);
                match action {
                    Action::Close(close) => close,
                    _ => return None,
                }
            }
        };
        self.start_close(state, close);
        None
    }

    /// Returns the state to the pool. If memory is short, the pool is cleared.
    pub(super) fn deactivate(&self, state: Box<ActiveState<D>>) {
        self.listener.active_state_pool.put(state);
        if memory::pressure() >= MemoryPressure::Moderate {
            self.listener.active_state_pool.clear();
        }
        self.worker.admission.publish_memory();
    }

    /// Ends the connection and logs the reason.
    pub(super) fn finish(&mut self, state: Box<ActiveState<D>>, reason: &CloseReason) -> Poll<()> {
        self.deactivate(state);
        self.guard.record_close(reason);
        let peer = &self.info.peer;
        catch_subscriber_panic(
            || tracing::debug!(target: "peregrine", %peer, ended = %reason, "connection ended"),
        );
        Poll::Ready(())
    }

    /// Returns whether the worker may keep the memory that this connection has just added. Near the
    /// limit, only two kinds of connection may grow: those with a request that must never be
    /// rejected, and those in reserved slots, which may send such a request. Over the limit, none
    /// may grow.
    #[inline]
    pub(super) fn may_reserve_more(&self, state: &ActiveState<D>) -> bool {
        match memory::pressure() {
            MemoryPressure::Low | MemoryPressure::Moderate | MemoryPressure::High => true,
            MemoryPressure::Critical => self.reserved_slot.is_some() || state.is_never_shed(),
            MemoryPressure::OverLimit => false,
        }
    }

    /// Handles a connection in a reserved slot. If new connections need no reserved slots any more,
    /// the connection releases its slot and continues. Otherwise it is closed if another connection
    /// needs the slot and this one has no request in progress. Ready if the connection is over.
    #[cold]
    pub(super) fn poll_eviction(&mut self) -> Poll<()> {
        if !self.listener.context.needs_reserved_slot(self.worker.reserved_slot_count) {
            self.reserved_slot = None;
            return Poll::Pending;
        }
        let is_evicted = self.reserved_slot.as_ref().is_some_and(|slot| slot.is_evicted());
        let has_work = self.active.as_ref().is_some_and(|state| state.has_work_in_progress());
        if !is_evicted || has_work {
            return Poll::Pending;
        }
        // RFC 9113 §6.8: GOAWAY tells the peer which of its requests it may retry. If the driver
        // has no room for it, the peer is reading too slowly, and the connection closes without
        // GOAWAY.
        let close = Close { reason: CloseReason::Evicted, linger: false };
        let is_writable = self.stream.is_writable();
        match self.active.take() {
            Some(mut state) if is_writable && matches!(state.phase, Phase::Http2) => {
                self.start_close(&mut state, close);
                self.active = Some(state);
                Poll::Pending
            }
            None if is_writable && self.http2.is_some() => {
                self.active = Some(self.activate(Activation::Close(close.reason)));
                Poll::Pending
            }
            Some(mut state) => {
                let reason = self.abort(&mut state, close.reason);
                self.finish(state, &reason)
            }
            None => {
                self.guard.record_close(&close.reason);
                Poll::Ready(())
            }
        }
    }

    /// Resets the connection because it needs more memory than the worker may hold.
    #[cold]
    pub(super) fn close_over_memory(&mut self, mut state: Box<ActiveState<D>>) -> Poll<()> {
        self.stream.reset_on_drop();
        let reason = self.abort(&mut state, CloseReason::MemoryMax);
        self.finish(state, &reason)
    }

    /// Starts an orderly close of the connection.
    pub(super) fn start_close(&mut self, state: &mut ActiveState<D>, close: Close) {
        let is_rejection = matches!(
            close.reason,
            CloseReason::Rejected(_)
                | CloseReason::Http2Rejected(_)
                | CloseReason::ProxyHeaderRejected(_)
                | CloseReason::UntrustedProxy
        );
        if is_rejection || close.reason.is_tls_failure() {
            self.worker.instrumentation.record_rejection(&close.reason);
        }
        let is_cut_short =
            matches!(close.reason, CloseReason::PeerAborted) && state.http1.is_close_delimited();
        // A reset discards data that the peer has not received, and shows the peer that the
        // response is incomplete.
        if is_cut_short
            || matches!(close.reason, CloseReason::WriteStalled | CloseReason::ExchangeTimeout)
        {
            self.stream.reset_on_drop();
        }
        if matches!(state.phase, Phase::Http1) {
            self.detach_http1_handler(state);
            state.http1.abort();
        }
        if matches!(state.phase, Phase::Http2) {
            self.fail_streams(state);
            // Nothing may be sent after a TLS alert.
            if !close.reason.is_tls_failure() {
                state.http2.send_final_goaway(&mut state.io.output.plaintext);
            }
        }
        state.io.keep_awake = None;
        state.io.deadlines.clear_all();
        state.phase = Phase::Closing(Closing::new(close, is_cut_short));
    }

    /// Ends the connection without an orderly close. Returns the reason to record.
    pub(super) fn abort(&mut self, state: &mut ActiveState<D>, reason: CloseReason) -> CloseReason {
        self.reset_if_truncated(state);
        match std::mem::replace(&mut state.phase, Phase::Http1) {
            // All output has been sent, so the reason for the orderly close is more informative
            // than `reason`.
            Phase::Closing(closing) if !closing.is_flushing() => return closing.into_reason(),
            Phase::Upgraded(mut upgraded) => upgraded.abort(),
            Phase::Http1 => self.detach_http1_handler(state),
            Phase::Http2 => self.fail_streams(state),
            Phase::ProtocolDetection
            | Phase::ProxyHeader(_)
            | Phase::TlsHandshake(_)
            | Phase::Closing(_) => {}
        }
        reason
    }

    /// Fails all HTTP/2 streams.
    fn fail_streams(&mut self, state: &mut ActiveState<D>) {
        state.http2.fail_all();
        self.detach_http2_handlers(state);
    }

    /// Spawns a worker task for each HTTP/2 handler that must run to completion although its stream
    /// has ended.
    pub(super) fn detach_http2_handlers(&mut self, state: &mut ActiveState<D>) {
        for (exchange, deadline) in state.http2.take_detachable() {
            state.has_detached_handler = true;
            let peer = self.info.peer.to_string();
            detached::spawn_detached(&self.worker, exchange, deadline, peer, self.accepted_at());
        }
    }

    /// Takes the reason from a connection in [`Phase::Closing`].
    pub(super) fn take_close_reason(&mut self, state: &mut ActiveState<D>) -> CloseReason {
        match std::mem::replace(&mut state.phase, Phase::Http1) {
            Phase::Closing(closing) => closing.into_reason(),
            _ => unreachable!("only a closing connection ends by itself"),
        }
    }

    /// Ends the connection in the middle of its work, and adds its unfinished requests to the
    /// shutdown report.
    pub(super) fn force_close(&mut self, state: &mut ActiveState<D>) -> CloseReason {
        if let Phase::Closing(closing) = &state.phase
            && (!closing.is_flushing() || state.has_detached_handler)
        {
            // Nothing is unfinished, or the task of the detached handler adds its request to the
            // report.
            return self.take_close_reason(state);
        }
        self.reset_if_truncated(state);
        // The report omits requests whose responses were sent.
        let is_sent = state.io.output.is_empty() && self.stream.is_flushed();
        let now = self.worker.driver.now();
        let peer = || self.info.peer.to_string();
        let age = now.saturating_sub(self.accepted_at());
        let with_request = |request: InFlightRequest<'_>| ForceClosed {
            peer: peer(),
            request: Some(request.name.to_string()),
            stage: request.stage,
            in_flight_for: request.pending_since.map(|since| now.saturating_sub(since)),
            connection_age: age,
        };
        let mut force_closed = self.worker.force_closed.borrow_mut();
        let len_before = force_closed.len();
        force_closed.extend(state.http2.in_flight(is_sent).map(with_request));
        // If no HTTP/2 request is unfinished, report the request of the HTTP/1 or upgraded
        // connection or, if there is none, the connection without a request.
        if force_closed.len() == len_before {
            let request = match &state.phase {
                Phase::Upgraded(upgraded) => upgraded.in_flight(),
                _ => state.http1.in_flight(is_sent),
            };
            let stage = match &state.phase {
                Phase::TlsHandshake(_) => InFlightStage::Handshake,
                Phase::Closing(_) => InFlightStage::Delivery,
                _ => InFlightStage::Head,
            };
            let without_request = || ForceClosed {
                peer: peer(),
                request: None,
                stage,
                in_flight_for: None,
                connection_age: age,
            };
            force_closed.push(request.map_or_else(without_request, with_request));
        }
        CloseReason::ForceClosed
    }

    /// Resets the connection if its last response is incomplete. With an orderly close, the
    /// response would look complete to the peer.
    fn reset_if_truncated(&self, state: &ActiveState<D>) {
        if !self.stream.is_flushed() || state.http1.is_close_delimited() {
            self.stream.reset_on_drop();
        }
    }

    /// Fails the body of the HTTP/1 request. If its handler must run to completion, spawns a worker
    /// task that continues the handler.
    pub(super) fn detach_http1_handler(&mut self, state: &mut ActiveState<D>) {
        state.http1.fail_request_body();
        if let Some(exchange) = state.http1.take_detachable() {
            state.has_detached_handler = true;
            let deadlines = &state.io.deadlines;
            let handler_deadlines =
                [TimeoutKind::Handler, TimeoutKind::Exchange].map(|kind| deadlines.get(kind));
            let deadline = handler_deadlines.into_iter().flatten().min();
            let peer = self.info.peer.to_string();
            detached::spawn_detached(&self.worker, exchange, deadline, peer, self.accepted_at());
        }
    }

    /// Records the failure of the TLS session, and starts to close the connection. The TLS session
    /// has already written its alert.
    pub(super) fn fail_tls(&mut self, state: &mut ActiveState<D>, error: &TlsConnectionError) {
        self.worker.instrumentation.metrics().tls_failures.increment(TlsFailure {
            in_handshake: self.transport.is_handshaking(),
            reason: error.label(),
            alert: error.alert().unwrap_or_default(),
        });
        let reason = match (error, error.client_certificate_error()) {
            (TlsConnectionError::PlainHttp, _) => CloseReason::PlaintextOnTlsPort,
            (_, Some(label)) => CloseReason::ClientCertificate { label, cause: error.to_string() },
            (_, None) => CloseReason::TlsFailed(error.to_string()),
        };
        if let Phase::Upgraded(upgraded) = &mut state.phase {
            upgraded.abort();
        }
        // The TLS session can no longer encrypt. Lingering gives its alert time to arrive.
        state.io.output.discard_plaintext();
        self.start_close(state, Close { reason, linger: true });
    }
}
