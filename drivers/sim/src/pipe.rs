//! One direction of a connection.
//!
//! Bytes move in one direction through these stages: the sender's call puts them into `pending`;
//! the sender's kernel moves them to `send_buffer` as far as its send buffer has room; from there
//! they move in segments to `in_flight`, as far as the receiver's window is open; after a delay
//! they arrive in `receive_buffer`, from which the receiver reads them. Invariant: `in_flight +
//! receive_buffer <= window`.
//!
//! Without [`SocketBuffers`], send buffers do not exist: bytes move directly from `pending` to
//! `in_flight`, as far as there is room.

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
    /// If `None`, there is no send buffer, and accepted bytes are immediately in flight.
    send_buffer_limits: Option<SendBufferLimits>,
    /// Bytes from the sender for which its kernel had no room.
    pub(crate) pending: VecDeque<u8>,
    /// The number of bytes that the sender has passed to the pipe so far.
    pub(crate) queued: u64,
    /// The number of these bytes that the kernel has accepted: `bytes_written <= queued`.
    pub(crate) bytes_written: u64,
    /// Bytes that the sender's kernel has accepted and that are not in flight yet.
    send_buffer: VecDeque<u8>,
    in_flight: VecDeque<Segment>,
    in_flight_bytes: usize,
    /// The latest arrival so far. Data never overtakes other data.
    last_arrival: Duration,
    pub(crate) receive_buffer: VecDeque<u8>,
    /// Whether data has arrived after the receiver was closed. No more data is then sent, because
    /// it would not be acknowledged.
    is_refused: bool,
    pub(crate) sender: SenderState,
    pub(crate) receiver: ReceiverState,
    /// More than one, because a send and a shutdown may wait at the same time.
    pub(crate) send_wakers: Vec<Waker>,
    pub(crate) recv_waker: Option<Waker>,
}

/// The limit of a buffer. Once full, the buffer accepts nothing until `reopen_bytes` bytes are
/// free.
#[derive(Debug)]
struct BoundedBuffer {
    capacity: usize,
    reopen_bytes: usize,
    is_closed: bool,
}

impl BoundedBuffer {
    fn new(capacity: usize, reopen_bytes: usize) -> Self {
        let capacity = capacity.max(1);
        Self { capacity, reopen_bytes: reopen_bytes.clamp(1, capacity), is_closed: false }
    }

    /// The number of bytes that the buffer accepts while it contains `filled` bytes.
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
    /// The limits for data sent by `side`. Drivers limit the unsent bytes; clients do not.
    fn new(sockets: &SocketBuffers, side: Side) -> Self {
        let bytes_max = sockets.send_bytes_max;
        let notsent_lowat_bytes = match side {
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
    /// The end of the stream is sent once `pending` is empty.
    FinQueued,
    FinSent,
    /// The connection is broken, as far as the sender knows.
    Reset,
}

/// The state of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiverState {
    Open,
    /// The end of the stream has arrived.
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

/// The result of delivering segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) bytes: u64,
    pub(crate) reset: bool,
    /// Whether data arrived for a receiver that is gone.
    pub(crate) unwanted: bool,
}

impl Pipe {
    /// Creates a direction in which `side` sends.
    pub(crate) fn new(faults: &Faults, random: &mut Rng, side: Side) -> Self {
        let window = match &faults.socket_buffers {
            Some(sockets) => {
                BoundedBuffer::new(sockets.receive_bytes_max, sockets.window_update_bytes)
            }
            None => BoundedBuffer::new(choose_capacity(faults, random), 1),
        };
        Self {
            window,
            send_buffer_limits: faults
                .socket_buffers
                .as_ref()
                .map(|sockets| SendBufferLimits::new(sockets, side)),
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
        assert!(
            self.bytes_written <= self.queued,
            "the kernel accepted more bytes than were queued"
        );
        assert!(
            self.receiver != ReceiverState::Closed || self.receive_buffer.is_empty(),
            "a closed receiver has no unread bytes"
        );
    }

    /// The number of bytes that the sender's kernel holds until they are acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.send_buffer.len() + self.in_flight_bytes
    }

    /// Returns whether the sender's kernel has a send buffer.
    pub(crate) fn has_send_buffer(&self) -> bool {
        self.send_buffer_limits.is_some()
    }

    /// Returns whether any data has not left the sender's kernel yet.
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

    /// Removes the data of the next segment, if the window is open. If `cut` is set, its size is
    /// random. The second value is whether the sender's kernel has thereby accepted more bytes.
    pub(crate) fn next_segment(&mut self, cut: bool, random: &mut Rng) -> Option<(Vec<u8>, bool)> {
        let source = if self.send_buffer_limits.is_some() {
            &mut self.send_buffer
        } else {
            &mut self.pending
        };
        if source.is_empty() || self.is_refused {
            return None;
        }
        let room = self.window.available(self.in_flight_bytes + self.receive_buffer.len());
        let bytes_max = room.min(source.len());
        if bytes_max == 0 {
            return None;
        }
        let size = if cut { 1 + random.index(bytes_max) } else { bytes_max };
        let data = take_front(source, size);
        if self.send_buffer_limits.is_none() {
            self.bytes_written += length(&data);
        }
        Some((data, self.send_buffer_limits.is_none()))
    }

    /// Sends a segment. It arrives at `at`, or later if it would overtake another one. Returns the
    /// time of its arrival.
    pub(crate) fn transmit(&mut self, data: Vec<u8>, at: Duration) -> Duration {
        self.in_flight_bytes += data.len();
        self.push(at, Payload::Data(data))
    }

    /// Sends the end of the stream behind all segments in flight.
    pub(crate) fn transmit_fin(&mut self, at: Duration) -> Duration {
        self.sender = SenderState::FinSent;
        self.push(at, Payload::Fin)
    }

    /// Sends a reset behind all segments in flight, and discards data that has not left.
    pub(crate) fn transmit_rst(&mut self, at: Duration) -> Duration {
        self.pending.clear();
        self.send_buffer.clear();
        self.push(at, Payload::Rst)
    }

    fn push(&mut self, at: Duration, payload: Payload) -> Duration {
        let at = at.max(self.last_arrival);
        self.last_arrival = at;
        self.in_flight.push_back(Segment { at, payload });
        at
    }

    /// Delays all arrivals until `until`.
    pub(crate) fn stall(&mut self, until: Duration) {
        self.last_arrival = self.last_arrival.max(until);
    }

    /// Delivers all segments that are due. With `discards_unread`, a reset discards unread data.
    pub(crate) fn deliver(&mut self, now: Duration, discards_unread: bool) -> Delivery {
        let mut delivery = Delivery::default();
        while self.in_flight.front().is_some_and(|segment| segment.at <= now) {
            let segment =
                self.in_flight.pop_front().expect("`in_flight` was checked to be non-empty");
            match (segment.payload, self.receiver) {
                (Payload::Data(data), target) => {
                    self.in_flight_bytes -= data.len();
                    match target {
                        ReceiverState::Open => {
                            delivery.bytes += length(&data);
                            self.receive_buffer.extend(data);
                        }
                        ReceiverState::Closed => {
                            delivery.unwanted = true;
                            self.is_refused = true;
                        }
                        ReceiverState::FinReceived | ReceiverState::Reset => {}
                    }
                }
                (Payload::Fin, ReceiverState::Open) => self.receiver = ReceiverState::FinReceived,
                (Payload::Fin, _) => {}
                (Payload::Rst, target) => {
                    delivery.reset = true;
                    let discarded = discards_unread && !self.receive_buffer.is_empty();
                    if discarded {
                        self.receive_buffer.clear();
                    }
                    if discarded || target == ReceiverState::Open {
                        self.receiver = ReceiverState::Reset;
                    }
                }
            }
        }
        delivery
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

    /// Puts the sender into the state of a broken connection, and discards its unsent data.
    pub(crate) fn reset_sender(&mut self) {
        self.pending.clear();
        self.send_buffer.clear();
        if self.sender != SenderState::FinSent {
            self.sender = SenderState::Reset;
        }
    }
}

fn choose_capacity(faults: &Faults, random: &mut Rng) -> usize {
    let bytes_max = faults.pipe_bytes_max.max(1);
    if !faults.pipe_varies {
        bytes_max
    } else if random.chance(TINY_PIPES_PER_MILLE) {
        1 + random.index(bytes_max.min(16))
    } else {
        1 + random.index(bytes_max)
    }
}

/// How often the random capacity of a pipe is at most 16 bytes, to find errors of tiny transfers.
const TINY_PIPES_PER_MILLE: u32 = 250;

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length has at most 64 bits")
}

/// Takes the first bytes of `queue`, at most `bytes_max`.
pub(crate) fn take_front(queue: &mut VecDeque<u8>, bytes_max: usize) -> Vec<u8> {
    let count = bytes_max.min(queue.len());
    let mut taken = Vec::with_capacity(count);
    let (first, second) = queue.as_slices();
    let first_count = count.min(first.len());
    taken.extend_from_slice(&first[..first_count]);
    taken.extend_from_slice(&second[..count - first_count]);
    queue.drain(..count);
    taken
}
