//! The chunked coding, byte by byte.

use crate::RequestError;
use crate::field::{QUOTED, TOKEN, VALUE, has_class};

/// The position of the next byte in the chunked coding.
///
/// | state | next byte, and the state after it |
/// |---|---|
/// | `Start` | hex digit: `Size` |
/// | `Size` | hex digit: the same; `;`: `ExtName`; space: `SizeWs`; CR: `SizeLf` |
/// | `SizeWs` | space: the same; `;`: `ExtName` |
/// | `ExtName` | space: the same; token: `ExtNameMore` |
/// | `ExtNameMore` | token: same; `=`: `ExtValue`; `;`: `ExtName`; space: `ExtNameWs`; CR: `SizeLf`
/// |
/// | `ExtNameWs` | space: the same; `=`: `ExtValue`; `;`: `ExtName` |
/// | `ExtValue` | space: the same; token: `ExtValueMore`; `"`: `ExtQuoted` |
/// | `ExtValueMore` | token: the same; `;`: `ExtName`; space: `SizeWs`; CR: `SizeLf` |
/// | `ExtQuoted` | `"`: `ExtQuotedEnd`; `\`: `ExtQuotedPair`; another quoted byte: the same |
/// | `ExtQuotedPair` | a byte of a field value: `ExtQuoted` |
/// | `ExtQuotedEnd` | `;`: `ExtName`; space: `SizeWs`; CR: `SizeLf` |
/// | `SizeLf` | LF: `Data`, or `Trailer` if the size was 0 |
/// | `Data` | not inspected; after the last: `DataCr` |
/// | `DataCr` | CR: `DataLf` |
/// | `DataLf` | LF: `Start` |
/// | `Trailer` | parsed line by line; the empty line ends the content |
///
/// Any other byte is rejected. A space is SP or HTAB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ChunkedState {
    Start,
    Size,
    SizeWs,
    ExtName,
    ExtNameMore,
    ExtNameWs,
    ExtValue,
    ExtValueMore,
    ExtQuoted,
    ExtQuotedPair,
    ExtQuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailer,
}

impl ChunkedState {
    /// The state after a byte. The caller tracks the size: `Data` is returned for a chunk of any
    /// size. Must not be called for `Data` and `Trailer`, whose bytes are not processed one by one.
    #[inline]
    pub(super) fn next(self, byte: u8) -> Result<Self, RequestError> {
        let is_space = byte == b' ' || byte == b'\t';
        let next = match (self, byte) {
            (Self::Start | Self::Size, _) if byte.is_ascii_hexdigit() => Self::Size,
            (Self::Start, _) => return Err(RequestError::ChunkSizeInvalid),
            (Self::Size | Self::ExtNameMore | Self::ExtValueMore | Self::ExtQuotedEnd, b'\r') => {
                Self::SizeLf
            }
            (Self::Size | Self::SizeWs | Self::ExtNameMore | Self::ExtNameWs, b';')
            | (Self::ExtValueMore | Self::ExtQuotedEnd, b';') => Self::ExtName,
            (Self::Size | Self::ExtValueMore | Self::ExtQuotedEnd, _) if is_space => Self::SizeWs,
            (Self::Size, _) => return Err(RequestError::ChunkSizeInvalid),
            (Self::SizeWs | Self::ExtName | Self::ExtNameWs | Self::ExtValue, _) if is_space => {
                self
            }
            (Self::ExtName | Self::ExtNameMore, _) if has_class(byte, TOKEN) => Self::ExtNameMore,
            (Self::ExtNameMore, _) if is_space => Self::ExtNameWs,
            (Self::ExtNameMore | Self::ExtNameWs, b'=') => Self::ExtValue,
            (Self::ExtValue | Self::ExtValueMore, _) if has_class(byte, TOKEN) => {
                Self::ExtValueMore
            }
            (Self::ExtValue, b'"') => Self::ExtQuoted,
            (Self::ExtQuoted, b'"') => Self::ExtQuotedEnd,
            (Self::ExtQuoted, b'\\') => Self::ExtQuotedPair,
            (Self::ExtQuoted, _) if has_class(byte, QUOTED) => Self::ExtQuoted,
            (Self::ExtQuotedPair, _) if has_class(byte, VALUE) => Self::ExtQuoted,
            (Self::SizeLf, b'\n') => Self::Data,
            (Self::SizeLf, _) => return Err(RequestError::BareCr),
            (Self::DataCr, b'\r') => Self::DataLf,
            (Self::DataLf, b'\n') => Self::Start,
            (Self::DataCr | Self::DataLf, _) => return Err(RequestError::ChunkCrlfMissing),
            _ => return Err(RequestError::ChunkExtensionInvalid),
        };
        Ok(next)
    }

    /// Returns whether the byte that led to this state belongs to the extensions of a chunk.
    #[inline]
    pub(super) fn is_extension(self) -> bool {
        (Self::SizeWs as u8..=Self::ExtQuotedEnd as u8).contains(&(self as u8))
    }
}

/// Appends a hexadecimal digit to `size`. Rejects a size of more than 64 bits.
// RFC 9112 §7.1: recipients must anticipate large hexadecimal numerals and prevent overflow.
#[inline]
pub(super) fn push_hex_digit(size: u64, digit: u8) -> Result<u64, RequestError> {
    let value = match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    };
    match size >> 60 {
        0 => Ok(size << 4 | u64::from(value)),
        _ => Err(RequestError::ChunkSizeOverflow),
    }
}
