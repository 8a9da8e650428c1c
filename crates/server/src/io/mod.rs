//! The I/O state that HTTP/1 and HTTP/2 use: the buffers of a busy connection, TLS, and timeouts.
//!
//! Received bytes pass through the [`Transport`](transport::Transport), which decrypts them if the
//! connection uses TLS, to the [`InputBuffer`]. A protocol writes output to the [`OutputBuffer`],
//! which passes it through the transport to the driver. A
//! [`ConnectionContext`](context::ConnectionContext) gives a protocol access to all of this for one
//! turn, together with the state of the listener and the worker.

mod chunk_buffer;
pub(crate) mod context;
mod input;
pub(crate) mod output;
pub(crate) mod timeouts;
pub(crate) mod transfer_rate;
pub(crate) mod transport;

use self::input::InputBuffer;
use self::output::OutputBuffer;
use self::timeouts::{Deadlines, TimeoutKind};
use self::transfer_rate::TransferRate;
use peregrine_driver::{Driver, Stream};

/// The I/O state of a busy connection: buffers, rates and deadlines.
///
/// The order of the fields is chosen for the processor's cache: see
/// [`Exchange`](crate::exchange::Exchange).
#[repr(C)]
pub(crate) struct ConnectionIo<D: Driver> {
    /// Held while the connection waits for an event that the driver does not know about, for
    /// example a wake-up by a handler.
    pub(crate) keep_awake: Option<D::KeepAwake>,
    /// How many of the bytes passed to the driver may not have been sent yet. Large content with
    /// other owners does not count ([`output::accounted_bytes`]).
    pub(crate) unflushed_bytes: usize,
    /// Measures how fast the peer receives.
    pub(crate) send_rate: TransferRate,
    pub(crate) input: InputBuffer<<D::Stream as Stream>::Chunk>,
    pub(crate) output: OutputBuffer,
    pub(crate) deadlines: Deadlines,
    /// Whether the connection has had its last turn, because the worker is in
    /// `Lifecycle::ForceClosing`.
    pub(crate) had_final_turn: bool,
    /// Measures how fast the peer sends while the server waits for content.
    pub(crate) receive_rate: TransferRate,
    /// Detects that both sides of a bidirectional stream have been silent for too long.
    pub(crate) activity_rate: TransferRate,
}

/// Larger empty buffers are freed while a connection with an upgraded protocol waits.
const TUNNEL_RETAINED_BYTES_MAX: usize = 4 * 1024;

impl<D: Driver> ConnectionIo<D> {
    pub(crate) fn new() -> Self {
        Self {
            input: InputBuffer::new(),
            output: OutputBuffer::default(),
            deadlines: Deadlines::default(),
            receive_rate: TransferRate::default(),
            activity_rate: TransferRate::default(),
            send_rate: TransferRate::default(),
            unflushed_bytes: 0,
            had_final_turn: false,
            keep_awake: None,
        }
    }

    /// Records that all output was sent. It is unknown when that happened, so the peer gets the
    /// whole grace again.
    pub(crate) fn on_flushed(&mut self, bytes_written: u64) {
        self.send_rate = TransferRate::new(bytes_written);
        self.unflushed_bytes = 0;
        self.deadlines.clear(TimeoutKind::Send);
    }

    /// The memory of the buffers, and the bytes that the driver may not have sent yet.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.input.memory_bytes() + self.output.memory_bytes() + self.unflushed_bytes
    }

    /// Frees large empty buffers, because an upgraded protocol may be silent for days.
    pub(crate) fn shrink(&mut self) {
        self.input.shrink(TUNNEL_RETAINED_BYTES_MAX);
        self.output.shrink(TUNNEL_RETAINED_BYTES_MAX);
    }

    pub(crate) fn reset(&mut self, retained_bytes_max: usize) {
        self.input.reset(retained_bytes_max);
        self.output.reset(retained_bytes_max);
        self.deadlines.clear_all();
        (self.receive_rate, self.activity_rate) =
            (TransferRate::default(), TransferRate::default());
        self.send_rate = TransferRate::default();
        self.unflushed_bytes = 0;
        self.had_final_turn = false;
        self.keep_awake = None;
    }
}
