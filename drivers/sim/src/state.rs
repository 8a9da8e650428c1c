//! The complete state of the network: ports, connections, and pending events.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::faults::Faults;
use crate::pipe::{Pipe, Source, Target};
use crate::random::Random;
use crate::trace::{Stuck, Trace};

/// The network's state. Wakers are collected and woken by [`crate::Network`] after the state is no
/// longer borrowed, because a waker may run arbitrary code.
pub(crate) struct State {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    pub(crate) now: Duration,
    /// When the current turn began. It polls as many tasks as were ready then.
    pub(crate) turn_began: Duration,
    /// The virtual time at which an unfinished run fails.
    pub(crate) time_max: Duration,
    /// The number of polls after which an unfinished run fails.
    pub(crate) polls_max: u64,
    /// Failures are reported by the caller.
    pub(crate) is_silent: bool,
    /// Why the run got stuck.
    pub(crate) stuck: Option<Stuck>,
    pub(crate) ports: BTreeMap<u64, PortState>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) loans: Loans,
    pub(crate) figures: Figures,
    /// Tasks to drop, by their number.
    pub(crate) doomed: BTreeMap<u64, Doom>,
    pub(crate) wakes: Vec<Waker>,
    /// Connections that were dropped while being passed between workers.
    pub(crate) lost: Arc<Mutex<Vec<u64>>>,
    agenda: BTreeMap<(Duration, u64), Event>,
    last_id: u64,
}

/// A bound port.
#[derive(Default)]
pub(crate) struct PortState {
    pub(crate) accepts: Accepts,
    /// Connections that were not accepted yet.
    pub(crate) backlog: VecDeque<u64>,
    /// Connection attempts that the kernel ignores: clients retry them.
    pub(crate) retrying: Vec<u64>,
    pub(crate) acceptor: Option<Waker>,
}

/// Whether clients can connect to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accepts {
    #[default]
    Open,
    /// New connections are refused; those in the backlog can still be accepted.
    Refusing,
    /// The listener is gone.
    Closed,
}

/// A connection: two ends and two directions.
pub(crate) struct Connection {
    /// By the end that sends.
    pipes: [Pipe; 2],
    /// By end: whether a handle still exists.
    held: [bool; 2],
    /// It was refused.
    is_refused: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

impl Connection {
    /// The direction in which `end` sends.
    pub(crate) fn pipe(&mut self, end: End) -> &mut Pipe {
        &mut self.pipes[end.index()]
    }

    pub(crate) fn pipe_of(&self, end: End) -> &Pipe {
        &self.pipes[end.index()]
    }

    /// The error of calls on a broken connection.
    pub(crate) fn fault(&self) -> io::ErrorKind {
        if self.is_refused {
            io::ErrorKind::ConnectionRefused
        } else {
            io::ErrorKind::ConnectionReset
        }
    }

    /// The number of bytes that the server's kernel keeps after the server has closed the
    /// connection.
    fn bytes_of_the_closed(&self) -> usize {
        if self.held[End::Server.index()] { 0 } else { self.pipe_of(End::Server).unacknowledged() }
    }
}

/// The receive buffers that the server may hold at a time.
#[derive(Default)]
pub(crate) struct Loans {
    pub(crate) chunks_max: u32,
    pub(crate) chunk_bytes_max: usize,
    pub(crate) chunks: u32,
    pub(crate) starving: Vec<Waker>,
}

/// Counters since the network was created.
#[derive(Default)]
pub(crate) struct Figures {
    pub(crate) turns: u64,
    pub(crate) polls: u64,
    pub(crate) accepted: u64,
    pub(crate) exhausted: u64,
    pub(crate) panics: u64,
    pub(crate) tasks: u64,
    pub(crate) connections_refused: u64,
}

/// The number of polls after which a task is dropped.
pub(crate) type Doom = u64;

/// The kinds of scheduled events.
enum Event {
    Wake(Waker),
    /// A segment sent by this end lands.
    Land(u64, End),
    /// This end's pipe may accept more.
    Pump(u64, End),
}

/// How often an attempt to connect to a closed port gets no answer, instead of a refusal.
const REFUSAL_WAITS_PER_MILLE: u32 = 500;

impl State {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            random: Random::new(seed),
            faults,
            trace: Trace::default(),
            now: Duration::ZERO,
            turn_began: Duration::ZERO,
            time_max: Duration::MAX,
            polls_max: u64::MAX,
            is_silent: false,
            stuck: None,
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            loans: Loans::default(),
            figures: Figures::default(),
            doomed: BTreeMap::new(),
            wakes: Vec::new(),
            lost: Arc::default(),
            agenda: BTreeMap::new(),
            last_id: 0,
        }
    }

    /// A new, unique number.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn record(&mut self, what: &'static str, figures: [u64; 3]) {
        self.trace.record(self.now, what, figures);
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Advances the time to `now` and handles all events that are due.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while self.next_event().is_some_and(|at| at <= self.now) {
            match self.agenda.pop_first().expect("the agenda was checked to be non-empty").1 {
                Event::Wake(waker) => self.wakes.push(waker),
                Event::Land(id, end) => self.land(id, end),
                Event::Pump(id, end) => self.pump(id, end),
            }
        }
    }

    fn schedule(&mut self, at: Duration, event: Event) -> (Duration, u64) {
        let key = (at, self.next_id());
        self.agenda.insert(key, event);
        key
    }

    /// Wakes `waker` at `at`. The key is for [`State::cancel`].
    pub(crate) fn wake_at(&mut self, at: Duration, waker: Waker) -> (Duration, u64) {
        self.schedule(at, Event::Wake(waker))
    }

    /// Removes a wake-up from the agenda, so that time does not advance because of it. The caller
    /// drops the waker after releasing the state.
    pub(crate) fn cancel(&mut self, key: (Duration, u64)) -> Option<Waker> {
        match self.agenda.remove(&key)? {
            Event::Wake(waker) => Some(waker),
            Event::Land(..) | Event::Pump(..) => None,
        }
    }

    /// Opens a connection and adds it to the backlog of `port`.
    pub(crate) fn connect(&mut self, port: u64) -> u64 {
        let id = self.next_id();
        let faults = self.faults.clone();
        let mut pipe = |end| Pipe::new(&faults, &mut self.random, end);
        let pipes = [pipe(End::Client), pipe(End::Server)];
        let connection = Connection { pipes, held: [true, true], is_refused: false };
        self.connections.insert(id, connection);
        self.record("connect", [port, id, 0]);
        let waits = self.random.chance(REFUSAL_WAITS_PER_MILLE);
        let by_fault = self.random.chance(faults.refuse_per_mille);
        match self.ports.get_mut(&port) {
            _ if by_fault => self.refuse(id),
            Some(port) if port.accepts == Accepts::Open => {
                port.backlog.push_back(id);
                self.wakes.extend(port.acceptor.take());
            }
            Some(port) if port.accepts == Accepts::Refusing && waits => port.retrying.push(id),
            _ => self.refuse(id),
        }
        id
    }

    /// Refuses new connections to `port`; those in the backlog can still be accepted.
    pub(crate) fn refuse_new(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports are never removed");
        if port.accepts == Accepts::Open {
            port.accepts = Accepts::Refusing;
        }
    }

    /// The listener of `port` is gone: refuses all waiting connections.
    pub(crate) fn close_port(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports are never removed");
        port.accepts = Accepts::Closed;
        let retrying = std::mem::take(&mut port.retrying);
        for id in std::mem::take(&mut port.backlog) {
            self.abort(id, End::Server);
        }
        retrying.into_iter().for_each(|id| self.refuse(id));
    }

    /// Refuses a connection.
    fn refuse(&mut self, id: u64) {
        self.figures.connections_refused += 1;
        self.record("turn away", [id, 0, 0]);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_refused = true;
        }
        self.abort(id, End::Server);
    }

    /// The number of bytes that the server's kernel keeps for connections closed by the server.
    pub(crate) fn bytes_of_the_closed(&self) -> usize {
        self.connections.values().map(Connection::bytes_of_the_closed).sum()
    }

    /// The delay of the next piece.
    fn delay(&mut self) -> Duration {
        if self.random.chance(self.faults.delay_per_mille) {
            Duration::from_micros(self.random.below(self.faults.delay_ms_max * 1000 + 1))
        } else {
            Duration::ZERO
        }
    }

    /// Moves data queued by `end` into its pipe, as far as there is room.
    pub(crate) fn pump(&mut self, id: u64, end: End) {
        loop {
            let faults = &self.faults;
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let pipe = connection.pipe(end);
            if pipe.take_in() {
                self.wakes.append(&mut pipe.senders);
            }
            if !pipe.is_unsent() {
                break;
            }
            let cut = self.random.chance(faults.cut_per_mille);
            let Some((piece, took)) = pipe.take_piece(cut, &mut self.random) else { break };
            if took {
                self.wakes.append(&mut pipe.senders);
            }
            let bytes = u64::try_from(piece.len()).expect("a length has at most 64 bits");
            if self.random.chance(faults.reset_per_mille) {
                self.record("lose", [id, bytes, 0]);
                self.tear(id);
                return;
            }
            let stall = self.random.chance(faults.stall_per_mille).then_some(faults.stall_ms_max);
            let short = self.random.chance(faults.short_send_per_mille);
            self.fly(id, end, piece, stall);
            if short {
                let pause = self.now + self.delay();
                self.schedule(pause, Event::Pump(id, end));
                return;
            }
        }
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(end);
        if pipe.source == Source::Ending && !pipe.is_unsent() {
            let at = pipe.fly_end(now);
            self.wakes.append(&mut pipe.senders);
            self.schedule(at, Event::Land(id, end));
        }
    }

    /// Sends one piece, and stalls the direction after it for up to `stall` ms.
    fn fly(&mut self, id: u64, end: End, piece: Vec<u8>, stall: Option<u64>) {
        let bytes = u64::try_from(piece.len()).expect("a length has at most 64 bits");
        let at = self.now + self.delay();
        let stall = stall.map(|most| Duration::from_millis(self.random.below(most + 1)));
        let connection = self.connections.get_mut(&id).expect("the caller pumps this connection");
        let pipe = connection.pipe(end);
        let at = pipe.fly(piece, at);
        if let Some(stall) = stall {
            pipe.stall(at + stall);
        }
        pipe.check();
        self.record("fly", [id, bytes, u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)]);
        self.schedule(at, Event::Land(id, end));
    }

    /// Lands segments sent by `end`.
    fn land(&mut self, id: u64, end: End) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(end);
        // A reset may discard data that the client has not read yet. Drivers receive ahead, and
        // return the data they have.
        let landed = pipe.land(now, end == End::Server);
        let is_buffered = pipe.is_buffered();
        pipe.check();
        self.wakes.extend(pipe.receiver.take());
        let back = connection.pipe(end.other());
        if landed.reset {
            back.break_source();
            self.wakes.append(&mut back.senders);
        }
        self.record("land", [id, landed.bytes, u64::from(landed.reset)]);
        if landed.refused {
            self.fly_reset(id, end.other());
        }
        if is_buffered {
            // The arrival frees room in the sender's buffer.
            self.pump(id, end);
        }
    }

    /// Sends a reset from `end` to the other end.
    fn fly_reset(&mut self, id: u64, end: End) {
        let at = self.now + self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let at = connection.pipe(end).fly_reset(at);
        self.schedule(at, Event::Land(id, end));
    }

    /// Breaks a connection in transit: both ends will see a reset.
    fn tear(&mut self, id: u64) {
        self.fly_reset(id, End::Client);
        self.fly_reset(id, End::Server);
    }

    /// `end` resets the connection and drops its handle.
    pub(crate) fn abort(&mut self, id: u64, end: End) {
        self.break_off(id, end);
        self.let_go(id, end);
    }

    /// `end` resets the connection; its own calls fail from now on.
    pub(crate) fn break_off(&mut self, id: u64, end: End) {
        self.record("reset", [id, end.index() as u64, 0]);
        self.fly_reset(id, end);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let input = connection.pipe(end.other());
        input.arrived.clear();
        if input.target == Target::Open {
            input.target = Target::Broken;
        }
        self.wakes.extend(input.receiver.take());
        let output = connection.pipe(end);
        output.break_source();
        self.wakes.append(&mut output.senders);
    }

    /// `end` closes the connection. As in a kernel, unread data turns this into a reset. Otherwise
    /// the data accepted by the kernel is delivered, and then the end.
    pub(crate) fn close(&mut self, id: u64, end: End) {
        self.record("close", [id, end.index() as u64, 0]);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let unread = connection.pipe(end.other()).close_target();
        let output = connection.pipe(end);
        output.outgoing.clear();
        if unread {
            self.fly_reset(id, end);
        } else if matches!(output.source, Source::Open | Source::Ending) {
            output.source = Source::Ending;
            self.pump(id, end);
        }
        self.let_go(id, end);
    }

    /// Closes connections whose handles were lost.
    pub(crate) fn close_lost(&mut self) {
        let lost = std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner));
        lost.into_iter().for_each(|id| self.close(id, End::Server));
    }

    fn let_go(&mut self, id: u64, end: End) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.held[end.index()] = false;
            if connection.held == [false, false] {
                self.connections.remove(&id);
            }
        }
    }

    /// Which tasks wait for which events, for the report of a deadlock.
    pub(crate) fn waiting(&self) -> String {
        let mut waiting = Vec::new();
        for (id, port) in &self.ports {
            if port.acceptor.is_some() {
                waiting.push(format!("port {id}: accept"));
            }
        }
        for (id, connection) in &self.connections {
            for (end, name) in [(End::Client, "client"), (End::Server, "server")] {
                if connection.pipe_of(end.other()).receiver.is_some() {
                    waiting.push(format!("connection {id}: {name} receives"));
                }
                if !connection.pipe_of(end).senders.is_empty() {
                    waiting.push(format!("connection {id}: {name} sends"));
                }
            }
        }
        if !self.loans.starving.is_empty() {
            waiting.push(format!("{} for a receive buffer", self.loans.starving.len()));
        }
        if waiting.is_empty() { "events outside of the network".into() } else { waiting.join(", ") }
    }
}
