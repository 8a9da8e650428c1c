//! What a worker counts, for other threads to read.
//!
//! Each worker has its own [`Counts`] and is their only writer. What costs next to nothing is counted in
//! any case; what costs a request something is counted where somebody asked for that.

use super::close_reason::{Ended, limit_of};
use peregrine_driver::TURN_BOUNDS;
use peregrine_metrics::{Count, Few, Histogram, Level, Table};
use peregrine_proto::{Method, Reject, Version, h2};
use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::sync::OnceLock;
use std::time::Duration;

/// Bounds of durations in nanoseconds: OpenTelemetry's advice for `http.server.request.duration`.
pub(crate) const DURATION_BOUNDS: [u64; 14] = [
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    7_500_000_000,
    10_000_000_000,
];

/// Bounds of sizes in bytes, of which nothing is one.
pub(crate) const SIZE_BOUNDS: [u64; 11] =
    [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28];

/// How many methods are told apart: those that the protocol knows, and all others together.
const METHODS: usize = Method::Extension as usize + 1;

/// All that a worker counts. It may be read from any thread at any time, and lasts as long as somebody
/// holds it.
#[derive(Debug, Default)]
// No two workers write to one line of the cache, or to one that is fetched with it.
#[repr(C, align(128))]
pub struct Counts {
    pub(crate) requests: Count,
    pub(crate) sends: Count,
    pub(crate) received_bytes: Count,
    pub(crate) sent_bytes: Count,
    /// Requests in progress.
    pub(crate) in_flight: Level,
    /// The same by scheme and method, where requests are measured one by one.
    pub(crate) active: [[Level; METHODS]; 2],
    pub(crate) places: [Level; Place::ALL.len()],
    /// Connections that this worker had, whoever accepted them.
    pub(crate) accepted: Count,
    /// Connections that this worker accepted, and another one took.
    pub(crate) passed: Count,
    /// Those that it took from others.
    pub(crate) taken: Count,
    pub(crate) refused: Count,
    pub(crate) ended: Few<&'static str, 32>,
    pub(crate) limits: Few<&'static str, 32>,
    pub(crate) rules: Few<Rule, 96>,
    pub(crate) handshakes: Few<Agreed, 32>,
    pub(crate) handshake_times: Histogram<{ DURATION_BOUNDS.len() }>,
    pub(crate) tls_failures: Few<TlsFailure, 64>,
    /// Requests that were refused because there was too much to do, by what there was too much of.
    pub(crate) shed: Few<&'static str, 8>,
    /// How long requests had waited for their turn on the thread.
    pub(crate) queue_delays: Histogram<{ TURN_BOUNDS.len() }>,
    /// 1 while requests that waited for too long are refused.
    pub(crate) is_refusing: Level,
    /// What is held for peers.
    pub(crate) memory_bytes: Level,
    /// What may be held; 0 where there is no bound.
    pub(crate) memory_bytes_max: Level,
    measures: bool,
    pub(crate) measured: OnceLock<Measured>,
}

/// Where a connection is counted: what it does, and which protocol it speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nothing says yet what it speaks, or TLS shakes hands.
    Opening,
    Http1Idle,
    Http1Active,
    Http2Idle,
    Http2Active,
    /// Another protocol has it.
    Upgraded,
    Closing,
}

impl Place {
    const ALL: [Self; 7] = [
        Self::Opening,
        Self::Http1Idle,
        Self::Http1Active,
        Self::Http2Idle,
        Self::Http2Active,
        Self::Upgraded,
        Self::Closing,
    ];

    /// The protocol and the state, as metrics call them.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Opening => ("", "opening"),
            Self::Http1Idle => ("http/1", "idle"),
            Self::Http1Active => ("http/1", "active"),
            Self::Http2Idle => ("http/2", "idle"),
            Self::Http2Active => ("http/2", "active"),
            Self::Upgraded => ("upgraded", "active"),
            Self::Closing => ("", "closing"),
        }
    }
}

/// A rule of the protocol that a peer broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Http(Reject),
    Http2(h2::Reject),
}

/// What a TLS handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) version: &'static str,
    pub(crate) cipher: &'static str,
    pub(crate) resumed: bool,
}

/// Why TLS failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TlsFailure {
    pub(crate) in_handshake: bool,
    pub(crate) reason: &'static str,
    /// The alert that the peer sent, or nothing.
    pub(crate) alert: &'static str,
}

/// Requests, measured one by one.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The routes' patterns, by their numbers.
    pub(crate) routes: Vec<String>,
    pub(crate) durations: Table<Histogram<{ DURATION_BOUNDS.len() }>>,
    pub(crate) sizes: Table<Sizes>,
}

/// How much content requests and responses had.
#[derive(Debug, Default)]
// Requests without content and small responses need what is near the middle.
#[repr(C)]
pub(crate) struct Sizes {
    pub(crate) sent: Histogram<{ SIZE_BOUNDS.len() }>,
    pub(crate) received: Histogram<{ SIZE_BOUNDS.len() }>,
}

impl Counts {
    /// Counts of a worker whose requests are measured one by one.
    #[must_use]
    pub fn measuring() -> Self {
        Self { measures: true, ..Self::default() }
    }

    /// Connections now, by protocol and state.
    pub fn connections(&self) -> impl Iterator<Item = ((&'static str, &'static str), u64)> {
        let levels = self.places.iter().map(|level| u64::try_from(level.get()).unwrap_or(0));
        Place::ALL.into_iter().map(Place::names).zip(levels)
    }

    /// Is so much held for peers that the worker refuses all requests?
    pub fn is_short_of_memory(&self) -> bool {
        let most = self.memory_bytes_max.get();
        most > 0 && self.memory_bytes.get() >= most - most / 8
    }

    /// Checks what holds when a worker has ended: nothing is in progress, and each connection ended once.
    ///
    /// # Panics
    /// It does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        for place in Place::ALL {
            assert_eq!(self.places[place as usize].get(), 0, "{place:?}");
        }
        let active: Vec<_> = self.active.iter().flatten().map(Level::get).collect();
        assert!(active.iter().all(|active| *active == 0), "requests in progress: {active:?}");
        assert_eq!(self.in_flight.get(), 0, "requests in progress");
        let ended: u64 = self.ended.counts().map(|(_, count)| count).sum();
        assert_eq!(self.accepted.get(), ended + self.ended.others(), "{:?}", self.ended);
    }

    /// Are requests measured one by one?
    pub(crate) fn is_measuring(&self) -> bool {
        self.measures
    }

    /// A request had waited so long for its turn.
    pub(crate) fn queue_delay(&self, delay: Duration) {
        let delay = delay.as_secs().saturating_mul(1_000_000_000) + u64::from(delay.subsec_nanos());
        self.queue_delays.note(delay, &TURN_BOUNDS);
    }

    /// Makes the tables for requests to `application`, where they are measured.
    pub(crate) fn prepare(&self, application: &Application) {
        if !self.measures {
            return;
        }
        self.measured.get_or_init(|| {
            let routes = application.routes().map(|route| readable(route.pattern).into_owned());
            let routes: Vec<_> = routes.collect();
            // Most routes are asked in one method and answer with few statuses; no peer can make more
            // keys than there are routes, methods and statuses that applications answer with.
            let (durations, sizes) =
                (Table::for_keys(routes.len() * 8 + 256), Table::for_keys(routes.len() * 2 + 16));
            Measured { routes, durations, sizes }
        });
    }

    /// A connection is over.
    pub(crate) fn end(&self, ended: &Ended) {
        self.ended.note(ended.name());
        if let Some(limit) = ended.limit() {
            self.limits.note(limit);
        }
        match ended {
            Ended::Rejected(reject) => self.rules.note(Rule::Http(*reject)),
            Ended::Http2(reject) => self.rules.note(Rule::Http2(*reject)),
            _ => {}
        }
    }

    /// A stream of HTTP/2 is refused, and its connection goes on.
    pub(crate) fn refuse(&self, rule: Rule) {
        let limit = match rule {
            Rule::Http(reject) => limit_of(reject),
            Rule::Http2(h2::Reject::StreamsTooMany) => Some("http2.streams_max"),
            Rule::Http2(_) => None,
        };
        if let Some(limit) = limit {
            self.limits.note(limit);
        }
        self.rules.note(rule);
    }
}

/// What requests are told apart by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) method: Method,
    pub(crate) version: Version,
    pub(crate) is_secure: bool,
    /// The route's number among those of the application.
    pub(crate) route: Option<u32>,
    /// Zero if no response began.
    pub(crate) status: u16,
    pub(crate) fault: Fault,
}

/// What went wrong with a request, beside its status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The handler panicked.
    Panic,
    /// The handler was late.
    Late,
    /// Nobody waited for the response any more.
    Cancelled,
    /// The response broke off.
    Aborted,
    /// There was too much to do: nothing is wrong with the request, nor with what would have answered it.
    Overloaded,
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::None, ""),
    (Fault::Panic, "panic"),
    (Fault::Late, "timeout"),
    (Fault::Cancelled, "cancelled"),
    (Fault::Aborted, "aborted"),
    (Fault::Overloaded, "overloaded"),
];

const NAMED: [Method; METHODS] = [
    Method::Get,
    Method::Head,
    Method::Post,
    Method::Put,
    Method::Delete,
    Method::Connect,
    Method::Options,
    Method::Trace,
    Method::Patch,
    Method::Query,
    Method::Extension,
];

/// The method's name. Peers may make up others, which are one, so that nobody can make many.
pub(crate) fn method_name(number: usize) -> &'static str {
    NAMED.get(number).and_then(|method| method.name()).unwrap_or("_OTHER")
}

impl Key {
    /// In a number that is not zero.
    #[inline]
    pub(crate) fn pack(&self) -> u64 {
        u64::from(self.status & 0x3ff)
            | (self.method as u64) << 10
            | (self.version as u64) << 14
            | u64::from(self.is_secure) << 16
            | (self.fault as u64) << 17
            | 1 << 20
            | self.route.map_or(0, |route| u64::from(route) + 1) << 32
    }

    /// The same with nothing but route and method.
    #[inline]
    pub(crate) fn pack_route(&self) -> u64 {
        let Self { method, route, .. } = *self;
        Self { method, route, ..Self::default() }.pack()
    }

    pub(crate) fn unpack(key: u64) -> Self {
        let bits = |from: u32, count: u32| (key >> from) as usize & ((1 << count) - 1);
        Self {
            status: bits(0, 10) as u16,
            method: NAMED.get(bits(10, 4)).copied().unwrap_or(Method::Extension),
            version: match bits(14, 2) {
                0 => Version::Http10,
                1 => Version::Http11,
                _ => Version::Http2,
            },
            is_secure: bits(16, 1) == 1,
            fault: FAULTS.get(bits(17, 3)).map_or(Fault::None, |(fault, _)| *fault),
            route: ((key >> 32) as u32).checked_sub(1),
        }
    }

    /// The version of HTTP, as OpenTelemetry's `network.protocol.version` says it.
    pub(crate) fn version_name(&self) -> &'static str {
        match self.version {
            Version::Http10 => "1.0",
            Version::Http11 => "1.1",
            Version::Http2 => "2",
        }
    }

    /// Why the request failed, as OpenTelemetry's `error.type` says it; empty if it did not.
    pub(crate) fn error_type(&self) -> String {
        match FAULTS[self.fault as usize].1 {
            "" if self.status >= 500 => self.status.to_string(),
            name => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_what_it_was_made_of() {
        for (number, method) in NAMED.into_iter().enumerate() {
            assert_eq!(method as usize, number);
            for (version, is_secure) in
                [(Version::Http10, false), (Version::Http11, true), (Version::Http2, true)]
            {
                for (number, (fault, _)) in FAULTS.into_iter().enumerate() {
                    assert_eq!(fault as usize, number);
                    for route in [None, Some(0), Some(7), Some(u32::MAX - 1)] {
                        for status in [0, 100, 200, 599, 999] {
                            let key = Key { method, version, is_secure, route, status, fault };
                            assert_eq!(Key::unpack(key.pack()), key);
                        }
                    }
                }
            }
        }
        assert_ne!(Key::default().pack(), 0);
    }

    #[test]
    fn methods_that_peers_make_up_are_one() {
        assert_eq!(method_name(Method::Get as usize), "GET");
        assert_eq!(method_name(Method::Extension as usize), "_OTHER");
        assert_eq!(method_name(99), "_OTHER");
    }
}
