//! The limits above which a worker rejects requests and connections because of overload.

#[cfg(feature = "config")]
use peregrine_config::{AutoSize, MaybeCount, MaybeTime, Time};
use std::time::Duration;

/// Less memory must be a mistake: it is enough for the buffers of a few connections.
const MEMORY_MIN: u64 = 256 * 1024;

/// The memory limit of a worker if the size of the memory is not known.
const MEMORY_UNKNOWN: u64 = 1 << 30;

/// When each worker rejects requests because of overload. Part of [`Limits`](crate::Limits), as
/// `overload`.
///
/// A request over a limit gets a response at once, before its body is read and before any
/// application code runs: 503, or 429 if the client caused it, with `Retry-After`. Routes with
/// `never_shed()` and all requests on the admin listener are always served. Requests in progress
/// are completed. [`Snapshot`](crate::Snapshot) and the admin listener count rejected requests.
///
/// These limits apply to a worker as a whole, so the value in a listener's own limits is ignored.
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
    /// Requests in progress at a time, per worker: from a request's head to the end of its
    /// response. A WebSocket is in progress until it ends, and so is a handler that continues after
    /// its client disconnected. Default none: connections and streams are already limited, and how
    /// many requests are too many depends on what handlers wait for. A route can have its own
    /// limit, `requests_max(..)`. Over the limit: 503.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub requests_max: Option<usize>,
    /// The same for each client address. The address is that of `ClientAddress`: behind trusted
    /// proxies, that of the client and not of the proxy. Default none, since many people may share
    /// an address. Clients without an address, as on Unix domain sockets, are not counted. Over the
    /// limit: 429.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub requests_per_client_max: Option<usize>,
    /// Open connections from one address at a time, per worker. Connections of trusted proxies are
    /// not counted; with a PROXY header, the address is that of the client. Default none, as above.
    /// Over the limit, a connection is reset as soon as it is accepted.
    #[cfg_attr(feature = "config", serde(with = "MaybeCount"))]
    pub connections_per_client_max: Option<usize>,
    /// How many bits of an IPv6 address identify a client. Default 64, which is the usual prefix of
    /// a household or a machine; at most 128. IPv4 addresses count as a whole.
    pub client_prefix_v6: u8,
    /// How long a request may wait for the worker's thread when there is more work than the worker
    /// can do. If requests have been waiting for more than half of this time for all of
    /// `queue_delay_interval`, the server rejects requests that have waited longer than half of it
    /// since the worker last polled the kernel; the other half may have passed before that poll. A
    /// shorter burst is queued. Default none, because requests to slow handlers would be rejected
    /// where a delay does not matter. Five times the CPU time of a handler is a good start. Over
    /// the limit: 503.
    #[cfg_attr(feature = "config", serde(with = "MaybeTime"))]
    pub queue_delay_target: Option<Duration>,
    /// How long requests must have waited too long before the server starts to reject them, and how
    /// long none may have waited too long before it stops. Default 100 ms.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub queue_delay_interval: Duration,
    /// Bytes that a worker may hold for its peers: buffers, bodies that are being assembled or wait
    /// for a reader, responses that wait to be sent, TLS, HTTP/2 tables. Default `auto`: half of
    /// the memory that the process may use, by its cgroups or the machine, for all workers
    /// together; `off` for no limit.
    ///
    /// Not counted are: memory that handlers allocate, response content that is static or shared
    /// with other owners, memory of the kernel, and memory that is kept for reuse, which is less
    /// than 8 MiB. However, buffers that up to 128 ended connections leave for later ones are
    /// counted (20 MB were measured after a flood of HTTP/2 requests), and are freed when memory is
    /// short.
    ///
    /// Above three quarters of the limit, requests with a body get a 503, and new connections may
    /// send one request each, which gets a 503; above seven eighths, all requests do. The last
    /// sixteenth is reserved for requests that are never rejected. Nothing else may grow into it:
    /// an extractor that buffers a body responds with 503, and a connection that needs more memory
    /// is reset.
    #[cfg_attr(feature = "config", serde(with = "AutoSize"))]
    pub memory_max: MemoryMax,
    /// The minimum of `Retry-After`, in whole seconds and at least one. Default 1 s. The values
    /// sent vary by up to half of it, and by at least a second, so that rejected clients do not all
    /// retry at the same time.
    #[cfg_attr(feature = "config", serde(with = "Time"))]
    pub retry_after: Duration,
}

/// How much memory each worker may hold for its peers: [`OverloadLimits::memory_max`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryMax {
    /// The workers together may hold half of the memory that the process may use: the limit of its
    /// cgroup (version 2 or 1, with all its parents) or, if there is none, the memory of the
    /// machine. Each worker may hold an equal part, and at least 16 MiB. On systems other than
    /// Linux the memory is not known, and 1 GiB is used. The other half is for the application, the
    /// kernel's buffers, and memory that is not counted.
    ///
    /// It is determined when the server starts and when the configuration is reloaded. The server
    /// logs the result at startup, and `peregrine_worker_memory_max_bytes` shows it.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
    /// No limit.
    Off,
}

impl MemoryMax {
    /// The limit of one worker. The code that starts the workers replaces `Auto` with a number of
    /// bytes; if it did not, the memory is not known.
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
    /// No limits at all, for a worker that must respond when others are overloaded.
    #[must_use]
    pub fn none() -> Self {
        Self { memory_max: MemoryMax::Off, ..Self::default() }
    }

    /// Describes the first mistake in the settings and how to fix it.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.client_prefix_v6 > 128 {
            return Some(format!(
                "overload.client_prefix_v6 is {}, but an IPv6 address has 128 bits: use 64 to \
                 count a household or a machine as one client, or 128 to count each address",
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
                "overload.{name} is 0, so every client would be rejected: leave it out for no limit"
            ));
        }
        if let MemoryMax::Bytes(most) = self.memory_max
            && most < MEMORY_MIN
        {
            return Some(format!(
                "overload.memory_max is {most} bytes, which a few connections would use up: give \
                 each worker at least {MEMORY_MIN}, or set it to auto or off"
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
            (|limits| limits.client_prefix_v6 = 129, "client_prefix_v6 is 129", "use 64"),
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
