//! The faults to inject, and their probabilities.

/// The faults of a network. Probabilities are per mille: 0 is never, 1,000 is always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A segment is cut at a random byte, in transit or when it is received. Segments that arrive
    /// together may still be received together. Default 0.
    pub split_per_mille: u32,
    /// A segment is delayed by up to `delay_ms_max`. Default 0.
    pub delay_per_mille: u32,
    /// The maximum delay of one segment, in milliseconds. Default 20.
    pub delay_ms_max: u64,
    /// After a segment, its direction stalls for up to `stall_ms_max`. Default 0.
    pub stall_per_mille: u32,
    /// The maximum stall of one direction, in milliseconds. Default 60,000.
    pub stall_ms_max: u64,
    /// A segment is lost, which breaks the connection: both ends see a reset. Default 0.
    pub reset_per_mille: u32,
    /// A client shuts down its sending side after a send, even if it would send more. Default 0.
    pub half_close_per_mille: u32,
    /// A send pauses after a segment, as if the kernel's buffer were full. Default 0.
    pub short_send_per_mille: u32,
    /// A connection attempt is refused, as if there were no listener. Default 0.
    pub refuse_per_mille: u32,
    /// Accepting a connection fails as if the process had run out of descriptors. The connection
    /// stays in the backlog. Default 0.
    pub accept_error_per_mille: u32,
    /// After a poll of a task, a random task is polled spuriously. Below 1,000. Default 0.
    pub spurious_wake_per_mille: u32,
    /// A timer of the driver fires up to this many milliseconds late. Default 0.
    pub timer_late_ms_max: u64,
    /// The number of bytes that one direction holds before its sender must wait, at least 1. With
    /// `pipe_varies`, the maximum of that number. Default 65,536.
    pub pipe_bytes_max: usize,
    /// Each direction has a random capacity, often a very small one. Default false.
    pub pipe_varies: bool,
    /// Connections have socket buffers instead of pipes. Default none.
    pub socket_buffers: Option<SocketBuffers>,
    /// Tasks that become ready run in the next iteration, as on drivers that poll the kernel, in
    /// random order within the iteration. If false, the next task is any ready one, so a ready task
    /// may wait for a long time. Default false.
    pub batch_scheduling: bool,
}

/// Socket buffers, which accept and release bytes in steps.
///
/// A full send buffer accepts nothing until a third of it is free. A full receive buffer stays
/// closed until `window_update_bytes` of it are free. Bytes leave the send buffer when they arrive,
/// whether read or not. After a stream is closed, the bytes accepted by the kernel are still
/// delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketBuffers {
    /// The size of each send buffer in bytes.
    pub send_bytes_max: usize,
    /// The number of bytes that the server's kernel accepts beyond those it can send: drivers limit
    /// this ([`bytes_written`](peregrine_driver::Stream::bytes_written)). Once reached, half of it
    /// must be free again.
    pub notsent_lowat_bytes: usize,
    /// The size of each receive buffer in bytes.
    pub receive_bytes_max: usize,
    /// The number of bytes that must be free before a full receive buffer accepts more.
    pub window_update_bytes: usize,
}

impl SocketBuffers {
    /// Buffers of the given size, with steps in proportion.
    #[must_use]
    pub fn with_size(bytes: usize) -> Self {
        Self {
            send_bytes_max: bytes,
            notsent_lowat_bytes: bytes.min(128 * 1024),
            receive_bytes_max: bytes,
            window_update_bytes: bytes.div_ceil(2),
        }
    }

    /// The maximum number of bytes that the client must read before the server's
    /// [`bytes_written`](peregrine_driver::Stream::bytes_written) advances again.
    #[must_use]
    pub fn progress_step_max(&self) -> usize {
        let unsent_max = self.notsent_lowat_bytes.min(self.send_bytes_max);
        // Bytes in transit count towards the send buffer too. If the unsent bytes and the receive
        // buffer together are smaller than the send buffer, it is never full.
        let is_ever_full = unsent_max + self.receive_bytes_max >= self.send_bytes_max;
        let send_step = if is_ever_full { self.send_bytes_max.div_ceil(3) } else { 0 };
        self.window_update_bytes.min(self.receive_bytes_max) + send_step.max(unsent_max.div_ceil(2))
    }
}

impl Faults {
    /// A network without faults or delays.
    #[must_use]
    pub fn none() -> Self {
        Self {
            split_per_mille: 0,
            delay_per_mille: 0,
            delay_ms_max: 20,
            stall_per_mille: 0,
            stall_ms_max: 60_000,
            reset_per_mille: 0,
            half_close_per_mille: 0,
            short_send_per_mille: 0,
            refuse_per_mille: 0,
            accept_error_per_mille: 0,
            spurious_wake_per_mille: 0,
            timer_late_ms_max: 0,
            pipe_bytes_max: 65_536,
            pipe_varies: false,
            socket_buffers: None,
            batch_scheduling: false,
        }
    }

    /// Everything that a correct peer and network may do to data that eventually arrives: cuts,
    /// delays, small pipes, spurious wake-ups and failed accepts, but neither stalls nor resets.
    #[must_use]
    pub fn harmless() -> Self {
        Self {
            split_per_mille: 300,
            delay_per_mille: 300,
            short_send_per_mille: 200,
            accept_error_per_mille: 100,
            spurious_wake_per_mille: 200,
            timer_late_ms_max: 3,
            pipe_varies: true,
            ..Self::none()
        }
    }

    /// The harmless faults and more: connections may stall, break or be half-closed at any time.
    #[must_use]
    pub fn hostile() -> Self {
        Self {
            stall_per_mille: 10,
            reset_per_mille: 10,
            half_close_per_mille: 20,
            ..Self::harmless()
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::none()
    }
}
