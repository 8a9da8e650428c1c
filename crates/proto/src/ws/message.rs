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
    /// Bytes until its end.
    pub(super) bytes_left: u64,
    /// Whether it is the last frame of its message.
    pub(super) is_final: bool,
    /// The mask of its next byte and the three after it; all 0 without a mask.
    pub(super) mask: [u8; 4],
    /// How many of the next bytes are already unmasked.
    pub(super) unmasked: usize,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct IncomingMessage {
    pub(super) kind: MessageType,
    /// The number of received bytes, without frame headers.
    pub(super) received: u64,
    /// The number of bytes of its content.
    pub(super) bytes: u64,
    pub(super) utf8: Utf8Validator,
    /// The state of decompression, if it is compressed.
    pub(super) inflating: Option<InflateState>,
}

/// A compressed message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InflateState {
    /// There was not enough room for all output of the input.
    pub(super) is_full: bool,
    /// How many bytes of [`DEFLATE_TAIL`] were decompressed.
    pub(super) end: usize,
}

/// The end of a flushed block, which is not sent.
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
        let here = usize::try_from(frame.bytes_left).unwrap_or(usize::MAX).min(unread.len());
        frame.unmask(&mut unread[..here]);
        if let Some(inflating) = message.inflating {
            return self.inflate(limits, frame, message, inflating, &unread[..here]);
        }
        if here == 0 && frame.bytes_left > 0 {
            return Ok(Outcome::NeedInput);
        }
        frame.advance(here);
        let bytes = &unread[..here];
        let kind = message.kind;
        let ends = frame.bytes_left == 0 && frame.is_final;
        let is_whole = ends && message.bytes == 0;
        message.bytes += here as u64;
        self.budget.credit_received(limits, here);
        if is_whole && !self.receive.is_streaming {
            // The most frequent case, a message in one available frame: its text is validated when
            // it is borrowed.
            self.end_message(limits, &message);
            return Ok(Outcome::Event(here, FrameContent::Message(kind)));
        }
        message.check(bytes, ends)?;
        if !self.receive.is_streaming {
            let assembly = &mut self.receive.reassembly;
            // At most doubled at a time: a length that was only announced allocates no memory.
            let more = frame.bytes_left.min(assembly.len().max(here) as u64);
            assembly.reserve(here + usize::try_from(more).unwrap_or(0));
            assembly.extend_from_slice(bytes);
        }
        if ends {
            let assembly = std::mem::take(&mut self.receive.reassembly);
            self.end_message(limits, &message);
            let found = match self.receive.is_streaming {
                true => FrameContent::Chunk { kind, last: true },
                false => FrameContent::Assembled(kind, assembly),
            };
            return Ok(Outcome::Event(here, found));
        }
        self.receive.message = Some(message);
        self.receive.frame = (frame.bytes_left > 0).then_some(frame);
        if self.receive.is_streaming && here > 0 {
            return Ok(Outcome::Event(here, FrameContent::Chunk { kind, last: false }));
        }
        Ok(Outcome::Used(here))
    }

    /// Decompresses the available part of a data frame's payload.
    // RFC 7692 §7.2.2: 00 00 FF FF is appended to the payload of a message, which then is inflated.
    fn inflate(
        &mut self,
        limits: &Limits,
        mut frame: IncomingFrame,
        mut message: IncomingMessage,
        mut inflating: InflateState,
        input: &[u8],
    ) -> Result<Outcome, WebSocketError> {
        let compression = self.compression.as_mut().expect("compression was agreed on");
        let in_pieces = self.receive.is_streaming;
        let mut plain = std::mem::take(&mut self.receive.reassembly);
        let (start, mut used) = (plain.len(), 0);
        let ends = loop {
            let is_end = frame.is_final && frame.bytes_left == used as u64;
            let rest = if is_end { &DEFLATE_TAIL[inflating.end..] } else { &input[used..] };
            if rest.is_empty() && !inflating.is_full {
                break is_end;
            }
            if in_pieces && plain.len() >= INFLATE_BYTES {
                break false;
            }
            let had = plain.len();
            // One more byte than allowed shows that the message is too long.
            let allowed = limits.message_bytes_max.saturating_sub(message.bytes).saturating_add(1);
            // Enough for short texts, and twice the current amount if that was not enough.
            let likely = had.max(8 * rest.len()).clamp(512, INFLATE_BYTES);
            let room = usize::try_from(allowed).unwrap_or(usize::MAX).min(likely);
            let room = if in_pieces { room.min(INFLATE_BYTES - had) } else { room };
            let took = compression.inflate(rest, room, &mut plain);
            let made = plain.len() - had;
            message.bytes += made as u64;
            let fault = if message.bytes > limits.message_bytes_max {
                plain.pop();
                Some(WebSocketError::MessageTooLong)
            } else if took == Err(InflateError) || took == Ok(0) && made == 0 && !rest.is_empty() {
                Some(WebSocketError::DeflateInvalid)
            } else {
                None
            };
            if let Some(fault) = fault {
                // The output before the error may be invalid itself.
                message.check(&plain[start..], false)?;
                return Err(fault);
            }
            let took = took.unwrap_or(0);
            assert!(made <= room && took <= rest.len(), "the output stays within the room");
            inflating.is_full = made == room;
            *(if is_end { &mut inflating.end } else { &mut used }) += took;
        };
        frame.advance(used);
        self.budget.credit_received(limits, used);
        message.check(&plain[start..], ends)?;
        message.inflating = Some(inflating);
        let kind = message.kind;
        if ends {
            compression.end_inflate();
            self.end_message(limits, &message);
            let found = match in_pieces {
                true => FrameContent::Inflated { kind, bytes: plain, last: true },
                false => FrameContent::Assembled(kind, plain),
            };
            return Ok(Outcome::Event(used, found));
        }
        self.receive.message = Some(message);
        let is_done = frame.bytes_left == 0 && !frame.is_final && !inflating.is_full;
        self.receive.frame = (!is_done).then_some(frame);
        if in_pieces && !plain.is_empty() {
            return Ok(Outcome::Event(
                used,
                FrameContent::Inflated { kind, bytes: plain, last: false },
            ));
        }
        if !in_pieces {
            self.receive.reassembly = plain;
        }
        Ok(if used == 0 && !is_done { Outcome::NeedInput } else { Outcome::Used(used) })
    }

    /// Drops a complete message.
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
    /// Validates the next content, if it is text, and whether it may end there.
    fn check(&mut self, bytes: &[u8], ends: bool) -> Result<(), WebSocketError> {
        if self.kind == MessageType::Text
            && !(self.utf8.check(bytes) && (!ends || self.utf8.is_complete()))
        {
            return Err(WebSocketError::TextInvalid);
        }
        Ok(())
    }
}
