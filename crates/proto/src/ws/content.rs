//! Turns the payloads of data frames into messages: assembled, decompressed, and validated.

use super::compression::{Compression, Malformed};
use super::connection::Connection;
use super::event::Kind;
use super::frame;
use super::limits::Limits;
use super::receive::{Found, Outcome};
use super::reject::Reject;
use super::utf8::Utf8;

/// A data frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Bytes until its end.
    pub(super) left: u64,
    /// Whether it is the last frame of its message.
    pub(super) last: bool,
    /// The mask of its next byte and the three after it; all 0 without a mask.
    pub(super) mask: [u8; 4],
    /// How many of the next bytes are already unmasked.
    pub(super) clear: usize,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The number of received bytes, without frame headers.
    pub(super) received: u64,
    /// The number of bytes of its content.
    pub(super) bytes: u64,
    pub(super) utf8: Utf8,
    /// The state of decompression, if it is compressed.
    pub(super) inflating: Option<Inflating>,
}

/// A compressed message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inflating {
    /// There was not enough room for all output of the input.
    pub(super) is_full: bool,
    /// How many bytes of [`FLUSH_END`] were decompressed.
    pub(super) end: usize,
}

/// The end of a flushed block, which is not sent.
pub(super) const FLUSH_END: [u8; 4] = [0, 0, 0xFF, 0xFF];

/// The maximum number of bytes decompressed at a time.
pub(super) const INFLATE_BYTES: usize = 16 * 1024;

impl<C: Compression> Connection<C> {
    /// Reads the available part of a data frame's payload.
    #[inline]
    pub(super) fn payload(
        &mut self,
        limits: &Limits,
        mut frame: Frame,
        unread: &mut [u8],
    ) -> Result<Outcome, Reject> {
        let mut message = self.receive.message.expect("a data frame is part of a message");
        let here = usize::try_from(frame.left).unwrap_or(usize::MAX).min(unread.len());
        frame.unmask(&mut unread[..here]);
        if let Some(inflating) = message.inflating {
            return self.inflate(limits, frame, message, inflating, &unread[..here]);
        }
        if here == 0 && frame.left > 0 {
            return Ok(Outcome::Input);
        }
        frame.used(here);
        let bytes = &unread[..here];
        let kind = message.kind;
        let ends = frame.left == 0 && frame.last;
        let is_whole = ends && message.bytes == 0;
        message.bytes += here as u64;
        self.budget.received(limits, here);
        if is_whole && !self.receive.in_pieces {
            // The most frequent case, a message in one available frame: its text is validated when
            // it is borrowed.
            self.end_message(limits, &message);
            return Ok(Outcome::Found(here, Found::Message(kind)));
        }
        message.check(bytes, ends)?;
        if !self.receive.in_pieces {
            let assembly = &mut self.receive.assembly;
            // At most doubled at a time: a length that was only announced allocates no memory.
            let more = frame.left.min(assembly.len().max(here) as u64);
            assembly.reserve(here + usize::try_from(more).unwrap_or(0));
            assembly.extend_from_slice(bytes);
        }
        if ends {
            let assembly = std::mem::take(&mut self.receive.assembly);
            self.end_message(limits, &message);
            let found = match self.receive.in_pieces {
                true => Found::Piece { kind, last: true },
                false => Found::Assembled(kind, assembly),
            };
            return Ok(Outcome::Found(here, found));
        }
        self.receive.message = Some(message);
        self.receive.frame = (frame.left > 0).then_some(frame);
        if self.receive.in_pieces && here > 0 {
            return Ok(Outcome::Found(here, Found::Piece { kind, last: false }));
        }
        Ok(Outcome::Used(here))
    }

    /// Decompresses the available part of a data frame's payload.
    // RFC 7692 §7.2.2: 00 00 FF FF is appended to the payload of a message, which then is inflated.
    fn inflate(
        &mut self,
        limits: &Limits,
        mut frame: Frame,
        mut message: Message,
        mut inflating: Inflating,
        input: &[u8],
    ) -> Result<Outcome, Reject> {
        let compression = self.compression.as_mut().expect("compression was agreed on");
        let in_pieces = self.receive.in_pieces;
        let mut plain = std::mem::take(&mut self.receive.assembly);
        let (start, mut used) = (plain.len(), 0);
        let ends = loop {
            let is_end = frame.last && frame.left == used as u64;
            let rest = if is_end { &FLUSH_END[inflating.end..] } else { &input[used..] };
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
                Some(Reject::MessageTooLong)
            } else if took == Err(Malformed) || took == Ok(0) && made == 0 && !rest.is_empty() {
                Some(Reject::CompressedInvalid)
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
        frame.used(used);
        self.budget.received(limits, used);
        message.check(&plain[start..], ends)?;
        message.inflating = Some(inflating);
        let kind = message.kind;
        if ends {
            compression.end_inflate();
            self.end_message(limits, &message);
            let found = match in_pieces {
                true => Found::Inflated { kind, bytes: plain, last: true },
                false => Found::Assembled(kind, plain),
            };
            return Ok(Outcome::Found(used, found));
        }
        self.receive.message = Some(message);
        let is_done = frame.left == 0 && !frame.last && !inflating.is_full;
        self.receive.frame = (!is_done).then_some(frame);
        if in_pieces && !plain.is_empty() {
            return Ok(Outcome::Found(used, Found::Inflated { kind, bytes: plain, last: false }));
        }
        if !in_pieces {
            self.receive.assembly = plain;
        }
        Ok(if used == 0 && !is_done { Outcome::Input } else { Outcome::Used(used) })
    }

    /// Drops a complete message.
    #[inline]
    fn end_message(&mut self, limits: &Limits, message: &Message) {
        if message.bytes > 0 {
            self.budget.message(limits);
        }
        self.receive.frame = None;
        self.receive.message = None;
    }
}

impl Frame {
    /// Unmasks the next bytes, except those that are already unmasked.
    #[inline]
    fn unmask(&mut self, bytes: &mut [u8]) {
        if self.mask != [0; 4] && bytes.len() > self.clear {
            let mut mask = self.mask;
            mask.rotate_left(self.clear % 4);
            frame::apply_mask(&mut bytes[self.clear..], mask);
        }
        self.clear = self.clear.max(bytes.len());
    }

    /// Skips used bytes.
    #[inline]
    fn used(&mut self, bytes: usize) {
        self.left -= bytes as u64;
        self.clear -= bytes;
        self.mask.rotate_left(bytes % 4);
    }
}

impl Message {
    /// Validates the next content, if it is text, and whether it may end there.
    fn check(&mut self, bytes: &[u8], ends: bool) -> Result<(), Reject> {
        if self.kind == Kind::Text
            && !(self.utf8.check(bytes) && (!ends || self.utf8.is_complete()))
        {
            return Err(Reject::TextInvalid);
        }
        Ok(())
    }
}
