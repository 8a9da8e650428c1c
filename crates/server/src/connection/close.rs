//! Ends a connection, with an orderly close or without one.

use super::active_state::{Phase, Session};
use super::lingering::Closing;
use super::{Connection, Event};
use crate::exchange::in_flight::InProgress;
use crate::io::context::{Close, Turn};
use crate::io::timeouts::Wait;
use crate::observe::close_reason::{Ended, Unfinished};
use crate::observe::metrics::TlsFailure;
use crate::worker::detached;
use crate::worker::lifecycle::Cut;
use peregrine_driver::{Driver, Stream};
use peregrine_tls::Reject as TlsReject;
use peregrine_web::account::{self, Filling};
use peregrine_web::panics::contained;
use std::io;
use std::task::Poll;

impl<D: Driver> Connection<D> {
    /// Handles an event that is not passed to a protocol's turn. Returns the reason if the
    /// connection is over.
    pub(super) fn on_event(&mut self, session: &mut Session<D>, event: Event) -> Option<Ended> {
        match event {
            Event::Woken => None,
            // A closing connection discards all received bytes, even if they are not valid TLS.
            Event::NoTls(_) if matches!(session.phase, Phase::Closing(_)) => None,
            Event::NoTls(reject) => {
                self.refuse_tls(session, &reject);
                None
            }
            Event::Cut => Some(self.cut(session)),
            Event::Broken(io::ErrorKind::UnexpectedEof) => {
                contained(|| {
                    tracing::error!(target: "peregrine", peer = %self.info.peer,
                    "a file was truncated while it was sent, or could not be read, so the response \
                     was cut short: replace files by renaming new ones over them")
                });
                Some(self.abandon(session, Ended::ResponseFailed))
            }
            Event::Broken(kind) => Some(match &session.phase {
                Phase::Http1 if session.http1.is_busy() => self.abandon(session, Ended::PeerLeft),
                Phase::Http2 if session.http2.is_busy() => self.abandon(session, Ended::PeerLeft),
                _ => self.abandon(session, Ended::Broken(kind)),
            }),
            Event::Late(Wait::Send) => Some(self.abandon(session, Ended::WriteStalled)),
            Event::Late(wait) => self.late(session, wait),
        }
    }

    pub(super) fn late(&mut self, session: &mut Session<D>, wait: Wait) -> Option<Ended> {
        let close = match &mut session.phase {
            Phase::Header(_) => {
                let ended = self.header_late();
                if matches!(ended, Ended::HandshakeLate) {
                    self.worker.observed.limit("handshake_timeout");
                }
                return Some(self.abandon(session, ended));
            }
            Phase::Handshake(_) => {
                self.worker.observed.limit("handshake_timeout");
                return Some(self.abandon(session, Ended::HandshakeLate));
            }
            Phase::Upgraded(_) if wait == Wait::Probe => {
                // The turn schedules the next probe.
                let has_left = self.stream.is_broken();
                return has_left.then(|| self.abandon(session, Ended::PeerLeft));
            }
            Phase::Upgraded(_) => {
                self.worker.observed.limit("upgraded_idle_timeout");
                Close { ended: Ended::Idle, lingers: false }
            }
            Phase::Closing(_) => return Some(self.over(session)),
            Phase::Preface | Phase::Http1 => {
                session.phase = Phase::Http1;
                match session.http1.late(wait, &mut self.link(&mut session.io)) {
                    Turn::Close(close) => close,
                    _ => return None,
                }
            }
            Phase::Http2 => {
                let turn = session.http2.late(wait, &mut self.link(&mut session.io));
                self.detach(session);
                match turn {
                    Turn::Close(close) => close,
                    _ => return None,
                }
            }
        };
        self.end(session, close);
        None
    }

    /// Returns the session to the pool. If memory is short, the pool is cleared.
    pub(super) fn give_back(&self, session: Box<Session<D>>) {
        self.entrance.sessions.give(session);
        if account::filling() >= Filling::Tight {
            self.entrance.sessions.clear();
        }
        self.worker.overload.show_memory();
    }

    /// Ends the connection and logs the reason.
    pub(super) fn ends(&mut self, session: Box<Session<D>>, ended: &Ended) -> Poll<()> {
        self.give_back(session);
        self.open.ended(ended);
        let peer = &self.info.peer;
        contained(|| tracing::debug!(target: "peregrine", %peer, %ended, "connection ended"));
        Poll::Ready(())
    }

    /// Returns whether the worker may keep the memory that this connection has just added. Near the
    /// limit, only two kinds of connection may grow: those with a request that must never be
    /// rejected, and those in reserved slots, which may send such a request.
    #[inline]
    pub(super) fn may_grow(&self, session: &Session<D>) -> bool {
        match account::filling() {
            Filling::Free | Filling::Tight | Filling::Scarce => true,
            Filling::Full => self.by_wicket.is_some() || session.is_never_shed(),
            Filling::Over => false,
        }
    }

    /// Handles a connection in a reserved slot. If memory and ordinary slots are available again,
    /// the connection gives up the reserved slot and continues. Otherwise it is closed if another
    /// connection needs its slot and no request of its own is being answered. Ready if the
    /// connection is over.
    #[cold]
    pub(super) fn gives_way(&mut self) -> Poll<()> {
        if !self.entrance.door.is_narrow(self.worker.spare_connections) {
            self.by_wicket = None;
            return Poll::Pending;
        }
        let is_over = self.by_wicket.as_ref().is_some_and(|place| place.is_over());
        let is_busy = self.session.as_ref().is_some_and(|session| session.is_busy());
        if !is_over || is_busy {
            return Poll::Pending;
        }
        // RFC 9113 §6.8: GOAWAY tells the peer which of its requests it may retry. If the driver
        // has no room for it, the peer is reading too slowly, and the connection closes without
        // GOAWAY.
        let close = Close { ended: Ended::GaveWay, lingers: false };
        let is_heard = self.stream.has_room();
        match self.session.take() {
            Some(mut session) if is_heard && matches!(session.phase, Phase::Http2) => {
                self.end(&mut session, close);
                self.session = Some(session);
                Poll::Pending
            }
            None if is_heard && self.http2.is_some() => {
                self.session = Some(self.begin(Err(close.ended)));
                Poll::Pending
            }
            Some(mut session) => {
                let ended = self.abandon(&mut session, close.ended);
                self.ends(session, &ended)
            }
            None => {
                self.open.ended(&close.ended);
                Poll::Ready(())
            }
        }
    }

    /// Resets the connection because it needs more memory than the worker may hold.
    #[cold]
    pub(super) fn outgrown(&mut self, mut session: Box<Session<D>>) -> Poll<()> {
        self.stream.reset_on_drop();
        let ended = self.abandon(&mut session, Ended::MemoryMax);
        self.ends(session, &ended)
    }

    /// Begins to close the connection.
    pub(super) fn end(&mut self, session: &mut Session<D>, close: Close) {
        let is_refusal = matches!(
            close.ended,
            Ended::Rejected(_) | Ended::Http2(_) | Ended::Proxy(_) | Ended::NoProxy
        );
        if is_refusal || close.ended.is_by_tls() {
            self.worker.observed.refusal(&close.ended);
        }
        let is_cut_short = matches!(close.ended, Ended::PeerLeft) && session.http1.is_until_close();
        if is_cut_short || matches!(close.ended, Ended::WriteStalled | Ended::ExchangeLate) {
            self.stream.reset_on_drop();
        }
        if matches!(session.phase, Phase::Http1) {
            self.keep_promise(session);
            session.http1.stop();
        }
        if matches!(session.phase, Phase::Http2) {
            self.fail_streams(session);
            // Nothing may be sent after a TLS alert.
            if !close.ended.is_by_tls() {
                session.http2.close(&mut session.io.writer.plain);
            }
        }
        session.io.hold = None;
        session.io.deadlines.clear_all();
        session.phase = Phase::Closing(Closing::new(close, is_cut_short));
    }

    /// Ends the connection without an orderly close.
    pub(super) fn abandon(&mut self, session: &mut Session<D>, ended: Ended) -> Ended {
        self.reset_if_cut_short(session);
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            // If the response may have arrived, the reason for closing is more informative than
            // `ended`.
            Phase::Closing(closing) if !closing.is_sending() => return closing.into_ended(),
            Phase::Upgraded(mut upgrade) => upgrade.fail(),
            Phase::Http1 => self.keep_promise(session),
            Phase::Http2 => self.fail_streams(session),
            Phase::Preface | Phase::Header(_) | Phase::Handshake(_) | Phase::Closing(_) => {}
        }
        ended
    }

    /// Fails all HTTP/2 streams.
    fn fail_streams(&mut self, session: &mut Session<D>) {
        session.http2.fail_all();
        self.detach(session);
    }

    /// Spawns a worker task for each HTTP/2 handler that must run to its end although its stream is
    /// over.
    pub(super) fn detach(&mut self, session: &mut Session<D>) {
        for (exchange, left) in session.http2.take_promised() {
            session.has_detached = true;
            let peer = self.info.peer.to_string();
            detached::spawn(&self.worker, exchange, left, peer, self.born());
        }
    }

    /// Takes the reason from a connection in [`Phase::Closing`].
    pub(super) fn over(&mut self, session: &mut Session<D>) -> Ended {
        match std::mem::replace(&mut session.phase, Phase::Http1) {
            Phase::Closing(closing) => closing.into_ended(),
            _ => unreachable!("only a closing connection ends by itself"),
        }
    }

    /// Ends the connection in the middle of its work, and adds its unfinished requests to the
    /// shutdown report.
    pub(super) fn cut(&mut self, session: &mut Session<D>) -> Ended {
        if let Phase::Closing(closing) = &session.phase
            && (!closing.is_sending() || session.has_detached)
        {
            return self.over(session);
        }
        self.reset_if_cut_short(session);
        // The report omits requests whose responses were delivered.
        let is_sent = session.io.writer.is_empty() && self.stream.is_sent();
        let now = self.worker.driver.now();
        let peer = || self.info.peer.to_string();
        let age = now.saturating_sub(self.born());
        let name = |request: InProgress<'_>| Cut {
            peer: peer(),
            request: Some(request.name.to_string()),
            unfinished: request.unfinished,
            busy: request.since.map(|since| now.saturating_sub(since)),
            age,
        };
        let mut cut = self.worker.cut.borrow_mut();
        let before = cut.len();
        cut.extend(session.http2.in_progress(is_sent).map(name));
        if cut.len() == before {
            let request = match &session.phase {
                Phase::Upgraded(upgrade) => upgrade.in_progress(),
                _ => session.http1.in_progress(is_sent),
            };
            let unfinished = match &session.phase {
                Phase::Handshake(_) => Unfinished::Handshake,
                Phase::Closing(_) => Unfinished::Delivery,
                _ => Unfinished::Head,
            };
            let nameless = || Cut { peer: peer(), request: None, unfinished, busy: None, age };
            cut.push(request.map_or_else(nameless, name));
        }
        Ended::Cut
    }

    /// Resets the connection if its last response is incomplete. An orderly close would tell the
    /// peer that everything was sent.
    fn reset_if_cut_short(&self, session: &Session<D>) {
        if !self.stream.is_sent() || session.http1.is_until_close() {
            self.stream.reset_on_drop();
        }
    }

    /// If the HTTP/1 handler must run to its end, spawns a worker task that continues it.
    pub(super) fn keep_promise(&mut self, session: &mut Session<D>) {
        session.http1.fail();
        if let Some(exchange) = session.http1.take_promised() {
            session.has_detached = true;
            let deadlines = &session.io.deadlines;
            let all = [Wait::Handler, Wait::Exchange].map(|wait| deadlines.of(wait));
            let left = all.into_iter().flatten().min();
            let peer = self.info.peer.to_string();
            detached::spawn(&self.worker, exchange, left, peer, self.born());
        }
    }

    pub(super) fn refuse_tls(&mut self, session: &mut Session<D>, reject: &TlsReject) {
        self.worker.observed.counts().tls_failures.note(TlsFailure {
            in_handshake: self.stage.is_handshaking(),
            reason: reject.label(),
            alert: reject.alert().unwrap_or_default(),
        });
        let ended = match (reject, reject.client_fault()) {
            (TlsReject::PlainHttp, _) => Ended::PlainOnTls,
            (_, Some(fault)) => Ended::ClientCertificate { fault, cause: reject.to_string() },
            (_, None) => Ended::TlsFailed(reject.to_string()),
        };
        if let Phase::Upgraded(upgrade) = &mut session.phase {
            upgrade.fail();
        }
        // The TLS session cannot encrypt any more, but its alert must still arrive.
        session.io.writer.drop_plain();
        self.end(session, Close { ended, lingers: true });
    }
}
