//! Frames: their headers and payloads. RFC 9113 §4 and §6.

/// The length of a frame's header. RFC 9113 §4.1.
pub const HEADER_BYTES: usize = 9;

/// The longest payload that a peer must accept, and that it may send by default, in bytes.
/// RFC 9113 §4.2.
pub const PAYLOAD_BYTES_DEFAULT: u32 = 1 << 14;

/// The longest possible payload, in bytes. RFC 9113 §4.2.
pub const PAYLOAD_BYTES_CEILING: u32 = (1 << 24) - 1;

/// The largest window, and the largest identifier of a stream. RFC 9113 §6.9.1, §5.1.1.
pub const WINDOW_CEILING: u32 = (1 << 31) - 1;

/// The bytes that a client sends first. RFC 9113 §3.4.
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How the bytes at the start of a connection compare with the preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefaceMatch {
    /// They begin with the preface: the peer speaks HTTP/2 by prior knowledge.
    Match,
    /// They are the beginning of the preface: more bytes are needed to decide.
    Partial,
    /// They differ from the preface: the peer speaks another protocol.
    No,
}

/// Compares the first bytes of a connection with the preface. RFC 9113 §3.3, §3.4.
///
/// No registered method of HTTP/1 shares more than the first two bytes of the preface (`PR`, as in
/// PROPFIND), so the third byte is decisive in all practical cases.
#[must_use]
pub fn match_preface(prefix: &[u8]) -> PrefaceMatch {
    let compared = prefix.len().min(PREFACE.len());
    if prefix[..compared] != PREFACE[..compared] {
        PrefaceMatch::No
    } else if compared == PREFACE.len() {
        PrefaceMatch::Match
    } else {
        PrefaceMatch::Partial
    }
}

/// The type of a frame. RFC 9113 §6, RFC 9218 §7.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameType {
    /// Content.
    Data,
    /// A header block begins.
    Headers,
    /// A deprecated priority, which is ignored.
    Priority,
    /// A stream is reset.
    RstStream,
    /// Settings, or their acknowledgement.
    Settings,
    /// A push, which a client never sends.
    PushPromise,
    /// A ping or its acknowledgement.
    Ping,
    /// No more streams are accepted.
    GoAway,
    /// A window was opened further.
    WindowUpdate,
    /// A header block continues.
    Continuation,
    /// A changed priority.
    PriorityUpdate,
    /// Any other type, which is ignored.
    Unknown(u8),
}

impl FrameType {
    /// The type with this number.
    #[inline]
    #[must_use]
    pub const fn from_u8(number: u8) -> Self {
        match number {
            0x0 => Self::Data,
            0x1 => Self::Headers,
            0x2 => Self::Priority,
            0x3 => Self::RstStream,
            0x4 => Self::Settings,
            0x5 => Self::PushPromise,
            0x6 => Self::Ping,
            0x7 => Self::GoAway,
            0x8 => Self::WindowUpdate,
            0x9 => Self::Continuation,
            0x10 => Self::PriorityUpdate,
            number => Self::Unknown(number),
        }
    }

    /// The type's number.
    #[inline]
    #[must_use]
    pub const fn as_u8(self) -> u8 {
        match self {
            Self::Data => 0x0,
            Self::Headers => 0x1,
            Self::Priority => 0x2,
            Self::RstStream => 0x3,
            Self::Settings => 0x4,
            Self::PushPromise => 0x5,
            Self::Ping => 0x6,
            Self::GoAway => 0x7,
            Self::WindowUpdate => 0x8,
            Self::Continuation => 0x9,
            Self::PriorityUpdate => 0x10,
            Self::Unknown(number) => number,
        }
    }
}

/// Flags in a frame's header.
pub mod flags {
    /// The last frame of this direction of the stream, on DATA and HEADERS.
    pub const END_STREAM: u8 = 0x1;
    /// An acknowledgement, on SETTINGS and PING.
    pub const ACK: u8 = 0x1;
    /// The block's last frame, on HEADERS and CONTINUATION.
    pub const END_HEADERS: u8 = 0x4;
    /// Padding follows, on DATA and HEADERS.
    pub const PADDED: u8 = 0x8;
    /// Five bytes of deprecated priority follow, on HEADERS.
    pub const PRIORITY: u8 = 0x20;
}

/// Identifiers of settings. RFC 9113 §6.5.2, RFC 8441 §3, RFC 9218 §2.1.
pub mod setting_id {
    /// The size of the decoder's dynamic table.
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    /// Whether the server may push.
    pub const ENABLE_PUSH: u16 = 0x2;
    /// How many streams the peer may open.
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    /// The initial window of streams.
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    /// The longest payload.
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    /// The longest list of fields.
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;
    /// Whether a server accepts extended CONNECT.
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
    /// Whether the sender ignores the priority tree.
    pub const NO_RFC7540_PRIORITIES: u16 = 0x9;
}

/// Why a stream or a connection ends. RFC 9113 §7.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// No error.
    pub const NO_ERROR: Self = Self(0x0);
    /// A rule was violated.
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    /// The sender failed.
    pub const INTERNAL_ERROR: Self = Self(0x2);
    /// More data arrived than the window allowed.
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    /// Settings were not acknowledged in time.
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    /// A frame arrived after the end of its stream.
    pub const STREAM_CLOSED: Self = Self(0x5);
    /// A frame has a wrong length.
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    /// The stream was not processed: the request can be retried.
    pub const REFUSED_STREAM: Self = Self(0x7);
    /// The stream was cancelled.
    pub const CANCEL: Self = Self(0x8);
    /// A header block cannot be decoded.
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    /// The other end of a tunnel failed.
    pub const CONNECT_ERROR: Self = Self(0xa);
    /// The peer causes excessive load.
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    /// The transport is not secure enough.
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    /// The request must be sent over HTTP/1.1.
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);

    /// The code's name, or `None` if it is not registered. RFC 9113 §7: unknown codes have no
    /// special meaning.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 14] = [
            "NO_ERROR",
            "PROTOCOL_ERROR",
            "INTERNAL_ERROR",
            "FLOW_CONTROL_ERROR",
            "SETTINGS_TIMEOUT",
            "STREAM_CLOSED",
            "FRAME_SIZE_ERROR",
            "REFUSED_STREAM",
            "CANCEL",
            "COMPRESSION_ERROR",
            "CONNECT_ERROR",
            "ENHANCE_YOUR_CALM",
            "INADEQUATE_SECURITY",
            "HTTP_1_1_REQUIRED",
        ];
        if self.0 < 14 { Some(NAMES[self.0 as usize]) } else { None }
    }
}

impl std::fmt::Debug for ErrorCode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "{:#x}", self.0),
        }
    }
}

/// A frame's header. RFC 9113 §4.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The payload's length in bytes, at most [`PAYLOAD_BYTES_CEILING`].
    pub length: u32,
    /// The type.
    pub frame_type: FrameType,
    /// The flags, of which each type defines some.
    pub flags: u8,
    /// The stream's identifier; 0 for the connection.
    pub stream_id: u32,
}

impl FrameHeader {
    /// Reads the header at the start of `bytes`, if it is complete.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let [l0, l1, l2, type_number, flags, s0, s1, s2, s3] =
            *bytes.first_chunk::<HEADER_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, l0, l1, l2]),
            frame_type: FrameType::from_u8(type_number),
            flags,
            // RFC 9113 §4.1: the reserved bit must be ignored when receiving.
            stream_id: u32::from_be_bytes([s0, s1, s2, s3]) & WINDOW_CEILING,
        })
    }

    /// The header as bytes.
    #[inline]
    #[must_use]
    pub const fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let [_, l0, l1, l2] = self.length.to_be_bytes();
        let [s0, s1, s2, s3] = self.stream_id.to_be_bytes();
        [l0, l1, l2, self.frame_type.as_u8(), self.flags, s0, s1, s2, s3]
    }

    /// Returns whether all these flags are set.
    #[inline]
    #[must_use]
    pub const fn has_flags(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

/// A payload without its padding, or `None` if the padding is as long as the payload. RFC 9113
/// §6.1.
#[inline]
#[must_use]
pub fn strip_padding(header: FrameHeader, payload: &[u8]) -> Option<&[u8]> {
    if !header.has_flags(flags::PADDED) {
        return Some(payload);
    }
    let (padding, rest) = payload.split_first()?;
    rest.len().checked_sub(usize::from(*padding)).map(|length| &rest[..length])
}

/// The number at the start of a payload.
#[inline]
#[must_use]
pub fn read_u32(payload: &[u8]) -> Option<u32> {
    payload.first_chunk().map(|chunk| u32::from_be_bytes(*chunk))
}

/// The settings of a payload, as identifiers and values. RFC 9113 §6.5.1.
pub fn parse_settings(payload: &[u8]) -> impl Iterator<Item = (u16, u32)> {
    payload.as_chunks::<SETTING_BYTES>().0.iter().map(|[i0, i1, v0, v1, v2, v3]| {
        (u16::from_be_bytes([*i0, *i1]), u32::from_be_bytes([*v0, *v1, *v2, *v3]))
    })
}

/// The length of a setting. RFC 9113 §6.5.1.
pub const SETTING_BYTES: usize = 6;

/// Writes a frame with the given payload. Panics if the payload is longer than any frame.
#[inline]
pub fn write_frame(
    frame_type: FrameType,
    flags: u8,
    stream: u32,
    payload: &[u8],
    out: &mut Vec<u8>,
) {
    write_header(frame_type, flags, stream, payload.len(), out);
    out.extend_from_slice(payload);
}

/// Writes the header of a frame with a payload of this length. Panics if no frame is that long.
#[inline]
pub fn write_header(
    frame_type: FrameType,
    flags: u8,
    stream: u32,
    length: usize,
    out: &mut Vec<u8>,
) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    assert!(length <= PAYLOAD_BYTES_CEILING, "the payload is too long for a frame");
    out.extend_from_slice(&FrameHeader { length, frame_type, flags, stream_id: stream }.to_bytes());
}

/// Writes RST_STREAM. RFC 9113 §6.4.
pub fn write_rst_stream(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    write_frame(FrameType::RstStream, 0, stream, &code.0.to_be_bytes(), out);
}

/// Writes WINDOW_UPDATE. RFC 9113 §6.9.
pub fn write_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    write_frame(FrameType::WindowUpdate, 0, stream, &increment.to_be_bytes(), out);
}

/// Writes SETTINGS. RFC 9113 §6.5.
pub fn write_settings(settings: impl IntoIterator<Item = (u16, u32)>, out: &mut Vec<u8>) {
    let start = out.len();
    write_header(FrameType::Settings, 0, 0, 0, out);
    for (identifier, value) in settings {
        out.extend_from_slice(&identifier.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
    set_length(start, out);
}

/// Writes GOAWAY without debug data. RFC 9113 §6.8.
pub fn write_go_away(last: u32, code: ErrorCode, out: &mut Vec<u8>) {
    let start = out.len();
    write_header(FrameType::GoAway, 0, 0, 0, out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
    set_length(start, out);
}

/// Sets the length of the frame that begins at `start` and extends to the end of `out`.
#[inline]
pub(super) fn set_length(start: usize, out: &mut [u8]) {
    let length = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
    assert!(length <= PAYLOAD_BYTES_CEILING, "the payload is too long for a frame");
    out[start..start + 3].copy_from_slice(&length.to_be_bytes()[1..]);
}

#[cfg(test)]
mod tests {
    use super::{
        FrameHeader, FrameType, PREFACE, PrefaceMatch, flags, match_preface, strip_padding,
    };

    #[test]
    fn headers_round_trip_and_the_reserved_bit_is_ignored() {
        for number in 0..=255_u8 {
            let frame_type = FrameType::from_u8(number);
            assert_eq!(frame_type.as_u8(), number);
            let header = FrameHeader {
                length: 0x01_02_03,
                frame_type,
                flags: number,
                stream_id: 0x7fff_fffe,
            };
            let mut bytes = header.to_bytes();
            bytes[5] |= 0x80;
            assert_eq!(FrameHeader::parse(&bytes), Some(header));
            assert_eq!(FrameHeader::parse(&bytes[..8]), None);
        }
    }

    #[test]
    fn match_preface_decides_at_the_first_byte_that_differs() {
        for end in 0..PREFACE.len() {
            assert_eq!(match_preface(&PREFACE[..end]), PrefaceMatch::Partial);
            let mut other = PREFACE[..=end].to_vec();
            other[end] ^= 1;
            assert_eq!(match_preface(&other), PrefaceMatch::No);
        }
        assert_eq!(match_preface(PREFACE), PrefaceMatch::Match);
        assert_eq!(match_preface(&[PREFACE.as_slice(), b"more"].concat()), PrefaceMatch::Match);
        assert_eq!(match_preface(b"POST / HTTP/1.1\r\n"), PrefaceMatch::No);
    }

    #[test]
    fn strip_padding_rejects_padding_as_long_as_the_payload() {
        let header = FrameHeader {
            length: 4,
            frame_type: FrameType::Data,
            flags: flags::PADDED,
            stream_id: 1,
        };
        assert_eq!(strip_padding(header, &[2, b'a', 0, 0]), Some(&b"a"[..]));
        assert_eq!(strip_padding(header, &[3, 0, 0, 0]), Some(&b""[..]));
        assert_eq!(strip_padding(header, &[4, 0, 0, 0]), None);
        assert_eq!(strip_padding(header, &[]), None);
    }
}
