//! The I/O state that HTTP/1 and HTTP/2 use: the buffers of a busy connection, TLS, and timeouts.
//!
//! Received bytes pass through the [`Stage`](transport::Stage), which decrypts them if the
//! connection uses TLS, to the [`Reader`]. A protocol writes output to the [`Writer`], which passes
//! it through the stage to the driver. A [`Link`](context::Link) lends all of this to a protocol
//! for one turn, together with the state of the listener and the worker.

mod chunk_buffer;
pub(crate) mod context;
mod input;
pub(crate) mod output;
pub(crate) mod timeouts;
pub(crate) mod transfer_rate;
pub(crate) mod transport;

use self::input::Reader;
use self::output::Writer;
use self::timeouts::{Deadlines, Wait};
use self::transfer_rate::Meter;
use peregrine_driver::{Driver, Stream};

/// The I/O state of a busy connection: buffers, rates and deadlines.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct Io<D: Driver> {
    /// Held while the connection waits for an event that the driver does not know.
    pub(crate) hold: Option<D::Hold>,
    /// How many bytes were passed to the driver and may not be sent yet.
    pub(crate) unsent_bytes: usize,
    /// Measures how fast the peer receives.
    pub(crate) sending: Meter,
    pub(crate) reader: Reader<<D::Stream as Stream>::Chunk>,
    pub(crate) writer: Writer,
    pub(crate) deadlines: Deadlines,
    /// Whether the connection has had its last turn, after `Order::Cut`.
    pub(crate) had_last_turn: bool,
    /// Measures how fast the peer sends while the server waits for content.
    pub(crate) receiving: Meter,
    /// Measures how long both sides of a conversation have been silent.
    pub(crate) talking: Meter,
}

/// How much of each buffer an upgraded connection keeps while it waits.
const SLIM_BYTES_MAX: usize = 4 * 1024;

impl<D: Driver> Io<D> {
    pub(crate) fn new() -> Self {
        Self {
            reader: Reader::new(),
            writer: Writer::default(),
            deadlines: Deadlines::default(),
            receiving: Meter::default(),
            talking: Meter::default(),
            sending: Meter::default(),
            unsent_bytes: 0,
            had_last_turn: false,
            hold: None,
        }
    }

    /// Records that all output was sent. The time when it was sent is unknown, so no waiting time
    /// counts against the peer.
    pub(crate) fn everything_is_sent(&mut self, progress: u64) {
        self.sending = Meter::new(progress);
        self.unsent_bytes = 0;
        self.deadlines.clear(Wait::Send);
    }

    /// The memory of the buffers, and the bytes that the driver may not have sent yet.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.reader.held_bytes() + self.writer.held_bytes() + self.unsent_bytes
    }

    /// Frees large empty buffers, because the connection may wait for days.
    pub(crate) fn slim(&mut self) {
        self.reader.slim(SLIM_BYTES_MAX);
        self.writer.slim(SLIM_BYTES_MAX);
    }

    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.reader.reset(keep_bytes_max);
        self.writer.reset(keep_bytes_max);
        self.deadlines.clear_all();
        (self.receiving, self.talking) = (Meter::default(), Meter::default());
        self.sending = Meter::default();
        self.unsent_bytes = 0;
        self.had_last_turn = false;
        self.hold = None;
    }
}
