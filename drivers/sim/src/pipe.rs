//! One direction of a connection.
//!
//! Bytes move in one order only: the sender's call puts them into `outgoing`, the sender's kernel takes
//! them into `held` as far as its send buffer has room, pieces of that go into `flying` as far as the
//! receiver's window is open, land in `arrived` when their time has come, and the receiver takes them
//! from there. `flying + arrived <= window` at all times.
//!
//! Without [`Sockets`] there is no send buffer: what is taken flies at once, byte by byte as there is
//! room.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::faults::{Faults, Sockets};
use crate::random::Random;
use crate::state::End;

/// One direction: from its sender's calls to its receiver's.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Room for what flies and what arrived.
    window: Valve,
    /// None: what is taken flies at once.
    buffer: Option<SendBuffer>,
    /// Bytes the sender handed over that its kernel had no room for.
    pub(crate) outgoing: VecDeque<u8>,
    /// Bytes ever handed over, and how many of them the kernel took: `taken <= queued`.
    pub(crate) queued: u64,
    pub(crate) taken: u64,
    /// Bytes that the sender's kernel has taken and that do not fly yet.
    held: VecDeque<u8>,
    flying: VecDeque<Segment>,
    flying_bytes: usize,
    /// The latest arrival so far. Nothing overtakes.
    last_arrival: Duration,
    pub(crate) arrived: VecDeque<u8>,
    /// Bytes came for nobody. None go after them: they would not be acknowledged.
    is_refused: bool,
    pub(crate) source: Source,
    pub(crate) target: Target,
    /// A send and the end may both wait.
    pub(crate) senders: Vec<Waker>,
    pub(crate) receiver: Option<Waker>,
}

/// A place of limited size that takes nothing after it was full until `lump` bytes of it are free.
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

    /// How much it takes while `filled` bytes are in it.
    fn room(&mut self, filled: usize) -> usize {
        let free = self.capacity.saturating_sub(filled);
        self.is_shut = free == 0 || (self.is_shut && free < self.lump);
        if self.is_shut { 0 } else { free }
    }
}

/// What bounds `held`.
#[derive(Debug)]
struct SendBuffer {
    /// Room for all that was not acknowledged: `held` and what flies.
    all: Valve,
    /// Room for `held` alone.
    unsent: Valve,
}

impl SendBuffer {
    /// `end` is who sends: drivers let the kernel take little ahead, clients do not care.
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

/// What the sender may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Open,
    /// It ends as soon as `outgoing` is empty.
    Ending,
    Ended,
    /// The connection broke, as far as the sender knows.
    Broken,
}

/// What the receiver may still expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Open,
    /// The sender's end arrived.
    Ended,
    Broken,
    /// Nobody receives any more.
    Closed,
}

#[derive(Debug)]
struct Segment {
    at: Duration,
    load: Load,
}

/// What travels.
#[derive(Debug)]
enum Load {
    Data(Vec<u8>),
    End,
    Reset,
}

/// What landed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) bytes: u64,
    pub(crate) reset: bool,
    /// Data came for a receiver that is gone.
    pub(crate) refused: bool,
}

impl Pipe {
    /// A direction in which `end` sends.
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

    /// Asserts what holds between any two calls.
    pub(crate) fn check(&self) {
        let filled = self.flying_bytes + self.arrived.len();
        assert!(filled <= self.window.capacity, "the pipe is bounded");
        assert!(self.taken <= self.queued, "only bytes that were handed over are taken");
        assert!(self.target != Target::Closed || self.arrived.is_empty(), "nobody would read them");
    }

    /// Bytes that the sender's kernel keeps because the receiver's did not acknowledge them.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.held.len() + self.flying_bytes
    }

    /// Does the sender's kernel keep bytes until they arrive?
    pub(crate) fn is_buffered(&self) -> bool {
        self.buffer.is_some()
    }

    /// Is there anything that did not leave the sender's side?
    pub(crate) fn is_unsent(&self) -> bool {
        !self.outgoing.is_empty() || !self.held.is_empty()
    }

    /// Lets the sender's kernel take what it has room for. Did it take anything?
    pub(crate) fn take_in(&mut self) -> bool {
        let Some(buffer) = &mut self.buffer else { return false };
        let room = buffer.all.room(self.held.len() + self.flying_bytes);
        let room = room.min(buffer.unsent.room(self.held.len()));
        let taken = take_front(&mut self.outgoing, room);
        self.taken += length(&taken);
        self.held.extend(&taken);
        !taken.is_empty()
    }

    /// Takes one piece of what is to fly, if the window is open. The second value: did the sender's
    /// kernel take anything from the sender by this?
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

    /// Sends a piece on its way. It arrives at `at`, or later if that would overtake another.
    pub(crate) fn fly(&mut self, piece: Vec<u8>, at: Duration) -> Duration {
        self.flying_bytes += piece.len();
        self.push(at, Load::Data(piece))
    }

    /// Ends the direction behind everything that flies.
    pub(crate) fn fly_end(&mut self, at: Duration) -> Duration {
        self.source = Source::Ended;
        self.push(at, Load::End)
    }

    /// Sends a reset behind everything that flies, and forgets what did not leave.
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

    /// Lets nothing arrive before `until`.
    pub(crate) fn stall(&mut self, until: Duration) {
        self.last_arrival = self.last_arrival.max(until);
    }

    /// Lands everything whose time has come. `erases`: a reset takes away what was not read yet.
    pub(crate) fn land(&mut self, now: Duration, erases: bool) -> Landed {
        let mut landed = Landed::default();
        while self.flying.front().is_some_and(|segment| segment.at <= now) {
            let segment = self.flying.pop_front().expect("there is a first one");
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

    /// Has `waker` woken when the pipe took something or the sender's state changed.
    pub(crate) fn wait_to_send(&mut self, waker: &Waker) {
        if !self.senders.iter().any(|other| other.will_wake(waker)) {
            self.senders.push(waker.clone());
        }
    }

    /// Stops receiving. Returns whether anything lay unread.
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

/// The first bytes of `queue`, at most `most`.
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
