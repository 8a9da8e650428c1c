//! Frames: their headers, and the mask of their payloads.

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A continuation of a message.
    Continuation,
    /// The first frame of a text message.
    Text,
    /// The first frame of a binary message.
    Binary,
    /// The end of the connection, or the reply to it.
    Close,
    /// A check whether the peer is alive.
    Ping,
    /// The reply to a ping.
    Pong,
}

impl Opcode {
    /// The opcode with a number; `None` for reserved ones.
    // RFC 6455 §5.2: %x3-7 and %xB-F are reserved.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            0x0 => Self::Continuation,
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => return None,
        })
    }

    /// The opcode's number.
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::Continuation => 0x0,
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xA,
        }
    }

    /// Returns whether the frame concerns the connection, and may occur within a message.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// The other bits of the first byte.
pub mod flag {
    /// The frame is the last one of its message.
    pub const FIN: u8 = 0x80;
    /// The message is compressed (RFC 7692 §6).
    pub const RSV1: u8 = 0x40;
    /// All bits that extensions may define.
    pub const RSV_MASK: u8 = 0x70;
}

/// The longest payload of a control frame.
pub const CONTROL_BYTES_MAX: usize = 125;

/// The longest header, including its mask.
pub const HEADER_BYTES_MAX: usize = 14;

/// The longest control frame, which is received as a whole.
pub const CONTROL_FRAME_BYTES_MAX: usize = 2 + 4 + CONTROL_BYTES_MAX;

/// Writes a frame. `flags` are those of [`flag`]; with a mask, the payload is masked.
///
/// A server's frame is the same for every client, so it can be written once and sent to many.
#[inline]
pub fn write_frame(
    opcode: Opcode,
    flags: u8,
    mask: Option<[u8; 4]>,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    let (header, length) = encode_header(opcode, flags, mask, payload.len());
    out.reserve(length + payload.len());
    out.extend_from_slice(&header[..length]);
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut out[start..], mask);
    }
}

/// Turns the bytes of `out` from `start` to its end into the payload of a frame.
pub(super) fn wrap_frame(
    opcode: Opcode,
    flags: u8,
    mask: Option<[u8; 4]>,
    start: usize,
    out: &mut Vec<u8>,
) {
    if let Some(mask) = mask {
        apply_mask(&mut out[start..], mask);
    }
    let (header, length) = encode_header(opcode, flags, mask, out.len() - start);
    out.splice(start..start, header[..length].iter().copied());
}

/// A header, and its length in bytes.
#[inline]
fn encode_header(
    opcode: Opcode,
    flags: u8,
    mask: Option<[u8; 4]>,
    bytes: usize,
) -> ([u8; HEADER_BYTES_MAX], usize) {
    let mut header = [0; HEADER_BYTES_MAX];
    header[0] = flags | opcode.as_u8();
    let mask_bit = if mask.is_some() { 0x80 } else { 0 };
    let mut length = 2;
    // RFC 6455 §5.2: the minimal number of bytes MUST be used to encode the length.
    if let (true, Ok(short_length)) = (bytes <= CONTROL_BYTES_MAX, u8::try_from(bytes)) {
        header[1] = mask_bit | short_length;
    } else if let Ok(bytes) = u16::try_from(bytes) {
        header[1] = mask_bit | LENGTH_16;
        header[2..4].copy_from_slice(&bytes.to_be_bytes());
        length = 4;
    } else {
        header[1] = mask_bit | LENGTH_64;
        header[2..10].copy_from_slice(&(bytes as u64).to_be_bytes());
        length = 10;
    }
    if let Some(mask) = mask {
        header[length..length + 4].copy_from_slice(&mask);
        length += 4;
    }
    (header, length)
}

/// The value of the 7-bit length that is followed by a 16-bit length.
pub(super) const LENGTH_16: u8 = 126;
/// The value of the 7-bit length that is followed by a 64-bit length.
pub(super) const LENGTH_64: u8 = 127;

/// Masks or unmasks a payload.
// RFC 6455 §5.3: octet i of the result is octet i of the payload XOR octet (i MOD 4) of the mask.
#[inline]
pub fn apply_mask(bytes: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}
