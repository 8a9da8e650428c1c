//! The complete state of the network: ports, connections, and pending events.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crate::faults::Faults;
use crate::pipe::{Pipe, ReceiverState, SenderState};
use crate::random::Rng;
use crate::trace::{RunFailure, Trace};

/// The network's state. Wakers are collected and woken by [`crate::Network`] after the state is no
/// longer borrowed, because a waker may run arbitrary code.
pub(crate) struct NetworkState {
    pub(crate) seed: u64,
    pub(crate) random: Rng,
    pub(crate) faults: Faults,
    pub(crate) trace: Trace,
    pub(crate) now: Duration,
    /// When the current iteration began. The iteration polls as many tasks as were ready then.
    pub(crate) polled_at: Duration,
    /// The virtual time at which an unfinished run fails.
    pub(crate) time_max: Duration,
    /// The number of polls after which an unfinished run fails.
    pub(crate) polls_max: u64,
    /// Whether a stuck run unwinds without printing a message, because the caller reports failures.
    pub(crate) suppress_panic_message: bool,
    /// Why the run got stuck.
    pub(crate) failure: Option<RunFailure>,
    pub(crate) ports: BTreeMap<u64, PortState>,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) receive_buffers: ReceiveBuffers,
    pub(crate) stats: SimStats,
    /// The driver's tasks to drop, by their number in the order of spawning.
    pub(crate) scheduled_drops: BTreeMap<u64, PollsUntilDrop>,
    pub(crate) pending_wakes: Vec<Waker>,
    /// Connections that were dropped while being passed between workers.
    pub(crate) dropped_handoffs: Arc<Mutex<Vec<u64>>>,
    event_queue: BTreeMap<(Duration, u64), ScheduledEvent>,
    last_id: u64,
}

/// A bound port.
#[derive(Default)]
pub(crate) struct PortState {
    pub(crate) mode: PortMode,
    /// Connections that were not accepted yet.
    pub(crate) backlog: VecDeque<u64>,
    /// Connection attempts that the kernel ignores, and that clients retry.
    pub(crate) retrying: Vec<u64>,
    pub(crate) acceptor: Option<Waker>,
}

/// Whether clients can connect to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PortMode {
    #[default]
    Open,
    /// New connections are refused; those in the backlog can still be accepted.
    Refusing,
    /// The listener is gone.
    Closed,
}

/// A connection: two ends and two directions.
pub(crate) struct Connection {
    /// Indexed by the end that sends.
    pipes: [Pipe; 2],
    /// Indexed by end: whether its handle still exists.
    is_open: [bool; 2],
    /// Whether the connection attempt was refused.
    is_refused: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    pub(crate) fn peer(self) -> Self {
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
    /// The direction in which `side` sends.
    pub(crate) fn pipe(&mut self, side: Side) -> &mut Pipe {
        &mut self.pipes[side.index()]
    }

    pub(crate) fn pipe_ref(&self, side: Side) -> &Pipe {
        &self.pipes[side.index()]
    }

    /// The error of calls on a broken connection.
    pub(crate) fn error_kind(&self) -> io::ErrorKind {
        if self.is_refused {
            io::ErrorKind::ConnectionRefused
        } else {
            io::ErrorKind::ConnectionReset
        }
    }

    /// The number of bytes that the server's kernel still holds after the server has closed the
    /// connection.
    fn orphaned_bytes(&self) -> usize {
        if self.is_open[Side::Server.index()] {
            0
        } else {
            self.pipe_ref(Side::Server).unacknowledged()
        }
    }
}

/// The receive buffers that the server may hold at a time.
#[derive(Default)]
pub(crate) struct ReceiveBuffers {
    pub(crate) chunks_max: u32,
    pub(crate) chunk_bytes_max: usize,
    pub(crate) in_use: u32,
    pub(crate) waiters: Vec<Waker>,
}

/// Counters since the network was created.
#[derive(Default)]
pub(crate) struct SimStats {
    pub(crate) idle_polls: u64,
    pub(crate) polls: u64,
    pub(crate) accepted: u64,
    pub(crate) buffers_exhausted: u64,
    pub(crate) panics: u64,
    pub(crate) tasks: u64,
    pub(crate) connections_refused: u64,
}

/// The number of polls after which a task is dropped.
pub(crate) type PollsUntilDrop = u64;

/// The kinds of scheduled events.
enum ScheduledEvent {
    Wake(Waker),
    /// A segment sent by this end arrives.
    Deliver(u64, Side),
    /// This end's pipe may accept more.
    Flush(u64, Side),
}

/// How often a port that refuses connections does not respond to an attempt at all.
const SYN_DROPPED_PER_MILLE: u32 = 500;

impl NetworkState {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            random: Rng::new(seed),
            faults,
            trace: Trace::default(),
            now: Duration::ZERO,
            polled_at: Duration::ZERO,
            time_max: Duration::MAX,
            polls_max: u64::MAX,
            suppress_panic_message: false,
            failure: None,
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            receive_buffers: ReceiveBuffers::default(),
            stats: SimStats::default(),
            scheduled_drops: BTreeMap::new(),
            pending_wakes: Vec::new(),
            dropped_handoffs: Arc::default(),
            event_queue: BTreeMap::new(),
            last_id: 0,
        }
    }

    /// A new, unique id.
    pub(crate) fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    pub(crate) fn record(&mut self, event: &'static str, args: [u64; 3]) {
        self.trace.record(self.now, event, args);
    }

    /// The time of the next event.
    pub(crate) fn next_event(&self) -> Option<Duration> {
        self.event_queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Advances the time to `now` and handles all events that are due.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while self.next_event().is_some_and(|at| at <= self.now) {
            match self
                .event_queue
                .pop_first()
                .expect("the event queue was checked to be non-empty")
                .1
            {
                ScheduledEvent::Wake(waker) => self.pending_wakes.push(waker),
                ScheduledEvent::Deliver(id, side) => self.deliver(id, side),
                ScheduledEvent::Flush(id, side) => self.flush(id, side),
            }
        }
    }

    fn schedule(&mut self, at: Duration, event: ScheduledEvent) -> (Duration, u64) {
        let key = (at, self.next_id());
        self.event_queue.insert(key, event);
        key
    }

    /// Wakes `waker` at `at`. The key is for [`NetworkState::cancel`].
    pub(crate) fn wake_at(&mut self, at: Duration, waker: Waker) -> (Duration, u64) {
        self.schedule(at, ScheduledEvent::Wake(waker))
    }

    /// Removes a scheduled wake-up, so that time does not advance because of it. The caller
    /// drops the waker after releasing the state.
    pub(crate) fn cancel(&mut self, key: (Duration, u64)) -> Option<Waker> {
        match self.event_queue.remove(&key)? {
            ScheduledEvent::Wake(waker) => Some(waker),
            ScheduledEvent::Deliver(..) | ScheduledEvent::Flush(..) => None,
        }
    }

    /// Opens a connection and adds it to the backlog of `port`.
    pub(crate) fn connect(&mut self, port: u64) -> u64 {
        let id = self.next_id();
        let faults = self.faults.clone();
        let mut pipe = |side| Pipe::new(&faults, &mut self.random, side);
        let pipes = [pipe(Side::Client), pipe(Side::Server)];
        let connection = Connection { pipes, is_open: [true, true], is_refused: false };
        self.connections.insert(id, connection);
        self.record("connect", [port, id, 0]);
        let is_ignored = self.random.chance(SYN_DROPPED_PER_MILLE);
        let refused_by_fault = self.random.chance(faults.refuse_per_mille);
        match self.ports.get_mut(&port) {
            _ if refused_by_fault => self.refuse(id),
            Some(port) if port.mode == PortMode::Open => {
                port.backlog.push_back(id);
                self.pending_wakes.extend(port.acceptor.take());
            }
            Some(port) if port.mode == PortMode::Refusing && is_ignored => port.retrying.push(id),
            _ => self.refuse(id),
        }
        id
    }

    /// Refuses new connections to `port`; those in the backlog can still be accepted.
    pub(crate) fn refuse_new_connections(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports are never removed");
        if port.mode == PortMode::Open {
            port.mode = PortMode::Refusing;
        }
    }

    /// Called when the listener of `port` is gone. Refuses all waiting connections.
    pub(crate) fn close_port(&mut self, port: u64) {
        let port = self.ports.get_mut(&port).expect("ports are never removed");
        port.mode = PortMode::Closed;
        let retrying = std::mem::take(&mut port.retrying);
        for id in std::mem::take(&mut port.backlog) {
            self.abort(id, Side::Server);
        }
        retrying.into_iter().for_each(|id| self.refuse(id));
    }

    /// Refuses a connection.
    fn refuse(&mut self, id: u64) {
        self.stats.connections_refused += 1;
        self.record("turn away", [id, 0, 0]);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_refused = true;
        }
        self.abort(id, Side::Server);
    }

    /// The number of bytes that the server's kernel still holds for connections that the server has
    /// closed.
    pub(crate) fn orphaned_bytes(&self) -> usize {
        self.connections.values().map(Connection::orphaned_bytes).sum()
    }

    /// A random delay for the next segment, usually zero.
    fn random_delay(&mut self) -> Duration {
        if self.random.chance(self.faults.delay_per_mille) {
            Duration::from_micros(self.random.below(self.faults.delay_ms_max * 1000 + 1))
        } else {
            Duration::ZERO
        }
    }

    /// Moves data queued by `side` into its pipe, as far as there is room.
    pub(crate) fn flush(&mut self, id: u64, side: Side) {
        loop {
            let faults = &self.faults;
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let pipe = connection.pipe(side);
            if pipe.fill_send_buffer() {
                self.pending_wakes.append(&mut pipe.send_wakers);
            }
            if !pipe.is_unsent() {
                break;
            }
            let cut = self.random.chance(faults.split_per_mille);
            let Some((data, accepted)) = pipe.next_segment(cut, &mut self.random) else { break };
            if accepted {
                self.pending_wakes.append(&mut pipe.send_wakers);
            }
            let bytes = u64::try_from(data.len()).expect("a length has at most 64 bits");
            if self.random.chance(faults.reset_per_mille) {
                self.record("lose", [id, bytes, 0]);
                self.reset_both(id);
                return;
            }
            let stall = self.random.chance(faults.stall_per_mille).then_some(faults.stall_ms_max);
            let short = self.random.chance(faults.short_send_per_mille);
            self.transmit(id, side, data, stall);
            if short {
                let pause_end = self.now + self.random_delay();
                self.schedule(pause_end, ScheduledEvent::Flush(id, side));
                return;
            }
        }
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(side);
        if pipe.sender == SenderState::FinQueued && !pipe.is_unsent() {
            let at = pipe.transmit_fin(now);
            self.pending_wakes.append(&mut pipe.send_wakers);
            self.schedule(at, ScheduledEvent::Deliver(id, side));
        }
    }

    /// Sends one segment, and stalls the direction after it for up to `stall` ms.
    fn transmit(&mut self, id: u64, side: Side, data: Vec<u8>, stall: Option<u64>) {
        let bytes = u64::try_from(data.len()).expect("a length has at most 64 bits");
        let at = self.now + self.random_delay();
        let stall =
            stall.map(|stall_ms_max| Duration::from_millis(self.random.below(stall_ms_max + 1)));
        let connection =
            self.connections.get_mut(&id).expect("the caller has just found this connection");
        let pipe = connection.pipe(side);
        let at = pipe.transmit(data, at);
        if let Some(stall) = stall {
            pipe.stall(at + stall);
        }
        pipe.check();
        self.record("fly", [id, bytes, u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)]);
        self.schedule(at, ScheduledEvent::Deliver(id, side));
    }

    /// Delivers the segments sent by `side` that are due.
    fn deliver(&mut self, id: u64, side: Side) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let pipe = connection.pipe(side);
        // A reset from the server discards data that the client has not read yet. Drivers receive
        // ahead, and still return the data that they have.
        let delivery = pipe.deliver(now, side == Side::Server);
        let has_send_buffer = pipe.has_send_buffer();
        pipe.check();
        self.pending_wakes.extend(pipe.recv_waker.take());
        let reverse = connection.pipe(side.peer());
        if delivery.reset {
            reverse.reset_sender();
            self.pending_wakes.append(&mut reverse.send_wakers);
        }
        self.record("land", [id, delivery.bytes, u64::from(delivery.reset)]);
        if delivery.unwanted {
            self.transmit_rst(id, side.peer());
        }
        if has_send_buffer {
            // The arrived bytes have left the sender's buffer, so there may be room for more.
            self.flush(id, side);
        }
    }

    /// Sends a reset from `side` to the other end.
    fn transmit_rst(&mut self, id: u64, side: Side) {
        let at = self.now + self.random_delay();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let at = connection.pipe(side).transmit_rst(at);
        self.schedule(at, ScheduledEvent::Deliver(id, side));
    }

    /// Breaks a connection in transit: both ends will see a reset.
    fn reset_both(&mut self, id: u64) {
        self.transmit_rst(id, Side::Client);
        self.transmit_rst(id, Side::Server);
    }

    /// `side` resets the connection and drops its handle.
    pub(crate) fn abort(&mut self, id: u64, side: Side) {
        self.reset(id, side);
        self.release(id, side);
    }

    /// `side` resets the connection. Its own calls fail from then on.
    pub(crate) fn reset(&mut self, id: u64, side: Side) {
        self.record("reset", [id, side.index() as u64, 0]);
        self.transmit_rst(id, side);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let input = connection.pipe(side.peer());
        input.receive_buffer.clear();
        if input.receiver == ReceiverState::Open {
            input.receiver = ReceiverState::Reset;
        }
        self.pending_wakes.extend(input.recv_waker.take());
        let output = connection.pipe(side);
        output.reset_sender();
        self.pending_wakes.append(&mut output.send_wakers);
    }

    /// `side` closes the connection. As in a kernel, this becomes a reset if there is unread data.
    /// Otherwise the data accepted by the kernel is still delivered, and then the end of the
    /// stream.
    pub(crate) fn close(&mut self, id: u64, side: Side) {
        self.record("close", [id, side.index() as u64, 0]);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let unread = connection.pipe(side.peer()).close_receiver();
        let output = connection.pipe(side);
        output.pending.clear();
        if unread {
            self.transmit_rst(id, side);
        } else if matches!(output.sender, SenderState::Open | SenderState::FinQueued) {
            output.sender = SenderState::FinQueued;
            self.flush(id, side);
        }
        self.release(id, side);
    }

    /// Closes connections that were dropped while being passed between workers.
    pub(crate) fn close_dropped_handoffs(&mut self) {
        let dropped = std::mem::take(
            &mut *self.dropped_handoffs.lock().unwrap_or_else(PoisonError::into_inner),
        );
        dropped.into_iter().for_each(|id| self.close(id, Side::Server));
    }

    /// Drops the handle of `side`, and the connection if the other end has been dropped too.
    fn release(&mut self, id: u64, side: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_open[side.index()] = false;
            if connection.is_open == [false, false] {
                self.connections.remove(&id);
            }
        }
    }

    /// Which tasks wait for which events, for the report of a deadlock.
    pub(crate) fn describe_waiters(&self) -> String {
        let mut waiting = Vec::new();
        for (id, port) in &self.ports {
            if port.acceptor.is_some() {
                waiting.push(format!("port {id}: accept"));
            }
        }
        for (id, connection) in &self.connections {
            for (side, name) in [(Side::Client, "client"), (Side::Server, "server")] {
                if connection.pipe_ref(side.peer()).recv_waker.is_some() {
                    waiting.push(format!("connection {id}: {name} receives"));
                }
                if !connection.pipe_ref(side).send_wakers.is_empty() {
                    waiting.push(format!("connection {id}: {name} sends"));
                }
            }
        }
        if !self.receive_buffers.waiters.is_empty() {
            waiting.push(format!("{} for a receive buffer", self.receive_buffers.waiters.len()));
        }
        if waiting.is_empty() { "events outside of the network".into() } else { waiting.join(", ") }
    }
}
