//! What the server suite needs of a driver: a running server, wires to it, and a clock.

use crate::server::logged::Collected;
use peregrine::log::Form;
use peregrine::trace::Traces;
use peregrine::{IntoApplication, Limits, ProxyProtocol, TrustedProxies};
use peregrine_server::{Cut, Snapshot};
use peregrine_tls::Tls;
use std::future::Future;
use std::time::Duration;

/// The most that a case waits for something that must come. Only a hang takes so long.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// A place to start servers in and to reach them from outside.
pub trait Bench {
    /// A server at work.
    type Server: Served<Wire = Self::Wire>;
    /// One connection's other end.
    type Wire: Wire;

    /// Starts a server with one worker. It speaks HTTP, and HTTPS on a second port if `tls` is
    /// given.
    fn start<A, M>(&self, limits: Limits, tls: Option<Tls>, make: M) -> Self::Server
    where
        A: IntoApplication + 'static,
        M: Fn() -> A + Clone + Send + 'static,
    {
        self.start_behind(Gate::default(), limits, tls, make)
    }

    /// The same behind proxies.
    fn start_behind<A, M>(
        &self,
        gate: Gate,
        limits: Limits,
        tls: Option<Tls>,
        make: M,
    ) -> Self::Server
    where
        A: IntoApplication + 'static,
        M: Fn() -> A + Clone + Send + 'static;

    /// Lets time pass.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()>;

    /// Time since some moment.
    fn now(&self) -> Duration;

    /// From now on nothing goes wrong on the way, where that is in our hands.
    fn calm(&self);

    /// The same, and connections from now on have buffers as those of a real machine.
    fn calm_with_large_buffers(&self) {
        self.calm();
    }

    /// Does what is written at once arrive at once?
    fn is_calm(&self) -> bool;

    /// Does the clock tell exactly how long something took?
    fn is_virtual(&self) -> bool;

    /// Accepting fails now and then until [`Bench::calm`], where that is in our hands.
    fn run_out_of_descriptors(&self) {}

    /// Received chunks that the server has not given back, where that can be told.
    fn chunks_on_loan(&self) -> Option<u32> {
        None
    }

    /// Bytes that the kernel keeps for connections that `server` has closed, where that can be told.
    fn bytes_of_the_closed(&self, server: &Self::Server) -> Option<usize> {
        let _ = server;
        None
    }

    /// A size for something large: all of `bytes`, or little where a byte at a time may arrive.
    fn large(&self, bytes: usize) -> usize {
        if self.is_calm() { bytes } else { bytes.min(2_000) }
    }

    /// Does the transport tell a peer that broke off from one that only has nothing more to say?
    fn has_resets(&self) -> bool {
        true
    }

    /// A number below `limit` (or 0) by which runs of a case differ.
    fn choose(&self, limit: usize) -> usize;

    /// Waits until `condition` holds.
    fn until(&self, what: &str, condition: impl Fn() -> bool) -> impl Future<Output = ()> {
        async move {
            let start = self.now();
            while !condition() {
                assert!(self.now() < start + PATIENCE, "still waiting until {what}");
                self.sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// What holds at the ports of a server beside its limits.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    /// Whether connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The proxies of the server.
    pub proxies: Option<TrustedProxies>,
    /// Limits of the port that speaks HTTP, in place of the server's.
    pub limits: Option<Limits>,
    /// The access log: how its lines look, and where they are collected.
    pub log: Option<(Form, Collected)>,
    /// Which requests are traced.
    pub traces: Option<Traces>,
}

/// A running server.
pub trait Served {
    /// One connection's other end.
    type Wire: Wire;

    /// Connects to the port that speaks HTTP.
    fn connect(&self) -> Self::Wire;

    /// Connects to the port that speaks HTTPS. No handshake is made.
    fn connect_secure(&self) -> Self::Wire;

    /// Orders the server to shut down.
    fn shut_down(&self);

    /// Orders the server to end at once.
    fn cut(&self);

    /// Waits for the server's end, which somebody has ordered.
    fn ended(self) -> impl Future<Output = Outcome>;
}

/// What a server did in its life.
#[derive(Debug)]
pub struct Outcome {
    /// Its counts.
    pub snapshot: Snapshot,
    /// The connections that were cut.
    pub cut: Vec<Cut>,
}

impl Outcome {
    /// How many connections ended in this way.
    #[must_use]
    pub fn ended(&self, name: &str) -> u64 {
        self.snapshot.ended.get(name).copied().unwrap_or(0)
    }

    /// How many connections ended in each way, without those that ended because their peer closed
    /// or because the server did: which of the two came first is a matter of chance.
    #[must_use]
    pub fn endings(&self) -> Vec<(&'static str, u64)> {
        let by_chance = ["peer-closed", "drained"];
        let ended = self.snapshot.ended.iter().map(|(name, count)| (*name, *count));
        ended.filter(|(name, _)| !by_chance.contains(name)).collect()
    }
}

/// What waiting for bytes gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// Some bytes.
    Bytes(Vec<u8>),
    /// The server ended its sending side.
    End,
    /// The connection broke.
    Broken,
    /// Nothing came in time.
    Nothing,
}

/// A connection's other end, which sends bytes as it is told. Dropping it closes the connection.
pub trait Wire {
    /// Sends `bytes` in the background.
    fn send(&mut self, bytes: &[u8]);

    /// Ends the sending side when everything is sent.
    fn half_close(&mut self);

    /// Waits for bytes, for `patience` at the most.
    fn recv(&mut self, patience: Duration) -> impl Future<Output = Got>;

    /// The same, for at most `bytes_max` bytes, where that can be told. The rest stays in the kernel.
    fn recv_at_most(&mut self, bytes_max: usize, patience: Duration) -> impl Future<Output = Got> {
        let _ = bytes_max;
        self.recv(patience)
    }

    /// Breaks the connection off.
    fn reset(self);
}
