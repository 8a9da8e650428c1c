//! Frames (RFC 6455 §5.2).

use crate::client::fault::Fault;
use crate::client::reply::BODY_BYTES_MAX;

pub(super) const CONTINUATION: u8 = 0x0;
pub(crate) const TEXT: u8 = 0x1;
pub(super) const BINARY: u8 = 0x2;
pub(super) const CLOSE: u8 = 0x8;
pub(super) const PING: u8 = 0x9;
pub(super) const PONG: u8 = 0xa;

/// The longest payload of a control frame (RFC 6455 §5.5).
pub(super) const CONTROL_BYTES_MAX: usize = 125;

const LAST: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// What stands in the place of a length that takes two or eight bytes more.
const LENGTH_OF_2: u8 = 126;
const LENGTH_OF_8: u8 = 127;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) is_last: bool,
    pub(crate) opcode: u8,
    pub(crate) mask: Option<[u8; 4]>,
    /// Its own bytes.
    pub(crate) bytes: usize,
    /// Those of the payload.
    pub(crate) length: usize,
}

impl Header {
    /// The header at the beginning of `bytes`; none if it is not whole.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Header>, Fault> {
        let &[first, second, ref rest @ ..] = bytes else { return Ok(None) };
        // RFC 6455 §5.2: reserved bits are those of extensions, and none was agreed on.
        if first & RESERVED != 0 {
            return Err(Fault::Malformed);
        }
        let (length, more, least) = match second & !MASKED {
            LENGTH_OF_2 => match rest.first_chunk() {
                Some(&length) => (u64::from(u16::from_be_bytes(length)), 2, LENGTH_OF_2.into()),
                None => return Ok(None),
            },
            LENGTH_OF_8 => match rest.first_chunk() {
                Some(&length) => (u64::from_be_bytes(length), 8, 1 << 16),
                None => return Ok(None),
            },
            length => (length.into(), 0, 0),
        };
        // RFC 6455 §5.2: the shortest form of a length is the only one.
        if length < least || length > BODY_BYTES_MAX as u64 {
            return Err(Fault::Malformed);
        }
        let mask = match (second & MASKED, rest.get(more..).and_then(<[u8]>::first_chunk)) {
            (0, _) => None,
            (_, Some(mask)) => Some(*mask),
            (_, None) => return Ok(None),
        };
        Ok(Some(Header {
            is_last: first & LAST != 0,
            opcode: first & !(LAST | RESERVED),
            mask,
            bytes: 2 + more + if mask.is_some() { 4 } else { 0 },
            length: length as usize,
        }))
    }
}

/// Appends a whole frame.
pub(crate) fn frame(out: &mut Vec<u8>, opcode: u8, mask: Option<[u8; 4]>, payload: &[u8]) {
    let flag = if mask.is_some() { MASKED } else { 0 };
    out.push(LAST | opcode);
    match payload.len() {
        length @ ..126 => out.push(flag | length as u8),
        length @ ..=0xffff => {
            out.push(flag | LENGTH_OF_2);
            out.extend_from_slice(&(length as u16).to_be_bytes());
        }
        length => {
            out.push(flag | LENGTH_OF_8);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    let Some(mask) = mask else {
        out.extend_from_slice(payload);
        return;
    };
    out.extend_from_slice(&mask);
    let start = out.len();
    out.extend_from_slice(payload);
    for piece in out[start..].chunks_mut(4) {
        piece.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_every_length_are_read_back_and_their_parts_are_not_whole() {
        for length in [0, 1, 125, 126, 127, 65_535, 65_536, 70_000] {
            for mask in [None, Some([1, 2, 3, 4])] {
                let payload = vec![b'x'; length];
                let mut bytes = Vec::new();
                frame(&mut bytes, TEXT, mask, &payload);
                let header = Header::read(&bytes).unwrap().unwrap();
                assert_eq!((header.is_last, header.opcode, header.mask), (true, TEXT, mask));
                assert_eq!((header.length, header.bytes + length), (length, bytes.len()));
                let first = bytes.get(header.bytes).copied();
                let mixed = b'x' ^ mask.map_or(0, |mask| mask[0]);
                assert_eq!(first, (length > 0).then_some(mixed));
                for end in 0..header.bytes {
                    assert_eq!(Header::read(&bytes[..end]), Ok(None), "{length} at {end}");
                }
            }
        }
    }

    #[test]
    fn headers_that_are_none_are_refused() {
        for bytes in [
            &b"\xc1\x00"[..],
            b"\x91\x00",
            b"\x81\x7e\x00\x7d",
            b"\x81\x7f\x00\x00\x00\x00\x00\x00\xff\xff",
            b"\x81\x7f\xff\x00\x00\x00\x00\x00\x00\x00",
        ] {
            assert_eq!(Header::read(bytes), Err(Fault::Malformed), "{bytes:?}");
        }
    }
}
