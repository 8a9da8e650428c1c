//! The load loop: one thread, a closed loop on keep-alive connections, every answer judged.
//!
//! It is a closed loop on purpose: paired slices compare the server's CPU time per request, and a
//! closed loop keeps each server as busy as it can be. It says nothing about latency under a
//! given rate.

mod connect;
mod connection;
pub(crate) mod engine;
mod epoll;
pub mod fault;
pub mod reply;
#[expect(unsafe_code, reason = "the kernel shares memory with the ring; see the file's head")]
mod ring;
pub mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ClientConfig;

use connect::{Made, connect};
pub(crate) use connection::write_records;
use connection::{Asking, Connection};
pub use engine::EngineKind;
use engine::{Engine, Event, Token};
use fault::{Fault, Faults};

use crate::workload::Workload;

/// How long replies may take after the last request was sent, unless set otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A server as the client sees it.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// The TLS configuration, if the workload goes through TLS.
    pub tls: Option<Arc<ClientConfig>>,
}

/// When a run stops to ask.
#[derive(Debug, Clone, Copy)]
pub enum Stop {
    /// After this time; what is under way then is drained.
    After(Duration),
    /// After one batch (of the workload's depth) on each connection.
    Once,
}

/// What one run saw.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Right replies.
    pub replies: u64,
    /// Everything that was wrong, by kind.
    pub faults: Faults,
    /// From the first request to the last reply.
    pub wall: Duration,
    /// The CPU time that this thread used.
    pub client_cpu: Duration,
}

/// Names the connections to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group(usize);

/// One thread's load on any number of servers, one at a time.
pub struct Client {
    kind: EngineKind,
    engine: Box<dyn Engine>,
    connections: Vec<Option<Connection>>,
    groups: Vec<Members>,
    drain_timeout: Duration,
    /// How many connections await a reply.
    busy: usize,
    /// Room for the bytes of one send.
    outgoing: Vec<u8>,
}

struct Members {
    target: Target,
    asking: Arc<Asking>,
    wanted: usize,
    tokens: Vec<Token>,
}

impl Client {
    /// A client that talks to the kernel in the wanted way, or in the cheapest that works.
    ///
    /// # Errors
    ///
    /// What the kernel answers if it refuses the wanted way, or all of them.
    pub fn new(wanted: Option<EngineKind>) -> io::Result<Client> {
        let (kind, engine) = engine::make(wanted)?;
        Ok(Client {
            kind,
            engine,
            connections: Vec::new(),
            groups: Vec::new(),
            drain_timeout: DRAIN_TIMEOUT,
            busy: 0,
            outgoing: Vec::new(),
        })
    }

    /// How this client talks to the kernel.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Sets how long replies may take after the last request; the default is 2 seconds.
    pub fn set_drain_timeout(&mut self, timeout: Duration) {
        self.drain_timeout = timeout;
    }

    /// Declares a group of `wanted` connections. They are made at the beginning of each run, as
    /// far as they are missing.
    pub fn group(&mut self, target: Target, workload: Arc<Workload>, wanted: usize) -> Group {
        assert!(workload.depth > 0, "a workload sends at least one request at a time");
        self.add(target, Arc::new(Asking::new(workload)), wanted)
    }

    fn add(&mut self, target: Target, asking: Arc<Asking>, wanted: usize) -> Group {
        self.groups.push(Members { target, asking, wanted, tokens: Vec::new() });
        Group(self.groups.len() - 1)
    }

    /// Declares another group of `wanted` connections to the same server.
    pub fn group_like(&mut self, group: Group, wanted: usize) -> Group {
        let Members { target, asking, .. } = &self.groups[group.0];
        let (target, asking) = (target.clone(), asking.clone());
        self.add(target, asking, wanted)
    }

    /// Changes how many connections a group is to have. Surplus ones are closed.
    pub fn resize(&mut self, group: Group, wanted: usize) {
        self.groups[group.0].wanted = wanted;
        while self.groups[group.0].tokens.len() > wanted {
            let token = self.groups[group.0].tokens[wanted];
            self.close(token);
        }
    }

    /// Makes the connections of the group that are missing. Failures are counted in the tally; at
    /// the first one no further connection is tried.
    ///
    /// # Errors
    ///
    /// The kernel's, if the client itself cannot go on.
    pub fn connect(&mut self, group: Group, tally: &mut Tally) -> io::Result<()> {
        while self.groups[group.0].tokens.len() < self.groups[group.0].wanted {
            let Members { target, asking, .. } = &self.groups[group.0];
            let place = self.groups[group.0].tokens.len() as u64;
            let seed = (group.0 as u64) << 32 | place;
            let Made { stream, session, speech } = match connect(target, &asking.workload, seed) {
                Ok(made) => made,
                Err(fault) => {
                    tally.faults.record(fault);
                    return Ok(());
                }
            };
            let token = self.engine.attach(stream)?;
            if token >= self.connections.len() {
                self.connections.resize_with(token + 1, || None);
            }
            self.connections[token] = Some(Connection::new(group.0, session, speech, token));
            self.groups[group.0].tokens.push(token);
        }
        Ok(())
    }

    /// Lets time pass without asking anything, so that ends of idle connections are noticed.
    ///
    /// # Errors
    ///
    /// The kernel's, if the client itself cannot go on.
    pub fn idle(&mut self, time: Duration) -> io::Result<Tally> {
        let mut tally = Tally::default();
        let end = Instant::now() + time;
        loop {
            let rest = end.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Ok(tally);
            }
            self.turn(rest, &mut tally, &mut Vec::new())?;
        }
    }

    /// How many connections of the group are open as far as the client knows.
    #[must_use]
    pub fn open(&self, group: Group) -> usize {
        self.groups[group.0].tokens.len()
    }

    /// Connects what is missing, asks until `stop`, and awaits what is under way.
    ///
    /// # Errors
    ///
    /// The kernel's, if the client itself cannot go on. Whatever a server does wrong is in the
    /// tally instead.
    pub fn run(&mut self, group: Group, stop: Stop) -> io::Result<Tally> {
        let mut tally = Tally::default();
        self.connect(group, &mut tally)?;
        let cpu_start = thread_cpu();
        let start = Instant::now();
        let end = match stop {
            Stop::After(time) => start + time,
            Stop::Once => start,
        };
        let last = end + self.drain_timeout;
        for token in self.groups[group.0].tokens.clone() {
            self.ask(token)?;
        }
        let mut answered = Vec::new();
        let mut now = start;
        while self.busy > 0 {
            if now >= last {
                self.give_up(group, &mut tally);
                break;
            }
            let limit = if now < end { end } else { last };
            self.turn(limit - now, &mut tally, &mut answered)?;
            now = Instant::now();
            for token in answered.drain(..) {
                if now < end {
                    self.ask(token)?;
                }
            }
        }
        tally.wall = start.elapsed();
        tally.client_cpu = thread_cpu().saturating_sub(cpu_start);
        Ok(tally)
    }

    /// Sends as much as there is room for; does nothing if the connection is closed.
    fn ask(&mut self, token: Token) -> io::Result<()> {
        let Some(connection) = &mut self.connections[token] else { return Ok(()) };
        let asking = &self.groups[connection.group].asking;
        let count = connection.room(asking.workload.depth);
        if count == 0 {
            return Ok(());
        }
        self.busy += usize::from(connection.awaited == 0);
        self.outgoing.clear();
        connection.ask(asking, count, &mut self.outgoing)?;
        self.engine.send(token, &self.outgoing)
    }

    /// One turn of the engine: every arrival is judged and counted. Connections that have room
    /// again are added to `answered`.
    fn turn(
        &mut self,
        wait: Duration,
        tally: &mut Tally,
        answered: &mut Vec<Token>,
    ) -> io::Result<()> {
        let Client { engine, connections, groups, busy, outgoing, .. } = self;
        let mut unsent: Vec<(Token, Vec<u8>)> = Vec::new();
        let mut ended = Vec::new();
        engine.turn(wait, &mut |token, event| {
            let Some(connection) = &mut connections[token] else { return };
            if ended.contains(&token) {
                return;
            }
            let was_busy = connection.awaited > 0;
            let workload = &groups[connection.group].asking.workload;
            let (is_over, fault) = match event {
                // This client attaches connections that are made already.
                Event::Connected => return,
                Event::Data(bytes) => {
                    let counts = (&mut tally.replies, &mut tally.faults);
                    outgoing.clear();
                    let received = connection.receive(bytes, workload, counts, outgoing);
                    if !outgoing.is_empty() {
                        unsent.push((token, outgoing.clone()));
                    }
                    (received.is_err(), received.err())
                }
                Event::Ended(error) => (true, connection.ended(error.as_ref())),
            };
            if let Some(fault) = fault {
                tally.faults.record(fault);
            }
            let is_answered = connection.awaited == 0;
            if is_over || (is_answered && connection.is_last) {
                ended.push(token);
            } else if was_busy && connection.room(workload.depth) > 0 {
                answered.push(token);
            }
            if was_busy && is_answered {
                *busy -= 1;
            }
        })?;
        for (token, bytes) in unsent {
            self.engine.send(token, &bytes)?;
        }
        for token in ended {
            self.close(token);
        }
        Ok(())
    }

    /// Counts a timeout for each connection that still awaits a reply, and closes it.
    fn give_up(&mut self, group: Group, tally: &mut Tally) {
        for token in self.groups[group.0].tokens.clone() {
            if self.connections[token].as_ref().is_some_and(|one| one.awaited > 0) {
                tally.faults.record(Fault::Timeout);
                self.close(token);
            }
        }
    }

    fn close(&mut self, token: Token) {
        let Some(connection) = self.connections[token].take() else { return };
        if connection.awaited > 0 {
            self.busy -= 1;
        }
        self.groups[connection.group].tokens.retain(|&other| other != token);
        self.engine.detach(token);
    }
}

/// The CPU time of the calling thread. The clock is exact; the counters of `/proc` lag by a tick
/// for a thread that runs.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("CPU time is not negative")
}
