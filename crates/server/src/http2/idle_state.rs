//! The HTTP/2 state of an idle connection, and the release of its memory.

use peregrine_proto::h2::Connection;
use peregrine_web::memory::MemoryReservation;
use std::time::Duration;

/// The HTTP/2 state that a connection keeps while it is idle.
pub(crate) struct Http2Core {
    pub(super) protocol: Connection,
    /// When GOAWAY was sent; `None` if it was not.
    pub(super) goaway_sent_at: Option<Duration>,
    /// Which memory has not been freed yet.
    pub(super) retained: RetainedMemory,
    reservation: MemoryReservation,
}

/// Which memory an idle connection has kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RetainedMemory {
    All,
    /// The HPACK tables.
    HpackTables,
    /// Only the HPACK entries that the peer may still refer to.
    HpackEntries,
}

impl Http2Core {
    /// Creates the state of a connection that is about to have its first turn.
    pub(super) fn new(protocol: Connection) -> Self {
        Self {
            protocol,
            goaway_sent_at: None,
            retained: RetainedMemory::All,
            reservation: MemoryReservation::empty(),
        }
    }

    /// Returns whether the connection has not had a request yet.
    pub(crate) fn is_new(&self) -> bool {
        !self.protocol.has_received_request()
    }

    /// When GOAWAY was sent; `None` if it was not.
    pub(crate) fn goaway_sent_at(&self) -> Option<Duration> {
        self.goaway_sent_at
    }

    /// When a connection that has been idle since `since` frees the next part of its memory.
    pub(crate) fn next_shrink_at(&self, since: Duration) -> Duration {
        match self.retained {
            RetainedMemory::All => since.saturating_add(TRIM_AFTER),
            RetainedMemory::HpackTables => since.saturating_add(SHRINK_AFTER),
            RetainedMemory::HpackEntries => Duration::MAX,
        }
    }

    /// Updates the memory that is accounted for the connection.
    pub(super) fn update_reservation(&mut self) {
        let (tables, others) = self.protocol.memory_bytes();
        self.reservation.resize(size_of::<Self>() + tables + others);
    }

    /// Frees the next part of the memory.
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

/// When a connection has been idle for this long, it frees the memory that only another exchange
/// needs.
const TRIM_AFTER: Duration = Duration::from_secs(1);
/// When a connection has been idle for this long, it frees the HPACK tables too. The next response
/// must then send its fields in full again.
const SHRINK_AFTER: Duration = Duration::from_secs(20);
