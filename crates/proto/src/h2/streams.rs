//! The streams of a connection: a slab of small states, and a map from identifiers to slots.

use super::limits::STREAMS_CEILING;
use super::priority::Priority;
use super::recent::{CloseKind, RecentlyClosed};

/// A slot in the slab.
pub(super) type Slot = u16;

/// Stands for a missing slot.
pub(super) const NO_SLOT: Slot = Slot::MAX;

/// The key of a stream: its identifier, and its slot, which is unique among the open streams of
/// the connection. The key of a closed stream is recognised even if another stream uses its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    pub(super) id: u32,
    pub(super) slot: Slot,
}

impl StreamKey {
    /// The identifier: odd, and larger than those of all earlier requests.
    #[must_use]
    pub const fn id(self) -> u32 {
        self.id
    }

    /// A small number, unique among the open streams of the connection: an index for data that a
    /// server stores per stream. The number is below the limit on streams.
    #[must_use]
    pub const fn index(self) -> usize {
        self.slot as usize
    }
}

/// The state of an open stream. RFC 9113 §5.1; idle and closed streams have no state here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Both sides may send.
    Open,
    /// The client has ended its side.
    HalfClosedRemote,
    /// The server has ended its side.
    HalfClosedLocal,
    /// Both sides have ended, or one has reset the stream.
    Closed,
}

/// An event that changes the state of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// The client ends its side.
    ReceiveEnd,
    /// The server ends its side.
    SendEnd,
    /// The server resets the stream.
    Reset,
    /// The client resets the stream.
    ResetByPeer,
}

impl State {
    /// The state after a transition, or `None` if it is illegal.
    ///
    /// | from | transition | to |
    /// |---|---|---|
    /// | Open | ReceiveEnd, SendEnd | HalfClosedRemote, HalfClosedLocal |
    /// | HalfClosedRemote | SendEnd | Closed |
    /// | HalfClosedLocal | ReceiveEnd | Closed |
    /// | all but Closed | Reset, ResetByPeer | Closed |
    pub(super) const fn on(self, transition: Transition) -> Option<Self> {
        Some(match (self, transition) {
            (Self::Open, Transition::ReceiveEnd) => Self::HalfClosedRemote,
            (Self::Open, Transition::SendEnd) => Self::HalfClosedLocal,
            (Self::HalfClosedRemote, Transition::SendEnd)
            | (Self::HalfClosedLocal, Transition::ReceiveEnd)
            | (
                Self::Open | Self::HalfClosedRemote | Self::HalfClosedLocal,
                Transition::Reset | Transition::ResetByPeer,
            ) => Self::Closed,
            _ => return None,
        })
    }
}

/// The state of an open stream's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ResponseState {
    /// No final response has begun.
    Waiting,
    /// Within content of known length; `send_bytes_left` is the rest.
    Exact,
    /// Within content of unknown length.
    Unknown,
    /// The response is complete.
    Done,
}

/// An open stream, or a free slot: then `id` is 0, and `next` is the next free slot.
#[derive(Debug)]
pub(super) struct Stream {
    /// Content that was announced and has not arrived; `u64::MAX` if the length is unknown.
    pub(super) content_length_left: u64,
    /// How much more content a request may have.
    pub(super) body_bytes_allowed: u64,
    /// Announced bytes of the response that were not sent.
    pub(super) send_bytes_left: u64,
    pub(super) id: u32,
    /// How much the client allows the server to send; below 0 if a setting has shrunk the window.
    pub(super) send_window: i32,
    /// How much the client may send.
    pub(super) recv_window: i32,
    /// Content that arrived and was not consumed yet.
    pub(super) unreleased: u32,
    /// Bytes sent that no WINDOW_UPDATE for the stream has covered yet.
    pub(super) unacknowledged: u32,
    /// The window that the next DATA frame waits for; see `hold.rs`.
    pub(super) capacity_min: u16,
    pub(super) previous: Slot,
    pub(super) next: Slot,
    pub(super) state: State,
    pub(super) sending: ResponseState,
    pub(super) priority: Priority,
    /// Whether there is content to send.
    pub(super) has_data: bool,
    /// Whether the stream is in a queue.
    pub(super) queued: bool,
    /// Whether the request's method is HEAD.
    pub(super) is_head_request: bool,
    /// Whether the stream is a tunnel, by extended CONNECT.
    pub(super) is_tunnel: bool,
    /// Whether the rest of the request's content is discarded.
    pub(super) discarding: bool,
    /// Whether `reset_unfinished` has reported the stream to the caller, so that no more
    /// events are yielded for it.
    pub(super) is_closing: bool,
    /// Whether the request was refused. Its response then earns no credit in the abuse budget.
    pub(super) was_refused: bool,
    /// Whether the client waits for a 100 response.
    pub(super) expects_continue: bool,
    /// Whether content has arrived.
    pub(super) has_content: bool,
}

const _: () = assert!(size_of::<Stream>() <= 64, "every open stream has one");

impl Stream {
    /// Returns whether the client may still send content or trailers.
    #[inline]
    pub(super) const fn is_receiving(&self) -> bool {
        matches!(self.state, State::Open | State::HalfClosedLocal)
    }

    /// Returns whether there is content to send, and the stream's window has room for it.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.has_data && self.fits(self.send_window)
    }

    /// Returns whether a window has room for the next DATA frame.
    #[inline]
    pub(super) fn fits(&self, window: i32) -> bool {
        window >= i32::from(self.capacity_min.max(1))
    }

    /// Returns whether the response is complete and the request is not, and the stream is not a
    /// tunnel. Such a stream is closed by [`super::Connection::reset_unfinished`].
    #[inline]
    pub(super) const fn has_unfinished_request(&self) -> bool {
        matches!(self.state, State::HalfClosedLocal) && !self.is_tunnel
    }

    /// Changes the state; nothing else does. Panics if the transition is illegal, which is a bug in
    /// the connection.
    #[inline]
    pub(super) fn transition(&mut self, transition: Transition) {
        self.state =
            self.state.on(transition).expect("the connection makes only legal transitions");
    }
}

/// The state of the stream with some identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamLookup {
    /// It is open.
    Open(Slot),
    /// It was closed.
    Closed(CloseKind),
    /// Neither this identifier nor a larger one was used.
    Idle,
}

/// All streams of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    slab: Vec<Stream>,
    /// The first free slot.
    free: Slot,
    /// A map from identifiers to slots, by open addressing; the length is a power of two and at
    /// least twice the count, or 0.
    table: Vec<Slot>,
    count: u16,
    /// The largest identifier that the client has used.
    highest: u32,
    recent: RecentlyClosed,
}

impl Streams {
    pub(super) const fn new() -> Self {
        Self {
            slab: Vec::new(),
            free: NO_SLOT,
            table: Vec::new(),
            count: 0,
            highest: 0,
            recent: RecentlyClosed::new(),
        }
    }

    /// The number of open streams.
    #[inline]
    pub(super) const fn count(&self) -> u32 {
        self.count as u32
    }

    pub(super) const fn highest(&self) -> u32 {
        self.highest
    }

    #[inline]
    pub(super) fn at(&self, slot: Slot) -> &Stream {
        &self.slab[usize::from(slot)]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: Slot) -> &mut Stream {
        &mut self.slab[usize::from(slot)]
    }

    /// The state of a stream, if it is open.
    #[inline]
    pub(super) fn get(&self, key: StreamKey) -> Option<&Stream> {
        self.slab.get(usize::from(key.slot)).filter(|stream| stream.id == key.id)
    }

    /// The state of a stream, if it is open.
    #[inline]
    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slab.get_mut(usize::from(key.slot)).filter(|stream| stream.id == key.id)
    }

    /// All open streams.
    pub(super) fn all(&self) -> impl Iterator<Item = &Stream> {
        self.slab.iter().filter(|stream| stream.id != 0)
    }

    /// The number of slots; a free one has the identifier 0.
    pub(super) fn slots(&self) -> Slot {
        Slot::try_from(self.slab.len()).expect("slot numbers have 16 bits")
    }

    /// The keys of all open streams.
    pub(super) fn keys(&self) -> impl Iterator<Item = StreamKey> {
        let slots = (0..NO_SLOT).zip(&self.slab).filter(|(_, stream)| stream.id != 0);
        slots.map(|(slot, stream)| StreamKey { id: stream.id, slot })
    }

    /// Returns the state of the stream with a client's identifier.
    #[inline]
    pub(super) fn find(&self, id: u32) -> StreamLookup {
        if id > self.highest {
            return StreamLookup::Idle;
        }
        match self.table_position(id) {
            Some(at) => StreamLookup::Open(self.table[at]),
            None => StreamLookup::Closed(self.recent.get(id, self.highest)),
        }
    }

    /// Records that the client has used an idle identifier.
    #[inline]
    pub(super) fn mark_used(&mut self, id: u32) {
        debug_assert!(id > self.highest, "the identifier was idle");
        self.recent.advance(self.highest, id);
        self.highest = id;
    }

    /// Opens a stream whose identifier was marked as used. The caller ensures that fewer than
    /// `STREAMS_CEILING` streams are open.
    #[inline]
    pub(super) fn open(&mut self, stream: Stream) -> StreamKey {
        debug_assert!(self.count() < STREAMS_CEILING, "the connection limits the count");
        let id = stream.id;
        let slot = if self.free == NO_SLOT {
            self.slab.push(stream);
            Slot::try_from(self.slab.len() - 1).expect("slot numbers have 16 bits")
        } else {
            let slot = self.free;
            let entry = self.at_mut(slot);
            let next = entry.next;
            *entry = stream;
            self.free = next;
            slot
        };
        self.count += 1;
        if self.table.len() < 2 * usize::from(self.count) {
            self.grow_table();
        } else {
            self.insert_into_table(slot, id);
        }
        StreamKey { id, slot }
    }

    /// Closes a stream that is in no queue.
    #[inline]
    pub(super) fn close(&mut self, key: StreamKey, close_kind: CloseKind) {
        self.remove_from_table(key.id);
        self.recent.set(key.id, self.highest, close_kind);
        self.count -= 1;
        let free = self.free;
        let stream = self.at_mut(key.slot);
        stream.id = 0;
        stream.next = free;
        self.free = key.slot;
    }

    /// Records that a stream was refused and never opened.
    pub(super) fn mark_refused(&mut self, id: u32) {
        self.recent.set(id, self.highest, CloseKind::ResetByServer);
    }

    /// Frees all memory, if no stream is open.
    pub(super) fn shrink(&mut self) {
        if self.count == 0 {
            (self.slab, self.table, self.free) = (Vec::new(), Vec::new(), NO_SLOT);
        }
    }

    /// The memory held, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slab.capacity() * size_of::<Stream>() + self.table.capacity() * size_of::<Slot>()
    }

    #[inline]
    fn bucket(&self, id: u32) -> usize {
        (id >> 1) as usize & (self.table.len() - 1)
    }

    /// The position of an open stream in the table.
    #[inline]
    fn table_position(&self, id: u32) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let mut at = self.bucket(id);
        loop {
            match self.table[at] {
                NO_SLOT => return None,
                slot if self.at(slot).id == id => return Some(at),
                _ => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }

    #[inline]
    fn insert_into_table(&mut self, slot: Slot, id: u32) {
        let mut at = self.bucket(id);
        while self.table[at] != NO_SLOT {
            at = (at + 1) & (self.table.len() - 1);
        }
        self.table[at] = slot;
    }

    /// Removes an identifier from the table. Later entries of its probe sequence move back, so that
    /// no tombstone is needed.
    #[inline]
    fn remove_from_table(&mut self, id: u32) {
        let mask = self.table.len() - 1;
        let mut hole = self.table_position(id).expect("an open stream is in the table");
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.table[at];
            if slot == NO_SLOT {
                break;
            }
            let home = self.bucket(self.at(slot).id);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = slot;
                hole = at;
            }
        }
        self.table[hole] = NO_SLOT;
    }

    #[cold]
    fn grow_table(&mut self) {
        let length = (2 * usize::from(self.count)).next_power_of_two().max(TABLE_MIN);
        self.table = vec![NO_SLOT; length];
        let open: Vec<_> = self.keys().collect();
        for key in open {
            self.insert_into_table(key.slot, key.id);
        }
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self) {
        let open = self.all().count();
        assert_eq!(open, usize::from(self.count), "`count` is the number of open streams");
        assert!(self.table.is_empty() || self.table.len().is_power_of_two());
        assert!(self.table.len() >= 2 * open, "the table has room");
        assert_eq!(self.table.iter().filter(|slot| **slot != NO_SLOT).count(), open);
        for key in self.keys() {
            assert_eq!(
                self.find(key.id),
                StreamLookup::Open(key.slot),
                "every open stream is found"
            );
            let stream = self.at(key.slot);
            assert!(stream.state != State::Closed, "a closed stream leaves the slab");
            assert!(stream.id % 2 == 1 && stream.id <= self.highest);
            let done = stream.sending == ResponseState::Done;
            assert_eq!(
                done,
                stream.state == State::HalfClosedLocal,
                "the end of the response closes the local side"
            );
            assert!(stream.send_bytes_left == 0 || stream.sending == ResponseState::Exact);
            assert!(!stream.queued || stream.has_data, "queued streams have data to send");
        }
    }
}

/// The minimum length of the table.
const TABLE_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use super::{
        CloseKind, NO_SLOT, Priority, ResponseState, State, Stream, StreamKey, StreamLookup,
        Streams,
    };
    use proptest::prelude::*;

    fn stream(id: u32) -> Stream {
        Stream {
            content_length_left: u64::MAX,
            body_bytes_allowed: 0,
            send_bytes_left: 0,
            id,
            send_window: 0,
            recv_window: 0,
            unreleased: 0,
            unacknowledged: 0,
            capacity_min: 0,
            previous: NO_SLOT,
            next: NO_SLOT,
            state: State::Open,
            sending: ResponseState::Waiting,
            priority: Priority::DEFAULT,
            has_data: false,
            queued: false,
            is_head_request: false,
            is_tunnel: false,
            discarding: false,
            has_content: false,
            is_closing: false,
            was_refused: false,
            expects_continue: false,
        }
    }

    proptest! {
        #[test]
        fn find_returns_the_state_of_every_identifier(
            steps in proptest::collection::vec(
                (0..4_u8, 1..40_u32, any::<prop::sample::Index>()),
                1..300,
            ),
        ) {
            let mut streams = Streams::new();
            let mut open: Vec<StreamKey> = Vec::new();
            let mut closed: Vec<(u32, CloseKind)> = Vec::new();
            for (action, step, index) in steps {
                if action < 2 || open.is_empty() {
                    let step = if action == 0 { 1 } else { step };
                    let id = (streams.highest() + 2 * step) | 1;
                    streams.mark_used(id);
                    open.push(streams.open(stream(id)));
                } else {
                    let key = open.swap_remove(index.index(open.len()));
                    let close_kind = match step % 3 {
                        0 => CloseKind::EndStream,
                        1 => CloseKind::ResetByPeer,
                        _ => CloseKind::ResetByServer,
                    };
                    streams.close(key, close_kind);
                    closed.push((key.id, close_kind));
                    prop_assert!(streams.get(key).is_none());
                }
                streams.assert_invariants();
                for key in &open {
                    prop_assert_eq!(streams.find(key.id), StreamLookup::Open(key.slot));
                    prop_assert!(streams.get(*key).is_some());
                }
                for (id, close_kind) in &closed {
                    let is_old = streams.highest() - id >= 512;
                    let expected = if is_old { CloseKind::ResetByServer } else { *close_kind };
                    prop_assert_eq!(streams.find(*id), StreamLookup::Closed(expected));
                }
                prop_assert_eq!(streams.find(streams.highest() + 2), StreamLookup::Idle);
            }
        }
    }

    #[test]
    fn memory_stays_bounded_when_streams_open_and_close() {
        let mut streams = Streams::new();
        for id in (1..200_000).step_by(2) {
            streams.mark_used(id);
            let key = streams.open(stream(id));
            streams.close(key, CloseKind::EndStream);
        }
        assert!(streams.memory_bytes() <= 512, "{}", streams.memory_bytes());
        streams.shrink();
        assert_eq!(streams.memory_bytes(), 0);
        assert_eq!(streams.find(199_999), StreamLookup::Closed(CloseKind::EndStream));
    }
}
