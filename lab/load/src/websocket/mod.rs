//! A WebSocket from the client's side, without I/O (RFC 6455): bytes of the server in, messages and
//! bytes for the server out.
//!
//! It forgives nothing: an accept key that is not that of the handshake, an extension or a
//! subprotocol that nobody offered, a masked frame, reserved bits, a length that is not the shortest
//! form, or a continuation of nothing are faults of the server. It offers no compression and sends
//! each message in one frame.

mod frame;
mod handshake;

pub(crate) use frame::{Header, TEXT, frame};
pub use handshake::accept_key;
pub(crate) use handshake::{Offer, offered_key};

use peregrine_lab_stats::random::Random;

use crate::client::fault::Fault;
use crate::client::reply::BODY_BYTES_MAX;
use frame::{BINARY, CLOSE, CONTINUATION, CONTROL_BYTES_MAX, PING, PONG};

/// Who takes the text messages: each with the bytes of its frames. A fault ends the connection.
pub type Sink<'s> = dyn FnMut(&[u8], usize) -> Result<(), Fault> + 's;

/// One connection.
pub struct WebSocket {
    /// What was offered and is not answered yet.
    offer: Option<Offer>,
    /// Bytes of a head or of a frame that is not whole yet.
    part: Vec<u8>,
    /// A message whose last fragment is to come, and the bytes of its frames.
    unfinished: Option<(Vec<u8>, usize)>,
    is_leaving: bool,
    masks: Random,
}

impl WebSocket {
    /// A connection, with its opening handshake put into `out`. The target and the fields are those of
    /// `request`, in the form of HTTP/1.1; `seed` decides the key and the masks.
    #[must_use]
    pub fn new(request: &[u8], seed: u64, out: &mut Vec<u8>) -> WebSocket {
        let mut masks = Random::new(seed);
        let offer = Offer::new([masks.draw(), masks.draw()]);
        offer.write(request, out);
        WebSocket {
            offer: Some(offer),
            part: Vec::new(),
            unfinished: None,
            is_leaving: false,
            masks,
        }
    }

    /// Whether the server has taken the offer, so that messages may be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.offer.is_none()
    }

    /// Whether the server said that it closes.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether a part of a message has come and the rest of it has not.
    #[must_use]
    pub fn is_within_message(&self) -> bool {
        self.unfinished.is_some() || (self.is_open() && !self.part.is_empty())
    }

    /// Puts a text message into `out`, masked by a value of its own.
    pub fn say(&mut self, text: &[u8], out: &mut Vec<u8>) {
        frame(out, TEXT, Some(self.mask()), text);
    }

    fn mask(&mut self) -> [u8; 4] {
        (self.masks.draw() as u32).to_be_bytes()
    }

    /// Takes what arrived. Messages go to `sink`, and what the protocol wants answered into `out`.
    ///
    /// # Errors
    ///
    /// The fault that makes the rest of the connection unusable.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        if self.part.is_empty() {
            let used = self.read(bytes, out, sink)?;
            self.part.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        let used = self.read(&part, out, sink)?;
        part.drain(..used);
        self.part = part;
        Ok(())
    }

    /// Reads what is whole at the beginning of `bytes`, and says how many bytes that was.
    fn read(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Fault> {
        let mut used = 0;
        if let Some(offer) = &self.offer {
            let Some(count) = offer.judge(bytes)? else { return Ok(0) };
            used = count;
            self.offer = None;
        }
        while let Some(header) = Header::read(&bytes[used..])? {
            // RFC 6455 §5.1: a server masks nothing. §5.5.1: nothing follows Close.
            if header.mask.is_some() || self.is_leaving {
                return Err(Fault::Malformed);
            }
            let start = used + header.bytes;
            let Some(payload) = bytes.get(start..start + header.length) else { break };
            self.on_frame(&header, payload, out, sink)?;
            used = start + header.length;
        }
        Ok(used)
    }

    fn on_frame(
        &mut self,
        header: &Header,
        payload: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let bytes = header.bytes + header.length;
        match (header.opcode, &mut self.unfinished) {
            (TEXT, None) if header.is_last => sink(payload, bytes),
            (TEXT, None) => {
                self.unfinished = Some((payload.to_vec(), bytes));
                Ok(())
            }
            (CONTINUATION, Some((text, whole))) => {
                text.extend_from_slice(payload);
                *whole += bytes;
                if text.len() > BODY_BYTES_MAX {
                    return Err(Fault::Malformed);
                }
                match self.unfinished.take_if(|_| header.is_last) {
                    Some((text, whole)) => sink(&text, whole),
                    None => Ok(()),
                }
            }
            // All that is sent is text, and so is its echo.
            (BINARY, None) => Err(Fault::WrongBody),
            // RFC 6455 §5.5: control frames are short and whole.
            (PING | PONG | CLOSE, _) if !header.is_last || header.length > CONTROL_BYTES_MAX => {
                Err(Fault::Malformed)
            }
            (PING, _) => {
                frame(out, PONG, Some(self.mask()), payload);
                Ok(())
            }
            (PONG, _) => Ok(()),
            (CLOSE, _) => {
                self.is_leaving = true;
                frame(out, CLOSE, Some(self.mask()), payload);
                Ok(())
            }
            _ => Err(Fault::Malformed),
        }
    }
}
