//! What a worker takes on before it says no.

#[cfg(feature = "config")]
use peregrine_config::{AutoSize, MaybeCount, MaybeTime, Time};
use std::time::Duration;

/// Less memory than that is a mistake: the buffers of a few connections.
const MEMORY_MIN: u64 = 256 * 1024;

/// What a worker may hold where nobody has said how much memory there is.
const MEMORY_UNKNOWN: u64 = 1 << 30;

/// What each worker takes on before it says no. Part of [`Limits`](crate::Limits), as `overload`.
///
/// Beyond a limit a request is answered at once, before its body is read and without code of the
/// application: 503 or, where the client is to blame, 429, with `Retry-After`. Routes with
/// `never_shed()` are begun in any case, and so is everything on the admin listener. What has begun is
/// finished. [`Snapshot`](crate::Snapshot) and the admin listener count what is refused.
///
/// It holds for a worker as a whole: what a listener has as limits of its own is not taken from there.
///
/// ```
/// use peregrine::{Limits, MemoryMax, OverloadLimits};
/// use std::time::Duration;
///
/// let overload = OverloadLimits {
///     queue_delay_target: Some(Duration::from_millis(5)),
///     ..OverloadLimits::default()
/// };
/// let limits = Limits { overload, ..Limits::default() };
/// assert_eq!(limits.overload.memory_max, MemoryMax::Auto);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct OverloadLimits {
    /// Requests in progress at a time, per worker: from a head to the end of its response. A WebSocket
    /// is in progress until it ends, and so is a handler that goes on without its client. Default none: connections and streams are limited already, and how
    /// many requests are too many depends on what handlers wait for. A route has a limit of its own by
    /// `requests_max(..)`. Passing it: 503.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub requests_max: Option<usize>,
    /// The same for one client's address, which is that of `ClientAddress`: behind trusted proxies the
    /// client's, not theirs. Default none, since many people may share an address. Clients without an
    /// address, as on Unix domain sockets, are not counted. Passing it: 429.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub requests_per_client_max: Option<usize>,
    /// Connections open at a time from one address, per worker. Those of trusted proxies are not counted;
    /// behind a PROXY header the address is that of the client. Default none, as above. Passing it: the
    /// connection is reset as soon as it is accepted.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub connections_per_client_max: Option<usize>,
    /// How many bits of an IPv6 address tell one client from another. Default 64, which is what a
    /// household or a machine is given; at most 128. IPv4 addresses count whole.
    pub client_prefix_v6: u8,
    /// How long a request may wait for its turn on the worker's thread, while there is more to do than
    /// can be done. While what is ready has been more than half of this for `queue_delay_interval`, who has
    /// waited for longer than half of it, since the worker looked for what is ready, is refused: the other half
    /// may have passed before that look. A burst that is over sooner is waited for. Default none: handlers
    /// that take long by themselves would be refused where nobody minds. Five times what a handler takes
    /// of its thread is a good start. Passing it: 503.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub queue_delay_target: Option<Duration>,
    /// How long requests must have waited for too long before any is refused, and how long none may have
    /// before none is. Default 100 ms.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub queue_delay_interval: Duration,
    /// Bytes that a worker may hold for its peers: buffers, bodies that are put together or wait for a
    /// reader, responses that wait to be sent, TLS, tables of HTTP/2. Default `auto`: all workers together half of
    /// the memory that the process may use, by its cgroups or the machine; `off` for no bound. What handlers allocate
    /// is not counted, nor is content of responses that is static or that others hold as well, nor the kernel's memory,
    /// nor what is kept for reuse: less than 8 MiB. But what up to 128 connections that are over leave to the next ones counts
    /// (20 MB were seen after a flood of HTTP/2), and goes when memory is short.
    ///
    /// From three quarters of it on requests with a body are answered 503, and so is everybody who connects then, one
    /// request each; from seven eighths on, all requests are. The last sixteenth is for those who ask for what is never
    /// refused. Beyond the rest nothing else grows: a body that an extractor puts together is answered 503, and a
    /// connection that needs more is reset.
    #[cfg_attr(feature = "config", serde(with = "AutoSize"))]
    pub memory_max: MemoryMax,
    /// What `Retry-After` tells at least, in whole seconds, and at least one. Default 1 s. Those who are refused are
    /// told different times, up to half as much longer and at least a second, so that they do not come back in
    /// one wave.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub retry_after: Duration,
}

/// How much memory each worker may hold for its peers: [`OverloadLimits::memory_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMax {
    /// The workers together may hold half of what the process may use: by its cgroup (version 2 or 1, with all
    /// above it) or, if none says less, the memory of the machine. Each may hold its part of that, and 16 MiB at
    /// least. Where the system does not tell (only Linux does), 1 GiB. The other half is for the application, for the
    /// kernel's buffers, and for what is not counted.
    ///
    /// It is looked at when the server starts, and when settings are read again. The server says at start what it came
    /// to, and `peregrine_worker_memory_max_bytes` shows it.
    #[default]
    Auto,
    /// So many bytes.
    Bytes(u64),
    /// As much as there is.
    Off,
}

impl MemoryMax {
    /// A worker's ceiling. What `Auto` comes to, who starts the workers has put in its place, or nobody knows it.
    pub(crate) fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => Some(MEMORY_UNKNOWN),
            Self::Bytes(bytes) => Some(bytes),
            Self::Off => None,
        }
    }
}

#[cfg(feature = "config")]
impl From<MemoryMax> for AutoSize {
    fn from(most: MemoryMax) -> Self {
        match most {
            MemoryMax::Auto => Self::Auto,
            MemoryMax::Bytes(bytes) => Self::Bytes(bytes),
            MemoryMax::Off => Self::Off,
        }
    }
}

#[cfg(feature = "config")]
impl From<AutoSize> for MemoryMax {
    fn from(size: AutoSize) -> Self {
        match size {
            AutoSize::Auto => Self::Auto,
            AutoSize::Bytes(bytes) => Self::Bytes(bytes),
            AutoSize::Off => Self::Off,
        }
    }
}

impl Default for OverloadLimits {
    fn default() -> Self {
        Self {
            requests_max: None,
            requests_per_client_max: None,
            connections_per_client_max: None,
            client_prefix_v6: 64,
            queue_delay_target: None,
            queue_delay_interval: Duration::from_millis(100),
            memory_max: MemoryMax::Auto,
            retry_after: Duration::from_secs(1),
        }
    }
}

impl OverloadLimits {
    /// No limit at all, for a worker whose answers are wanted most when others have too much to do.
    #[must_use]
    pub fn none() -> Self {
        Self { memory_max: MemoryMax::Off, ..Self::default() }
    }

    /// What is wrong with them, and how to mend it.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.client_prefix_v6 > 128 {
            return Some(format!(
                "overload.client_prefix_v6 is {}, but an IPv6 address has 128 bits: 64 is what a household or a \
                 machine is given, 128 counts each address by itself",
                self.client_prefix_v6
            ));
        }
        let never = [
            ("requests_max", self.requests_max),
            ("requests_per_client_max", self.requests_per_client_max),
            ("connections_per_client_max", self.connections_per_client_max),
        ];
        if let Some((name, _)) = never.into_iter().find(|(_, most)| *most == Some(0)) {
            return Some(format!(
                "overload.{name} is 0, with which nobody would ever be answered: leave it out for no limit"
            ));
        }
        if let MemoryMax::Bytes(most) = self.memory_max
            && most < MEMORY_MIN
        {
            return Some(format!(
                "overload.memory_max is {most} bytes, of which a few connections would take all: give each worker \
                 at least {MEMORY_MIN}, or write auto, or off"
            ));
        }
        if self.queue_delay_interval.is_zero() {
            return Some(
                "overload.queue_delay_interval is zero, with which no queue would ever stand for an interval, so that \
                 nobody would be refused: write 100 ms, or leave queue_delay_target out"
                    .to_owned(),
            );
        }
        (self.queue_delay_target == Some(Duration::ZERO)).then(|| {
            "overload.queue_delay_target is zero, but every request waits a little: write 5 ms or more, or leave \
             it out"
                .to_owned()
        })
    }

    /// `Retry-After`, in seconds.
    pub(crate) fn retry_after_seconds(&self) -> u64 {
        self.retry_after.as_secs().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_with_its_remedy() {
        type Set = fn(&mut OverloadLimits);
        let table: [(Set, &str, &str); 8] = [
            (|limits| limits.client_prefix_v6 = 129, "client_prefix_v6 is 129", "64 is"),
            (|limits| limits.requests_max = Some(0), "requests_max is 0", "leave it out"),
            (
                |limits| limits.requests_per_client_max = Some(0),
                "per_client_max is 0",
                "leave it out",
            ),
            (
                |limits| limits.connections_per_client_max = Some(0),
                "client_max is 0",
                "leave it out",
            ),
            (|limits| limits.memory_max = MemoryMax::Bytes(0), "memory_max is 0 bytes", "off"),
            (
                |limits| limits.memory_max = MemoryMax::Bytes(512),
                "memory_max is 512 bytes",
                "at least 262144",
            ),
            (|limits| limits.queue_delay_target = Some(Duration::ZERO), "target is zero", "5 ms"),
            (|limits| limits.queue_delay_interval = Duration::ZERO, "interval is zero", "100 ms"),
        ];
        for (set, cause, remedy) in table {
            let mut limits = OverloadLimits::default();
            assert_eq!(limits.fault(), None);
            set(&mut limits);
            let fault = limits.fault().expect("a mistake");
            assert!(fault.contains(cause) && fault.contains(remedy), "{fault}");
        }
        assert_eq!(OverloadLimits::none().fault(), None);
    }
}
