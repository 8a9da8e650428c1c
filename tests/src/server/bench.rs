//! The interface that the server suite needs from a driver: a running server, connections to it,
//! and a clock.

use crate::server::logged::Collected;
use peregrine::access_log::AccessLogFormat;
use peregrine::trace::TraceConfig;
use peregrine::{IntoBuiltApp, Limits, ProxyProtocol, TrustedProxies};
use peregrine_server::{ForceClosed, WorkerStats};
use peregrine_tls::TlsConfig;
use std::future::Future;
use std::time::Duration;

/// The longest that a case waits for something that must happen. Only a hang takes this long.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// An environment that starts servers and connects to them.
pub trait Bench {
    /// A running server.
    type Server: Served<Wire = Self::Wire>;
    /// The client's end of one connection.
    type Wire: Wire;

    /// Starts a server with one worker. It serves HTTP, and HTTPS on a second port if `tls` is
    /// given.
    fn start<A, M>(&self, limits: Limits, tls: Option<TlsConfig>, make: M) -> Self::Server
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        self.start_behind(ServerOptions::default(), limits, tls, make)
    }

    /// Like [`start`](Self::start), with further options, for example for a server behind proxies.
    fn start_behind<A, M>(
        &self,
        server_options: ServerOptions,
        limits: Limits,
        tls: Option<TlsConfig>,
        make: M,
    ) -> Self::Server
    where
        A: IntoBuiltApp + 'static,
        M: Fn() -> A + Clone + Send + 'static;

    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// The time since an arbitrary moment.
    fn now(&self) -> Duration;

    /// Stops injecting faults into the network, where the bench controls it.
    fn calm(&self);

    /// Like [`calm`](Self::calm). In addition, new connections get buffers as large as those of a
    /// real machine.
    fn calm_with_large_buffers(&self) {
        self.calm();
    }

    /// Whether bytes written in one call arrive together.
    fn is_calm(&self) -> bool;

    /// Whether the clock measures durations exactly.
    fn is_virtual(&self) -> bool;

    /// Makes some accepts fail until [`Bench::calm`], where the bench controls the network.
    fn run_out_of_descriptors(&self) {}

    /// The number of receive chunks that the server has not returned, where this is known.
    fn chunks_on_loan(&self) -> Option<u32> {
        None
    }

    /// Bytes that the kernel still holds for connections that `server` has closed, where this is
    /// known.
    fn bytes_of_the_closed(&self, server: &Self::Server) -> Option<usize> {
        let _ = server;
        None
    }

    /// A size for something large: `bytes`, or less where data may arrive one byte at a time.
    fn large(&self, bytes: usize) -> usize {
        if self.is_calm() { bytes } else { bytes.min(2_000) }
    }

    /// Whether the transport distinguishes a reset from a half-close.
    fn has_resets(&self) -> bool {
        true
    }

    /// A number below `limit` (or 0) that varies between the runs of a case.
    fn choose(&self, limit: usize) -> usize;

    /// Waits until `condition` holds.
    fn wait_until(
        &self,
        description: &str,
        condition: impl Fn() -> bool,
    ) -> impl Future<Output = ()> {
        async move {
            let start = self.now();
            while !condition() {
                assert!(self.now() < start + PATIENCE, "still waiting until {description}");
                self.sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// Options of a server besides its limits, TLS and application.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The proxies that the server trusts.
    pub proxies: Option<TrustedProxies>,
    /// Limits of the HTTP listener, replacing the server's.
    pub limits: Option<Limits>,
    /// The access log: its format, and where its lines are collected.
    pub log: Option<(AccessLogFormat, Collected)>,
    /// Which requests are traced.
    pub traces: Option<TraceConfig>,
}

/// A running server.
pub trait Served {
    /// The client's end of one connection.
    type Wire: Wire;

    /// Connects to the HTTP port.
    fn connect(&self) -> Self::Wire;

    /// Connects to the HTTPS port, without a handshake.
    fn connect_secure(&self) -> Self::Wire;

    /// Requests a graceful shutdown.
    fn shut_down(&self);

    /// Requests an immediate end.
    fn cut(&self);

    /// Waits for the server to end, which must have been requested.
    fn ended(self) -> impl Future<Output = Outcome>;
}

/// The result of a server's run.
#[derive(Debug)]
pub struct Outcome {
    /// The server's counters.
    pub snapshot: WorkerStats,
    /// The connections that were aborted.
    pub cut: Vec<ForceClosed>,
}

impl Outcome {
    /// How many connections ended in this way.
    #[must_use]
    pub fn ended(&self, name: &str) -> u64 {
        self.snapshot.closed.get(name).copied().unwrap_or(0)
    }

    /// How many connections ended in each way, except those closed by the peer or the server in an
    /// ordinary way: which of the two closes first is a matter of chance.
    #[must_use]
    pub fn endings(&self) -> Vec<(&'static str, u64)> {
        let ordinary = ["peer-closed", "drained"];
        let ended = self.snapshot.closed.iter().map(|(name, count)| (*name, *count));
        ended.filter(|(name, _)| !ordinary.contains(name)).collect()
    }
}

/// The result of waiting for bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The server ended its sending side.
    End,
    /// The connection broke.
    Broken,
    /// Nothing arrived in time.
    Nothing,
}

/// The client's end of a connection, driven by the case. Dropping it closes the connection.
pub trait Wire {
    /// Sends `bytes` in the background.
    fn send(&mut self, bytes: &[u8]);

    /// Ends the sending side once everything is sent.
    fn half_close(&mut self);

    /// Waits for bytes for at most `timeout`.
    fn recv(&mut self, timeout: Duration) -> impl Future<Output = Got>;

    /// Waits for at most `bytes_max` bytes, where this can be limited, for at most `timeout`. The
    /// rest stays in the kernel.
    fn recv_at_most(&mut self, bytes_max: usize, timeout: Duration) -> impl Future<Output = Got> {
        let _ = bytes_max;
        self.recv(timeout)
    }

    /// Resets the connection.
    fn reset(self);
}
