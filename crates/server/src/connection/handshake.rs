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
use peregrine_proto::proxy_protocol::{ParseResult, ProxyProtocolError, parse};
use peregrine_tls::TlsConfig;
use peregrine_web::connection::ConnectionInfo;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Returns whether a TLS handshake is still to be completed, at once or after a PROXY header.
    pub(super) fn needs_tls_handshake(&self) -> bool {
        let begins_so =
            self.preamble == Preamble::ProxyHeader && self.listener.context.tls.is_some();
        begins_so || self.transport.is_handshaking()
    }

    /// Chooses the phase that parses the first bytes.
    pub(super) fn start_phase(&mut self, session: &mut ActiveState<D>) {
        let limits = &self.listener.context.limits;
        let is_header = self.preamble == Preamble::ProxyHeader;
        if is_header || self.transport.is_handshaking() {
            let (worker, most) = (&*self.worker, limits.handshakes_max);
            let handshake =
                self.listener.context.handshake_limiter.acquire(&worker.timers, &self.timer, most);
            let (phase, until) = if is_header {
                (Phase::ProxyHeader(handshake), self.proxy_header_deadline())
            } else {
                let until = self.accepted_at().saturating_add(limits.handshake_timeout);
                (Phase::TlsHandshake(handshake), until)
            };
            session.phase = phase;
            session.io.deadlines.set(TimeoutKind::Handshake, until);
        } else if self.protocol.waiting_for() == WaitingFor::FirstByte
            && matches!((&session.phase, &self.transport), (Phase::Http1, Transport::Plain))
            && limits.http2.prior_knowledge
            && match_preface(session.io.input.unread()) != PrefaceMatch::No
        {
            session.phase = Phase::ProtocolDetection;
        }
    }

    /// When the PROXY header must be complete.
    pub(super) fn proxy_header_deadline(&self) -> Duration {
        let limits = &self.listener.context.limits;
        let is_tls = self.listener.context.tls.is_some();
        let patience = if is_tls { limits.handshake_timeout } else { limits.first_byte_timeout };
        self.accepted_at().saturating_add(patience)
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
    pub(super) fn read_proxy_header(&mut self, session: &mut ActiveState<D>) -> Action {
        let Phase::ProxyHeader(handshake) = &session.phase else {
            unreachable!("the header is read in its phase")
        };
        let reader = &mut session.io.input;
        let settings = self
            .listener
            .context
            .proxy_protocol
            .as_ref()
            .expect("this phase requires these settings");
        let is_ended = reader.is_eof(&self.transport);
        let used = match parse(reader.unread(), settings.header_bytes_max) {
            Ok(ParseResult::Header(used, header)) => {
                let info = apply_header(&self.info, &header);
                let proxies = self.listener.context.trusted_proxies_for(&info.peer);
                self.info = Rc::new(ConnectionInfo { trusted_proxies: proxies, ..info });
                if !self.acquire_client_permit() {
                    return Action::close(CloseReason::ClientConnectionsMax);
                }
                used
            }
            Ok(ParseResult::Incomplete) if !is_ended => {
                if handshake.is_evicted() {
                    return Action::close(self.proxy_header_close_reason());
                }
                return Action::Wait(Interest { readable: true, writable: false });
            }
            Ok(ParseResult::Incomplete) if reader.is_empty() => {
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
            Ok(_) => 0,
            Err(reject) => return Action::close(CloseReason::ProxyHeaderRejected(reject)),
        };
        reader.consume(used);
        self.start_after_proxy_header(session)
    }

    /// Counts the connection towards the limit of the client named in its PROXY header. Returns
    /// false if that client has reached its limit.
    fn acquire_client_permit(&mut self) -> bool {
        // A connection that a trusted proxy opened for itself counts towards no client.
        let is_told = self.info.proxy_protocol.is_some() && self.info.trusted_proxies.is_none();
        let of = self.info.peer.socket_addr().filter(|_| is_told);
        let counted = self.worker.admission.acquire_connection(of.map(|address| address.ip()));
        match counted {
            Ok(client) => self.client_permit = client,
            Err(TooManyConnections) => return false,
        }
        true
    }

    /// Continues a handshake that waits for an external lookup, once the result is known.
    pub(super) fn resume_tls_handshake(
        &mut self,
        session: &mut ActiveState<D>,
        cx: &mut Context<'_>,
    ) {
        if !self.transport.is_lookup_pending() || self.transport.poll_lookup(cx).is_pending() {
            return;
        }
        let io = &mut session.io;
        if let Err(reject) = io.input.resume_tls(&mut self.transport, &mut io.output.tls_records) {
            self.fail_tls(session, &reject);
        }
    }

    /// Starts the connection again with the bytes after the PROXY header. Some of them may have
    /// arrived already.
    fn start_after_proxy_header(&mut self, session: &mut ActiveState<D>) -> Action {
        self.preamble = Preamble::None;
        session.io.deadlines.clear_all();
        self.transport =
            Transport::new(self.listener.context.tls.as_ref().map(TlsConfig::new_connection));
        // Leaving the phase drops the header's entry among the handshakes. The TLS handshake gets
        // its own.
        session.phase = Phase::Http1;
        let reader = &mut session.io.input;
        if reader.is_empty() {
            let is_ended = reader.is_eof(&self.transport);
            return if is_ended { Action::close(CloseReason::PeerClosed) } else { Action::Idle };
        }
        self.start_phase(session);
        let io = &mut session.io;
        if let Err(reject) = io.input.start_tls(&mut self.transport, &mut io.output.tls_records) {
            self.fail_tls(session, &reject);
        }
        Action::Continue
    }
}

/// Detects HTTP/1 or HTTP/2 by the first bytes. Returns the next phase.
pub(super) fn detect_protocol<D: Driver>(link: &mut ConnectionContext<'_, D>) -> (Action, Phase) {
    match match_preface(link.io.input.unread()) {
        PrefaceMatch::Match => (Action::Continue, Phase::Http2),
        PrefaceMatch::Partial if !link.is_eof() => {
            let late = link.worker.driver.now().saturating_add(link.listener.limits.head_timeout);
            link.io.deadlines.set_if_unset(TimeoutKind::Head, late);
            (Action::Wait(Interest { readable: true, writable: false }), Phase::ProtocolDetection)
        }
        PrefaceMatch::Partial | PrefaceMatch::No => (Action::Continue, Phase::Http1),
    }
}

/// Continues a handshake. [`Action::Continue`] means that it is complete.
pub(super) fn advance_tls_handshake<D: Driver>(
    handshake: &HandshakePermit,
    link: &mut ConnectionContext<'_, D>,
) -> Action {
    if !link.transport.is_handshaking() {
        let tls = link.transport.tls_info().map(Arc::new);
        *link.info = Rc::new(ConnectionInfo { tls, ..(**link.info).clone() });
        link.io.deadlines.clear(TimeoutKind::Handshake);
        return Action::Continue;
    }
    if handshake.is_evicted() {
        link.worker.instrumentation.record_limit("handshakes_max");
        return Action::close(CloseReason::HandshakeTimeout);
    }
    if link.is_eof() {
        return Action::close(CloseReason::PeerAborted);
    }
    Action::Wait(Interest { readable: true, writable: false })
}
