//! Priorities of requests (RFC 9218), and the queues of streams with data to send.

use super::streams::{NO_SLOT, Slot, Streams};
use crate::field;

/// How urgent a response is, and whether partial data is useful. RFC 9218 §4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 is the most urgent, 7 the least. Default 3.
    pub urgency: u8,
    /// Whether the response shares the connection with others of the same urgency, instead of being
    /// sent before later requests.
    pub incremental: bool,
}

impl Priority {
    /// The priority of a request without a Priority field.
    ///
    /// By RFC 9218 §4.2 it would not be incremental. But a client that sends no priority has not
    /// requested sequential responses, and a long response would block all others, so responses
    /// share the connection by default.
    pub const DEFAULT: Self = Self { urgency: 3, incremental: true };

    /// Reads the value of a Priority field. Missing parameters have the standard's defaults:
    /// urgency 3, not incremental.
    // RFC 9218 §4: unknown parameters, and values that are out of range or of another type, must be
    // ignored.
    #[must_use]
    pub fn parse(value: &[u8]) -> Self {
        let mut priority = Self { urgency: 3, incremental: false };
        for member in field::split_list(value) {
            match member {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The number of urgencies.
const URGENCIES: usize = 8;

/// Eight pairs of queues, linked through the streams.
///
/// Within one urgency, streams that are not incremental are sent in the order of their identifiers,
/// and incremental ones alternate; if there are both, the two queues alternate.
#[derive(Debug)]
pub(super) struct Queues {
    queues: [[Queue; 2]; URGENCIES],
    /// Which queue of each pair is next, one bit per urgency.
    next_queue: u8,
    /// Which urgencies have streams, one bit each.
    nonempty: u8,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: Slot,
    last: Slot,
}

impl Queues {
    pub(super) const fn new() -> Self {
        const EMPTY: Queue = Queue { first: NO_SLOT, last: NO_SLOT };
        Self { queues: [[EMPTY; 2]; URGENCIES], next_queue: 0, nonempty: 0 }
    }

    /// Returns whether a queued stream is at least as urgent as `urgency`.
    #[inline]
    pub(super) const fn has_at_least_as_urgent(&self, urgency: u8) -> bool {
        // The bits of this urgency and of all that are more urgent.
        self.nonempty & (0xff >> (7 - urgency)) != 0
    }

    /// Adds a stream that is in no queue to its queue.
    pub(super) fn insert(&mut self, streams: &mut Streams, slot: Slot) {
        let stream = streams.at(slot);
        let (id, priority) = (stream.id, stream.priority);
        let queue =
            &mut self.queues[usize::from(priority.urgency)][usize::from(priority.incremental)];
        let mut previous = queue.last;
        if !priority.incremental {
            // Identifiers ascend, so the stream is nearly always the last.
            while previous != NO_SLOT && streams.at(previous).id > id {
                previous = streams.at(previous).previous;
            }
        }
        let next = match previous {
            NO_SLOT => std::mem::replace(&mut queue.first, slot),
            previous => std::mem::replace(&mut streams.at_mut(previous).next, slot),
        };
        match next {
            NO_SLOT => queue.last = slot,
            next => streams.at_mut(next).previous = slot,
        }
        let stream = streams.at_mut(slot);
        (stream.previous, stream.next, stream.queued) = (previous, next, true);
        self.nonempty |= 1 << priority.urgency;
    }

    /// Removes a stream from its queue, if it is in one.
    pub(super) fn remove(&mut self, streams: &mut Streams, slot: Slot) {
        let stream = streams.at_mut(slot);
        if !stream.queued {
            return;
        }
        let (priority, previous, next) = (stream.priority, stream.previous, stream.next);
        (stream.previous, stream.next, stream.queued) = (NO_SLOT, NO_SLOT, false);
        let pair = &mut self.queues[usize::from(priority.urgency)];
        let queue = &mut pair[usize::from(priority.incremental)];
        match previous {
            NO_SLOT => queue.first = next,
            previous => streams.at_mut(previous).next = next,
        }
        match next {
            NO_SLOT => queue.last = previous,
            next => streams.at_mut(next).previous = previous,
        }
        if pair[0].first == NO_SLOT && pair[1].first == NO_SLOT {
            self.nonempty &= !(1 << priority.urgency);
        }
    }

    /// The stream that sends next.
    #[inline]
    pub(super) fn next(&self) -> Option<Slot> {
        if self.nonempty == 0 {
            return None;
        }
        let urgency = self.nonempty.trailing_zeros() as usize;
        let pair = &self.queues[urgency];
        let preferred = usize::from(self.next_queue >> urgency & 1);
        let first = if pair[preferred].first == NO_SLOT {
            pair[1 - preferred].first
        } else {
            pair[preferred].first
        };
        Some(first)
    }

    /// Moves the stream behind the others, after it has sent a frame and has more.
    pub(super) fn rotate(&mut self, streams: &mut Streams, slot: Slot) {
        let priority = streams.at(slot).priority;
        let bit = 1 << priority.urgency;
        self.next_queue =
            if priority.incremental { self.next_queue & !bit } else { self.next_queue | bit };
        if priority.incremental && streams.at(slot).next != NO_SLOT {
            self.remove(streams, slot);
            self.insert(streams, slot);
        }
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self, streams: &Streams) {
        let mut count = 0;
        for (urgency, pair) in self.queues.iter().enumerate() {
            for (index, queue) in pair.iter().enumerate() {
                let (mut previous, mut slot) = (NO_SLOT, queue.first);
                while slot != NO_SLOT {
                    let stream = streams.at(slot);
                    let queue_of =
                        (usize::from(stream.priority.urgency), stream.priority.incremental);
                    assert_eq!(
                        queue_of,
                        (urgency, index == 1),
                        "a stream is in the queue of its priority"
                    );
                    assert!(stream.queued && stream.previous == previous, "links go both ways");
                    assert!(stream.may_send(), "a queued stream could send");
                    (previous, slot) = (slot, stream.next);
                    count += 1;
                }
                assert_eq!(queue.last, previous, "a queue ends with its last stream");
            }
            let filled = pair.iter().any(|queue| queue.first != NO_SLOT);
            assert_eq!(self.nonempty >> urgency & 1 == 1, filled);
        }
        let queued = streams.all().filter(|stream| stream.queued).count();
        assert_eq!(count, queued, "marked streams are in a queue");
    }
}

#[cfg(test)]
mod tests {
    use super::Priority;

    #[test]
    fn parse_ignores_unknown_and_invalid_parameters() {
        let cases: &[(&[u8], u8, bool)] = &[
            (b"", 3, false),
            (b"u=0", 0, false),
            (b"u=7, i", 7, true),
            (b"i,u=1", 1, true),
            (b"i=?1", 3, true),
            (b"i=?0", 3, false),
            (b"u=8", 3, false),
            (b"u=-1", 3, false),
            (b"u=1.0", 3, false),
            (b"u=\"1\"", 3, false),
            (b"i=1", 3, false),
            (b"u=5, x=1, i, y", 5, true),
            (b"u=1, u=6", 6, false),
        ];
        for (value, urgency, incremental) in cases {
            let expected = Priority { urgency: *urgency, incremental: *incremental };
            assert_eq!(Priority::parse(value), expected, "{}", value.escape_ascii());
        }
    }
}
