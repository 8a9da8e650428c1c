//! The HTTP/2 state of an idle connection, and the release of its memory.

use peregrine_proto::h2::Connection;
use peregrine_web::memory::MemoryReservation;
use std::time::Duration;

/// The HTTP/2 state that a connection retains while it is idle.
pub(crate) struct Http2Core {
    pub(super) protocol: Connection,
    /// When GOAWAY was sent; `None` if it was not.
    pub(super) goaway_sent_at: Option<Duration>,
    /// How much of the core's memory has not been freed yet.
    pub(super) retained: RetainedMemory,
    reservation: MemoryReservation,
}

/// How much of its memory an idle connection still retains.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetainedMemory {
    /// Everything, including the buffers that only an exchange needs.
    All,
    /// The HPACK tables of both directions.
    HpackTables,
    /// Only the HPACK entries that the peer may still refer to.
    HpackEntries,
}

impl Http2Core {
    /// Creates the state of a connection before its first turn.
    pub(super) fn new(protocol: Connection) -> Self {
        Self {
            protocol,
            goaway_sent_at: None,
            retained: RetainedMemory::All,
            reservation: MemoryReservation::empty(),
        }
    }

    /// Returns whether no request has been received on the connection yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.protocol.has_received_request()
    }

    /// When GOAWAY was sent; `None` if it was not.
    pub(crate) fn goaway_sent_at(&self) -> Option<Duration> {
        self.goaway_sent_at
    }

    /// Returns when a connection that has been idle since `since` must call [`Http2Core::shrink`]
    /// next.
    pub(crate) fn next_shrink_at(&self, since: Duration) -> Duration {
        match self.retained {
            RetainedMemory::All => since.saturating_add(TRIM_AFTER),
            RetainedMemory::HpackTables => since.saturating_add(SHRINK_AFTER),
            RetainedMemory::HpackEntries => Duration::MAX,
        }
    }

    /// Accounts for the current memory of the core.
    pub(super) fn update_reservation(&mut self) {
        let (tables, other) = self.protocol.memory_bytes();
        self.reservation.resize(size_of::<Self>() + tables + other);
    }

    /// Frees the next part of the memory: first the buffers, then the HPACK tables.
    pub(crate) fn shrink(&mut self) {
        self.retained = if self.retained == RetainedMemory::All {
            self.protocol.trim();
            RetainedMemory::HpackTables
        } else {
            self.protocol.shrink();
            RetainedMemory::HpackEntries
        };
        self.update_reservation();
    }
}

/// How long a connection must be idle before it frees the buffers that only an exchange needs.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// How long a connection must be idle before it frees the HPACK tables too. The next response must
/// then send its fields in full again.
const SHRINK_AFTER: Duration = Duration::from_secs(20);
