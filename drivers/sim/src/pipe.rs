//! One direction of a connection.
//!
//! Bytes move in one direction through these stages: the sender's call puts them into `outgoing`;
//! the sender's kernel moves them to `held` as far as its send buffer has room; pieces of that move
//! to `flying` as far as the receiver's window is open; after their delay they land in `arrived`,
//! where the receiver takes them. Invariant: `flying + arrived <= window`.
//!
//! Without [`Sockets`], send buffers do not exist: accepted bytes fly at once, as far as
//! there is room.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::faults::{Faults, Sockets};
use crate::random::Random;
use crate::state::End;

/// One direction, from its sender's calls to its receiver's.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Limits `flying` and `arrived`.
    window: Valve,
    /// `None`: accepted bytes fly at once.
    buffer: Option<SendBuffer>,
    /// Bytes from the sender for which its kernel had no room.
    pub(crate) outgoing: VecDeque<u8>,
    /// The total number of bytes sent, and how many of them the kernel accepted: `taken <= queued`.
    pub(crate) queued: u64,
    pub(crate) taken: u64,
    /// Bytes that the sender's kernel has accepted and that do not fly yet.
    held: VecDeque<u8>,
    flying: VecDeque<Segment>,
    flying_bytes: usize,
    /// The latest arrival so far. Data never overtakes other data.
    last_arrival: Duration,
    pub(crate) arrived: VecDeque<u8>,
    /// Data arrived after the receiver was closed. No more is sent: it would not be acknowledged.
    is_refused: bool,
    pub(crate) source: Source,
    pub(crate) target: Target,
    /// A send and a shutdown may both wait.
    pub(crate) senders: Vec<Waker>,
    pub(crate) receiver: Option<Waker>,
}

/// A limit. Once full, it accepts nothing until `lump` bytes are free.
#[derive(Debug)]
struct Valve {
    capacity: usize,
    lump: usize,
    is_shut: bool,
}

impl Valve {
    fn new(capacity: usize, lump: usize) -> Self {
        let capacity = capacity.max(1);
        Self { capacity, lump: lump.clamp(1, capacity), is_shut: false }
    }

    /// The number of bytes it accepts while it contains `filled` bytes.
    fn room(&mut self, filled: usize) -> usize {
        let free = self.capacity.saturating_sub(filled);
        self.is_shut = free == 0 || (self.is_shut && free < self.lump);
        if self.is_shut { 0 } else { free }
    }
}

/// The limits of `held`.
#[derive(Debug)]
struct SendBuffer {
    /// Limits all unacknowledged bytes: `held` and `flying`.
    all: Valve,
    /// Limits `held` alone.
    unsent: Valve,
}

impl SendBuffer {
    /// `end` is the sender: drivers limit the bytes accepted ahead, clients do not.
    fn new(sockets: &Sockets, end: End) -> Self {
        let bytes_max = sockets.send_bytes_max;
        let unsent_bytes_max = match end {
            End::Server => sockets.unsent_bytes_max.min(bytes_max),
            End::Client => bytes_max,
        };
        Self {
            all: Valve::new(bytes_max, bytes_max.div_ceil(3)),
            unsent: Valve::new(unsent_bytes_max, unsent_bytes_max.div_ceil(2)),
        }
    }
}

/// The state of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Open,
    /// It ends once `outgoing` is empty.
    Ending,
    Ended,
    /// The connection is broken, as far as the sender knows.
    Broken,
}

/// The state of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Open,
    /// The sender's end has arrived.
    Ended,
    Broken,
    /// The receiver is gone.
    Closed,
}

#[derive(Debug)]
struct Segment {
    at: Duration,
    load: Load,
}

/// The content of a segment.
#[derive(Debug)]
enum Load {
    Data(Vec<u8>),
    End,
    Reset,
}

/// The result of landing segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) bytes: u64,
    pub(crate) reset: bool,
    /// Data arrived for a receiver that is gone.
    pub(crate) refused: bool,
}

impl Pipe {
    /// Creates a direction in which `end` sends.
    pub(crate) fn new(faults: &Faults, random: &mut Random, end: End) -> Self {
        let window = match &faults.sockets {
            Some(sockets) => Valve::new(sockets.receive_bytes_max, sockets.window_lump_bytes),
            None => Valve::new(capacity(faults, random), 1),
        };
        Self {
            window,
            buffer: faults.sockets.as_ref().map(|sockets| SendBuffer::new(sockets, end)),
            outgoing: VecDeque::new(),
            queued: 0,
            taken: 0,
            held: VecDeque::new(),
            flying: VecDeque::new(),
            flying_bytes: 0,
            last_arrival: Duration::ZERO,
            arrived: VecDeque::new(),
            is_refused: false,
            source: Source::Open,
            target: Target::Open,
            senders: Vec::new(),
            receiver: None,
        }
    }

    /// Checks the invariants.
    pub(crate) fn check(&self) {
        let filled = self.flying_bytes + self.arrived.len();
        assert!(filled <= self.window.capacity, "the pipe exceeds its limit");
        assert!(self.taken <= self.queued, "more bytes were taken than queued");
        assert!(self.target != Target::Closed || self.arrived.is_empty(), "nobody would read them");
    }

    /// The number of bytes that the sender's kernel keeps until they are acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.held.len() + self.flying_bytes
    }

    /// Returns whether the sender's kernel keeps bytes until they arrive.
    pub(crate) fn is_buffered(&self) -> bool {
        self.buffer.is_some()
    }

    /// Returns whether anything has not left the sender's side.
    pub(crate) fn is_unsent(&self) -> bool {
        !self.outgoing.is_empty() || !self.held.is_empty()
    }

    /// Moves bytes into the sender's kernel as far as it has room. Returns whether it accepted any.
    pub(crate) fn take_in(&mut self) -> bool {
        let Some(buffer) = &mut self.buffer else { return false };
        let room = buffer.all.room(self.held.len() + self.flying_bytes);
        let room = room.min(buffer.unsent.room(self.held.len()));
        let taken = take_front(&mut self.outgoing, room);
        self.taken += length(&taken);
        self.held.extend(&taken);
        !taken.is_empty()
    }

    /// Takes one piece to fly, if the window is open. The second value is whether the sender's
    /// kernel accepted more bytes from the sender as a result.
    pub(crate) fn take_piece(&mut self, cut: bool, random: &mut Random) -> Option<(Vec<u8>, bool)> {
        let from = if self.buffer.is_some() { &mut self.held } else { &mut self.outgoing };
        if from.is_empty() || self.is_refused {
            return None;
        }
        let room = self.window.room(self.flying_bytes + self.arrived.len());
        let most = room.min(from.len());
        if most == 0 {
            return None;
        }
        let size = if cut { 1 + random.index(most) } else { most };
        let piece = take_front(from, size);
        if self.buffer.is_none() {
            self.taken += length(&piece);
        }
        Some((piece, self.buffer.is_none()))
    }

    /// Sends a piece. It arrives at `at`, or later if it would overtake another one.
    pub(crate) fn fly(&mut self, piece: Vec<u8>, at: Duration) -> Duration {
        self.flying_bytes += piece.len();
        self.push(at, Load::Data(piece))
    }

    /// Sends the end behind all flying segments.
    pub(crate) fn fly_end(&mut self, at: Duration) -> Duration {
        self.source = Source::Ended;
        self.push(at, Load::End)
    }

    /// Sends a reset behind all flying segments, and discards data that has not left.
    pub(crate) fn fly_reset(&mut self, at: Duration) -> Duration {
        self.outgoing.clear();
        self.held.clear();
        self.push(at, Load::Reset)
    }

    fn push(&mut self, at: Duration, load: Load) -> Duration {
        let at = at.max(self.last_arrival);
        self.last_arrival = at;
        self.flying.push_back(Segment { at, load });
        at
    }

    /// Delays all arrivals until `until`.
    pub(crate) fn stall(&mut self, until: Duration) {
        self.last_arrival = self.last_arrival.max(until);
    }

    /// Lands all segments that are due. `erases`: a reset discards unread data.
    pub(crate) fn land(&mut self, now: Duration, erases: bool) -> Landed {
        let mut landed = Landed::default();
        while self.flying.front().is_some_and(|segment| segment.at <= now) {
            let segment = self.flying.pop_front().expect("`flying` was checked to be non-empty");
            match (segment.load, self.target) {
                (Load::Data(piece), target) => {
                    self.flying_bytes -= piece.len();
                    match target {
                        Target::Open => {
                            landed.bytes += u64::try_from(piece.len()).expect("it fits 64 bits");
                            self.arrived.extend(piece);
                        }
                        Target::Closed => {
                            landed.refused = true;
                            self.is_refused = true;
                        }
                        Target::Ended | Target::Broken => {}
                    }
                }
                (Load::End, Target::Open) => self.target = Target::Ended,
                (Load::End, _) => {}
                (Load::Reset, target) => {
                    landed.reset = true;
                    let erased = erases && !self.arrived.is_empty();
                    if erased {
                        self.arrived.clear();
                    }
                    if erased || target == Target::Open {
                        self.target = Target::Broken;
                    }
                }
            }
        }
        landed
    }

    /// Registers `waker` to be woken when the pipe accepts bytes or the sender's state changes.
    pub(crate) fn wait_to_send(&mut self, waker: &Waker) {
        if !self.senders.iter().any(|other| other.will_wake(waker)) {
            self.senders.push(waker.clone());
        }
    }

    /// Closes the receiver. Returns whether there was unread data.
    pub(crate) fn close_target(&mut self) -> bool {
        let unread = !self.arrived.is_empty();
        self.arrived.clear();
        self.target = Target::Closed;
        unread
    }

    /// The sender learns that the connection is broken.
    pub(crate) fn break_source(&mut self) {
        self.outgoing.clear();
        self.held.clear();
        if self.source != Source::Ended {
            self.source = Source::Broken;
        }
    }
}

fn capacity(faults: &Faults, random: &mut Random) -> usize {
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
