//! The receiving side: turns bytes into frames, and frames into events.

use super::budget::Cost;
use super::connection::Connection;
use super::error::Http2Error;
use super::event::{Event, WaitingFor};
use super::frame::{self, ErrorCode, FrameHeader, FrameType, HEADER_BYTES, PREFACE, flags};
use super::headers::HeaderBlock;
use super::limits::Limits;
use super::streams::StreamKey;
use crate::HeadIndex;

/// The position of the receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameReadState {
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
pub(super) struct ReceivePath {
    pub(super) step: FrameReadState,
    /// The bytes before the padding (`Data`) or before the end of the frame (`Skip`).
    pub(super) bytes_left: u32,
    /// Padding after the content of a DATA frame.
    pub(super) padding: u8,
    /// Whether the DATA frame ends its stream.
    pub(super) end_stream: bool,
    /// The stream of the content; `None` if the content is ignored.
    pub(super) stream: Option<StreamKey>,
    /// A header block that is not complete.
    pub(super) block: Option<Box<HeaderBlock>>,
    /// What was incomplete when [`Event::NeedInput`] was returned.
    partial: Partial,
}

/// What is incomplete when more input is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partial {
    Nothing,
    Head,
    Frame,
}

impl ReceivePath {
    pub(super) const fn new() -> Self {
        Self {
            step: FrameReadState::Preface,
            bytes_left: 0,
            padding: 0,
            end_stream: false,
            stream: None,
            block: None,
            partial: Partial::Nothing,
        }
    }

    /// Returns whether a frame or a header block is incomplete.
    pub(super) fn is_mid_frame(&self) -> bool {
        match self.step {
            FrameReadState::Data | FrameReadState::Skip => true,
            FrameReadState::Closed => false,
            FrameReadState::Preface | FrameReadState::Settings | FrameReadState::Frame => {
                self.partial != Partial::Nothing || self.block.is_some()
            }
        }
    }

    pub(super) fn waiting_for(&self) -> WaitingFor {
        match self.step {
            FrameReadState::Preface | FrameReadState::Settings => WaitingFor::Preface,
            FrameReadState::Data | FrameReadState::Skip => WaitingFor::Frame,
            FrameReadState::Closed => WaitingFor::Nothing,
            FrameReadState::Frame if self.block.is_some() || self.partial == Partial::Head => {
                WaitingFor::Head
            }
            FrameReadState::Frame if self.partial == Partial::Frame => WaitingFor::Frame,
            FrameReadState::Frame => WaitingFor::NextRequest,
        }
    }

    /// Returns whether a frame with content of this stream was announced but has not arrived
    /// completely.
    pub(super) fn expects_data(&self, stream: StreamKey) -> bool {
        self.step == FrameReadState::Data && self.bytes_left > 0 && self.stream == Some(stream)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.memory_bytes())
    }
}

/// The outcome of reading some bytes.
pub(super) enum Outcome {
    /// Nothing yet: more bytes are needed.
    NeedInput,
    /// The number of bytes used.
    Used(usize),
    /// The number of bytes used, and their meaning.
    Event(usize, Event),
}

impl Outcome {
    pub(super) fn from_event(used: usize, event: Option<Event>) -> Self {
        event.map_or(Self::Used(used), |event| Self::Event(used, event))
    }
}

/// The caller's buffers: a request's head, and the output.
pub(super) struct Buffers<'a> {
    pub(super) bytes: &'a mut Vec<u8>,
    pub(super) head: &'a mut HeadIndex,
    pub(super) out: &'a mut Vec<u8>,
}

impl Connection {
    /// Processes bytes: returns how many of `unread` were used, and their meaning.
    ///
    /// `unread` holds all received bytes that were not used yet. After [`Event::NeedInput`], call
    /// again when there are more: content is yielded as it arrives, and all other frames are read
    /// as a whole, so `unread` may have to hold
    /// [`receive_buffer_bytes_min`](Limits::receive_buffer_bytes_min). A request's head replaces
    /// the contents of `bytes` and `head`; acknowledgements and resets are appended to `out`. The
    /// events do not depend on how the bytes are split between calls, except that content is split
    /// in the same way.
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
                FrameReadState::Frame | FrameReadState::Settings => {
                    self.receive_frame(limits, &unread[at..], &mut buffers)
                }
                FrameReadState::Data => Ok(self.receive_data(unread, at, buffers.out)),
                FrameReadState::Skip => Ok(self.skip_bytes(unread.len() - at)),
                FrameReadState::Preface => self.receive_preface(&unread[at..]),
                FrameReadState::Closed => return (at, Event::Closed),
            };
            match outcome {
                Ok(Outcome::Event(used, event)) => return (at + used, event),
                Ok(Outcome::Used(used)) => at += used,
                Ok(Outcome::NeedInput) => return (at, Event::NeedInput),
                Err(error) => return (at, self.connection_error(error, buffers.out)),
            }
        }
    }

    // RFC 9113 §3.4: an invalid connection preface must be treated as a connection error.
    #[cold]
    fn receive_preface(&mut self, unread: &[u8]) -> Result<Outcome, Http2Error> {
        match frame::match_preface(unread) {
            frame::PrefaceMatch::Match => {
                self.receive.step = FrameReadState::Settings;
                Ok(Outcome::Used(PREFACE.len()))
            }
            frame::PrefaceMatch::Partial => Ok(self.need_input(unread, Partial::Frame)),
            frame::PrefaceMatch::No => Err(Http2Error::PrefaceInvalid),
        }
    }

    /// Records what is incomplete at the start of `unread`, for [`Self::waiting_for`].
    #[inline]
    fn need_input(&mut self, unread: &[u8], partial: Partial) -> Outcome {
        self.receive.partial = if unread.is_empty() { Partial::Nothing } else { partial };
        Outcome::NeedInput
    }

    /// Reads a frame as a whole, or starts one that is read in parts.
    #[inline]
    fn receive_frame(
        &mut self,
        limits: &Limits,
        unread: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Outcome, Http2Error> {
        let Some(header) = FrameHeader::parse(unread) else {
            return Ok(self.need_input(unread, Partial::Frame));
        };
        self.check_header(limits, header)?;
        let payload = &unread[HEADER_BYTES..];
        let length = header.length as usize;
        match header.frame_type {
            FrameType::Data => {
                let Some(padding) = padding_length(header, payload)? else {
                    return Ok(self.need_input(unread, Partial::Frame));
                };
                let used = HEADER_BYTES + usize::from(header.has_flags(flags::PADDED));
                let event = self.begin_data(limits, header, padding, buffers.out)?;
                return Ok(Outcome::from_event(used, event));
            }
            FrameType::Unknown(_) => {
                // RFC 9113 §4.1: frames of unknown types must be ignored and discarded.
                self.budget.charge(Cost::Unknown)?;
                self.begin_skip(header.length);
                return Ok(Outcome::Used(HEADER_BYTES));
            }
            FrameType::GoAway => {
                let Some(code) = payload.get(4..).and_then(frame::read_u32) else {
                    return Ok(self.need_input(unread, Partial::Frame));
                };
                self.budget.charge(Cost::GoAway)?;
                self.peer_goaway = true;
                self.begin_skip(header.length - GO_AWAY_BYTES);
                let used = HEADER_BYTES + GO_AWAY_BYTES as usize;
                return Ok(Outcome::Event(used, Event::GoAway { code: ErrorCode(code) }));
            }
            _ => {}
        }
        let Some(payload) = payload.get(..length) else {
            let is_head = matches!(header.frame_type, FrameType::Headers | FrameType::Continuation);
            return Ok(
                self.need_input(unread, if is_head { Partial::Head } else { Partial::Frame })
            );
        };
        let event = match header.frame_type {
            FrameType::Headers => self.receive_headers(limits, header, payload, buffers)?,
            FrameType::Continuation => {
                self.receive_continuation(limits, header, payload, buffers)?
            }
            FrameType::WindowUpdate => {
                self.receive_window_update(limits, header, payload, buffers.out)?
            }
            FrameType::Settings => self.receive_settings(limits, header, payload, buffers.out)?,
            FrameType::Ping => self.receive_ping(limits, header, payload, buffers.out)?,
            FrameType::RstStream => self.receive_rst_stream(header, payload, buffers.out)?,
            FrameType::Priority => self.receive_priority(limits, header, buffers.out)?,
            FrameType::PriorityUpdate => self.receive_priority_update(payload)?,
            FrameType::Data
            | FrameType::GoAway
            | FrameType::PushPromise
            | FrameType::Unknown(_) => None,
        };
        Ok(Outcome::from_event(HEADER_BYTES + length, event))
    }

    /// Rejects a frame whose header violates a rule.
    #[inline]
    fn check_header(&self, limits: &Limits, header: FrameHeader) -> Result<(), Http2Error> {
        // RFC 9113 §3.4: the client's preface ends with a SETTINGS frame.
        if self.receive.step == FrameReadState::Settings
            && (header.frame_type != FrameType::Settings || header.has_flags(flags::ACK))
        {
            return Err(Http2Error::SettingsMissing);
        }
        // RFC 9113 §4.2: a frame that exceeds SETTINGS_MAX_FRAME_SIZE is a FRAME_SIZE_ERROR.
        if header.length > limits.payload_bytes_max() {
            return Err(Http2Error::FrameTooLong);
        }
        // RFC 9113 §6.10: until a header block ends, nothing but its CONTINUATION frames may come.
        match &self.receive.block {
            Some(block)
                if (header.frame_type, header.stream_id)
                    != (FrameType::Continuation, block.stream) =>
            {
                return Err(Http2Error::HeaderBlockInterrupted);
            }
            None if header.frame_type == FrameType::Continuation => {
                return Err(Http2Error::ContinuationAlone);
            }
            _ => {}
        }
        let length = header.length;
        match header.frame_type {
            FrameType::Data
            | FrameType::Headers
            | FrameType::Continuation
            | FrameType::Priority
                if header.stream_id == 0 =>
            {
                Err(Http2Error::StreamZero)
            }
            FrameType::RstStream if header.stream_id == 0 => Err(Http2Error::StreamZero),
            FrameType::Settings
            | FrameType::Ping
            | FrameType::GoAway
            | FrameType::PriorityUpdate
                if header.stream_id != 0 =>
            {
                Err(Http2Error::StreamNotZero)
            }
            FrameType::RstStream if length != 4 => Err(Http2Error::ResetLength),
            FrameType::Settings if header.has_flags(flags::ACK) && length != 0 => {
                Err(Http2Error::SettingsAckLength)
            }
            FrameType::Settings if !length.is_multiple_of(6) => Err(Http2Error::SettingsLength),
            FrameType::Ping if length != 8 => Err(Http2Error::PingLength),
            FrameType::GoAway if length < 8 => Err(Http2Error::GoAwayLength),
            FrameType::WindowUpdate if length != 4 => Err(Http2Error::WindowUpdateLength),
            FrameType::PriorityUpdate if length < 4 => Err(Http2Error::PriorityUpdateLength),
            // RFC 9113 §8.4: a client cannot push.
            FrameType::PushPromise => Err(Http2Error::PushPromise),
            _ => Ok(()),
        }
    }

    fn begin_skip(&mut self, bytes_left: u32) {
        self.receive.bytes_left = bytes_left;
        self.receive.step =
            if bytes_left == 0 { FrameReadState::Frame } else { FrameReadState::Skip };
    }

    /// Skips ignored bytes.
    fn skip_bytes(&mut self, bytes: usize) -> Outcome {
        let skipped = min_len(bytes, self.receive.bytes_left);
        if skipped == 0 {
            return Outcome::NeedInput;
        }
        self.begin_skip(self.receive.bytes_left - len_u32(skipped));
        Outcome::Used(skipped)
    }
}

/// The length of a DATA frame's padding; `None` if the byte with it has not arrived.
// RFC 9113 §6.1: padding that is as long as the payload or longer is a PROTOCOL_ERROR.
#[inline]
fn padding_length(header: FrameHeader, payload: &[u8]) -> Result<Option<u8>, Http2Error> {
    if !header.has_flags(flags::PADDED) {
        return Ok(Some(0));
    }
    if header.length == 0 {
        return Err(Http2Error::PaddingTooLong);
    }
    match payload.first() {
        Some(padding) if u32::from(*padding) >= header.length => Err(Http2Error::PaddingTooLong),
        padding => Ok(padding.copied()),
    }
}

/// The length of a GOAWAY frame before its debug data.
const GO_AWAY_BYTES: u32 = 8;

/// The smaller of a length and a count.
#[inline]
pub(super) fn min_len(length: usize, count: u32) -> usize {
    usize::try_from(count).map_or(length, |count| count.min(length))
}

/// Converts a length that is at most that of a frame.
#[inline]
pub(super) fn len_u32(length: usize) -> u32 {
    u32::try_from(length).expect("a frame's length has 24 bits")
}
