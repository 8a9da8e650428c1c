//! What goes wrong on the network, and how often.

use peregrine_driver_sim::Faults as Network;
use std::time::Duration;

/// What goes wrong on the network, and how often. Chances are per mille of the pieces of data, or of the attempts: 0 is
/// never, 1,000 is always.
///
/// A test says exactly what is to happen, and when, by what it does with its clients: see
/// [`SimRequest`](super::SimRequest) and [`SimConnection`](super::SimConnection).
///
/// ```
/// use peregrine_simulate::Faults;
/// use std::time::Duration;
///
/// let faults = Faults::harmless().delays(900, Duration::from_millis(300)).resets(5);
/// # let _ = faults;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "faults do nothing until a simulation has them"]
pub struct Faults(Network);

impl Faults {
    /// Nothing goes wrong, and nothing takes time.
    pub fn none() -> Self {
        Self(Network::none())
    }

    /// Everything that a good network does to data that arrives in the end: it is cut anywhere, delayed by up to 20 ms,
    /// and taken in small pieces; buffers are small; accepting fails for a moment; timers of the server are late by up to
    /// 3 ms; futures are polled for no reason. This is the default.
    pub fn harmless() -> Self {
        Self(Network::harmless())
    }

    /// The same, and connections are refused, break, and stop for up to a minute.
    pub fn hostile() -> Self {
        Self(Network { half_close_per_mille: 0, refuse_per_mille: 10, ..Network::hostile() })
    }

    /// A piece of data takes up to `most`.
    pub fn delays(self, per_mille: u32, most: Duration) -> Self {
        self.change(|faults| {
            (faults.delay_per_mille, faults.delay_ms_max) = (per_mille, milliseconds(most));
        })
    }

    /// A piece of data ends at a random byte, when it is sent and when it is received: short reads and writes.
    pub fn cuts(self, per_mille: u32) -> Self {
        self.change(|faults| faults.cut_per_mille = per_mille)
    }

    /// A send pauses after a piece, as if the kernel's buffer had been full.
    pub fn short_sends(self, per_mille: u32) -> Self {
        self.change(|faults| faults.short_send_per_mille = per_mille)
    }

    /// After a piece of data, its direction of the connection stops for up to `most`.
    pub fn stalls(self, per_mille: u32, most: Duration) -> Self {
        self.change(|faults| {
            (faults.stall_per_mille, faults.stall_ms_max) = (per_mille, milliseconds(most));
        })
    }

    /// A piece of data is lost, and its connection with it: both ends see a reset.
    pub fn resets(self, per_mille: u32) -> Self {
        self.change(|faults| faults.reset_per_mille = per_mille)
    }

    /// An attempt to connect is refused.
    pub fn refusals(self, per_mille: u32) -> Self {
        self.change(|faults| faults.refuse_per_mille = per_mille)
    }

    /// The server fails to accept a connection, as if it were out of descriptors, and tries again.
    pub fn failed_accepts(self, per_mille: u32) -> Self {
        self.change(|faults| faults.accept_error_per_mille = per_mille)
    }

    /// Timers of the server ring up to `most` late. Those of tokio are punctual.
    pub fn late_timers(self, most: Duration) -> Self {
        self.change(|faults| faults.timer_late_ms_max = milliseconds(most))
    }

    /// Some task of the server or of the test is polled for no reason. At most 900.
    pub fn spurious_polls(self, per_mille: u32) -> Self {
        self.change(|faults| faults.spurious_wake_per_mille = per_mille.min(900))
    }

    /// Each direction of a connection holds so many bytes before its sender has to wait; default 65,536, or where faults
    /// are harmless or hostile any number up to that.
    pub fn buffers(self, bytes_max: usize) -> Self {
        self.change(|faults| {
            (faults.pipe_bytes_max, faults.pipe_varies) = (bytes_max.max(1), false);
        })
    }

    pub(super) fn of_network(&self) -> Network {
        self.0.clone()
    }

    fn change(mut self, change: impl FnOnce(&mut Network)) -> Self {
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
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 2000)
}
