//! What a connection has while it works, and not while it waits for a request.

use crate::closing::Closing;
use crate::handshakes::Handshake;
use crate::http1::Http1;
use crate::link::Io;
use crate::upgraded::Upgrade;
use peregrine_driver::Driver;
use std::cell::RefCell;

/// Sessions kept for the next connections that have something to do; more are freed.
const SESSIONS_MAX: usize = 128;

/// Buffers that grew beyond this on a lease are freed when it is given back.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// What connections of a worker lease while they have something to do.
pub(crate) struct Sessions<D: Driver>(RefCell<Vec<Box<Session<D>>>>);

/// What a connection has while it works, and not while it waits for a request.
pub(super) struct Session<D: Driver> {
    pub(super) io: Io<D>,
    pub(super) http1: Http1,
    pub(super) phase: Phase,
    /// A handler that runs to its end went on without the connection.
    pub(super) has_detached: bool,
}

/// What the connection does at present.
pub(super) enum Phase {
    /// TLS shakes hands.
    Handshake(Handshake),
    /// Requests and responses.
    Http1,
    /// Another protocol.
    Upgraded(Box<Upgrade>),
    /// The end.
    Closing(Closing),
}

impl<D: Driver> Default for Sessions<D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<D: Driver> Sessions<D> {
    pub(super) fn lease(&self) -> Box<Session<D>> {
        let kept = self.0.borrow_mut().pop();
        kept.unwrap_or_else(|| {
            Box::new(Session {
                io: Io::new(),
                http1: Http1::default(),
                phase: Phase::Http1,
                has_detached: false,
            })
        })
    }

    pub(super) fn give_back(&self, mut session: Box<Session<D>>) {
        session.io.reset(BUFFER_BYTES_MAX);
        session.http1.reset();
        session.phase = Phase::Http1;
        session.has_detached = false;
        let mut kept = self.0.borrow_mut();
        if kept.len() < SESSIONS_MAX {
            kept.push(session);
        }
    }
}
