//! The chunked coding, byte by byte.

use crate::Reject;
use crate::field::{QUOTED, TOKEN, VALUE, is};

/// The position of the next byte in the chunked coding.
///
/// | phase | next byte, and the phase it leads to |
/// |---|---|
/// | `Size` | hex digit: `SizeMore` |
/// | `SizeMore` | hex digit: the same; `;`: `Name`; space: `BeforeSemicolon`; CR: `LineFeed` |
/// | `BeforeSemicolon` | space: the same; `;`: `Name` |
/// | `Name` | space: the same; token: `NameMore` |
/// | `NameMore` | token: the same; `=`: `Value`; `;`: `Name`; space: `AfterName`; CR: `LineFeed` |
/// | `AfterName` | space: the same; `=`: `Value`; `;`: `Name` |
/// | `Value` | space: the same; token: `ValueMore`; `"`: `Quoted` |
/// | `ValueMore` | token: the same; `;`: `Name`; space: `BeforeSemicolon`; CR: `LineFeed` |
/// | `Quoted` | `"`: `AfterQuoted`; `\`: `Escaped`; another of a quoted string: the same |
/// | `Escaped` | a byte of a field value: `Quoted` |
/// | `AfterQuoted` | `;`: `Name`; space: `BeforeSemicolon`; CR: `LineFeed` |
/// | `LineFeed` | LF: `Data`, or `Trailer` if the size was 0 |
/// | `Data` | not inspected; after the last: `DataReturn` |
/// | `DataReturn` | CR: `DataFeed` |
/// | `DataFeed` | LF: `Size` |
/// | `Trailer` | parsed line by line; the empty line ends the content |
///
/// Any other byte is rejected. A space is SP or HTAB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Size,
    SizeMore,
    BeforeSemicolon,
    Name,
    NameMore,
    AfterName,
    Value,
    ValueMore,
    Quoted,
    Escaped,
    AfterQuoted,
    LineFeed,
    Data,
    DataReturn,
    DataFeed,
    Trailer,
}

impl Phase {
    /// The phase after a byte. The caller tracks the size: `Data` is returned for a chunk of any
    /// size. Must not be called for `Data` and `Trailer`, whose bytes are not processed one by one.
    #[inline]
    pub(super) fn after(self, byte: u8) -> Result<Self, Reject> {
        let space = byte == b' ' || byte == b'\t';
        let next = match (self, byte) {
            (Self::Size | Self::SizeMore, _) if byte.is_ascii_hexdigit() => Self::SizeMore,
            (Self::Size, _) => return Err(Reject::ChunkSizeInvalid),
            (Self::SizeMore | Self::NameMore | Self::ValueMore | Self::AfterQuoted, b'\r') => {
                Self::LineFeed
            }
            (Self::SizeMore | Self::BeforeSemicolon | Self::NameMore | Self::AfterName, b';')
            | (Self::ValueMore | Self::AfterQuoted, b';') => Self::Name,
            (Self::SizeMore | Self::ValueMore | Self::AfterQuoted, _) if space => {
                Self::BeforeSemicolon
            }
            (Self::SizeMore, _) => return Err(Reject::ChunkSizeInvalid),
            (Self::BeforeSemicolon | Self::Name | Self::AfterName | Self::Value, _) if space => {
                self
            }
            (Self::Name | Self::NameMore, _) if is(byte, TOKEN) => Self::NameMore,
            (Self::NameMore, _) if space => Self::AfterName,
            (Self::NameMore | Self::AfterName, b'=') => Self::Value,
            (Self::Value | Self::ValueMore, _) if is(byte, TOKEN) => Self::ValueMore,
            (Self::Value, b'"') => Self::Quoted,
            (Self::Quoted, b'"') => Self::AfterQuoted,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted, _) if is(byte, QUOTED) => Self::Quoted,
            (Self::Escaped, _) if is(byte, VALUE) => Self::Quoted,
            (Self::LineFeed, b'\n') => Self::Data,
            (Self::LineFeed, _) => return Err(Reject::CarriageReturnBare),
            (Self::DataReturn, b'\r') => Self::DataFeed,
            (Self::DataFeed, b'\n') => Self::Size,
            (Self::DataReturn | Self::DataFeed, _) => return Err(Reject::ChunkEndMissing),
            _ => return Err(Reject::ChunkExtensionInvalid),
        };
        Ok(next)
    }

    /// Returns whether the byte that led here belongs to the extensions of a chunk.
    #[inline]
    pub(super) fn is_extension(self) -> bool {
        (Self::BeforeSemicolon as u8..=Self::AfterQuoted as u8).contains(&(self as u8))
    }
}

/// Appends a hexadecimal digit to `size`. Rejects a number that would not fit.
// RFC 9112 §7.1: recipients must anticipate large hexadecimal numerals and prevent overflow.
#[inline]
pub(super) fn size_with_digit(size: u64, digit: u8) -> Result<u64, Reject> {
    let value = match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    };
    match size >> 60 {
        0 => Ok(size << 4 | u64::from(value)),
        _ => Err(Reject::ChunkSizeOverflow),
    }
}
