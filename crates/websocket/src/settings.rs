//! Every limit and time of a WebSocket, with its default.

use peregrine_proto::ws;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// How long a peer is silent before it is asked for a sign of life: often enough for proxies, which give
/// a silent connection up after 60 s.
pub const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// How long a peer that was asked for a sign of life may take for it.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the end of a WebSocket may take: the peer's answer to a Close frame, and what the handler
/// still does when the WebSocket is closed.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a handler may still send when the server drains.
pub const GOODBYE: Duration = Duration::from_secs(5);

/// What a WebSocket allows, in bytes. A limit that is reached is still allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The content of one received message, after it is inflated. Default 1 MiB. Passing it: the peer is
    /// told 1009.
    pub message_bytes_max: u64,
    /// The payload of one received frame. Default 1 MiB. Passing it: the peer is told 1009.
    pub frame_bytes_max: u64,
    /// What may wait for the peer. Default 64 KiB. When it is reached, sending waits. One message may
    /// pass it.
    pub queued_bytes_max: usize,
    /// What may wait for the handler, each message with 64 bytes more. Default 64 KiB. When it is reached,
    /// nothing more is read from the peer. One message may pass it.
    pub unread_bytes_max: usize,
    /// Messages below this are not compressed. Default 64 bytes.
    pub compress_bytes_min: usize,
    /// Pongs that may wait for a peer that does not read, at least 1. Default 100. When it is reached,
    /// nothing more is read from the peer.
    pub answers_max: u16,
    /// What a peer may make the server do for nothing, by pings and by fragments without content: what
    /// each connection begins with, and the most that is saved up. Default 1,000, which is 500 pings.
    /// Spending all of it: the peer is told 1008.
    pub budget_max: u32,
    /// How much of that comes back each second. Default 50.
    pub budget_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        let protocol = ws::Limits::DEFAULT;
        Self {
            message_bytes_max: protocol.message_bytes_max,
            frame_bytes_max: protocol.frame_bytes_max,
            queued_bytes_max: 64 * 1024,
            unread_bytes_max: 64 * 1024,
            compress_bytes_min: protocol.compress_bytes_min,
            answers_max: protocol.answers_max,
            budget_max: protocol.budget_max,
            budget_per_second: protocol.budget_per_second,
        }
    }
}

impl Limits {
    pub(crate) fn protocol(&self) -> ws::Limits {
        ws::Limits {
            message_bytes_max: self.message_bytes_max,
            frame_bytes_max: self.frame_bytes_max,
            compress_bytes_min: self.compress_bytes_min,
            answers_max: self.answers_max.max(1),
            budget_max: self.budget_max,
            budget_per_second: self.budget_per_second,
        }
    }
}

/// The times of one WebSocket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) idle: Duration,
    pub(crate) close: Duration,
    pub(crate) goodbye: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            keep_alive: Some(KEEP_ALIVE),
            idle: IDLE_TIMEOUT,
            close: CLOSE_TIMEOUT,
            goodbye: GOODBYE,
        }
    }
}

/// What WebSockets with the same limits share on a thread.
pub(crate) struct Bounds {
    pub(crate) own: Limits,
    pub(crate) protocol: ws::Limits,
}

thread_local! {
    static LATEST: RefCell<Option<Rc<Bounds>>> = const { RefCell::new(None) };
}

impl Bounds {
    pub(crate) fn of(limits: Limits) -> Rc<Self> {
        LATEST.with_borrow_mut(|latest| match latest {
            Some(bounds) if bounds.own == limits => Rc::clone(bounds),
            _ => {
                let bounds = Self { own: limits, protocol: limits.protocol() };
                Rc::clone(latest.insert(Rc::new(bounds)))
            }
        })
    }
}
