//! What goes wrong, and how often.

/// The faults of a network. Chances are per mille: 0 is never, 1,000 is always.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A piece of data ends at a random byte, on its way or when it is received. What arrives
    /// together may still be received together. Default 0.
    pub cut_per_mille: u32,
    /// A piece of data takes time, up to `delay_ms_max`. Default 0.
    pub delay_per_mille: u32,
    /// The longest delay of one piece, in milliseconds. Default 20.
    pub delay_ms_max: u64,
    /// After a piece of data its direction stops, up to `stall_ms_max`. Default 0.
    pub stall_per_mille: u32,
    /// The longest stop of one direction, in milliseconds. Default 60,000.
    pub stall_ms_max: u64,
    /// A piece of data is lost, and with it the connection: both ends see a reset. Default 0.
    pub reset_per_mille: u32,
    /// A client ends its sending side after a send, whether it has more to say or not. Default 0.
    pub half_close_per_mille: u32,
    /// A send pauses after a piece, as if the kernel's buffer had been full. Default 0.
    pub short_send_per_mille: u32,
    /// An attempt to connect is refused, as where nobody listens. Default 0.
    pub refuse_per_mille: u32,
    /// An attempt to accept a waiting connection fails as if the process were out of descriptors,
    /// which leaves the connection where it is. Default 0.
    pub accept_error_per_mille: u32,
    /// After a task was polled, some task is polled without any reason. Below 1,000. Default 0.
    pub spurious_wake_per_mille: u32,
    /// A timer of the driver rings up to this many milliseconds late. Default 0.
    pub timer_late_ms_max: u64,
    /// Bytes that one direction holds before its sender must wait, at least 1. If `pipe_varies`,
    /// the most that it holds. Default 65,536.
    pub pipe_bytes_max: usize,
    /// Each direction draws its own capacity, often a very small one. Default false.
    pub pipe_varies: bool,
    /// Connections have buffers as sockets have them, instead of pipes. Default none.
    pub sockets: Option<Sockets>,
    /// What becomes ready runs in the next turn, as on drivers that ask the kernel, and within a turn in any order.
    /// Otherwise any task that is ready may be next, and one may wait for many turns. Default false.
    pub in_turns: bool,
}

/// The buffers of sockets, which take and give bytes in lumps.
///
/// A send buffer that was full takes nothing until a third of it is free. A receive buffer that was
/// full stays closed to its sender until `window_lump_bytes` of it are free. Bytes leave the send
/// buffer when they arrive, read or not. A stream that is closed goes on delivering what the kernel
/// has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// Bytes of each send buffer.
    pub send_bytes_max: usize,
    /// Bytes that the server's kernel takes beyond what it can send: drivers keep it from taking more
    /// ([`progress`](peregrine_driver::Stream::progress)). Half of it must be free again then.
    pub unsent_bytes_max: usize,
    /// Bytes of each receive buffer.
    pub receive_bytes_max: usize,
    /// Bytes of a full receive buffer that must be free before it takes more.
    pub window_lump_bytes: usize,
}

impl Sockets {
    /// Sockets of so many bytes, in each buffer, with the lumps that go with them.
    #[must_use]
    pub fn of(bytes: usize) -> Self {
        Self {
            send_bytes_max: bytes,
            unsent_bytes_max: bytes.min(128 * 1024),
            receive_bytes_max: bytes,
            window_lump_bytes: bytes.div_ceil(2),
        }
    }

    /// How many bytes a reader may have to take before the server's
    /// [`progress`](peregrine_driver::Stream::progress) moves again.
    #[must_use]
    pub fn lump_bytes_max(&self) -> usize {
        let unsent_max = self.unsent_bytes_max.min(self.send_bytes_max);
        // What flies is in the send buffer as well; where both are less, it is never full.
        let is_ever_full = unsent_max + self.receive_bytes_max >= self.send_bytes_max;
        let all = if is_ever_full { self.send_bytes_max.div_ceil(3) } else { 0 };
        self.window_lump_bytes.min(self.receive_bytes_max) + all.max(unsent_max.div_ceil(2))
    }
}

impl Faults {
    /// A network in which nothing goes wrong and nothing takes time.
    #[must_use]
    pub fn none() -> Self {
        Self {
            cut_per_mille: 0,
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
            sockets: None,
            in_turns: false,
        }
    }

    /// Everything that a correct peer and network may do to data that arrives in the end: cuts,
    /// delays, small pipes, spurious wake-ups and failed accepts, but no stall and no reset.
    #[must_use]
    pub fn harmless() -> Self {
        Self {
            cut_per_mille: 300,
            delay_per_mille: 300,
            short_send_per_mille: 200,
            accept_error_per_mille: 100,
            spurious_wake_per_mille: 200,
            timer_late_ms_max: 3,
            pipe_varies: true,
            ..Self::none()
        }
    }

    /// All faults at once: connections may stall and break at any time.
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
