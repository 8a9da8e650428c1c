//! The receiving state machine: turns bytes of requests into events.

use super::chunked::{self, Phase};
use super::connection::Event;
use super::framing::Framing;
use super::parse::{self, Bound, Line, Progress, Stop};
use crate::limits::HEAD_BYTES_CEILING;
use crate::trailers::Trailers;
use crate::{BodyLength, HeadIndex, Limits, Reject};

/// The state of the receiving machine. [`State::after`] lists the legal moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Between requests, or within a head.
    Head,
    /// Within content of known length.
    Exact,
    /// Within content in chunks.
    Chunked,
    /// The request is complete; the next one waits for the response.
    Done,
    /// The peer violated a rule; nothing more is read.
    Refused,
    /// The bytes belong to another protocol.
    Upgraded,
    /// Nothing more is read.
    Closed,
}

/// A move of the receiving machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// A head without content is complete.
    HeadAlone,
    /// A head with content of known length is complete.
    HeadThenExact,
    /// A head with content in chunks is complete.
    HeadThenChunks,
    /// The content is complete.
    End,
    /// The response is complete too, and another request may arrive.
    Again,
    /// The response switched protocols.
    Switch,
    /// The peer violated a rule.
    Refuse,
    /// No other request follows.
    Close,
}

impl State {
    /// The state after a move, or `None` if the move is illegal.
    ///
    /// | from | move | to |
    /// |---|---|---|
    /// | Head | HeadAlone, HeadThenExact, HeadThenChunks | Done, Exact, Chunked |
    /// | Exact, Chunked | End | Done |
    /// | Done | Again, Switch | Head, Upgraded |
    /// | Head, Exact, Chunked | Refuse | Refused |
    /// | all but Upgraded | Close | Closed |
    pub(super) const fn after(self, step: Move) -> Option<Self> {
        Some(match (self, step) {
            (Self::Head, Move::HeadAlone) => Self::Done,
            (Self::Head, Move::HeadThenExact) => Self::Exact,
            (Self::Head, Move::HeadThenChunks) => Self::Chunked,
            (Self::Exact | Self::Chunked, Move::End) => Self::Done,
            (Self::Done, Move::Again) => Self::Head,
            (Self::Done, Move::Switch) => Self::Upgraded,
            (Self::Head | Self::Exact | Self::Chunked, Move::Refuse) => Self::Refused,
            (Self::Upgraded, Move::Close) => return None,
            (_, Move::Close) => Self::Closed,
            _ => return None,
        })
    }
}

/// The receiving machine. `progress.line <= progress.scanned`; both are 0 outside heads and
/// trailers.
#[derive(Debug)]
pub(super) struct Receive {
    /// Bytes until the end of the content (`Exact`) or of the chunk (`Chunked`); the chunk's size
    /// while that is read.
    left: u64,
    /// How many more bytes of content are accepted (`Chunked`).
    allowance: u64,
    /// How far an incomplete head or trailer line was parsed.
    progress: Progress,
    /// Empty lines before the head; then digits of a chunk size, then bytes of its extensions; then
    /// bytes of the trailer section.
    count: u16,
    state: State,
    phase: Phase,
}

impl Receive {
    pub(super) const fn new() -> Self {
        Self {
            left: 0,
            allowance: 0,
            progress: Progress { line: 0, scanned: 0 },
            count: 0,
            state: State::Head,
            phase: Phase::Size,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Whether a byte of a head was seen. An empty line before it does not count.
    pub(super) fn within_head(&self) -> bool {
        self.state == State::Head && self.progress.scanned > 0
    }

    /// How much content is known to follow: all of it, or the rest of the current chunk.
    #[inline]
    pub(super) fn content_left(&self) -> u64 {
        match (self.state, self.phase) {
            (State::Exact, _) | (State::Chunked, Phase::Data) => self.left,
            _ => 0,
        }
    }

    /// Makes a move: the only place that changes the state. Panics if the move is illegal, which is
    /// a bug in the connection.
    #[inline]
    pub(super) fn go(&mut self, step: Move) {
        self.state = self.state.after(step).expect("the connection makes only legal moves");
    }

    /// Reads a head. `framing` is the default before; the result is valid for a complete head, and
    /// for one that is valid but rejected. Only in `Head`.
    #[inline]
    pub(super) fn head(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        index: &mut HeadIndex,
        framing: &mut Framing,
    ) -> (usize, Event) {
        let mut skip = 0;
        if self.progress.scanned == 0 {
            index.clear();
            // RFC 9112 §2.2: a server should ignore at least one empty line before a request line.
            while let [b'\r', rest @ ..] = &unread[skip..] {
                match rest.first() {
                    None => return (skip, Event::NeedInput),
                    Some(b'\n') if self.count > 0 => {
                        return (skip, self.refuse(Reject::EmptyLineRepeated));
                    }
                    Some(b'\n') => skip += 2,
                    Some(_) => break,
                }
                self.count = 1;
            }
        }
        match parse::head(&unread[skip..], &mut self.progress, limits, index, framing) {
            Ok(length) => {
                framing.skip = if skip == 0 { 0 } else { EMPTY_LINE_BYTES };
                self.begin_body(limits, framing.body);
                (skip + length, Event::Head(*framing))
            }
            Err(Stop::Input) => (skip, Event::NeedInput),
            Err(Stop::Reject(Reject::ExpectationUnknown)) => {
                // The head is valid, so the connection can continue after the response.
                // Parsing stopped at its empty line.
                let length = usize::from(self.progress.line) + 2;
                self.begin_body(limits, framing.body);
                (skip + length, Event::Reject(Reject::ExpectationUnknown))
            }
            Err(Stop::Reject(reject)) => (skip, self.refuse(reject)),
        }
    }

    #[inline]
    fn begin_body(&mut self, limits: &Limits, body: BodyLength) {
        self.progress = Progress::default();
        self.count = 0;
        match body {
            BodyLength::None => self.go(Move::HeadAlone),
            BodyLength::Exact(length) => {
                self.left = length;
                self.go(Move::HeadThenExact);
            }
            BodyLength::Chunked => {
                self.left = 0;
                self.allowance = limits.body_bytes_max;
                self.phase = Phase::Size;
                self.go(Move::HeadThenChunks);
            }
        }
    }

    /// Reads content of known length. Only in `Exact`.
    pub(super) fn exact(&mut self, unread: &[u8]) -> (usize, Event) {
        if self.left == 0 {
            self.go(Move::End);
            return (0, Event::End);
        }
        let taken = smaller(unread.len(), self.left);
        if taken == 0 {
            return (0, Event::NeedInput);
        }
        self.left -= taken as u64;
        (taken, Event::Data(0..taken))
    }

    /// Reads content in chunks, and stops before a chunk of more than `chunk_max` bytes.
    /// `extensions_left` is the number of further extension bytes that are accepted. Only in
    /// `Chunked`.
    pub(super) fn chunked(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        chunk_max: u64,
        extensions_left: &mut u32,
        trailers: &mut Option<Box<Trailers>>,
    ) -> (usize, Event) {
        let mut at = 0;
        loop {
            match self.phase {
                Phase::Trailer => return self.trailer(limits, unread, at, trailers),
                Phase::Data => {
                    let taken = smaller(unread.len() - at, self.left);
                    if taken == 0 || self.left > chunk_max {
                        return (at, Event::NeedInput);
                    }
                    self.left -= taken as u64;
                    if self.left == 0 {
                        self.phase = Phase::DataReturn;
                    }
                    return (at + taken, Event::Data(at..at + taken));
                }
                _ => {}
            }
            let Some(byte) = unread.get(at) else { return (at, Event::NeedInput) };
            if let Err(reject) = self.chunk_byte(limits, *byte, extensions_left) {
                return (at, self.refuse(reject));
            }
            at += 1;
        }
    }

    /// Processes one byte that belongs neither to content nor to the trailer section.
    #[inline]
    fn chunk_byte(
        &mut self,
        limits: &Limits,
        byte: u8,
        extensions_left: &mut u32,
    ) -> Result<(), Reject> {
        let next = self.phase.after(byte)?;
        if next == Phase::SizeMore {
            self.left = chunked::size_with_digit(self.left, byte)?;
            self.count += 1;
            // Leading zeros are legal; more digits than the largest number has serve no purpose.
            if self.count > CHUNK_SIZE_DIGITS_MAX {
                return Err(Reject::ChunkSizeOverflow);
            }
        } else if next.is_extension() {
            self.count =
                if self.phase == Phase::SizeMore { 1 } else { self.count.saturating_add(1) };
            if self.count > limits.chunk_extension_bytes_max {
                return Err(Reject::ChunkExtensionsTooLong);
            }
            // RFC 9112 §7.1.1: a server ought to limit the total length of chunk extensions.
            // Otherwise many small chunks could carry an unlimited amount.
            let rest = extensions_left.checked_sub(1);
            *extensions_left = rest.ok_or(Reject::ChunkExtensionsTooLong)?;
        } else if next == Phase::Data {
            self.count = 0;
            let more = u32::try_from(self.left).unwrap_or(u32::MAX);
            *extensions_left = extensions_left.saturating_add(more);
            self.allowance = self.allowance.checked_sub(self.left).ok_or(Reject::BodyTooLarge)?;
            self.phase = if self.left == 0 { Phase::Trailer } else { Phase::Data };
            return Ok(());
        }
        self.phase = next;
        Ok(())
    }

    /// Reads the trailer section from `at`, line by line.
    fn trailer(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        mut at: usize,
        trailers: &mut Option<Box<Trailers>>,
    ) -> (usize, Event) {
        let section_max = limits.trailer_bytes_max.min(HEAD_BYTES_CEILING);
        loop {
            let room = section_max - usize::from(self.count);
            let window = &unread[at..unread.len().min(at + room)];
            let ended = !self.progress.still_without_end(window);
            let line = if ended { parse::field_line(window, 0) } else { Err(Stop::Input) };
            let taken = match line {
                Ok(Line::Empty(end)) => {
                    self.progress = Progress::default();
                    self.go(Move::End);
                    return (at + end, Event::End);
                }
                Ok(Line::Field(_, end)) if end > limits.field_bytes_max => {
                    return (at, self.refuse(Reject::FieldTooLong));
                }
                // RFC 9110 §6.5.1: fields for framing, routing and similar have no meaning in a
                // trailer section, and a recipient may discard them.
                Ok(Line::Field(field, end)) if !field.known.allowed_in_trailers() => end,
                Ok(Line::Field(field, end)) => {
                    let kept = trailers.get_or_insert_default();
                    if kept.count() >= limits.fields_max {
                        return (at, self.refuse(Reject::FieldsTooMany));
                    }
                    kept.add(field.name.of(window), field.value.of(window));
                    end
                }
                Err(stop) => {
                    self.progress = Progress::new(0, window.len());
                    let bound = Bound {
                        line_max: limits.field_bytes_max,
                        too_long: Reject::FieldTooLong,
                        overfull: (window.len() == room).then_some(Reject::TrailersTooLong),
                    };
                    let stop = if ended {
                        bound.settle(window, stop, |end| parse::field_line(&window[..end], 0).err())
                    } else {
                        bound.unended(window.len())
                    };
                    return match stop {
                        Stop::Input => (at, Event::NeedInput),
                        Stop::Reject(reject) => (at, self.refuse(reject)),
                    };
                }
            };
            self.progress = Progress::default();
            self.count += u16::try_from(taken).expect("a line fits in the section");
            at += taken;
        }
    }

    pub(super) fn refuse(&mut self, reject: Reject) -> Event {
        self.go(Move::Refuse);
        Event::Reject(reject)
    }

    /// Checks all invariants.
    pub(super) fn check(&self) {
        assert!(self.progress.line <= self.progress.scanned, "a line begins where bytes were seen");
        match self.state {
            State::Head => {}
            State::Chunked => {
                assert!(self.phase == Phase::Trailer || self.progress.scanned == 0);
                assert!(self.phase != Phase::Data || self.left > 0, "a chunk of data has bytes");
                assert!(self.phase != Phase::DataReturn || self.left == 0);
            }
            State::Exact | State::Done | State::Upgraded => {
                assert!(self.progress.scanned == 0, "only heads and trailers are read by lines");
            }
            State::Refused | State::Closed => {}
        }
    }
}

/// The number of hexadecimal digits in the largest 64-bit number.
const CHUNK_SIZE_DIGITS_MAX: u16 = 16;

/// By how much the extensions of all chunks may exceed the content.
pub(super) const EXTENSION_BYTES_FREE: u32 = 16 * 1024;

/// The length of an empty line, CR and LF; at most one is skipped.
const EMPTY_LINE_BYTES: u8 = 2;

/// The smaller of a length and a count.
#[inline]
fn smaller(length: usize, count: u64) -> usize {
    usize::try_from(count).map_or(length, |count| count.min(length))
}
