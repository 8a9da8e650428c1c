//! Begins a connection: reads its PROXY header, performs the TLS handshake, and detects the HTTP/2
//! preface.

use super::Connection;
use super::active_state::{Phase, Session};
use crate::admission::TooMany;
use crate::admission::handshakes::Handshake;
use crate::io::context::{For, Link, Turn};
use crate::io::timeouts::Wait;
use crate::io::transport::Stage;
use crate::listener::proxy_protocol::{Beginning, told};
use crate::observe::close_reason::Ended;
use peregrine_driver::Driver;
use peregrine_proto::h1::Waiting;
use peregrine_proto::h2::{PrefaceMatch, is_preface};
use peregrine_proto::proxy::{Received, Reject, receive};
use peregrine_tls::Tls;
use peregrine_web::connection::ConnectionInfo;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Returns whether a TLS handshake is still to be completed, at once or after a PROXY header.
    pub(super) fn is_to_shake_hands(&self) -> bool {
        let begins_so = self.beginning == Beginning::Header && self.entrance.door.tls.is_some();
        begins_so || self.stage.is_handshaking()
    }

    /// Chooses the phase that parses the first bytes.
    pub(super) fn begin_phase(&mut self, session: &mut Session<D>) {
        let limits = &self.entrance.door.limits;
        let is_header = self.beginning == Beginning::Header;
        if is_header || self.stage.is_handshaking() {
            let (worker, most) = (&*self.worker, limits.handshakes_max);
            let handshake = self.entrance.door.handshakes.begin(&worker.wheel, &self.alarm, most);
            let (phase, until) = if is_header {
                (Phase::Header(handshake), self.header_until())
            } else {
                let until = self.born().saturating_add(limits.handshake_timeout);
                (Phase::Handshake(handshake), until)
            };
            session.phase = phase;
            session.io.deadlines.set(Wait::Handshake, until);
        } else if self.protocol.waiting() == Waiting::FirstByte
            && matches!((&session.phase, &self.stage), (Phase::Http1, Stage::Plain))
            && limits.http2.prior_knowledge
            && is_preface(session.io.reader.unread()) != PrefaceMatch::No
        {
            session.phase = Phase::Preface;
        }
    }

    /// When the PROXY header must be complete.
    pub(super) fn header_until(&self) -> Duration {
        let limits = &self.entrance.door.limits;
        let is_tls = self.entrance.door.tls.is_some();
        let patience = if is_tls { limits.handshake_timeout } else { limits.first_byte_timeout };
        self.born().saturating_add(patience)
    }

    /// The close reason if the PROXY header was not complete in time.
    pub(super) fn header_late(&self) -> Ended {
        if self.entrance.door.tls.is_some() { Ended::HandshakeLate } else { Ended::FirstByteLate }
    }

    /// Parses the PROXY header, if all of it has arrived.
    pub(super) fn read_header(&mut self, session: &mut Session<D>) -> Turn {
        let Phase::Header(handshake) = &session.phase else {
            unreachable!("the header is read in its phase")
        };
        let reader = &mut session.io.reader;
        let settings =
            self.entrance.door.proxy_protocol.as_ref().expect("this phase requires these settings");
        let is_ended = reader.is_ended(&self.stage);
        let used = match receive(reader.unread(), settings.header_bytes_max) {
            Ok(Received::Header(used, header)) => {
                let info = told(&self.info, &header);
                let proxies = self.entrance.door.proxies_at(&info.peer);
                self.info = Rc::new(ConnectionInfo { proxies, ..info });
                if !self.count_client() {
                    return Turn::close(Ended::ClientConnectionsMax);
                }
                used
            }
            Ok(Received::Partial) if !is_ended => {
                if handshake.is_over() {
                    return Turn::close(self.header_late());
                }
                return Turn::Wait(For { bytes: true, room: false });
            }
            Ok(Received::Partial) if reader.is_empty() => return Turn::close(Ended::PeerClosed),
            Ok(Received::Partial) if settings.is_required() => return Turn::close(Ended::PeerLeft),
            Ok(Received::Other) if settings.is_required() => {
                return Turn::close(Ended::Proxy(Reject::Missing));
            }
            Ok(_) => 0,
            Err(reject) => return Turn::close(Ended::Proxy(reject)),
        };
        reader.consume(used);
        self.begin_behind_header(session)
    }

    /// Counts the connection towards the limit of the client named in its PROXY header. Returns
    /// false if that client has reached its limit.
    fn count_client(&mut self) -> bool {
        // A connection that a trusted proxy opened for itself counts towards no client.
        let is_told = self.info.proxy.is_some() && self.info.proxies.is_none();
        let of = self.info.peer.tcp().filter(|_| is_told);
        let counted = self.worker.overload.connect(of.map(|address| address.ip()));
        match counted {
            Ok(client) => self.client = client,
            Err(TooMany) => return false,
        }
        true
    }

    /// Continues a handshake that waits for an external lookup, once the result is known.
    pub(super) fn go_on_shaking_hands(
        &mut self,
        session: &mut Session<D>,
        context: &mut Context<'_>,
    ) {
        if !self.stage.is_looking() || self.stage.poll_look(context).is_pending() {
            return;
        }
        let io = &mut session.io;
        if let Err(reject) = io.reader.go_on(&mut self.stage, &mut io.writer.records) {
            self.refuse_tls(session, &reject);
        }
    }

    /// Starts the connection again with the bytes after the PROXY header. Some of them may have
    /// arrived already.
    fn begin_behind_header(&mut self, session: &mut Session<D>) -> Turn {
        self.beginning = Beginning::Itself;
        session.io.deadlines.clear_all();
        self.stage = Stage::new(self.entrance.door.tls.as_ref().map(Tls::session));
        // Leaving the phase drops the header's entry among the handshakes. The TLS handshake gets
        // its own.
        session.phase = Phase::Http1;
        let reader = &mut session.io.reader;
        if reader.is_empty() {
            let is_ended = reader.is_ended(&self.stage);
            return if is_ended { Turn::close(Ended::PeerClosed) } else { Turn::Rest };
        }
        self.begin_phase(session);
        let io = &mut session.io;
        if let Err(reject) = io.reader.begin_stage(&mut self.stage, &mut io.writer.records) {
            self.refuse_tls(session, &reject);
        }
        Turn::Again
    }
}

/// Detects HTTP/1 or HTTP/2 by the first bytes. Returns the next phase.
pub(super) fn tell_protocol<D: Driver>(link: &mut Link<'_, D>) -> (Turn, Phase) {
    match is_preface(link.io.reader.unread()) {
        PrefaceMatch::Match => (Turn::Again, Phase::Http2),
        PrefaceMatch::Partial if !link.is_ended() => {
            let late = link.worker.driver.now().saturating_add(link.door.limits.head_timeout);
            link.io.deadlines.begin(Wait::Head, late);
            (Turn::Wait(For { bytes: true, room: false }), Phase::Preface)
        }
        PrefaceMatch::Partial | PrefaceMatch::No => (Turn::Again, Phase::Http1),
    }
}

/// Continues a handshake. [`Turn::Again`] means that it is complete.
pub(super) fn shake_hands<D: Driver>(handshake: &Handshake, link: &mut Link<'_, D>) -> Turn {
    if !link.stage.is_handshaking() {
        let tls = link.stage.info().map(Arc::new);
        *link.info = Rc::new(ConnectionInfo { tls, ..(**link.info).clone() });
        link.io.deadlines.clear(Wait::Handshake);
        return Turn::Again;
    }
    if handshake.is_over() {
        link.worker.observed.limit("handshakes_max");
        return Turn::close(Ended::HandshakeLate);
    }
    if link.is_ended() {
        return Turn::close(Ended::PeerLeft);
    }
    Turn::Wait(For { bytes: true, room: false })
}
