//! One direction of a connection.
//!
//! Bytes move in one direction through these stages: the sender's call puts them into `pending`;
//! the sender's kernel moves them to `send_buffer` as far as its send buffer has room; pieces of
//! that move to `in_flight` as far as the receiver's window is open; after their delay they land in
//! `receive_buffer`, where the receiver takes them. Invariant: `in_flight + receive_buffer <=
//! window`.
//!
//! Without [`SocketBuffers`], send buffers do not exist: accepted bytes are in flight at once, as
//! far as there is room.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::faults::{Faults, SocketBuffers};
use crate::random::Rng;
use crate::state::Side;

/// One direction, from its sender's calls to its receiver's.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Limits `in_flight` and `receive_buffer`.
    window: BoundedBuffer,
    /// `None`: accepted bytes are in flight at once.
    send_buffer_limits: Option<SendBufferLimits>,
    /// Bytes from the sender for which its kernel had no room.
    pub(crate) pending: VecDeque<u8>,
    /// The total number of bytes sent, and how many of them the kernel accepted: `taken <= queued`.
    pub(crate) queued: u64,
    pub(crate) bytes_written: u64,
    /// Bytes that the sender's kernel has accepted and that are not in flight yet.
    send_buffer: VecDeque<u8>,
    in_flight: VecDeque<Segment>,
    in_flight_bytes: usize,
    /// The latest arrival so far. Data never overtakes other data.
    last_arrival: Duration,
    pub(crate) receive_buffer: VecDeque<u8>,
    /// Data arrived after the receiver was closed. No more is sent: it would not be acknowledged.
    is_refused: bool,
    pub(crate) sender: SenderState,
    pub(crate) receiver: ReceiverState,
    /// A send and a shutdown may both wait.
    pub(crate) send_wakers: Vec<Waker>,
    pub(crate) recv_waker: Option<Waker>,
}

/// A limit. Once full, it accepts nothing until `lump` bytes are free.
#[derive(Debug)]
struct BoundedBuffer {
    capacity: usize,
    reopen_bytes: usize,
    is_closed: bool,
}

impl BoundedBuffer {
    fn new(capacity: usize, lump: usize) -> Self {
        let capacity = capacity.max(1);
        Self { capacity, reopen_bytes: lump.clamp(1, capacity), is_closed: false }
    }

    /// The number of bytes it accepts while it contains `filled` bytes.
    fn available(&mut self, filled: usize) -> usize {
        let free = self.capacity.saturating_sub(filled);
        self.is_closed = free == 0 || (self.is_closed && free < self.reopen_bytes);
        if self.is_closed { 0 } else { free }
    }
}

/// The limits of `send_buffer`.
#[derive(Debug)]
struct SendBufferLimits {
    /// Limits all unacknowledged bytes: `send_buffer` and `in_flight`.
    total: BoundedBuffer,
    /// Limits `send_buffer` alone.
    unsent: BoundedBuffer,
}

impl SendBufferLimits {
    /// `end` is the sender: drivers limit the bytes accepted ahead, clients do not.
    fn new(sockets: &SocketBuffers, end: Side) -> Self {
        let bytes_max = sockets.send_bytes_max;
        let notsent_lowat_bytes = match end {
            Side::Server => sockets.notsent_lowat_bytes.min(bytes_max),
            Side::Client => bytes_max,
        };
        Self {
            total: BoundedBuffer::new(bytes_max, bytes_max.div_ceil(3)),
            unsent: BoundedBuffer::new(notsent_lowat_bytes, notsent_lowat_bytes.div_ceil(2)),
        }
    }
}

/// The state of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SenderState {
    Open,
    /// It ends once `pending` is empty.
    FinQueued,
    FinSent,
    /// The connection is broken, as far as the sender knows.
    Reset,
}

/// The state of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverState {
    Open,
    /// The sender's end has arrived.
    FinReceived,
    Reset,
    /// The receiver is gone.
    Closed,
}

#[derive(Debug)]
struct Segment {
    at: Duration,
    payload: Payload,
}

/// The content of a segment.
#[derive(Debug)]
enum Payload {
    Data(Vec<u8>),
    Fin,
    Rst,
}

/// The result of landing segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) bytes: u64,
    pub(crate) reset: bool,
    /// Data arrived for a receiver that is gone.
    pub(crate) unwanted: bool,
}

impl Pipe {
    /// Creates a direction in which `end` sends.
    pub(crate) fn new(faults: &Faults, random: &mut Rng, end: Side) -> Self {
        let window = match &faults.socket_buffers {
            Some(sockets) => {
                BoundedBuffer::new(sockets.receive_bytes_max, sockets.window_update_bytes)
            }
            None => BoundedBuffer::new(capacity(faults, random), 1),
        };
        Self {
            window,
            send_buffer_limits: faults
                .socket_buffers
                .as_ref()
                .map(|sockets| SendBufferLimits::new(sockets, end)),
            pending: VecDeque::new(),
            queued: 0,
            bytes_written: 0,
            send_buffer: VecDeque::new(),
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            last_arrival: Duration::ZERO,
            receive_buffer: VecDeque::new(),
            is_refused: false,
            sender: SenderState::Open,
            receiver: ReceiverState::Open,
            send_wakers: Vec::new(),
            recv_waker: None,
        }
    }

    /// Checks the invariants.
    pub(crate) fn check(&self) {
        let filled = self.in_flight_bytes + self.receive_buffer.len();
        assert!(filled <= self.window.capacity, "the pipe exceeds its limit");
        assert!(self.bytes_written <= self.queued, "more bytes were taken than queued");
        assert!(
            self.receiver != ReceiverState::Closed || self.receive_buffer.is_empty(),
            "nobody would read them"
        );
    }

    /// The number of bytes that the sender's kernel keeps until they are acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.send_buffer.len() + self.in_flight_bytes
    }

    /// Returns whether the sender's kernel keeps bytes until they arrive.
    pub(crate) fn is_buffered(&self) -> bool {
        self.send_buffer_limits.is_some()
    }

    /// Returns whether anything has not left the sender's side.
    pub(crate) fn is_unsent(&self) -> bool {
        !self.pending.is_empty() || !self.send_buffer.is_empty()
    }

    /// Moves bytes into the sender's kernel as far as it has room. Returns whether it accepted any.
    pub(crate) fn fill_send_buffer(&mut self) -> bool {
        let Some(buffer) = &mut self.send_buffer_limits else { return false };
        let room = buffer.total.available(self.send_buffer.len() + self.in_flight_bytes);
        let room = room.min(buffer.unsent.available(self.send_buffer.len()));
        let taken = take_front(&mut self.pending, room);
        self.bytes_written += length(&taken);
        self.send_buffer.extend(&taken);
        !taken.is_empty()
    }

    /// Takes one piece to put in flight, if the window is open. The second value is whether the
    /// sender's kernel accepted more bytes from the sender as a result.
    pub(crate) fn next_segment(&mut self, cut: bool, random: &mut Rng) -> Option<(Vec<u8>, bool)> {
        let from = if self.send_buffer_limits.is_some() {
            &mut self.send_buffer
        } else {
            &mut self.pending
        };
        if from.is_empty() || self.is_refused {
            return None;
        }
        let room = self.window.available(self.in_flight_bytes + self.receive_buffer.len());
        let most = room.min(from.len());
        if most == 0 {
            return None;
        }
        let size = if cut { 1 + random.index(most) } else { most };
        let piece = take_front(from, size);
        if self.send_buffer_limits.is_none() {
            self.bytes_written += length(&piece);
        }
        Some((piece, self.send_buffer_limits.is_none()))
    }

    /// Sends a piece. It arrives at `at`, or later if it would overtake another one.
    pub(crate) fn transmit(&mut self, piece: Vec<u8>, at: Duration) -> Duration {
        self.in_flight_bytes += piece.len();
        self.push(at, Payload::Data(piece))
    }

    /// Sends the end behind all flying segments.
    pub(crate) fn transmit_fin(&mut self, at: Duration) -> Duration {
        self.sender = SenderState::FinSent;
        self.push(at, Payload::Fin)
    }

    /// Sends a reset behind all flying segments, and discards data that has not left.
    pub(crate) fn transmit_rst(&mut self, at: Duration) -> Duration {
        self.pending.clear();
        self.send_buffer.clear();
        self.push(at, Payload::Rst)
    }

    fn push(&mut self, at: Duration, load: Payload) -> Duration {
        let at = at.max(self.last_arrival);
        self.last_arrival = at;
        self.in_flight.push_back(Segment { at, payload: load });
        at
    }

    /// Delays all arrivals until `until`.
    pub(crate) fn stall(&mut self, until: Duration) {
        self.last_arrival = self.last_arrival.max(until);
    }

    /// Lands all segments that are due. `erases`: a reset discards unread data.
    pub(crate) fn deliver(&mut self, now: Duration, erases: bool) -> Delivery {
        let mut landed = Delivery::default();
        while self.in_flight.front().is_some_and(|segment| segment.at <= now) {
            let segment =
                self.in_flight.pop_front().expect("`in_flight` was checked to be non-empty");
            match (segment.payload, self.receiver) {
                (Payload::Data(piece), target) => {
                    self.in_flight_bytes -= piece.len();
                    match target {
                        ReceiverState::Open => {
                            landed.bytes += u64::try_from(piece.len()).expect("it fits 64 bits");
                            self.receive_buffer.extend(piece);
                        }
                        ReceiverState::Closed => {
                            landed.unwanted = true;
                            self.is_refused = true;
                        }
                        ReceiverState::FinReceived | ReceiverState::Reset => {}
                    }
                }
                (Payload::Fin, ReceiverState::Open) => self.receiver = ReceiverState::FinReceived,
                (Payload::Fin, _) => {}
                (Payload::Rst, target) => {
                    landed.reset = true;
                    let erased = erases && !self.receive_buffer.is_empty();
                    if erased {
                        self.receive_buffer.clear();
                    }
                    if erased || target == ReceiverState::Open {
                        self.receiver = ReceiverState::Reset;
                    }
                }
            }
        }
        landed
    }

    /// Registers `waker` to be woken when the pipe accepts bytes or the sender's state changes.
    pub(crate) fn register_sender(&mut self, waker: &Waker) {
        if !self.send_wakers.iter().any(|other| other.will_wake(waker)) {
            self.send_wakers.push(waker.clone());
        }
    }

    /// Closes the receiver. Returns whether there was unread data.
    pub(crate) fn close_receiver(&mut self) -> bool {
        let unread = !self.receive_buffer.is_empty();
        self.receive_buffer.clear();
        self.receiver = ReceiverState::Closed;
        unread
    }

    /// The sender learns that the connection is broken.
    pub(crate) fn reset_sender(&mut self) {
        self.pending.clear();
        self.send_buffer.clear();
        if self.sender != SenderState::FinSent {
            self.sender = SenderState::Reset;
        }
    }
}

fn capacity(faults: &Faults, random: &mut Rng) -> usize {
    let most = faults.pipe_bytes_max.max(1);
    if !faults.pipe_varies {
        most
    } else if random.chance(250) {
        1 + random.index(most.min(16))
    } else {
        1 + random.index(most)
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length has at most 64 bits")
}

/// Takes the first bytes of `queue`, at most `most`.
pub(crate) fn take_front(queue: &mut VecDeque<u8>, most: usize) -> Vec<u8> {
    let count = most.min(queue.len());
    let mut taken = Vec::with_capacity(count);
    let (first, second) = queue.as_slices();
    let from_first = count.min(first.len());
    taken.extend_from_slice(&first[..from_first]);
    taken.extend_from_slice(&second[..count - from_first]);
    queue.drain(..count);
    taken
}
