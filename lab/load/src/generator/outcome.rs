//! What a run saw: counts and distributions that can be added up over threads.

use std::time::Duration;

use crate::client::EngineKind;
use crate::client::fault::{Fault, Faults};
use crate::latency::Latency;

/// Everything that one run, or one thread of it, saw after its warm-up.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Requests that were under way when the warm-up ended; they count as sent.
    pub carried: u64,
    /// Requests sent.
    pub sent: u64,
    /// Right replies.
    pub replies: u64,
    /// Right replies that came while requests were still being started.
    pub replies_in_time: u64,
    /// Requests that were answered wrongly or not at all.
    pub failed: u64,
    /// Requests that nobody waited for any longer when the run ended.
    pub outstanding: u64,
    /// Everything that was wrong, by kind: once for each request that it cost, and once if it
    /// cost none.
    pub faults: Faults,
    /// Faults that cost no request, such as refused connections.
    pub connection_faults: u64,
    /// Open loop: requests that were never sent because too many waited for a connection.
    pub dropped: u64,
    /// Open loop: requests that were sent more than [`LATE_NS`] after their intended start.
    pub late: u64,
    /// From the intended start (closed loop: from the sending) to the whole reply, of right
    /// replies and, censored, of requests that timed out.
    pub latency: Latency,
    /// The sum of times from sending to the end of the wait, over all that was sent, in
    /// nanoseconds.
    pub waited_ns: u128,
    /// The integral of the number of requests under way over time, in nanoseconds.
    pub occupied_ns: u128,
    /// Open loop: how late the client itself noticed that a request was to start.
    pub lag: Latency,
    /// From the beginning of a connection to its readiness, the TLS handshake included.
    pub connecting: Latency,
    /// Connections that the server closed while nothing was asked on them.
    pub closed_idle: u64,
    /// Connections that the server left open after a request with `Connection: close`.
    pub closes_ignored: u64,
    /// Full TLS handshakes.
    pub handshakes_full: u64,
    /// TLS handshakes that resumed a session.
    pub handshakes_resumed: u64,
    /// TLS connections on which the server did not choose the wanted protocol by ALPN.
    pub alpn_missing: u64,
    /// How many streams of HTTP/2 a connection may have at a time, by the server's own word on some
    /// connection; none if it set no limit.
    pub streams_max: Option<usize>,
    /// Bytes of right replies, heads and framing included, TLS not.
    pub reply_bytes: u64,
    /// Bytes of their bodies, without chunk framing.
    pub body_bytes: u64,
    /// Bytes received, TLS included.
    pub received_bytes: u64,
    /// Bytes of requests, TLS not included.
    pub sent_bytes: u64,
    /// What was seen of the Date field.
    pub dates: Dates,
    /// How long requests were started: the duration of the plan, or less if it was stopped.
    pub asked: Duration,
    /// From the first request to the last reply.
    pub wall: Duration,
    /// The CPU time of all threads of the client.
    pub client_cpu: Duration,
    /// How the client talked to the kernel.
    pub engine: Option<EngineKind>,
    /// Whether the run was ended early.
    pub is_partial: bool,
}

/// A start this much after the intended one counts as late: one millisecond.
pub const LATE_NS: u64 = 1_000_000;

/// What was seen of the Date field in right replies.
#[derive(Debug, Clone, Default)]
pub struct Dates {
    /// Replies with the field.
    pub present: u64,
    /// Replies without it.
    pub missing: u64,
    /// How often its value was another than the one before.
    pub changes: u64,
    pub(crate) last: Vec<u8>,
}

impl Dates {
    /// Notes the field of one reply.
    pub(crate) fn note(&mut self, value: Option<&[u8]>) {
        let Some(value) = value else {
            self.missing += 1;
            return;
        };
        self.present += 1;
        if self.last != value {
            self.changes += u64::from(!self.last.is_empty());
            self.last.clear();
            self.last.extend_from_slice(value);
        }
    }
}

impl Outcome {
    /// Right replies per second while requests were started.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.replies_in_time as f64 / self.asked.as_secs_f64()
    }

    /// Microseconds of client CPU time per right reply.
    #[must_use]
    pub fn client_us_per_reply(&self) -> f64 {
        self.client_cpu.as_secs_f64() * 1e6 / self.replies as f64
    }

    /// Bytes of a right reply on average, without TLS.
    #[must_use]
    pub fn bytes_per_reply(&self) -> f64 {
        self.reply_bytes as f64 / self.replies as f64
    }

    /// Whether the run counts: something was answered, and nothing wrongly.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.replies > 0 && self.faults.total() == 0 && self.outstanding == 0
    }

    /// Whether nothing came back, neither right nor wrong. Such a run says nothing of the server: its
    /// time was too short for the first reply, on a busy machine perhaps.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.replies == 0 && self.faults.total() == 0
    }

    /// Adds what another thread saw at the same time.
    pub fn add(&mut self, other: &Outcome) {
        self.carried += other.carried;
        self.sent += other.sent;
        self.replies += other.replies;
        self.replies_in_time += other.replies_in_time;
        self.failed += other.failed;
        self.outstanding += other.outstanding;
        self.faults.add(&other.faults);
        self.connection_faults += other.connection_faults;
        self.dropped += other.dropped;
        self.late += other.late;
        self.latency.add(&other.latency);
        self.waited_ns += other.waited_ns;
        self.occupied_ns += other.occupied_ns;
        self.lag.add(&other.lag);
        self.connecting.add(&other.connecting);
        self.closed_idle += other.closed_idle;
        self.closes_ignored += other.closes_ignored;
        self.handshakes_full += other.handshakes_full;
        self.handshakes_resumed += other.handshakes_resumed;
        self.alpn_missing += other.alpn_missing;
        self.streams_max = self.streams_max.into_iter().chain(other.streams_max).min();
        self.reply_bytes += other.reply_bytes;
        self.body_bytes += other.body_bytes;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.dates.present += other.dates.present;
        self.dates.missing += other.dates.missing;
        self.dates.changes = self.dates.changes.max(other.dates.changes);
        self.asked = self.asked.max(other.asked);
        self.wall = self.wall.max(other.wall);
        self.client_cpu += other.client_cpu;
        self.engine = other.engine.or(self.engine);
        self.is_partial |= other.is_partial;
    }

    /// Counts a fault that cost this many requests.
    pub(crate) fn fail(&mut self, fault: Fault, requests: u64) {
        self.failed += requests;
        self.connection_faults += u64::from(requests == 0);
        self.faults.record_many(fault, requests.max(1));
    }
}
