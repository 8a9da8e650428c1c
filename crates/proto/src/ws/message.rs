//! Turns the payloads of data frames into messages: assembled, decompressed, and validated.

use super::compression::{DeflateCodec, InflateError};
use super::connection::Connection;
use super::error::WebSocketError;
use super::event::MessageType;
use super::frame;
use super::limits::Limits;
use super::receive::{FrameContent, Outcome};
use super::utf8::Utf8Validator;

/// A data frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingFrame {
    /// The number of bytes until the end of the frame.
    pub(super) bytes_left: u64,
    /// Whether this is the last frame of its message.
    pub(super) is_final: bool,
    /// The mask of the next byte and the three after it; all 0 without a mask.
    pub(super) mask: [u8; 4],
    /// How many of the next bytes are already unmasked.
    pub(super) unmasked: usize,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingMessage {
    pub(super) message_type: MessageType,
    /// The number of announced payload bytes, before decompression.
    pub(super) received: u64,
    /// The number of content bytes so far, after decompression.
    pub(super) bytes: u64,
    pub(super) utf8: Utf8Validator,
    /// The state of decompression, if the message is compressed.
    pub(super) inflating: Option<InflateState>,
}

/// A compressed message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InflateState {
    /// Whether the last call filled the room for its output, so that more output may be pending.
    pub(super) is_full: bool,
    /// How many bytes of [`DEFLATE_TAIL`] were passed to the decompressor.
    pub(super) end: usize,
}

/// The bytes that end a flushed block, which are not sent.
pub(super) const DEFLATE_TAIL: [u8; 4] = [0, 0, 0xFF, 0xFF];

/// The maximum number of bytes decompressed at a time.
pub(super) const INFLATE_BYTES: usize = 16 * 1024;

impl<C: DeflateCodec> Connection<C> {
    /// Reads the available part of a data frame's payload.
    #[inline]
    pub(super) fn receive_payload(
        &mut self,
        limits: &Limits,
        mut frame: IncomingFrame,
        unread: &mut [u8],
    ) -> Result<Outcome, WebSocketError> {
        let mut message = self.receive.message.expect("a data frame is part of a message");
        let available = usize::try_from(frame.bytes_left).unwrap_or(usize::MAX).min(unread.len());
        frame.unmask(&mut unread[..available]);
        if let Some(inflate_state) = message.inflating {
            return self.inflate(limits, frame, message, inflate_state, &unread[..available]);
        }
        if available == 0 && frame.bytes_left > 0 {
            return Ok(Outcome::NeedInput);
        }
        frame.advance(available);
        let bytes = &unread[..available];
        let message_type = message.message_type;
        let is_complete = frame.bytes_left == 0 && frame.is_final;
        let is_whole = is_complete && message.bytes == 0;
        message.bytes += available as u64;
        self.budget.credit_received(limits, available);
        if is_whole && !self.receive.is_streaming {
            // The most frequent case, a message in one available frame: its text is validated when
            // it is borrowed.
            self.end_message(limits, &message);
            return Ok(Outcome::Event(available, FrameContent::Message(message_type)));
        }
        message.check(bytes, is_complete)?;
        if !self.receive.is_streaming {
            let reassembly = &mut self.receive.reassembly;
            // The buffer at most doubles: a length that was only announced must not allocate
            // memory.
            let reserve = frame.bytes_left.min(reassembly.len().max(available) as u64);
            reassembly.reserve(available + usize::try_from(reserve).unwrap_or(0));
            reassembly.extend_from_slice(bytes);
        }
        if is_complete {
            let reassembly = std::mem::take(&mut self.receive.reassembly);
            self.end_message(limits, &message);
            let content = match self.receive.is_streaming {
                true => FrameContent::Chunk { message_type, last: true },
                false => FrameContent::Assembled(message_type, reassembly),
            };
            return Ok(Outcome::Event(available, content));
        }
        self.receive.message = Some(message);
        self.receive.frame = (frame.bytes_left > 0).then_some(frame);
        if self.receive.is_streaming && available > 0 {
            return Ok(Outcome::Event(
                available,
                FrameContent::Chunk { message_type, last: false },
            ));
        }
        Ok(Outcome::Used(available))
    }

    /// Decompresses the available part of a data frame's payload.
    // RFC 7692 §7.2.2: 00 00 FF FF is appended to the payload of a message, which then is inflated.
    fn inflate(
        &mut self,
        limits: &Limits,
        mut frame: IncomingFrame,
        mut message: IncomingMessage,
        mut inflate_state: InflateState,
        input: &[u8],
    ) -> Result<Outcome, WebSocketError> {
        let compression = self.compression.as_mut().expect("compression was negotiated");
        let is_streaming = self.receive.is_streaming;
        let mut output = std::mem::take(&mut self.receive.reassembly);
        let (start, mut used) = (output.len(), 0);
        let is_complete = loop {
            let is_last_input = frame.is_final && frame.bytes_left == used as u64;
            let rest =
                if is_last_input { &DEFLATE_TAIL[inflate_state.end..] } else { &input[used..] };
            if rest.is_empty() && !inflate_state.is_full {
                break is_last_input;
            }
            if is_streaming && output.len() >= INFLATE_BYTES {
                break false;
            }
            let len_before = output.len();
            // One more byte than allowed shows that the message is too long.
            let allowed = limits.message_bytes_max.saturating_sub(message.bytes).saturating_add(1);
            // Enough for short texts; doubled each time that it was not enough.
            let estimate = len_before.max(8 * rest.len()).clamp(512, INFLATE_BYTES);
            let room = usize::try_from(allowed).unwrap_or(usize::MAX).min(estimate);
            let room = if is_streaming { room.min(INFLATE_BYTES - len_before) } else { room };
            let read = compression.inflate(rest, room, &mut output);
            let written = output.len() - len_before;
            message.bytes += written as u64;
            let error = if message.bytes > limits.message_bytes_max {
                output.pop();
                Some(WebSocketError::MessageTooLong)
            } else if read == Err(InflateError) || read == Ok(0) && written == 0 && !rest.is_empty()
            {
                Some(WebSocketError::DeflateInvalid)
            } else {
                None
            };
            if let Some(error) = error {
                // The output before the error may be invalid itself.
                message.check(&output[start..], false)?;
                return Err(error);
            }
            let read = read.unwrap_or(0);
            assert!(written <= room && read <= rest.len(), "the output stays within the room");
            inflate_state.is_full = written == room;
            *(if is_last_input { &mut inflate_state.end } else { &mut used }) += read;
        };
        frame.advance(used);
        self.budget.credit_received(limits, used);
        message.check(&output[start..], is_complete)?;
        message.inflating = Some(inflate_state);
        let message_type = message.message_type;
        if is_complete {
            compression.end_inflate();
            self.end_message(limits, &message);
            let content = match is_streaming {
                true => FrameContent::Inflated { message_type, bytes: output, last: true },
                false => FrameContent::Assembled(message_type, output),
            };
            return Ok(Outcome::Event(used, content));
        }
        self.receive.message = Some(message);
        let is_done = frame.bytes_left == 0 && !frame.is_final && !inflate_state.is_full;
        self.receive.frame = (!is_done).then_some(frame);
        if is_streaming && !output.is_empty() {
            return Ok(Outcome::Event(
                used,
                FrameContent::Inflated { message_type, bytes: output, last: false },
            ));
        }
        if !is_streaming {
            self.receive.reassembly = output;
        }
        Ok(if used == 0 && !is_done { Outcome::NeedInput } else { Outcome::Used(used) })
    }

    /// Records that a message is complete.
    #[inline]
    fn end_message(&mut self, limits: &Limits, message: &IncomingMessage) {
        if message.bytes > 0 {
            self.budget.credit_message(limits);
        }
        self.receive.frame = None;
        self.receive.message = None;
    }
}

impl IncomingFrame {
    /// Unmasks the next bytes, except those that are already unmasked.
    #[inline]
    fn unmask(&mut self, bytes: &mut [u8]) {
        if self.mask != [0; 4] && bytes.len() > self.unmasked {
            let mut mask = self.mask;
            mask.rotate_left(self.unmasked % 4);
            frame::apply_mask(&mut bytes[self.unmasked..], mask);
        }
        self.unmasked = self.unmasked.max(bytes.len());
    }

    /// Skips used bytes.
    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.bytes_left -= bytes as u64;
        self.unmasked -= bytes;
        self.mask.rotate_left(bytes % 4);
    }
}

impl IncomingMessage {
    /// Validates the next content, if it is text. If the message is complete, it must not end
    /// within a character.
    fn check(&mut self, bytes: &[u8], is_complete: bool) -> Result<(), WebSocketError> {
        if self.message_type == MessageType::Text
            && !(self.utf8.check(bytes) && (!is_complete || self.utf8.is_complete()))
        {
            return Err(WebSocketError::TextInvalid);
        }
        Ok(())
    }
}
