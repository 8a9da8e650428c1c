//! The receiving side: turns bytes into frames, and frames into events.

use super::blocks::Block;
use super::budget::Deed;
use super::connection::Connection;
use super::control::MEASURE;
use super::event::{Event, Waiting};
use super::frame::{self, Code, HEADER_BYTES, Header, Kind, PREFACE, flag};
use super::limits::Limits;
use super::recent::Closed;
use super::reject::Reject;
use super::streams::{Found, StreamKey};
use crate::HeadIndex;

/// The position of the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Before the end of the preface.
    Preface,
    /// Before the first SETTINGS frame.
    Settings,
    /// Between frames, or within one that is read as a whole.
    Frame,
    /// Within a DATA frame.
    Data,
    /// Within a frame whose rest is ignored.
    Skip,
    /// Nothing more is received.
    Closed,
}

/// The receiving side's state.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) step: Step,
    /// Bytes of content (`Data`) or of anything (`Skip`) until the padding or the end of the frame.
    left: u32,
    /// Padding after the content of a DATA frame.
    padding: u8,
    /// Whether the DATA frame ends its stream.
    ends: bool,
    /// The stream of the content; `None` if the content is unwanted.
    stream: Option<StreamKey>,
    /// A header block that is not complete.
    pub(super) block: Option<Box<Block>>,
    /// How far a frame that is read as a whole had arrived.
    partial: Partial,
}

/// The incomplete part when more input was needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partial {
    Nothing,
    Head,
    Frame,
}

impl Receive {
    pub(super) const fn new() -> Self {
        Self {
            step: Step::Preface,
            left: 0,
            padding: 0,
            ends: false,
            stream: None,
            block: None,
            partial: Partial::Nothing,
        }
    }

    /// Whether a frame or a header block is incomplete.
    pub(super) fn is_within(&self) -> bool {
        match self.step {
            Step::Data | Step::Skip => true,
            Step::Closed => false,
            Step::Preface | Step::Settings | Step::Frame => {
                self.partial != Partial::Nothing || self.block.is_some()
            }
        }
    }

    pub(super) fn waiting(&self) -> Waiting {
        match self.step {
            Step::Preface | Step::Settings => Waiting::Preface,
            Step::Data | Step::Skip => Waiting::Frame,
            Step::Closed => Waiting::Nothing,
            Step::Frame if self.block.is_some() || self.partial == Partial::Head => Waiting::Head,
            Step::Frame if self.partial == Partial::Frame => Waiting::Frame,
            Step::Frame => Waiting::Idle,
        }
    }

    /// Returns whether a frame with content of this stream was announced but has not arrived
    /// completely.
    pub(super) fn owes(&self, stream: StreamKey) -> bool {
        self.step == Step::Data && self.left > 0 && self.stream == Some(stream)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.memory_bytes())
    }
}

/// The outcome of reading some bytes.
enum Outcome {
    /// Nothing yet: more bytes are needed.
    Input,
    /// The number of bytes used.
    Used(usize),
    /// The number of bytes used, and their meaning.
    Event(usize, Event),
}

impl Outcome {
    fn of(used: usize, event: Option<Event>) -> Self {
        event.map_or(Self::Used(used), |event| Self::Event(used, event))
    }
}

/// Buffers for a request's head and for answers.
pub(super) struct Buffers<'a> {
    pub(super) bytes: &'a mut Vec<u8>,
    pub(super) head: &'a mut HeadIndex,
    pub(super) out: &'a mut Vec<u8>,
}

impl Connection {
    /// Processes bytes: returns how many of `unread` were used, and their meaning.
    ///
    /// `unread` is all that arrived and was not used, as one slice. After [`Event::NeedInput`],
    /// call again when there is more: content is yielded as it arrives, and all other frames are
    /// read as a whole, so `unread` may have to hold [`frame_bytes`](Limits::frame_bytes). A
    /// request's head replaces the contents of `bytes` and `head`; answers to the peer
    /// (acknowledgements, resets) are appended to `out`. However the same bytes are cut, the events
    /// are the same, except that adjacent data may be cut as the bytes are.
    #[inline]
    pub fn receive(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        bytes: &mut Vec<u8>,
        head: &mut HeadIndex,
        out: &mut Vec<u8>,
    ) -> (usize, Event) {
        let mut buffers = Buffers { bytes, head, out };
        let mut at = 0;
        if self.trailers.is_some() {
            self.trailers = None;
        }
        loop {
            let outcome = match self.receive.step {
                Step::Frame | Step::Settings => self.frame(limits, &unread[at..], &mut buffers),
                Step::Data => Ok(self.data(unread, at, buffers.out)),
                Step::Skip => Ok(self.skip(unread.len() - at)),
                Step::Preface => self.preface(&unread[at..]),
                Step::Closed => return (at, Event::Closed),
            };
            match outcome {
                Ok(Outcome::Event(used, event)) => return (at + used, event),
                Ok(Outcome::Used(used)) => at += used,
                Ok(Outcome::Input) => return (at, Event::NeedInput),
                Err(reject) => return (at, self.fail(reject, buffers.out)),
            }
        }
    }

    // RFC 9113 §3.4: an invalid connection preface must be treated as a connection error.
    #[cold]
    fn preface(&mut self, unread: &[u8]) -> Result<Outcome, Reject> {
        match frame::is_preface(unread) {
            frame::PrefaceMatch::Match => {
                self.receive.step = Step::Settings;
                Ok(Outcome::Used(PREFACE.len()))
            }
            frame::PrefaceMatch::Partial => Ok(self.input(unread, Partial::Frame)),
            frame::PrefaceMatch::No => Err(Reject::PrefaceInvalid),
        }
    }

    /// More bytes than `unread`, which begins with something partial, are needed.
    #[inline]
    fn input(&mut self, unread: &[u8], partial: Partial) -> Outcome {
        self.receive.partial = if unread.is_empty() { Partial::Nothing } else { partial };
        Outcome::Input
    }

    /// Reads a frame as a whole, or starts one that is read in parts.
    #[inline]
    fn frame(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Outcome, Reject> {
        let Some(header) = Header::read(unread) else {
            return Ok(self.input(unread, Partial::Frame));
        };
        self.check_header(limits, header)?;
        let payload = &unread[HEADER_BYTES..];
        let length = header.length as usize;
        match header.kind {
            Kind::Data => {
                let Some(padding) = padding_length(header, payload)? else {
                    return Ok(self.input(unread, Partial::Frame));
                };
                let used = HEADER_BYTES + usize::from(header.has(flag::PADDED));
                let event = self.begin_data(limits, header, padding, buffers.out)?;
                return Ok(Outcome::of(used, event));
            }
            Kind::Unknown(_) => {
                // RFC 9113 §4.1: frames of unknown types must be ignored and discarded.
                self.budget.charge(Deed::Unknown)?;
                self.begin_skip(header.length);
                return Ok(Outcome::Used(HEADER_BYTES));
            }
            Kind::GoAway => {
                let Some(code) = payload.get(4..).and_then(frame::number) else {
                    return Ok(self.input(unread, Partial::Frame));
                };
                self.budget.charge(Deed::GoAway)?;
                self.peer_going = true;
                self.begin_skip(header.length - GO_AWAY_BYTES);
                let used = HEADER_BYTES + GO_AWAY_BYTES as usize;
                return Ok(Outcome::Event(used, Event::GoAway { code: Code(code) }));
            }
            _ => {}
        }
        let Some(payload) = payload.get(..length) else {
            let is_head = matches!(header.kind, Kind::Headers | Kind::Continuation);
            return Ok(self.input(unread, if is_head { Partial::Head } else { Partial::Frame }));
        };
        let event = match header.kind {
            Kind::Headers => self.headers(limits, header, payload, buffers)?,
            Kind::Continuation => self.continuation(limits, header, payload, buffers)?,
            Kind::WindowUpdate => self.window_update(limits, header, payload, buffers.out)?,
            Kind::Settings => self.settings(limits, header, payload, buffers.out)?,
            Kind::Ping => self.ping(limits, header, payload, buffers.out)?,
            Kind::ResetStream => self.reset_stream(header, payload, buffers.out)?,
            Kind::Priority => self.priority(limits, header, buffers.out)?,
            Kind::PriorityUpdate => self.priority_update(payload)?,
            Kind::Data | Kind::GoAway | Kind::PushPromise | Kind::Unknown(_) => None,
        };
        Ok(Outcome::of(HEADER_BYTES + length, event))
    }

    /// Rejects a frame whose header violates a rule.
    #[inline]
    fn check_header(&self, limits: &Limits, header: Header) -> Result<(), Reject> {
        // RFC 9113 §3.4: the client's preface ends with a SETTINGS frame.
        if self.receive.step == Step::Settings
            && (header.kind != Kind::Settings || header.has(flag::ACK))
        {
            return Err(Reject::SettingsMissing);
        }
        // RFC 9113 §4.2: a frame that exceeds SETTINGS_MAX_FRAME_SIZE is a FRAME_SIZE_ERROR.
        if header.length > limits.payload_bytes_max() {
            return Err(Reject::FrameTooLong);
        }
        // RFC 9113 §6.10: until a header block ends, nothing but its CONTINUATION frames may come.
        match &self.receive.block {
            Some(block) if (header.kind, header.stream) != (Kind::Continuation, block.stream) => {
                return Err(Reject::BlockInterrupted);
            }
            None if header.kind == Kind::Continuation => return Err(Reject::ContinuationAlone),
            _ => {}
        }
        let length = header.length;
        match header.kind {
            Kind::Data | Kind::Headers | Kind::Continuation | Kind::Priority
                if header.stream == 0 =>
            {
                Err(Reject::StreamZero)
            }
            Kind::ResetStream if header.stream == 0 => Err(Reject::StreamZero),
            Kind::Settings | Kind::Ping | Kind::GoAway | Kind::PriorityUpdate
                if header.stream != 0 =>
            {
                Err(Reject::StreamNotZero)
            }
            Kind::ResetStream if length != 4 => Err(Reject::ResetLength),
            Kind::Settings if header.has(flag::ACK) && length != 0 => {
                Err(Reject::SettingsAckLength)
            }
            Kind::Settings if !length.is_multiple_of(6) => Err(Reject::SettingsLength),
            Kind::Ping if length != 8 => Err(Reject::PingLength),
            Kind::GoAway if length < 8 => Err(Reject::GoAwayLength),
            Kind::WindowUpdate if length != 4 => Err(Reject::WindowUpdateLength),
            Kind::PriorityUpdate if length < 4 => Err(Reject::PriorityUpdateLength),
            // RFC 9113 §8.4: a client cannot push.
            Kind::PushPromise => Err(Reject::PushPromise),
            _ => Ok(()),
        }
    }

    fn begin_skip(&mut self, left: u32) {
        self.receive.left = left;
        self.receive.step = if left == 0 { Step::Frame } else { Step::Skip };
    }

    /// Skips ignored bytes.
    fn skip(&mut self, bytes: usize) -> Outcome {
        let taken = smaller(bytes, self.receive.left);
        if taken == 0 {
            return Outcome::Input;
        }
        self.begin_skip(self.receive.left - count(taken));
        Outcome::Used(taken)
    }

    /// Starts a DATA frame: counts all of it against the windows, and checks whether it is wanted.
    // RFC 9113 §6.9.1: flow control counts whole DATA payloads, padding included, also of frames
    // that are in error.
    fn begin_data(
        &mut self,
        limits: &Limits,
        header: Header,
        padding: u8,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        let overhead = u32::from(header.has(flag::PADDED)) + u32::from(padding);
        let length = header.length - overhead;
        let ends = header.has(flag::END_STREAM);
        self.flow.left = self.flow.left.checked_sub(header.length).ok_or(Reject::WindowExceeded)?;
        if length == 0 && !ends {
            self.budget.charge(Deed::EmptyData)?;
        }
        if padding > 0 {
            self.budget.charge(Deed::Padding(u32::from(padding)))?;
        }
        self.receive.step = Step::Data;
        self.receive.left = length;
        self.receive.padding = padding;
        self.receive.ends = ends;
        self.receive.stream = None;
        let event = match self.streams.find(header.stream) {
            Found::Open(slot) => {
                let key = StreamKey { id: header.stream, slot };
                self.begin_content(limits, key, header.length, length, out)?
            }
            // RFC 9113 §5.1: DATA on an idle stream is a connection error.
            Found::Idle => return Err(Reject::StreamIdle),
            // RFC 9113 §5.1: after END_STREAM from both sides, it is one of type STREAM_CLOSED.
            Found::Closed(Closed::Ended | Closed::Unknown) => return Err(Reject::StreamEnded),
            Found::Closed(Closed::ByPeer) => {
                let (id, reject) = (header.stream, Reject::StreamReset);
                self.answer_reset(limits, id, reject, out)?;
                Some(Event::Rejected { id, reject })
            }
            // RFC 9113 §5.1: after sending RST_STREAM, frames in transit are ignored.
            Found::Closed(Closed::ByUs) => {
                self.budget.late_data(header.length)?;
                None
            }
        };
        self.open_window(out);
        Ok(event)
    }

    /// Starts a DATA frame of `length` bytes of content, `total` with padding, on an open stream.
    fn begin_content(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        total: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Reject> {
        let ends = self.receive.ends;
        let stream = self.streams.at_mut(key.slot);
        stream.expecting = false;
        let content = u64::from(length);
        let reject = if !stream.receives() {
            // RFC 9113 §5.1: frames on a half-closed (remote) stream are a STREAM_CLOSED error.
            Some(Reject::StreamHalfClosed)
        } else if total > 0 && total.cast_signed() > stream.window {
            // RFC 9113 §6.9.1: frames without a payload need no window.
            Some(Reject::StreamWindowExceeded)
        } else if content > stream.content_left
            || (ends && stream.content_left != u64::MAX && content != stream.content_left)
        {
            // RFC 9113 §8.1.1: a request is malformed if its content-length is not the sum of its
            // DATA.
            Some(Reject::ContentLengthDiffers)
        } else {
            None
        };
        if let Some(reject) = reject {
            return self.fault(limits, key, reject, out);
        }
        stream.window -= total.cast_signed();
        stream.has_content |= total > 0;
        if stream.content_left != u64::MAX {
            stream.content_left -= content;
        }
        self.receive.stream = Some(key);
        if stream.discarding {
            return Ok(None);
        }
        if content > stream.allowance {
            (stream.discarding, stream.refused) = (true, true);
            let reject = crate::Reject::BodyTooLarge;
            return Ok(Some(Event::Refuse { stream: key, reject }));
        }
        stream.allowance -= content;
        stream.held += length;
        self.flow.held += length;
        if total > length && !ends {
            // The padding is consumed immediately.
            self.consumed(key, 0, out);
        }
        self.budget.received(limits, length);
        if self.flow.received(limits, length) {
            frame::write(Kind::Ping, 0, 0, &MEASURE, out);
        }
        Ok(None)
    }

    /// Reads content, padding, or the end of a DATA frame.
    #[inline]
    fn data(&mut self, unread: &[u8], at: usize, out: &mut Vec<u8>) -> Outcome {
        let rest = unread.len() - at;
        let padding = u32::from(self.receive.padding);
        if rest == 0 && self.receive.left + padding > 0 {
            return Outcome::Input;
        }
        if self.receive.left > 0 {
            let taken = smaller(rest, self.receive.left);
            self.receive.left -= count(taken);
            // The server may have reset the stream in the meantime, or may not want its content.
            let wanted = self.receive.stream.filter(|key| self.wants_content(*key));
            let range = at..at + taken;
            return Outcome::of(taken, wanted.map(|stream| Event::Data { stream, range }));
        }
        if padding > 0 {
            let taken = smaller(rest, padding);
            self.receive.padding -= u8::try_from(taken).expect("padding is counted in a byte");
            return Outcome::Used(taken);
        }
        self.receive.step = Step::Frame;
        let stream = self.receive.stream.take().filter(|_| self.receive.ends);
        let Some(key) = stream.filter(|key| self.streams.get(*key).is_some()) else {
            return Outcome::Used(0);
        };
        let is_wanted = self.wants_content(key);
        self.end_receive(key, out);
        Outcome::of(0, is_wanted.then_some(Event::End { stream: key }))
    }

    #[inline]
    fn wants_content(&self, key: StreamKey) -> bool {
        self.streams.get(key).is_some_and(|stream| !stream.discarding)
    }
}

/// How much padding a DATA frame has; `None` if the length byte has not arrived.
// RFC 9113 §6.1: padding that is as long as the payload or longer is a PROTOCOL_ERROR.
#[inline]
fn padding_length(header: Header, payload: &[u8]) -> Result<Option<u8>, Reject> {
    if !header.has(flag::PADDED) {
        return Ok(Some(0));
    }
    if header.length == 0 {
        return Err(Reject::PaddingTooLong);
    }
    match payload.first() {
        Some(padding) if u32::from(*padding) >= header.length => Err(Reject::PaddingTooLong),
        padding => Ok(padding.copied()),
    }
}

/// The length of a GOAWAY frame before its debug data.
const GO_AWAY_BYTES: u32 = 8;

/// The smaller of a length and a count.
#[inline]
fn smaller(length: usize, count: u32) -> usize {
    usize::try_from(count).map_or(length, |count| count.min(length))
}

/// Converts a length that is at most that of a frame.
#[inline]
fn count(length: usize) -> u32 {
    u32::try_from(length).expect("a frame's length has 24 bits")
}
