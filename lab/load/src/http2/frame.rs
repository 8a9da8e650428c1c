//! Frames: nine bytes of a header, then what it announces (RFC 9113 §4.1).

use crate::client::fault::Fault;

/// What a client says first (RFC 9113 §3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest payload that both sides take unless they say otherwise, which this client never does.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 14;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

/// The kinds of frames, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data = 0,
    Headers = 1,
    Priority = 2,
    Reset = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    WindowUpdate = 8,
    Continuation = 9,
}

const KINDS: [Kind; 10] = [
    Kind::Data,
    Kind::Headers,
    Kind::Priority,
    Kind::Reset,
    Kind::Settings,
    Kind::PushPromise,
    Kind::Ping,
    Kind::GoAway,
    Kind::WindowUpdate,
    Kind::Continuation,
];

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// None: a kind that nobody knows.
    pub(crate) kind: Option<Kind>,
    flags: u8,
    pub(crate) stream: u32,
    pub(crate) length: usize,
}

impl Header {
    pub(crate) const BYTES: usize = 9;

    /// The header at the beginning of `bytes`; none if it is not whole.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Header>, Fault> {
        let Some(&[a, b, c, kind, flags, d, e, f, g]) = bytes.first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(Fault::Malformed);
        }
        let kind = KINDS.get(usize::from(kind)).copied();
        let stream = u32::from_be_bytes([d, e, f, g]) & ((1 << 31) - 1);
        Ok(Some(Header { kind, flags, stream, length }))
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload without its padding.
    pub(super) fn unpadded(self, payload: &[u8]) -> Result<&[u8], Fault> {
        if !self.has(PADDED) {
            return Ok(payload);
        }
        let (&padding, rest) = payload.split_first().ok_or(Fault::Malformed)?;
        let end = rest.len().checked_sub(usize::from(padding)).ok_or(Fault::Malformed)?;
        Ok(&rest[..end])
    }
}

/// Appends a frame. Its payload is at most [`FRAME_BYTES_MAX`] long.
pub(crate) fn frame(out: &mut Vec<u8>, kind: Kind, flags: u8, stream: u32, payload: &[u8]) {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    out.extend_from_slice(&[a, b, c, kind as u8, flags, d, e, f, g]);
    out.extend_from_slice(payload);
}
