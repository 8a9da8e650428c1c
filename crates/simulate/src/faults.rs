//! [`Faults`]: the faults of the simulated network, and their probabilities.

use peregrine_driver_sim::Faults as NetworkFaults;
use std::time::Duration;

/// The faults of the simulated network. Probabilities are per mille of the segments of data, or of
/// the attempts to connect or accept, or of the polls: 0 is never, 1,000 is always.
///
/// For a fault at an exact point, use the clients: see [`SimRequest`](super::SimRequest) and
/// [`SimConnection`](super::SimConnection).
///
/// ```
/// use peregrine_simulate::Faults;
/// use std::time::Duration;
///
/// let faults = Faults::harmless().delays(900, Duration::from_millis(300)).resets(5);
/// # let _ = faults;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "faults do nothing until they are passed to a simulation"]
pub struct Faults(NetworkFaults);

impl Faults {
    /// No faults: no errors occur, and no operation takes time.
    pub fn none() -> Self {
        Self(NetworkFaults::none())
    }

    /// Faults without loss, as on any real network. Data is split at any byte, delayed by up to
    /// 20 ms, and sent in small segments; buffers are small; accepting fails temporarily; timers of
    /// the server are up to 3 ms late; tasks are polled although nothing woke them. This is the
    /// default, except for seed 0.
    pub fn harmless() -> Self {
        Self(NetworkFaults::harmless())
    }

    /// Like [`harmless`](Self::harmless), and in addition connections are refused, break, and stall
    /// for up to a minute.
    pub fn hostile() -> Self {
        Self(NetworkFaults {
            half_close_per_mille: 0,
            refuse_per_mille: 10,
            ..NetworkFaults::hostile()
        })
    }

    /// Delays a segment of data by up to `delay_max`.
    pub fn delays(self, per_mille: u32, delay_max: Duration) -> Self {
        self.change(|faults| {
            (faults.delay_per_mille, faults.delay_ms_max) = (per_mille, milliseconds(delay_max));
        })
    }

    /// Splits a segment of data at a random byte, on sending and on receiving. This leads to short
    /// reads and writes.
    pub fn fragmentation(self, per_mille: u32) -> Self {
        self.change(|faults| faults.split_per_mille = per_mille)
    }

    /// Pauses a send after a segment, as if the kernel's buffer were full.
    pub fn partial_writes(self, per_mille: u32) -> Self {
        self.change(|faults| faults.short_send_per_mille = per_mille)
    }

    /// After a segment of data, stalls this direction of its connection for up to `stall_max`.
    pub fn stalls(self, per_mille: u32, stall_max: Duration) -> Self {
        self.change(|faults| {
            (faults.stall_per_mille, faults.stall_ms_max) = (per_mille, milliseconds(stall_max));
        })
    }

    /// Drops a segment of data and breaks the connection: both ends see a reset.
    pub fn resets(self, per_mille: u32) -> Self {
        self.change(|faults| faults.reset_per_mille = per_mille)
    }

    /// Refuses an attempt to connect.
    pub fn refused_connections(self, per_mille: u32) -> Self {
        self.change(|faults| faults.refuse_per_mille = per_mille)
    }

    /// Makes the server fail to accept a connection, as if it were out of descriptors. The server
    /// then retries.
    pub fn accept_errors(self, per_mille: u32) -> Self {
        self.change(|faults| faults.accept_error_per_mille = per_mille)
    }

    /// Lets timers of the server fire up to `delay_max` late. Timers of tokio are on time.
    pub fn late_timers(self, delay_max: Duration) -> Self {
        self.change(|faults| faults.timer_late_ms_max = milliseconds(delay_max))
    }

    /// Polls a random task of the server or of the test although nothing woke it. `per_mille` is
    /// capped at 900.
    pub fn spurious_polls(self, per_mille: u32) -> Self {
        self.change(|faults| faults.spurious_wake_per_mille = per_mille.min(900))
    }

    /// Sets how many bytes each direction of a connection buffers before its sender has to wait.
    /// Default: 65,536 for [`none`](Self::none), and otherwise a random number up to that for each
    /// connection.
    pub fn buffer_size(self, bytes_max: usize) -> Self {
        self.change(|faults| {
            (faults.pipe_bytes_max, faults.pipe_varies) = (bytes_max.max(1), false);
        })
    }

    pub(super) fn to_network(&self) -> NetworkFaults {
        self.0.clone()
    }

    fn change(mut self, change: impl FnOnce(&mut NetworkFaults)) -> Self {
        change(&mut self.0);
        self
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self::harmless()
    }
}

fn milliseconds(time: Duration) -> u64 {
    // The network multiplies this by 1,000.
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2000)
}
