//! All limits of WebSocket, with their defaults.

/// The limits for a peer on one connection. All connections of a server share one instance, so
/// calls that need it take it by reference. Values equal to a limit are allowed; exceeding one is a
/// [`WebSocketError`](super::WebSocketError).
///
/// A close reason needs no limit: the protocol allows 123 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The content of one message, in bytes, after decompression. Default 1 MiB: how much a peer
    /// can make this end buffer, and far more than messages of chats, games and dashboards need. If
    /// exceeded: 1009. Set it higher, up to `u64::MAX`, for a streaming connection.
    pub message_bytes_max: u64,
    /// The payload of one frame. Default 1 MiB: a message may be one frame. If exceeded: 1009.
    pub frame_bytes_max: u64,
    /// Messages shorter than this are sent uncompressed even if compression was negotiated. Default
    /// 64 bytes: compressing shorter ones saves less than it costs.
    pub compress_bytes_min: usize,
    /// How many pongs may be pending for a peer that does not read. Default 100, which are 12.7 KB.
    /// If exceeded: 1008.
    pub pending_pongs_max: u16,
    /// The budget for wasted work that a peer causes: the initial and the maximum amount. Default
    /// 1,000, enough for 500 pings in a row. `budget.rs` defines the cost of each action. When used
    /// up: 1008.
    pub abuse_budget_max: u32,
    /// How much of the budget is restored per second. Default 50: 25 pings.
    pub abuse_budget_per_second: u32,
}

impl Limits {
    /// All defaults, as a constant.
    pub const DEFAULT: Self = Self {
        message_bytes_max: 1 << 20,
        frame_bytes_max: 1 << 20,
        compress_bytes_min: 64,
        pending_pongs_max: 100,
        abuse_budget_max: 1000,
        abuse_budget_per_second: 50,
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
