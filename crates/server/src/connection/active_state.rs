//! The state that a connection has only while it is busy.

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

/// How many free sessions the pool keeps. Further ones are freed.
const SESSIONS_MAX: usize = 128;

/// Larger buffers are freed when a session returns to the pool.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The approximate size of a session without its buffers.
const SESSION_BYTES: usize = 4 * 1024;

/// The pool from which busy connections borrow their sessions.
pub(crate) type Sessions<D> = Pool<Box<Session<D>>>;

/// Makes an empty pool.
pub(crate) fn sessions<D: Driver>() -> Sessions<D> {
    Pool::new(SESSIONS_MAX)
}

/// The state shared by the connections of one listener on a worker.
pub(crate) struct Entrance<D: Driver> {
    pub(crate) door: Door,
    pub(crate) sessions: Rc<Sessions<D>>,
}

/// The state that a connection has only while it is busy.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Session<D: Driver> {
    pub(super) phase: Phase,
    /// Accounts for the memory of this session, in use or kept for the next connection.
    charge: Charge,
    /// Whether a handler that must run to its end continues without the connection.
    pub(super) has_detached: bool,
    pub(super) io: Io<D>,
    pub(super) http1: Http1,
    pub(super) http2: Http2,
}

/// The current phase of a connection.
pub(super) enum Phase {
    /// Reads a PROXY header. It counts towards `handshakes_max`.
    Header(Handshake),
    /// Performs the TLS handshake.
    Handshake(Handshake),
    /// Reads the first bytes, to distinguish HTTP/1 from HTTP/2.
    Preface,
    /// HTTP/1 requests and responses.
    Http1,
    /// HTTP/2 requests and responses.
    Http2,
    /// Another protocol.
    Upgraded(Box<Upgrade>),
    /// The connection is being closed.
    Closing(Closing),
}

impl Phase {
    /// The state that the metrics show for a connection that waits in this phase.
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
    /// Updates the memory that is accounted for this session.
    #[inline]
    pub(super) fn weigh(&mut self) {
        let bytes = match self.phase {
            // Thousands of upgraded connections may be active, and they do not use the HTTP state.
            // Reading it would cost cache misses.
            Phase::Upgraded(_) => 0,
            _ => self.http1.held_bytes() + self.http2.held_bytes(),
        };
        self.charge.set(SESSION_BYTES + self.io.held_bytes() + bytes);
    }

    /// Returns whether a request is being answered.
    pub(super) fn is_busy(&self) -> bool {
        match &self.phase {
            Phase::Http1 => self.http1.is_busy(),
            Phase::Http2 => self.http2.is_busy(),
            Phase::Upgraded(_) => true,
            Phase::Closing(closing) => closing.is_sending(),
            Phase::Header(_) | Phase::Handshake(_) | Phase::Preface => false,
        }
    }

    /// Returns whether a request is being answered that must never be rejected.
    pub(super) fn is_never_shed(&self) -> bool {
        self.http1.is_never_shed() || self.http2.is_never_shed()
    }

    /// Returns whether an upgraded protocol runs on the connection or on one of its streams. It may
    /// be silent for days.
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
