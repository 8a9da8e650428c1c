//! What a connection has while it works, and not while it waits for a request.

use super::lingering::Closing;
use super::upgraded::Upgrade;
use crate::admission::handshakes::Handshake;
use crate::http1::Http1;
use crate::http2::Http2;
use crate::io::Io;
use crate::listener::Door;
use crate::observe::metrics::Place;
use peregrine_driver::Driver;
use peregrine_slot::{Pool, Reuse};
use peregrine_web::account::Charge;
use std::rc::Rc;

/// Sessions kept for the next connections that have something to do; more are freed.
const SESSIONS_MAX: usize = 128;

/// Buffers that grew beyond this on a lease are freed when it is given back.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// What a session takes itself, beside its buffers: about its size.
const SESSION_BYTES: usize = 4 * 1024;

/// What connections of a worker lease while they have something to do.
pub(crate) type Sessions<D> = Pool<Box<Session<D>>>;

/// No sessions yet.
pub(crate) fn sessions<D: Driver>() -> Sessions<D> {
    Pool::new(SESSIONS_MAX)
}

/// What connections of one listener share on a worker.
pub(crate) struct Entrance<D: Driver> {
    pub(crate) door: Door,
    pub(crate) sessions: Rc<Sessions<D>>,
}

/// What a connection has while it works, and not while it waits for a request.
///
/// Fields lie as they stand, for the sake of the cache: see [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Session<D: Driver> {
    pub(super) phase: Phase,
    /// What it holds, in use or kept for the next lease.
    charge: Charge,
    /// A handler that runs to its end went on without the connection.
    pub(super) has_detached: bool,
    pub(super) io: Io<D>,
    pub(super) http1: Http1,
    pub(super) http2: Http2,
}

/// What the connection does at present.
pub(super) enum Phase {
    /// A PROXY header is read. It counts as a handshake.
    Header(Handshake),
    /// TLS shakes hands.
    Handshake(Handshake),
    /// The first bytes may be those of HTTP/1 or HTTP/2.
    Preface,
    /// Requests and responses.
    Http1,
    /// The same, many at a time.
    Http2,
    /// Another protocol.
    Upgraded(Box<Upgrade>),
    /// The end.
    Closing(Closing),
}

impl Phase {
    /// Where a connection is counted that waits in this phase.
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Header(_) | Self::Handshake(_) | Self::Preface => Place::Opening,
            Self::Http1 => Place::Http1Active,
            Self::Http2 => Place::Http2Active,
            Self::Upgraded(_) => Place::Upgraded,
            Self::Closing(_) => Place::Closing,
        }
    }
}

impl<D: Driver> Session<D> {
    /// Takes stock of what is held.
    #[inline]
    pub(super) fn weigh(&mut self) {
        let bytes = match self.phase {
            // Thousands may talk in turn: what they do not use is not looked at.
            Phase::Upgraded(_) => 0,
            _ => self.http1.held_bytes() + self.http2.held_bytes(),
        };
        self.charge.set(SESSION_BYTES + self.io.held_bytes() + bytes);
    }

    /// Is a request being answered?
    pub(super) fn is_busy(&self) -> bool {
        match &self.phase {
            Phase::Http1 => self.http1.is_busy(),
            Phase::Http2 => self.http2.is_busy(),
            Phase::Upgraded(_) => true,
            Phase::Closing(closing) => closing.is_sending(),
            Phase::Header(_) | Phase::Handshake(_) | Phase::Preface => false,
        }
    }

    /// Is a request being answered that is never refused?
    pub(super) fn is_never_shed(&self) -> bool {
        self.http1.is_never_shed() || self.http2.is_never_shed()
    }

    /// Does another protocol run, which may be silent for days?
    pub(super) fn is_tunnel(&self) -> bool {
        match self.phase {
            Phase::Upgraded(_) => true,
            Phase::Http2 => self.http2.has_tunnelled(),
            _ => false,
        }
    }
}

impl<D: Driver> Reuse for Box<Session<D>> {
    fn make() -> Self {
        Box::new(Session {
            io: Io::new(),
            http1: Http1::default(),
            http2: Http2::default(),
            phase: Phase::Http1,
            has_detached: false,
            charge: Charge::new(),
        })
    }

    fn clean(&mut self) -> bool {
        let Session { io, http1, http2, phase, has_detached, charge: _ } = &mut **self;
        io.reset(BUFFER_BYTES_MAX);
        http1.reset();
        http2.reset();
        *phase = Phase::Http1;
        *has_detached = false;
        self.weigh();
        true
    }
}
