//! The receiving state machine: turns bytes of requests into events.

use super::chunked::{self, ChunkedState};
use super::event::Event;
use super::framing::Framing;
use super::line::{Line, LineLimits, ParseError, ParseProgress};
use super::parse;
use crate::limits::HEAD_BYTES_CEILING;
use crate::trailers::Trailers;
use crate::{BodyLength, HeadIndex, Limits, RequestError};

/// The state of the receiving machine. [`State::on`] lists the legal transitions.
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
    Failed,
    /// The bytes belong to another protocol.
    Upgraded,
    /// Nothing more is read.
    Closed,
}

/// An event that changes the state of the receiving machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// A head without content is complete.
    HeadWithoutBody,
    /// A head with content of known length is complete.
    HeadWithLength,
    /// A head with content in chunks is complete.
    HeadWithChunked,
    /// The content is complete.
    End,
    /// The response is complete too, and another request may arrive.
    NextRequest,
    /// The response switched protocols.
    Switch,
    /// The peer violated a rule.
    Reject,
    /// No other request follows.
    Close,
}

impl State {
    /// The state after a transition, or `None` if it is illegal.
    ///
    /// | from | transition | to |
    /// |---|---|---|
    /// | Head | HeadWithoutBody, HeadWithLength, HeadWithChunked | Done, Exact, Chunked |
    /// | Exact, Chunked | End | Done |
    /// | Done | NextRequest, Switch | Head, Upgraded |
    /// | Head, Exact, Chunked | Reject | Failed |
    /// | all but Upgraded | Close | Closed |
    pub(super) const fn on(self, transition: Transition) -> Option<Self> {
        Some(match (self, transition) {
            (Self::Head, Transition::HeadWithoutBody) => Self::Done,
            (Self::Head, Transition::HeadWithLength) => Self::Exact,
            (Self::Head, Transition::HeadWithChunked) => Self::Chunked,
            (Self::Exact | Self::Chunked, Transition::End) => Self::Done,
            (Self::Done, Transition::NextRequest) => Self::Head,
            (Self::Done, Transition::Switch) => Self::Upgraded,
            (Self::Head | Self::Exact | Self::Chunked, Transition::Reject) => Self::Failed,
            (Self::Upgraded, Transition::Close) => return None,
            (_, Transition::Close) => Self::Closed,
            _ => return None,
        })
    }
}

/// The receiving machine. `progress.line <= progress.scanned`; both are 0 outside heads and
/// trailers.
#[derive(Debug)]
pub(super) struct ReceivePath {
    /// Bytes until the end of the content (`Exact`) or of the chunk (`Chunked`). While a chunk size
    /// is read: its value so far.
    bytes_left: u64,
    /// How many more bytes of content are accepted (`Chunked`).
    body_bytes_allowed: u64,
    /// How far an incomplete head or trailer line was scanned.
    progress: ParseProgress,
    /// A counter whose meaning depends on the position: empty lines before the head, digits of a
    /// chunk size, bytes of its extensions, or bytes of the trailer section.
    count: u16,
    state: State,
    phase: ChunkedState,
}

impl ReceivePath {
    pub(super) const fn new() -> Self {
        Self {
            bytes_left: 0,
            body_bytes_allowed: 0,
            progress: ParseProgress { line: 0, scanned: 0 },
            count: 0,
            state: State::Head,
            phase: ChunkedState::Start,
        }
    }

    #[inline]
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Returns whether a byte of a head was received. An empty line before it does not count.
    pub(super) fn is_in_head(&self) -> bool {
        self.state == State::Head && self.progress.scanned > 0
    }

    /// How much content is known to follow: the rest of it, or of the current chunk.
    #[inline]
    pub(super) fn body_bytes_left(&self) -> u64 {
        match (self.state, self.phase) {
            (State::Exact, _) | (State::Chunked, ChunkedState::Data) => self.bytes_left,
            _ => 0,
        }
    }

    /// Changes the state; nothing else does. Panics if the transition is illegal, which is a bug in
    /// the connection.
    #[inline]
    pub(super) fn transition(&mut self, transition: Transition) {
        self.state =
            self.state.on(transition).expect("the connection makes only legal transitions");
    }

    /// Reads a head into `index` and `framing`; the caller passes the default `framing`. It is
    /// valid afterwards if the head is complete, and for [`RequestError::ExpectationUnknown`]. Only
    /// in `Head`.
    #[inline]
    pub(super) fn read_head(
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
                        return (skip, self.fail(RequestError::EmptyLineRepeated));
                    }
                    Some(b'\n') => skip += 2,
                    Some(_) => break,
                }
                self.count = 1;
            }
        }
        match parse::parse_head(&unread[skip..], &mut self.progress, limits, index, framing) {
            Ok(length) => {
                framing.leading_bytes = if skip == 0 { 0 } else { CRLF_BYTES };
                self.begin_body(limits, framing.body);
                (skip + length, Event::Head(*framing))
            }
            Err(ParseError::Incomplete) => (skip, Event::NeedInput),
            Err(ParseError::Invalid(RequestError::ExpectationUnknown)) => {
                // The head is valid, so the connection can continue after the response.
                // Parsing stopped at its empty line.
                let length = usize::from(self.progress.line) + 2;
                self.begin_body(limits, framing.body);
                (skip + length, Event::RequestError(RequestError::ExpectationUnknown))
            }
            Err(ParseError::Invalid(error)) => (skip, self.fail(error)),
        }
    }

    #[inline]
    fn begin_body(&mut self, limits: &Limits, body: BodyLength) {
        self.progress = ParseProgress::default();
        self.count = 0;
        match body {
            BodyLength::None => self.transition(Transition::HeadWithoutBody),
            BodyLength::Exact(length) => {
                self.bytes_left = length;
                self.transition(Transition::HeadWithLength);
            }
            BodyLength::Unknown => {
                self.bytes_left = 0;
                self.body_bytes_allowed = limits.body_bytes_max;
                self.phase = ChunkedState::Start;
                self.transition(Transition::HeadWithChunked);
            }
        }
    }

    /// Reads content of known length. Only in `Exact`.
    pub(super) fn read_exact_body(&mut self, unread: &[u8]) -> (usize, Event) {
        if self.bytes_left == 0 {
            self.transition(Transition::End);
            return (0, Event::End);
        }
        let len = min_len(unread.len(), self.bytes_left);
        if len == 0 {
            return (0, Event::NeedInput);
        }
        self.bytes_left -= len as u64;
        (len, Event::Data(0..len))
    }

    /// Reads content in chunks, and stops before a chunk of more than `chunk_max` bytes.
    /// `extensions_left` is the number of further extension bytes that are accepted. Only in
    /// `Chunked`.
    pub(super) fn read_chunked_body(
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
                ChunkedState::Trailer => return self.read_trailers(limits, unread, at, trailers),
                ChunkedState::Data => {
                    let len = min_len(unread.len() - at, self.bytes_left);
                    if len == 0 || self.bytes_left > chunk_max {
                        return (at, Event::NeedInput);
                    }
                    self.bytes_left -= len as u64;
                    if self.bytes_left == 0 {
                        self.phase = ChunkedState::DataCr;
                    }
                    return (at + len, Event::Data(at..at + len));
                }
                _ => {}
            }
            let Some(byte) = unread.get(at) else { return (at, Event::NeedInput) };
            if let Err(error) = self.read_chunk_byte(limits, *byte, extensions_left) {
                return (at, self.fail(error));
            }
            at += 1;
        }
    }

    /// Processes one byte that belongs neither to content nor to the trailer section.
    #[inline]
    fn read_chunk_byte(
        &mut self,
        limits: &Limits,
        byte: u8,
        extensions_left: &mut u32,
    ) -> Result<(), RequestError> {
        let next = self.phase.next(byte)?;
        if next == ChunkedState::Size {
            self.bytes_left = chunked::push_hex_digit(self.bytes_left, byte)?;
            self.count += 1;
            // Leading zeros are legal, but no honest client needs more digits than the largest
            // number has.
            if self.count > CHUNK_SIZE_DIGITS_MAX {
                return Err(RequestError::ChunkSizeOverflow);
            }
        } else if next.is_extension() {
            self.count =
                if self.phase == ChunkedState::Size { 1 } else { self.count.saturating_add(1) };
            if self.count > limits.chunk_extension_bytes_max {
                return Err(RequestError::ChunkExtensionsTooLong);
            }
            // RFC 9112 §7.1.1: a server ought to limit the total length of chunk extensions.
            // Otherwise many small chunks could carry an unlimited amount.
            let remaining = extensions_left.checked_sub(1);
            *extensions_left = remaining.ok_or(RequestError::ChunkExtensionsTooLong)?;
        } else if next == ChunkedState::Data {
            self.count = 0;
            let chunk_bytes = u32::try_from(self.bytes_left).unwrap_or(u32::MAX);
            *extensions_left = extensions_left.saturating_add(chunk_bytes);
            self.body_bytes_allowed = self
                .body_bytes_allowed
                .checked_sub(self.bytes_left)
                .ok_or(RequestError::BodyTooLarge)?;
            self.phase =
                if self.bytes_left == 0 { ChunkedState::Trailer } else { ChunkedState::Data };
            return Ok(());
        }
        self.phase = next;
        Ok(())
    }

    /// Reads the trailer section from `at`, line by line.
    fn read_trailers(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        mut at: usize,
        trailers: &mut Option<Box<Trailers>>,
    ) -> (usize, Event) {
        let section_max = limits.trailer_bytes_max.min(HEAD_BYTES_CEILING);
        loop {
            let window_max = section_max - usize::from(self.count);
            let window = &unread[at..unread.len().min(at + window_max)];
            let has_line_end = !self.progress.has_no_line_end(window);
            let line = if has_line_end {
                parse::parse_field_line(window, 0)
            } else {
                Err(ParseError::Incomplete)
            };
            let line_len = match line {
                Ok(Line::Empty(end)) => {
                    self.progress = ParseProgress::default();
                    self.transition(Transition::End);
                    return (at + end, Event::End);
                }
                Ok(Line::Field(_, end)) if end > limits.field_bytes_max => {
                    return (at, self.fail(RequestError::FieldTooLong));
                }
                // RFC 9110 §6.5.1: fields for framing, routing and similar have no meaning in a
                // trailer section, and a recipient may discard them.
                Ok(Line::Field(field, end)) if !field.known.is_allowed_in_trailers() => end,
                Ok(Line::Field(field, end)) => {
                    let section = trailers.get_or_insert_default();
                    if section.len() >= limits.fields_max {
                        return (at, self.fail(RequestError::FieldsTooMany));
                    }
                    section.push(field.name.slice(window), field.value.slice(window));
                    end
                }
                Err(error) => {
                    self.progress = ParseProgress::new(0, window.len());
                    let line_limits = LineLimits {
                        line_max: limits.field_bytes_max,
                        too_long: RequestError::FieldTooLong,
                        head_full: (window.len() == window_max)
                            .then_some(RequestError::TrailersTooLong),
                    };
                    let error = if has_line_end {
                        line_limits.resolve(window, error, |end| {
                            parse::parse_field_line(&window[..end], 0).err()
                        })
                    } else {
                        line_limits.incomplete_line(window.len())
                    };
                    return match error {
                        ParseError::Incomplete => (at, Event::NeedInput),
                        ParseError::Invalid(error) => (at, self.fail(error)),
                    };
                }
            };
            self.progress = ParseProgress::default();
            self.count += u16::try_from(line_len).expect("a line fits in the section");
            at += line_len;
        }
    }

    pub(super) fn fail(&mut self, error: RequestError) -> Event {
        self.transition(Transition::Reject);
        Event::RequestError(error)
    }

    /// Checks all invariants.
    pub(super) fn assert_invariants(&self) {
        assert!(
            self.progress.line <= self.progress.scanned,
            "the current line begins within the scanned bytes"
        );
        match self.state {
            State::Head => {}
            State::Chunked => {
                assert!(self.phase == ChunkedState::Trailer || self.progress.scanned == 0);
                assert!(
                    self.phase != ChunkedState::Data || self.bytes_left > 0,
                    "a chunk of data has bytes"
                );
                assert!(self.phase != ChunkedState::DataCr || self.bytes_left == 0);
            }
            State::Exact | State::Done | State::Upgraded => {
                assert!(
                    self.progress.scanned == 0,
                    "only heads and trailers are parsed line by line"
                );
            }
            State::Failed | State::Closed => {}
        }
    }
}

/// The number of hexadecimal digits in the largest 64-bit number.
const CHUNK_SIZE_DIGITS_MAX: u16 = 16;

/// How many bytes longer than the content so far the extensions of all chunks may be.
pub(super) const EXTENSION_BYTES_SLACK: u32 = 16 * 1024;

/// The length of an empty line, CR and LF. At most one empty line is skipped.
const CRLF_BYTES: u8 = 2;

/// The smaller of a length and a count.
#[inline]
fn min_len(length: usize, count: u64) -> usize {
    usize::try_from(count).map_or(length, |count| count.min(length))
}
