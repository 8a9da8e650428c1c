//! The receiving side: turns bytes into frames, and frames into messages.

use super::budget::Cost;
use super::close::{Close, CloseCode};
use super::compression::DeflateCodec;
use super::connection::{Connection, Role, State, Transition};
use super::error::WebSocketError;
use super::event::{Event, MessageType, WaitingFor};
use super::frame::{self, CONTROL_BYTES_MAX, LENGTH_16, LENGTH_64, Opcode, flag};
use super::limits::Limits;
use super::message::{IncomingFrame, IncomingMessage, InflateState};
use super::utf8::Utf8Validator;
use std::borrow::Cow;

/// The receiving side's state.
#[derive(Debug)]
pub(super) struct ReceivePath {
    pub(super) is_streaming: bool,
    /// The data frame whose payload is being received.
    pub(super) frame: Option<IncomingFrame>,
    /// The message whose frames are being received.
    pub(super) message: Option<IncomingMessage>,
    /// Whether a header or a control frame is incomplete.
    is_partial: bool,
    /// The received part of a message that is yielded as a whole but arrives in parts.
    pub(super) reassembly: Vec<u8>,
}

impl ReceivePath {
    pub(super) const fn new() -> Self {
        Self {
            is_streaming: false,
            frame: None,
            message: None,
            is_partial: false,
            reassembly: Vec::new(),
        }
    }

    /// Drops the frame and the message being received.
    pub(super) fn reset(&mut self) {
        *self = Self { is_streaming: self.is_streaming, ..Self::new() };
    }

    pub(super) const fn waiting_for(&self) -> WaitingFor {
        if self.is_partial || self.frame.is_some() {
            WaitingFor::Frame
        } else if self.message.is_some() {
            WaitingFor::Message
        } else {
            WaitingFor::NextMessage
        }
    }

    pub(super) const fn memory_bytes(&self) -> usize {
        self.reassembly.capacity()
    }

    pub(super) fn assert_invariants(&self, is_over: bool, can_inflate: bool) {
        let Some(message) = &self.message else {
            assert!(self.frame.is_none(), "a data frame is part of a message");
            assert!(self.reassembly.capacity() == 0, "nothing is buffered between messages");
            return;
        };
        assert!(!is_over, "no message is incomplete after the end");
        assert!(
            message.inflating.is_none() || can_inflate,
            "a compressed message requires compression"
        );
        assert!(
            message.message_type == MessageType::Text || message.utf8.is_complete(),
            "only text is validated"
        );
        assert!(
            self.reassembly.len() as u64 <= message.bytes,
            "buffered bytes belong to the message"
        );
        assert!(
            !self.is_streaming || self.reassembly.is_empty(),
            "yielded chunks are not buffered"
        );
        if let Some(frame) = self.frame {
            assert!(
                frame.unmasked as u64 <= frame.bytes_left,
                "unmasked bytes belong to the frame"
            );
        }
    }
}

/// The outcome of reading some bytes.
pub(super) enum Outcome {
    /// Nothing yet: more bytes are needed.
    NeedInput,
    /// This many bytes were used, without an event.
    Used(usize),
    /// This many bytes were used, with an event.
    Event(usize, FrameContent),
}

/// The content of the bytes that were used.
pub(super) enum FrameContent {
    /// All bytes are a message.
    Message(MessageType),
    /// The assembled message.
    Assembled(MessageType, Vec<u8>),
    /// All bytes are a chunk of a message.
    Chunk { message_type: MessageType, last: bool },
    /// A decompressed chunk.
    Inflated { message_type: MessageType, bytes: Vec<u8>, last: bool },
    /// A control frame whose payload starts at `from`.
    Control { opcode: Opcode, from: usize },
}

/// A frame's header, which is valid.
struct Header {
    opcode: Opcode,
    flags: u8,
    length: u64,
    mask: [u8; 4],
    /// The header's own length.
    bytes: usize,
}

impl<C: DeflateCodec> Connection<C> {
    /// Processes bytes: returns how many of `unread` were used, and their meaning.
    ///
    /// `unread` holds all received bytes that were not used yet; payloads are unmasked in place.
    /// Call it repeatedly until it returns [`Event::NeedInput`], then again when there are more
    /// bytes. Payloads are processed as they arrive, so only a header or a control frame is ever
    /// left unused: at most
    /// [`CONTROL_FRAME_BYTES_MAX`](frame::CONTROL_FRAME_BYTES_MAX) - 1 bytes. The events do not
    /// depend on how the bytes are split between calls, except that chunks are split in the same
    /// way.
    #[inline]
    pub fn receive<'a>(
        &mut self,
        limits: &Limits,
        unread: &'a mut [u8],
        out: &mut Vec<u8>,
    ) -> (usize, Event<'a>) {
        let mut at = 0;
        loop {
            if self.state.is_terminal() {
                return (unread.len(), Event::Closed);
            }
            let outcome = match self.receive.frame {
                None => self.receive_frame(limits, &mut unread[at..]),
                Some(frame) => self.receive_payload(limits, frame, &mut unread[at..]),
            };
            match outcome {
                Ok(Outcome::NeedInput) => return (at, Event::NeedInput),
                Ok(Outcome::Used(used)) => at += used,
                Ok(Outcome::Event(used, content)) => {
                    return match self.make_event(limits, content, &unread[at..at + used], out) {
                        Ok(event) => (at + used, event),
                        Err(error) => (unread.len(), self.fail(error, out)),
                    };
                }
                Err(error) => return (unread.len(), self.fail(error, out)),
            }
        }
    }

    /// Creates the event for `content`, which may refer to `bytes`.
    #[inline]
    fn make_event<'a>(
        &mut self,
        limits: &Limits,
        content: FrameContent,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Event<'a>, WebSocketError> {
        Ok(match content {
            FrameContent::Message(MessageType::Text) => {
                let text = std::str::from_utf8(bytes).map_err(|_| WebSocketError::TextInvalid)?;
                Event::Text(Cow::Borrowed(text))
            }
            FrameContent::Message(MessageType::Binary) => Event::Binary(Cow::Borrowed(bytes)),
            FrameContent::Assembled(MessageType::Text, bytes) => {
                let text = String::from_utf8(bytes).map_err(|_| WebSocketError::TextInvalid)?;
                Event::Text(Cow::Owned(text))
            }
            FrameContent::Assembled(MessageType::Binary, bytes) => Event::Binary(Cow::Owned(bytes)),
            FrameContent::Chunk { message_type, last } => {
                Event::Chunk { message_type, bytes: Cow::Borrowed(bytes), is_final: last }
            }
            FrameContent::Inflated { message_type, bytes, last } => {
                Event::Chunk { message_type, bytes: Cow::Owned(bytes), is_final: last }
            }
            FrameContent::Control { opcode, from } => {
                let payload = &bytes[from..];
                match opcode {
                    Opcode::Ping => {
                        self.write_pong(limits, payload, out)?;
                        Event::Ping(payload)
                    }
                    Opcode::Close => Event::Close(self.receive_close(payload, out)?),
                    _ => {
                        self.budget.charge(Cost::Pong)?;
                        Event::Pong(payload)
                    }
                }
            }
        })
    }

    /// Reads a header, and the payload of a control frame.
    fn receive_frame(
        &mut self,
        limits: &Limits,
        unread: &mut [u8],
    ) -> Result<Outcome, WebSocketError> {
        self.receive.is_partial = !unread.is_empty();
        let Some(header) = self.parse_header(limits, unread)? else {
            return Ok(Outcome::NeedInput);
        };
        let is_final = header.flags & flag::FIN != 0;
        if header.opcode.is_control() {
            let end = header.bytes + header.length as usize;
            let Some(payload) = unread.get_mut(header.bytes..end) else {
                return Ok(Outcome::NeedInput);
            };
            frame::apply_mask(payload, header.mask);
            self.receive.is_partial = false;
            let content = FrameContent::Control { opcode: header.opcode, from: header.bytes };
            return Ok(Outcome::Event(end, content));
        }
        self.receive.is_partial = false;
        if !is_final {
            self.budget.charge(Cost::Fragment(header.length))?;
        }
        if header.opcode != Opcode::Continuation {
            let message_type =
                if header.opcode == Opcode::Text { MessageType::Text } else { MessageType::Binary };
            let compressed = header.flags & flag::RSV1 != 0;
            let inflating = compressed.then(InflateState::default);
            let utf8 = Utf8Validator::new();
            self.receive.message =
                Some(IncomingMessage { message_type, received: 0, bytes: 0, utf8, inflating });
        }
        let message = self.receive.message.as_mut().expect("a continuation belongs to a message");
        message.received = message.received.saturating_add(header.length);
        // RFC 6455 §10.4: an endpoint SHOULD limit the size of frames and of messages.
        let bytes_max = match message.inflating {
            None => limits.message_bytes_max,
            // DEFLATE may expand data a little, and each flush adds a few bytes.
            Some(_) => limits.message_bytes_max.saturating_mul(2).saturating_add(1024),
        };
        if message.received > bytes_max {
            return Err(WebSocketError::MessageTooLong);
        }
        self.receive.frame = Some(IncomingFrame {
            bytes_left: header.length,
            is_final,
            mask: header.mask,
            unmasked: 0,
        });
        Ok(Outcome::Used(header.bytes))
    }

    /// Reads a header. A rule is checked as soon as the bytes it concerns have arrived.
    #[inline]
    fn parse_header(
        &self,
        limits: &Limits,
        unread: &[u8],
    ) -> Result<Option<Header>, WebSocketError> {
        let Some(first) = unread.first() else { return Ok(None) };
        let flags = first & 0xF0;
        let opcode = self.check_opcode(*first)?;
        let Some(second) = unread.get(1) else { return Ok(None) };
        // RFC 6455 §5.1: a server closes the connection upon a frame that is not masked, and a
        // client upon one that is.
        match (self.role, second & 0x80 != 0) {
            (Role::Server, false) => return Err(WebSocketError::MaskMissing),
            (Role::Client(_), true) => return Err(WebSocketError::MaskForbidden),
            _ => {}
        }
        // RFC 6455 §5.5: control frames have at most 125 bytes.
        let short_length = second & 0x7F;
        if opcode.is_control() && usize::from(short_length) > CONTROL_BYTES_MAX {
            return Err(WebSocketError::ControlTooLong);
        }
        let (length, mut bytes) = match short_length {
            // RFC 6455 §5.2: the minimal number of bytes MUST be used to encode the length; the
            // highest bit of 64 MUST be 0.
            LENGTH_16 => {
                let Some(length) = unread[2..].first_chunk() else { return Ok(None) };
                let length = u64::from(u16::from_be_bytes(*length));
                if length < u64::from(LENGTH_16) {
                    return Err(WebSocketError::LengthNotMinimal);
                }
                (length, 4)
            }
            LENGTH_64 => {
                let Some(length) = unread[2..].first_chunk() else { return Ok(None) };
                let length = u64::from_be_bytes(*length);
                if length > i64::MAX as u64 {
                    return Err(WebSocketError::LengthTooLarge);
                }
                if length <= u64::from(u16::MAX) {
                    return Err(WebSocketError::LengthNotMinimal);
                }
                (length, 10)
            }
            length => (u64::from(length), 2),
        };
        if length > limits.frame_bytes_max && !opcode.is_control() {
            return Err(WebSocketError::FrameTooLong);
        }
        let mut mask = [0; 4];
        if let Role::Server = self.role {
            let Some(mask_bytes) = unread[bytes..].first_chunk() else { return Ok(None) };
            mask = *mask_bytes;
            bytes += 4;
        }
        Ok(Some(Header { opcode, flags, length, mask, bytes }))
    }

    /// Checks a frame's first byte.
    #[inline]
    fn check_opcode(&self, first: u8) -> Result<Opcode, WebSocketError> {
        // RFC 6455 §5.2: a reserved bit that no extension has defined MUST be 0, and a reserved
        // opcode fails the connection.
        let allowed_bits = if self.compression.is_some() { flag::RSV1 } else { 0 };
        if first & flag::RSV_MASK & !allowed_bits != 0 {
            return Err(WebSocketError::NonZeroReservedBits);
        }
        let opcode = Opcode::from_u8(first & 0x0F).ok_or(WebSocketError::OpcodeReserved)?;
        // RFC 7692 §6.1: RSV1 is only set on the first frame of a message, never on a control
        // frame.
        let starts_message = matches!(opcode, Opcode::Text | Opcode::Binary);
        if first & flag::RSV1 != 0 && !starts_message {
            return Err(WebSocketError::UnexpectedRsv1);
        }
        // RFC 6455 §5.4: control frames may occur within a message, and MUST NOT be fragmented;
        // frames of two messages are not interleaved.
        match (opcode.is_control(), self.receive.message.is_some()) {
            (true, _) if first & flag::FIN == 0 => Err(WebSocketError::ControlFragmented),
            (false, true) if starts_message => Err(WebSocketError::MessageInterrupted),
            (false, false) if !starts_message => Err(WebSocketError::ContinuationAlone),
            _ => Ok(opcode),
        }
    }

    // RFC 6455 §5.5.2: a ping is answered by a pong with its payload, unless a Close frame was
    // received.
    fn write_pong(
        &mut self,
        limits: &Limits,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), WebSocketError> {
        self.budget.charge(Cost::Ping)?;
        if self.state == State::Open {
            self.budget.count_pong(limits)?;
            frame::write_frame(Opcode::Pong, flag::FIN, self.mask(), payload, out);
        }
        Ok(())
    }

    // RFC 6455 §5.5.1: the body of a Close frame is a code and a reason in UTF-8, or empty; it is
    // answered by a Close frame that echoes the code, unless one was sent before.
    fn receive_close<'a>(
        &mut self,
        payload: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Close<'a>, WebSocketError> {
        let close = match payload.split_first_chunk() {
            None if payload.is_empty() => Close { code: CloseCode::NO_STATUS_RECEIVED, reason: "" },
            None => return Err(WebSocketError::CloseTooShort),
            Some((code, reason)) => {
                let code = CloseCode(u16::from_be_bytes(*code));
                if !code.is_sendable() {
                    return Err(WebSocketError::CloseCodeInvalid);
                }
                let reason = std::str::from_utf8(reason);
                Close { code, reason: reason.map_err(|_| WebSocketError::CloseReasonInvalid)? }
            }
        };
        if self.state == State::Open {
            let echo = close.code.is_sendable().then_some((close.code, ""));
            self.write_close(echo, out);
        }
        self.transition(Transition::ReceiveClose);
        Ok(close)
    }
}
