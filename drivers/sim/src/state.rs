//! Everything the network knows: ports, connections, and what happens when.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::faults::Faults;
use crate::pipe::{Pipe, Source, Target};
use crate::random::Random;
use crate::trace::{Stuck, Trace};

/// The network's state. Wakers are collected and woken by [`crate::Network`] after it let go of
/// the state, because a waker may run anybody's code.
pub(crate) struct State {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    pub(crate) now: Duration,
    /// When the present turn began: as many tasks are polled in it as could run then.
    pub(crate) turn_began: Duration,
    /// When a run that is not over yet fails.
    pub(crate) time_max: Duration,
    /// After how many polls of tasks such a run fails.
    pub(crate) polls_max: u64,
    /// Somebody else tells how a run failed.
    pub(crate) is_silent: bool,
    /// Why a run could not go on.
    pub(crate) stuck: Option<Stuck>,
    pub(crate) ports: BTreeMap<u64, PortState>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) loans: Loans,
    pub(crate) figures: Figures,
    /// Tasks to be dropped, by their number.
    pub(crate) doomed: BTreeMap<u64, Doom>,
    pub(crate) wakes: Vec<Waker>,
    /// Connections that were passed from one worker to another, and dropped on the way.
    pub(crate) lost: Arc<Mutex<Vec<u64>>>,
    agenda: BTreeMap<(Duration, u64), Event>,
    last_id: u64,
}

/// A bound port.
#[derive(Default)]
pub(crate) struct PortState {
    pub(crate) accepts: Accepts,
    /// Connections that nobody accepted yet.
    pub(crate) backlog: VecDeque<u64>,
    /// Attempts to connect that the kernel ignores: they are made again and again.
    pub(crate) retrying: Vec<u64>,
    pub(crate) acceptor: Option<Waker>,
}

/// Who may connect to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Accepts {
    #[default]
    Open,
    /// Nobody new; those in the backlog are still to be accepted.
    Refusing,
    /// Nobody: the listener is gone.
    Closed,
}

/// Two ends and two directions.
pub(crate) struct Connection {
    /// By the end that sends.
    pipes: [Pipe; 2],
    /// By end: whether someone still holds it.
    held: [bool; 2],
    /// It never came about.
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

    /// What calls on a broken connection fail with.
    pub(crate) fn fault(&self) -> io::ErrorKind {
        if self.is_refused {
            io::ErrorKind::ConnectionRefused
        } else {
            io::ErrorKind::ConnectionReset
        }
    }

    /// Bytes that the server's kernel keeps for a connection which the server has closed.
    fn bytes_of_the_closed(&self) -> usize {
        if self.held[End::Server.index()] { 0 } else { self.pipe_of(End::Server).unacknowledged() }
    }
}

/// Receive buffers that the server may hold at a time.
#[derive(Default)]
pub(crate) struct Loans {
    pub(crate) chunks_max: u32,
    pub(crate) chunk_bytes_max: usize,
    pub(crate) chunks: u32,
    pub(crate) starving: Vec<Waker>,
}

/// Counts since the network was made.
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

/// When a task is dropped: after this many polls.
pub(crate) type Doom = u64;

/// What the agenda holds.
enum Event {
    Wake(Waker),
    /// Something lands that this end sent.
    Land(u64, End),
    /// This end's pipe may take more.
    Pump(u64, End),
}

/// How often an attempt to connect where nobody may connect any more gets no answer, instead of a
/// refusal.
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

    /// A number that was not given out before.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn record(&mut self, what: &'static str, figures: [u64; 3]) {
        self.trace.record(self.now, what, figures);
    }

    /// When the next thing happens.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        self.agenda.first_key_value().map(|((at, _), _)| *at)
    }

    /// Moves the time to `now` and lets everything happen that is due.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while self.next_event().is_some_and(|at| at <= self.now) {
            match self.agenda.pop_first().expect("there is a first one").1 {
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

    /// Takes a wake-up off the agenda, so that time does not move because of it. The caller drops
    /// the waker when it let go of the state.
    pub(crate) fn cancel(&mut self, key: (Duration, u64)) -> Option<Waker> {
        match self.agenda.remove(&key)? {
            Event::Wake(waker) => Some(waker),
            Event::Land(..) | Event::Pump(..) => None,
        }
    }

    /// Opens a connection and puts it into the backlog of `port`.
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

    /// Lets nobody connect to `port` any more, but accepts who waits.
    pub(crate) fn refuse_new(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports stay for ever");
        if port.accepts == Accepts::Open {
            port.accepts = Accepts::Refusing;
        }
    }

    /// The listener of `port` is gone: who waits is turned away.
    pub(crate) fn close_port(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports stay for ever");
        port.accepts = Accepts::Closed;
        let retrying = std::mem::take(&mut port.retrying);
        for id in std::mem::take(&mut port.backlog) {
            self.abort(id, End::Server);
        }
        retrying.into_iter().for_each(|id| self.refuse(id));
    }

    /// A connection never comes about.
    fn refuse(&mut self, id: u64) {
        self.figures.connections_refused += 1;
        self.record("turn away", [id, 0, 0]);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_refused = true;
        }
        self.abort(id, End::Server);
    }

    /// Bytes that the server's kernel keeps for connections which the server has closed.
    pub(crate) fn bytes_of_the_closed(&self) -> usize {
        self.connections.values().map(Connection::bytes_of_the_closed).sum()
    }

    /// How long the next piece travels.
    fn delay(&mut self) -> Duration {
        if self.random.chance(self.faults.delay_per_mille) {
            Duration::from_micros(self.random.below(self.faults.delay_ms_max * 1000 + 1))
        } else {
            Duration::ZERO
        }
    }

    /// Moves what `end` handed over into its pipe, as far as there is room.
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

    /// Sends one piece on its way, and stops the direction after it for up to `stall` ms.
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

    /// Lands what `end` sent.
    fn land(&mut self, id: u64, end: End) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(end);
        // A reset may erase what the client has not read yet. Drivers receive ahead, and give what
        // they have.
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
            // What arrived makes room in the sender's buffer.
            self.pump(id, end);
        }
    }

    /// Sends a reset from `end` to the other.
    fn fly_reset(&mut self, id: u64, end: End) {
        let at = self.now + self.delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let at = connection.pipe(end).fly_reset(at);
        self.schedule(at, Event::Land(id, end));
    }

    /// Breaks a connection in the middle: both ends will see a reset.
    fn tear(&mut self, id: u64) {
        self.fly_reset(id, End::Client);
        self.fly_reset(id, End::Server);
    }

    /// `end` resets the connection and holds it no longer.
    pub(crate) fn abort(&mut self, id: u64, end: End) {
        self.break_off(id, end);
        self.let_go(id, end);
    }

    /// `end` resets the connection; its own calls fail from here on.
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

    /// `end` closes the connection. As with a kernel, data that nobody read turns the orderly end
    /// into a reset, and without that what the kernel has taken is delivered, and then the end.
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

    /// Closes connections that nobody has any more.
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

    /// Who waits for what, for the message of a deadlock.
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
        if waiting.is_empty() { "nothing the network knows".into() } else { waiting.join(", ") }
    }
}
