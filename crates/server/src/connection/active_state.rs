//! The state that a connection has only while it is busy.

use super::lingering::Closing;
use super::upgraded::UpgradedConnection;
use crate::admission::handshakes::HandshakePermit;
use crate::http1::Http1;
use crate::http2::Http2;
use crate::io::ConnectionIo;
use crate::listener::ListenerContext;
use crate::observe::metrics::ConnectionState;
use peregrine_driver::Driver;
use peregrine_slot::{Pool, Recycle};
use peregrine_web::memory::MemoryReservation;
use std::rc::Rc;

/// How many unused states the pool retains at most.
const POOLED_STATES_MAX: usize = 128;

/// Larger buffers are freed when a state returns to the pool.
const RETAINED_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// The approximate size of an [`ActiveState`] without its buffers.
const ACTIVE_STATE_BYTES: usize = 4 * 1024;

/// The pool from which busy connections borrow their state.
pub(crate) type ActiveStatePool<D> = Pool<Box<ActiveState<D>>>;

/// Creates an empty pool.
pub(crate) fn active_state_pool<D: Driver>() -> ActiveStatePool<D> {
    Pool::new(POOLED_STATES_MAX)
}

/// The state shared by the connections of one listener on a worker.
pub(crate) struct ListenerState<D: Driver> {
    pub(crate) context: ListenerContext,
    pub(crate) active_state_pool: Rc<ActiveStatePool<D>>,
}

/// The state that a connection has only while it is busy.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct ActiveState<D: Driver> {
    pub(super) phase: Phase,
    /// Accounts for the memory of this state, whether it is in use or in the pool.
    reservation: MemoryReservation,
    /// Whether a handler that must run to completion continues in a separate task.
    pub(super) has_detached_handler: bool,
    pub(super) io: ConnectionIo<D>,
    pub(super) http1: Http1,
    pub(super) http2: Http2,
}

/// The current phase of a connection.
pub(super) enum Phase {
    /// Reads a PROXY header. This phase counts towards `handshakes_max`.
    ProxyHeader(HandshakePermit),
    /// Performs the TLS handshake.
    TlsHandshake(HandshakePermit),
    /// Reads the first bytes, to distinguish HTTP/1 from HTTP/2.
    ProtocolDetection,
    /// HTTP/1 requests and responses.
    Http1,
    /// HTTP/2 requests and responses.
    Http2,
    /// Another protocol, after an upgrade.
    Upgraded(Box<UpgradedConnection>),
    /// The connection is being closed.
    Closing(Closing),
}

impl Phase {
    /// The state that the metrics show for a connection in this phase.
    pub(super) fn connection_state(&self) -> ConnectionState {
        match self {
            Self::ProxyHeader(_) | Self::TlsHandshake(_) | Self::ProtocolDetection => {
                ConnectionState::Opening
            }
            Self::Http1 => ConnectionState::Http1Active,
            Self::Http2 => ConnectionState::Http2Active,
            Self::Upgraded(_) => ConnectionState::Upgraded,
            Self::Closing(_) => ConnectionState::Closing,
        }
    }
}

impl<D: Driver> ActiveState<D> {
    /// Updates the memory that is accounted for this state.
    #[inline]
    pub(super) fn update_reservation(&mut self) {
        let http_bytes = match self.phase {
            // The HTTP state may retain a small stream table, but the table is not counted: with
            // thousands of upgraded connections, reading that state would cost cache misses.
            Phase::Upgraded(_) => 0,
            _ => self.http1.memory_bytes() + self.http2.memory_bytes(),
        };
        self.reservation.resize(ACTIVE_STATE_BYTES + self.io.memory_bytes() + http_bytes);
    }

    /// Returns whether a handler is running, a response is being sent, or an upgraded protocol
    /// runs. A connection that only receives a handshake or a request's head has no work in
    /// progress, although it is busy.
    pub(super) fn has_work_in_progress(&self) -> bool {
        match &self.phase {
            Phase::Http1 => self.http1.is_responding(),
            Phase::Http2 => self.http2.is_responding(),
            Phase::Upgraded(_) => true,
            Phase::Closing(closing) => closing.is_flushing(),
            Phase::ProxyHeader(_) | Phase::TlsHandshake(_) | Phase::ProtocolDetection => false,
        }
    }

    /// Returns whether a request in progress must never be rejected because of overload.
    pub(super) fn is_never_shed(&self) -> bool {
        self.http1.is_never_shed() || self.http2.is_never_shed()
    }

    /// Returns whether an upgraded protocol runs on the connection or on one of its streams. It may
    /// be silent for days.
    pub(super) fn has_tunnel(&self) -> bool {
        match self.phase {
            Phase::Upgraded(_) => true,
            Phase::Http2 => self.http2.has_tunnel(),
            _ => false,
        }
    }
}

impl<D: Driver> Recycle for Box<ActiveState<D>> {
    fn create() -> Self {
        Box::new(ActiveState {
            io: ConnectionIo::new(),
            http1: Http1::default(),
            http2: Http2::default(),
            phase: Phase::Http1,
            has_detached_handler: false,
            reservation: MemoryReservation::empty(),
        })
    }

    fn recycle(&mut self) -> bool {
        let ActiveState { io, http1, http2, phase, has_detached_handler, reservation: _ } =
            &mut **self;
        io.reset(RETAINED_BUFFER_BYTES_MAX);
        http1.reset();
        http2.reset();
        *phase = Phase::Http1;
        *has_detached_handler = false;
        self.update_reservation();
        true
    }
}
