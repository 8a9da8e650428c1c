//! One direction of a connection.
//!
//! Bytes move in one order only: the sender's call puts them into `outgoing`, the pipe takes pieces
//! of that into `flying` as far as it has room, pieces land in `arrived` when their time has come,
//! and the receiver takes them from there. `flying + arrived <= capacity` at all times.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Duration;

use crate::faults::Faults;
use crate::random::Random;

/// One direction: from its sender's calls to its receiver's.
#[derive(Debug)]
pub(crate) struct Pipe {
    capacity: usize,
    /// Bytes the sender handed over that the pipe had no room for.
    pub(crate) outgoing: VecDeque<u8>,
    /// Bytes ever handed over, and how many of them the pipe took: `taken <= queued`.
    pub(crate) queued: u64,
    pub(crate) taken: u64,
    flying: VecDeque<Segment>,
    flying_bytes: usize,
    /// The latest arrival so far. Nothing overtakes.
    last_arrival: Duration,
    pub(crate) arrived: VecDeque<u8>,
    pub(crate) source: Source,
    pub(crate) target: Target,
    /// A send and the end may both wait.
    pub(crate) senders: Vec<Waker>,
    pub(crate) receiver: Option<Waker>,
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
    pub(crate) fn new(faults: &Faults, random: &mut Random) -> Self {
        let most = faults.pipe_bytes_max.max(1);
        let capacity = if !faults.pipe_varies {
            most
        } else if random.chance(250) {
            1 + random.index(most.min(16))
        } else {
            1 + random.index(most)
        };
        Self {
            capacity,
            outgoing: VecDeque::new(),
            queued: 0,
            taken: 0,
            flying: VecDeque::new(),
            flying_bytes: 0,
            last_arrival: Duration::ZERO,
            arrived: VecDeque::new(),
            source: Source::Open,
            target: Target::Open,
            senders: Vec::new(),
            receiver: None,
        }
    }

    /// Asserts what holds between any two calls.
    pub(crate) fn check(&self) {
        assert!(self.flying_bytes + self.arrived.len() <= self.capacity, "the pipe is bounded");
        assert!(self.taken <= self.queued, "only bytes that were handed over are taken");
        assert!(self.target != Target::Closed || self.arrived.is_empty(), "nobody would read them");
    }

    /// Takes one piece of what the sender handed over, if there is room. Returns its size.
    pub(crate) fn take_piece(&mut self, cut: bool, random: &mut Random) -> Option<Vec<u8>> {
        let room = self.capacity - self.flying_bytes - self.arrived.len();
        let most = room.min(self.outgoing.len());
        if most == 0 {
            return None;
        }
        let size = if cut { 1 + random.index(most) } else { most };
        self.taken += u64::try_from(size).expect("a length has at most 64 bits");
        Some(self.outgoing.drain(..size).collect())
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

    /// Lands everything whose time has come.
    pub(crate) fn land(&mut self, now: Duration) -> Landed {
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
                        Target::Closed => landed.refused = true,
                        Target::Ended | Target::Broken => {}
                    }
                }
                (Load::End, Target::Open) => self.target = Target::Ended,
                (Load::End, _) => {}
                (Load::Reset, target) => {
                    landed.reset = true;
                    if target == Target::Open {
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
        if self.source != Source::Ended {
            self.source = Source::Broken;
        }
    }
}
