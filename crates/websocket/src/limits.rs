//! The limits and timeouts of a WebSocket, with their defaults.

use peregrine_proto::ws;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How long a peer may be silent before it is sent a ping. Proxies close silent connections after
/// 60 s, so this is less.
pub const PING_INTERVAL: Duration = Duration::from_secs(30);

/// How long a peer may take to respond to that ping.
pub const PONG_TIMEOUT: Duration = Duration::from_secs(30);

/// How long each step of closing may take: the wait for the peer's Close frame, and then the rest
/// of the handler.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handler may still send while the server drains.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The limits of a WebSocket. Values equal to a limit are allowed.
#[doc(alias = "WebSocketConfig")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WebSocketLimits {
    /// The maximum size of a received message, in bytes, after decompression. Default 1 MiB. If
    /// exceeded, the peer gets close code 1009.
    pub message_bytes_max: u64,
    /// The maximum payload of a received frame, in bytes. Default 1 MiB. If exceeded, the peer gets
    /// 1009.
    pub frame_bytes_max: u64,
    /// The maximum number of bytes queued for the peer. Default 64 KiB. Sending waits while the
    /// limit is reached. A single message may exceed it.
    pub send_queue_bytes_max: usize,
    /// The maximum number of bytes queued for the handler; each message counts 64 bytes more.
    /// Default 64 KiB. The peer is not read from while the limit is reached. A single message may
    /// exceed it.
    pub receive_queue_bytes_max: usize,
    /// Messages shorter than this are not compressed. Default 64 bytes.
    pub compress_bytes_min: usize,
    /// The maximum number of pongs queued for a peer that does not read, at least 1. Default 100.
    /// The peer is not read from while the limit is reached.
    pub pending_pongs_max: u16,
    /// The budget for pings and empty fragments, which cost the server work without delivering
    /// data: the initial and the maximum amount. Default 1,000, enough for 500 pings. If it is used
    /// up, the peer gets close code 1008.
    pub abuse_budget_max: u32,
    /// How much of that budget is restored per second. Default 50.
    pub abuse_budget_per_second: u32,
}

impl Default for WebSocketLimits {
    fn default() -> Self {
        let protocol = ws::Limits::DEFAULT;
        Self {
            message_bytes_max: protocol.message_bytes_max,
            frame_bytes_max: protocol.frame_bytes_max,
            send_queue_bytes_max: 64 * 1024,
            receive_queue_bytes_max: 64 * 1024,
            compress_bytes_min: protocol.compress_bytes_min,
            pending_pongs_max: protocol.pending_pongs_max,
            abuse_budget_max: protocol.abuse_budget_max,
            abuse_budget_per_second: protocol.abuse_budget_per_second,
        }
    }
}

impl WebSocketLimits {
    pub(crate) fn to_protocol(self) -> ws::Limits {
        ws::Limits {
            message_bytes_max: self.message_bytes_max,
            frame_bytes_max: self.frame_bytes_max,
            compress_bytes_min: self.compress_bytes_min,
            pending_pongs_max: self.pending_pongs_max.max(1),
            abuse_budget_max: self.abuse_budget_max,
            abuse_budget_per_second: self.abuse_budget_per_second,
        }
    }
}

/// The timeouts of one WebSocket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WebSocketTimeouts {
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) pong_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) drain_timeout: Duration,
}

impl Default for WebSocketTimeouts {
    fn default() -> Self {
        Self {
            ping_interval: Some(PING_INTERVAL),
            pong_timeout: PONG_TIMEOUT,
            close_timeout: CLOSE_TIMEOUT,
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

/// Limits in both forms, shared by WebSockets of a thread that have the same limits.
pub(crate) struct CachedLimits {
    pub(crate) limits: WebSocketLimits,
    pub(crate) protocol: ws::Limits,
}

thread_local! {
    static LAST_LIMITS: RefCell<Option<Rc<CachedLimits>>> = const { RefCell::new(None) };
}

impl CachedLimits {
    /// Returns the last value that this thread created if it has the same limits, or else a new
    /// one.
    pub(crate) fn for_limits(limits: WebSocketLimits) -> Rc<Self> {
        LAST_LIMITS.with_borrow_mut(|last| match last {
            Some(cached) if cached.limits == limits => Rc::clone(cached),
            _ => {
                let cached = Self { limits, protocol: limits.to_protocol() };
                Rc::clone(last.insert(Rc::new(cached)))
            }
        })
    }
}
