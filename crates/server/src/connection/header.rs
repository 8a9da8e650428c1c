//! A connection that begins with a PROXY header.

use super::Connection;
use super::session::{Phase, Session};
use crate::ended::Ended;
use crate::link::{For, Turn};
use crate::proxied::{Beginning, told};
use crate::stage::Stage;
use peregrine_driver::Driver;
use peregrine_proto::proxy::{Received, Reject, receive};
use peregrine_tls::Tls;
use peregrine_web::connection::ConnectionInfo;
use std::rc::Rc;
use std::time::Duration;

impl<D: Driver> Connection<D> {
    /// Does the connection begin with a handshake, behind its header if there is one?
    pub(super) fn is_to_shake_hands(&self) -> bool {
        let begins_so = self.beginning == Beginning::Header && self.door.tls.is_some();
        begins_so || self.stage.is_handshaking()
    }

    /// Until when the header must be whole.
    pub(super) fn header_until(&self) -> Duration {
        let limits = &self.door.limits;
        let is_tls = self.door.tls.is_some();
        let patience = if is_tls { limits.handshake_timeout } else { limits.first_byte_timeout };
        self.born().saturating_add(patience)
    }

    /// The header was not whole in time.
    pub(super) fn header_late(&self) -> Ended {
        if self.door.tls.is_some() { Ended::HandshakeLate } else { Ended::FirstByteLate }
    }

    /// Reads the header, if that is whole.
    pub(super) fn read_header(&mut self, session: &mut Session<D>) -> Turn {
        let Phase::Header(handshake) = &session.phase else {
            unreachable!("the header is read in its phase")
        };
        let reader = &mut session.io.reader;
        let settings = self.door.proxy_protocol.as_ref().expect("without it no header is read");
        let is_ended = reader.is_ended(&self.stage);
        let used = match receive(reader.unread(), settings.header_bytes_max) {
            Ok(Received::Header(used, header)) => {
                let info = told(&self.info, &header);
                let proxies = self.door.proxies_at(&info.peer);
                self.info = Rc::new(ConnectionInfo { proxies, ..info });
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

    /// The connection begins again with what follows the header, which may have come already.
    fn begin_behind_header(&mut self, session: &mut Session<D>) -> Turn {
        self.beginning = Beginning::Itself;
        session.io.deadlines.clear_all();
        self.stage = Stage::new(self.door.tls.as_ref().map(Tls::session));
        // The header's place among the handshakes ends here, and the handshake takes one of its own.
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
