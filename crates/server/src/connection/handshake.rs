//! Begins a connection: reads its PROXY header, performs the TLS handshake, and detects the HTTP/2
//! preface.

use super::Connection;
use super::active_state::{ActiveState, Phase};
use crate::admission::TooManyConnections;
use crate::admission::handshakes::HandshakePermit;
use crate::io::context::{Action, ConnectionContext, Interest};
use crate::io::timeouts::TimeoutKind;
use crate::io::transport::Transport;
use crate::listener::proxy_protocol::{Preamble, apply_header};
use crate::observe::close_reason::CloseReason;
use peregrine_driver::Driver;
use peregrine_proto::h1::WaitingFor;
use peregrine_proto::h2::{PrefaceMatch, match_preface};
use peregrine_proto::proxy_protocol::{Addresses, ParseResult, ProxyProtocolError, parse};
use peregrine_tls::TlsConfig;
use peregrine_web::connection::ConnectionInfo;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Returns whether a TLS handshake is in progress, or will follow a PROXY header.
    pub(super) fn needs_tls_handshake(&self) -> bool {
        let tls_follows_header =
            self.preamble == Preamble::ProxyHeader && self.listener.context.tls.is_some();
        tls_follows_header || self.transport.is_handshaking()
    }

    /// Selects the phase of a connection that becomes busy because bytes have arrived.
    pub(super) fn start_phase(&mut self, state: &mut ActiveState<D>) {
        let limits = &self.listener.context.limits;
        let expects_header = self.preamble == Preamble::ProxyHeader;
        if expects_header || self.transport.is_handshaking() {
            let (worker, max) = (&*self.worker, limits.handshakes_max);
            let permit =
                self.listener.context.handshake_limiter.acquire(&worker.timers, &self.timer, max);
            let (phase, deadline) = if expects_header {
                (Phase::ProxyHeader(permit), self.proxy_header_deadline())
            } else {
                let deadline = self.accepted_at().saturating_add(limits.handshake_timeout);
                (Phase::TlsHandshake(permit), deadline)
            };
            state.phase = phase;
            state.io.deadlines.set(TimeoutKind::Handshake, deadline);
        } else if self.protocol.waiting_for() == WaitingFor::FirstByte
            && matches!((&state.phase, &self.transport), (Phase::Http1, Transport::Plain))
            && limits.http2.prior_knowledge
            && match_preface(state.io.input.unread()) != PrefaceMatch::No
        {
            state.phase = Phase::ProtocolDetection;
        }
    }

    /// When the PROXY header must be complete.
    pub(super) fn proxy_header_deadline(&self) -> Duration {
        let limits = &self.listener.context.limits;
        let is_tls = self.listener.context.tls.is_some();
        let timeout = if is_tls { limits.handshake_timeout } else { limits.first_byte_timeout };
        self.accepted_at().saturating_add(timeout)
    }

    /// The close reason if the PROXY header was not complete in time.
    pub(super) fn proxy_header_close_reason(&self) -> CloseReason {
        if self.listener.context.tls.is_some() {
            CloseReason::HandshakeTimeout
        } else {
            CloseReason::FirstByteTimeout
        }
    }

    /// Parses the PROXY header, if all of it has arrived.
    pub(super) fn read_proxy_header(&mut self, state: &mut ActiveState<D>) -> Action {
        let Phase::ProxyHeader(permit) = &state.phase else {
            unreachable!("the header is read only in `Phase::ProxyHeader`")
        };
        let input = &mut state.io.input;
        let settings = self
            .listener
            .context
            .proxy_protocol
            .as_ref()
            .expect("`Phase::ProxyHeader` requires PROXY protocol settings");
        let is_eof = input.is_eof(&self.transport);
        let consumed = match parse(input.unread(), settings.header_bytes_max) {
            Ok(ParseResult::Header(consumed, header)) => {
                let info = apply_header(&self.info, &header);
                let trusted_proxies = self.listener.context.trusted_proxies_for(&info.peer);
                self.info = Rc::new(ConnectionInfo { trusted_proxies, ..info });
                if !self.acquire_client_permit(&header.addresses) {
                    return Action::close(CloseReason::ClientConnectionsMax);
                }
                consumed
            }
            Ok(ParseResult::Incomplete) if !is_eof => {
                if permit.is_evicted() {
                    self.worker.instrumentation.record_limit("handshakes_max");
                    return Action::close(CloseReason::HandshakeTimeout);
                }
                return Action::Wait(Interest { readable: true, writable: false });
            }
            Ok(ParseResult::Incomplete) if input.is_empty() => {
                return Action::close(CloseReason::PeerClosed);
            }
            Ok(ParseResult::Incomplete) if settings.is_required() => {
                return Action::close(CloseReason::PeerAborted);
            }
            Ok(ParseResult::NotProxy) if settings.is_required() => {
                return Action::close(CloseReason::ProxyHeaderRejected(
                    ProxyProtocolError::NotProxy,
                ));
            }
            // The header is optional, and it is absent or was cut off by the end of the input:
            // treat the bytes as the application protocol or TLS.
            Ok(_) => 0,
            Err(error) => return Action::close(CloseReason::ProxyHeaderRejected(error)),
        };
        input.consume(consumed);
        self.start_after_proxy_header(state)
    }

    /// Counts the connection towards the limit of the client named in its PROXY header, if there is
    /// one. Returns false if that client has reached its limit.
    fn acquire_client_permit(&mut self, addresses: &Addresses<'_>) -> bool {
        // A Unix socket address names no client. With `LOCAL` or `UNKNOWN`, the peer is the proxy
        // itself: it opened the connection for itself, or does not report its client's address.
        // `trusted_proxies` is set if the header names another trusted proxy, which serves many
        // clients.
        let names_client =
            matches!(addresses, Addresses::Inet { .. }) && self.info.trusted_proxies.is_none();
        let client_addr = self.info.peer.socket_addr().filter(|_| names_client);
        let acquired = self.worker.admission.acquire_connection(client_addr.map(|addr| addr.ip()));
        match acquired {
            Ok(permit) => self.client_permit = permit,
            Err(TooManyConnections) => return false,
        }
        true
    }

    /// Continues a handshake that waits for an ACME challenge to be looked up, once the result is
    /// known.
    pub(super) fn resume_tls_handshake(
        &mut self,
        state: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) {
        if !self.transport.is_lookup_pending() || self.transport.poll_lookup(cx).is_pending() {
            return;
        }
        let io = &mut state.io;
        if let Err(error) = io.input.resume_tls(&mut self.transport, &mut io.output.tls_records) {
            self.fail_tls(state, &error);
        }
    }

    /// Starts the connection again as if it began after the PROXY header. Some of the following
    /// bytes may have arrived already.
    fn start_after_proxy_header(&mut self, state: &mut ActiveState<D>) -> Action {
        self.preamble = Preamble::None;
        state.io.deadlines.clear_all();
        self.transport =
            Transport::new(self.listener.context.tls.as_ref().map(TlsConfig::new_connection));
        // `Http1` is the initial phase, from which `start_phase` selects the next. Leaving the
        // phase of the PROXY header releases its permit. A TLS handshake acquires its own.
        state.phase = Phase::Http1;
        let input = &mut state.io.input;
        if input.is_empty() {
            let is_eof = input.is_eof(&self.transport);
            return if is_eof { Action::close(CloseReason::PeerClosed) } else { Action::Idle };
        }
        self.start_phase(state);
        let io = &mut state.io;
        if let Err(error) = io.input.start_tls(&mut self.transport, &mut io.output.tls_records) {
            self.fail_tls(state, &error);
        }
        Action::Continue
    }
}

/// Detects HTTP/1 or HTTP/2 by the first bytes. Returns the next phase.
pub(super) fn detect_protocol<D: Driver>(conn: &mut ConnectionContext<'_, D>) -> (Action, Phase) {
    match match_preface(conn.io.input.unread()) {
        PrefaceMatch::Match => (Action::Continue, Phase::Http2),
        PrefaceMatch::Partial if !conn.is_eof() => {
            let deadline =
                conn.worker.driver.now().saturating_add(conn.listener.limits.head_timeout);
            conn.io.deadlines.set_if_unset(TimeoutKind::Head, deadline);
            (Action::Wait(Interest { readable: true, writable: false }), Phase::ProtocolDetection)
        }
        PrefaceMatch::Partial | PrefaceMatch::No => (Action::Continue, Phase::Http1),
    }
}

/// Checks the state of a handshake, which progresses when bytes are received. [`Action::Continue`]
/// means that it is complete.
pub(super) fn check_tls_handshake<D: Driver>(
    permit: &HandshakePermit,
    conn: &mut ConnectionContext<'_, D>,
) -> Action {
    if !conn.transport.is_handshaking() {
        let tls = conn.transport.tls_info().map(Arc::new);
        *conn.info = Rc::new(ConnectionInfo { tls, ..(**conn.info).clone() });
        conn.io.deadlines.clear(TimeoutKind::Handshake);
        return Action::Continue;
    }
    if permit.is_evicted() {
        conn.worker.instrumentation.record_limit("handshakes_max");
        return Action::close(CloseReason::HandshakeTimeout);
    }
    if conn.is_eof() {
        return Action::close(CloseReason::PeerAborted);
    }
    Action::Wait(Interest { readable: true, writable: false })
}
