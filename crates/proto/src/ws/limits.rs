//! Everything of WebSocket that has a limit, with its default.

/// The most a peer may do on one connection. All connections of a server share one, so the calls that
/// need it take it by reference. Reaching a limit is allowed; passing it is a [`Reject`](super::Reject).
///
/// A reason to close needs no limit: the protocol gives it 123 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The content of one message, in bytes, after it is inflated. Default 1 MiB: what a connection can
    /// make the owner hold, and far more than messages of chats, games and dashboards have. Passing it:
    /// 1009. Set it higher, up to `u64::MAX`, for messages that are taken in pieces.
    pub message_bytes_max: u64,
    /// The payload of one frame. Default 1 MiB: a message may be one frame. Passing it: 1009.
    pub frame_bytes_max: u64,
    /// Messages below this are sent as they are even if compression was agreed on. Default 64 bytes:
    /// shorter ones gain less than the work costs.
    pub compress_bytes_min: usize,
    /// How many answers (pongs) may wait for a peer that does not read. Default 100, which are 12.7 KB.
    /// Passing it: 1008.
    pub answers_max: u16,
    /// The budget for what a peer makes this endpoint do for nothing: the most that is saved up, and
    /// what a connection begins with. Default 1,000, which is 500 pings at once. `budget.rs` has the
    /// cost of each deed. Spending all of it: 1008.
    pub budget_max: u32,
    /// How much of the budget comes back each second. Default 50: 25 pings.
    pub budget_per_second: u32,
}

impl Limits {
    /// The default of every limit, as a constant.
    pub const DEFAULT: Self = Self {
        message_bytes_max: 1 << 20,
        frame_bytes_max: 1 << 20,
        compress_bytes_min: 64,
        answers_max: 100,
        budget_max: 1000,
        budget_per_second: 50,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = {
    let limits = Limits::DEFAULT;
    assert!(limits.frame_bytes_max <= limits.message_bytes_max, "a longer frame is never accepted");
};
