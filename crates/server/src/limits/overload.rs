//! The limits above which a worker rejects requests and connections because of overload.

#[cfg(feature = "config")]
use peregrine_config::{AutoByteSize, HumanDuration, OptionalCount, OptionalDuration};
use std::time::Duration;

/// A smaller limit must be a mistake: even this is only enough for the buffers of a few
/// connections.
const MEMORY_MAX_MIN: u64 = 256 * 1024;

/// The memory limit of a worker if the memory of the machine is not known.
const MEMORY_MAX_FALLBACK: u64 = 1 << 30;

/// When each worker rejects requests because of overload. Part of [`Limits`](crate::Limits), as
/// `overload`.
///
/// A request over a limit is rejected before its body is read and before any application code runs.
/// The response is a 503, or a 429 if the client exceeded its own limit, with `Retry-After`.
/// Requests for routes with `never_shed()` and requests on the admin listener are never rejected.
/// Requests in progress are completed. [`WorkerStats`](crate::WorkerStats) counts rejected
/// requests, and the admin listener shows the counts.
///
/// These limits apply to a worker as a whole, so `overload` in a listener's own limits is ignored.
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
#[doc(alias = "load_shed")]
#[doc(alias = "concurrency_limit")]
#[doc(alias = "limit_conn")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "config", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "config", serde(default, deny_unknown_fields))]
#[cfg_attr(feature = "config-schema", derive(schemars::JsonSchema))]
pub struct OverloadLimits {
    /// The number of requests that may be in progress at a time, per worker. A request is in
    /// progress from its head to the end of its response. A WebSocket is in progress until it ends,
    /// and so is a handler that continues after its client has disconnected. Default none, because
    /// connections and streams are limited already, and the right number depends on what handlers
    /// wait for. A route can have its own limit, `requests_max(..)`. Over the limit: 503.
    #[doc(alias = "ConcurrencyLimit")]
    #[cfg_attr(feature = "config", serde(with = "OptionalCount"))]
    pub requests_max: Option<usize>,
    /// The number of requests that may be in progress at a time for each client address, per
    /// worker. The address is that of `ClientIp`: behind trusted proxies, it is the client's
    /// address and not the proxy's. Default none, because many people may share an address. Clients
    /// without an address, as on Unix domain sockets, are not limited. Over the limit: 429.
    #[cfg_attr(feature = "config", serde(with = "OptionalCount"))]
    pub requests_per_client_max: Option<usize>,
    /// The number of connections that may be open at a time for each client address, per worker.
    /// Connections from trusted proxies do not count. A connection that starts with a PROXY header
    /// counts towards the client named in the header. Default none, because many people may share
    /// an address. Over the limit, a connection is reset when it is accepted, or closed once its
    /// PROXY header has been read.
    #[doc(alias = "limit_conn")]
    #[cfg_attr(feature = "config", serde(with = "OptionalCount"))]
    pub connections_per_client_max: Option<usize>,
    /// How many leading bits of an IPv6 address identify a client. Default 64, which is the usual
    /// prefix of a household or a machine. At most 128. For IPv4, the whole address identifies a
    /// client.
    pub client_ipv6_prefix_len: u8,
    /// How long a request may wait for the worker's thread while the worker is overloaded. A
    /// request that waits longer is late. If requests have been late throughout
    /// `queue_delay_interval`, the worker counts as overloaded, and late requests get a 503. Until
    /// then, late requests are served. The server can only measure how long a request has waited
    /// since the worker last polled the kernel. A request may have waited equally long before that
    /// poll, so the server compares the measured time with half of this limit. Default none,
    /// because a delay does not matter to every application. Five times the CPU time of a handler
    /// is a good start.
    #[doc(alias = "CoDel")]
    #[cfg_attr(feature = "config", serde(with = "OptionalDuration"))]
    pub queue_delay_target: Option<Duration>,
    /// If requests have been late (see `queue_delay_target`) for this long, the server starts to
    /// reject late requests. If no request has been late for this long, the server stops rejecting
    /// them. Default 100 ms.
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub queue_delay_interval: Duration,
    /// How many bytes of memory a worker may use for its connections: buffers, request bodies in
    /// memory, responses that wait to be sent, TLS sessions, HTTP/2 tables. Default `auto`: all
    /// workers together may use half of the memory that the process may use, which is the smallest
    /// of the machine's memory and the limits of the process's cgroups. `off`: no limit.
    ///
    /// Memory that handlers allocate does not count, nor does response content that is static or
    /// shared with other owners, memory of the kernel, or up to 8 MiB that is pooled for reuse. The
    /// buffers that up to 128 ended connections leave for later ones do count (20 MB were measured
    /// after a flood of HTTP/2 requests). These buffers are freed when memory is short.
    ///
    /// Above three quarters of the limit, requests with a body get a 503, and a new connection may
    /// send only one request, which gets a 503 as well. Above seven eighths, all requests get a
    /// 503. Neither 503 applies to routes with `never_shed()`. Above fifteen sixteenths, an
    /// extractor that needs more memory to buffer a body responds with 503, also on such routes. A
    /// connection that needs more memory for its own buffers is reset, unless a request for such a
    /// route is in progress on it, or it is new and may send one. Above the limit, it is reset in
    /// any case.
    #[cfg_attr(feature = "config", serde(with = "AutoByteSize"))]
    pub memory_max: MemoryMax,
    /// The minimum value of `Retry-After`, rounded down to whole seconds, and at least one second.
    /// Default 1 s. Each response adds a different amount, up to half of the minimum or one second,
    /// whichever is larger, so that rejected clients do not all retry at the same time.
    #[cfg_attr(feature = "config", serde(with = "HumanDuration"))]
    pub retry_after: Duration,
}

/// How much memory each worker may use for its connections: [`OverloadLimits::memory_max`].
#[doc(alias = "memory_limit")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMax {
    /// All workers together may use half of the memory that the process may use. That memory is the
    /// smallest of the machine's memory and the limits of the process's cgroup (version 1 or 2) and
    /// its parent cgroups. Each worker may use an equal part, but at least 16 MiB. The other half
    /// is for the application, the kernel's buffers, and memory that is not counted. On systems
    /// other than Linux, the memory is not known, and each worker may use 1 GiB.
    ///
    /// The server determines the limit when it starts and when the configuration is reloaded. It
    /// logs the limit at startup, and the metric `peregrine_worker_memory_max_bytes` shows it.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
    /// No limit.
    Unlimited,
}

impl MemoryMax {
    /// The limit of one worker. The code that starts the workers replaces `Auto` with a number of
    /// bytes, if it knows the memory of the machine. If it does not, this returns a fixed limit.
    pub(crate) fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => Some(MEMORY_MAX_FALLBACK),
            Self::Bytes(bytes) => Some(bytes),
            Self::Unlimited => None,
        }
    }
}

#[cfg(feature = "config")]
impl From<MemoryMax> for AutoByteSize {
    fn from(memory_max: MemoryMax) -> Self {
        match memory_max {
            MemoryMax::Auto => Self::Auto,
            MemoryMax::Bytes(bytes) => Self::Bytes(bytes),
            MemoryMax::Unlimited => Self::Off,
        }
    }
}

#[cfg(feature = "config")]
impl From<AutoByteSize> for MemoryMax {
    fn from(size: AutoByteSize) -> Self {
        match size {
            AutoByteSize::Auto => Self::Auto,
            AutoByteSize::Bytes(bytes) => Self::Bytes(bytes),
            AutoByteSize::Off => Self::Unlimited,
        }
    }
}

impl Default for OverloadLimits {
    fn default() -> Self {
        Self {
            requests_max: None,
            requests_per_client_max: None,
            connections_per_client_max: None,
            client_ipv6_prefix_len: 64,
            queue_delay_target: None,
            queue_delay_interval: Duration::from_millis(100),
            memory_max: MemoryMax::Auto,
            retry_after: Duration::from_secs(1),
        }
    }
}

impl OverloadLimits {
    /// No limits at all, for a worker that must respond even if other workers are overloaded.
    #[must_use]
    pub fn unlimited() -> Self {
        Self { memory_max: MemoryMax::Unlimited, ..Self::default() }
    }

    /// Describes the first mistake in the settings and how to fix it; `None` if there is none.
    #[must_use]
    pub fn config_error(&self) -> Option<String> {
        if self.client_ipv6_prefix_len > 128 {
            return Some(format!(
                "overload.client_ipv6_prefix_len is {}, but an IPv6 address has 128 bits: use 64 to \
                 count a household or a machine as one client, or 128 to count each address",
                self.client_ipv6_prefix_len
            ));
        }
        let counts = [
            ("requests_max", self.requests_max),
            ("requests_per_client_max", self.requests_per_client_max),
            ("connections_per_client_max", self.connections_per_client_max),
        ];
        if let Some((name, _)) = counts.into_iter().find(|(_, max)| *max == Some(0)) {
            return Some(format!(
                "overload.{name} is 0, so every client would be rejected: leave it out for no limit"
            ));
        }
        if let MemoryMax::Bytes(bytes) = self.memory_max
            && bytes < MEMORY_MAX_MIN
        {
            return Some(format!(
                "overload.memory_max is {bytes} bytes, which a few connections would use up: give \
                 each worker at least {MEMORY_MAX_MIN}, or set it to auto or off"
            ));
        }
        if self.queue_delay_interval.is_zero() {
            return Some(
                "overload.queue_delay_interval is zero, so no request would ever be rejected: set \
                 it to 100 ms, or leave queue_delay_target out"
                    .to_owned(),
            );
        }
        (self.queue_delay_target == Some(Duration::ZERO)).then(|| {
            "overload.queue_delay_target is zero, but every request waits a little: set it to 5 ms \
             or more, or leave it out"
                .to_owned()
        })
    }

    /// The minimum value of `Retry-After`, in seconds.
    pub(crate) fn retry_after_seconds(&self) -> u64 {
        self.retry_after.as_secs().max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_error_names_the_mistake_and_the_fix() {
        type Set = fn(&mut OverloadLimits);
        let table: [(Set, &str, &str); 8] = [
            (
                |limits| limits.client_ipv6_prefix_len = 129,
                "client_ipv6_prefix_len is 129",
                "use 64",
            ),
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
            assert_eq!(limits.config_error(), None);
            set(&mut limits);
            let error = limits.config_error().expect("a mistake");
            assert!(error.contains(cause) && error.contains(remedy), "{error}");
        }
        assert_eq!(OverloadLimits::unlimited().config_error(), None);
    }
}
