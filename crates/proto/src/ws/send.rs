//! The sending side: turns messages into bytes.

use super::close::{CloseCode, REASON_BYTES_MAX};
use super::compression::DeflateCodec;
use super::connection::{Connection, FragmentedSend, State, Transition};
use super::event::MessageType;
use super::frame::{self, CONTROL_BYTES_MAX, Opcode, flag};
use super::limits::Limits;
use super::message::DEFLATE_TAIL;
use std::fmt;

/// A message to send, or a fragment of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePayload<'a> {
    /// Text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
}

impl<'a> MessagePayload<'a> {
    const fn into_parts(self) -> (MessageType, &'a [u8]) {
        match self {
            Self::Text(text) => (MessageType::Text, text.as_bytes()),
            Self::Binary(bytes) => (MessageType::Binary, bytes),
        }
    }
}

/// Why nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The connection is closing or closed.
    Closed,
    /// A fragmented message is being sent.
    MessageInProgress,
    /// The payload of a ping or a pong exceeds 125 bytes.
    ControlTooLong,
    /// The code is not allowed in a Close frame.
    InvalidCloseCode,
}

impl fmt::Display for WriteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Closed => "the WebSocket is closed",
            Self::MessageInProgress => "another message is being sent in fragments",
            Self::ControlTooLong => "the payload of a ping or a pong exceeds 125 bytes",
            Self::InvalidCloseCode => "the code is not allowed in a Close frame",
        })
    }
}

impl std::error::Error for WriteError {}

impl<C: DeflateCodec> Connection<C> {
    /// Writes a whole message, as one frame.
    ///
    /// # Errors
    ///
    /// If the connection is ending, or a fragmented message is being sent; then nothing is written.
    #[inline]
    pub fn send(
        &mut self,
        limits: &Limits,
        content: MessagePayload<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), WriteError> {
        if self.sending.is_some() {
            return Err(WriteError::MessageInProgress);
        }
        self.check_open()?;
        let (message_type, bytes) = content.into_parts();
        let compressed = self.compression.is_some() && bytes.len() >= limits.compress_bytes_min;
        self.write_data(FragmentedSend { message_type, compressed }, true, bytes, true, out);
        Ok(())
    }

    /// Writes a fragment of a message, as one frame: the first call begins the message, and the
    /// call with `last` ends it. The compressor is flushed, so the peer can read a fragment before
    /// the next one arrives. If compression was negotiated, such a message is compressed even if it
    /// is short.
    ///
    /// # Errors
    ///
    /// If the connection is ending, or the fragment has another type than the message; then nothing
    /// is written.
    // RFC 6455 §5.4: a message has one or more frames, all but the first with opcode 0, the last
    // with FIN.
    pub fn send_fragment(
        &mut self,
        content: MessagePayload<'_>,
        last: bool,
        out: &mut Vec<u8>,
    ) -> Result<(), WriteError> {
        self.check_open()?;
        let (message_type, bytes) = content.into_parts();
        let compressed = self.compression.is_some();
        let sending = self.sending.unwrap_or(FragmentedSend { message_type, compressed });
        if sending.message_type != message_type {
            return Err(WriteError::MessageInProgress);
        }
        self.write_data(sending, self.sending.is_none(), bytes, last, out);
        self.sending = (!last).then_some(sending);
        Ok(())
    }

    /// Writes a ping, to check whether the peer is alive. The peer returns its payload as an
    /// [`Event::Pong`](super::Event::Pong), possibly only that of the last ping.
    ///
    /// # Errors
    ///
    /// If the connection is ending, or the payload exceeds 125 bytes; then nothing is written.
    pub fn ping(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), WriteError> {
        self.write_control(Opcode::Ping, payload, out)?;
        self.budget.expect_pong();
        Ok(())
    }

    /// Writes an unsolicited pong. [`receive`](Self::receive) already replies to pings.
    ///
    /// # Errors
    ///
    /// If the connection is ending, or the payload exceeds 125 bytes; then nothing is written.
    pub fn pong(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), WriteError> {
        self.write_control(Opcode::Pong, payload, out)
    }

    /// Starts the close handshake: writes a Close frame, with or without a code and a reason. Of
    /// the reason, only the first 123 bytes are sent. Messages are still received until the peer's
    /// Close frame arrives; the caller limits how long that may take.
    ///
    /// # Errors
    ///
    /// If the connection is already ending, or the code is not allowed; then nothing is written.
    pub fn close(
        &mut self,
        close: Option<(CloseCode, &str)>,
        out: &mut Vec<u8>,
    ) -> Result<(), WriteError> {
        self.check_open()?;
        let close = match close {
            Some((code, _)) if !code.is_sendable() => return Err(WriteError::InvalidCloseCode),
            Some((code, reason)) => {
                Some((code, &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)]))
            }
            None => None,
        };
        self.write_close(close, out);
        self.transition(Transition::SendClose);
        Ok(())
    }

    // RFC 6455 §5.5.1: no data frames are sent after a Close frame.
    const fn check_open(&self) -> Result<(), WriteError> {
        match self.state {
            State::Open => Ok(()),
            _ => Err(WriteError::Closed),
        }
    }

    fn write_control(
        &self,
        opcode: Opcode,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), WriteError> {
        self.check_open()?;
        if payload.len() > CONTROL_BYTES_MAX {
            return Err(WriteError::ControlTooLong);
        }
        frame::write_frame(opcode, flag::FIN, self.mask(), payload, out);
        Ok(())
    }

    #[inline]
    fn write_data(
        &mut self,
        sending: FragmentedSend,
        first: bool,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<u8>,
    ) {
        let opcode = match (first, sending.message_type) {
            (true, MessageType::Text) => Opcode::Text,
            (true, MessageType::Binary) => Opcode::Binary,
            (false, _) => Opcode::Continuation,
        };
        let mut flags = if last { flag::FIN } else { 0 };
        let mask = self.mask();
        let Some(compression) = self.compression.as_mut().filter(|_| sending.compressed) else {
            return frame::write_frame(opcode, flags, mask, bytes, out);
        };
        // RFC 7692 §6.1: RSV1 is set only on the first frame of a compressed message.
        flags |= if first { flag::RSV1 } else { 0 };
        let start = out.len();
        compression.deflate(bytes, out);
        if last {
            compression.end_deflate();
            // RFC 7692 §7.2.1: the flush's last four bytes, 00 00 FF FF, are not sent.
            if out[start..].ends_with(&DEFLATE_TAIL) {
                out.truncate(out.len() - DEFLATE_TAIL.len());
            }
            // RFC 7692 §7.2.3.6: empty data is sent as a single zero byte.
            if out.len() == start {
                out.push(0);
            }
        }
        frame::wrap_frame(opcode, flags, mask, start, out);
    }
}
