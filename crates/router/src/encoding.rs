//! Percent-encoding: how fixed text is compared, and how values are decoded.
//!
//! Fixed text is compared in its *plain form*: every escape is decoded except `%2F`, which would
//! otherwise split a segment, and `%25`, which would otherwise start a new escape. Both are written
//! in upper case. A `%` that does not start an escape counts as `%25`. So the plain form of a plain
//! form is itself, and equivalent spellings of a path match the same route.

use std::borrow::Cow;
use std::fmt;

/// One character of the plain form: a byte, or `%2F` or `%25`.
#[derive(Clone, Copy)]
struct PlainCharacter {
    /// The plain form, in the first `length` bytes.
    plain: [u8; 3],
    length: usize,
    /// The character's length in the raw text: 1 or 3 bytes.
    raw_length: usize,
}

impl PlainCharacter {
    fn plain(&self) -> &[u8] {
        &self.plain[..self.length]
    }

    fn from_byte(byte: u8, raw_length: usize) -> Self {
        Self { plain: [byte, 0, 0], length: 1, raw_length }
    }

    /// The plain form of an escape that stands for `byte`.
    fn from_escaped(byte: u8) -> Self {
        match byte {
            b'/' => Self { plain: *b"%2F", length: 3, raw_length: 3 },
            b'%' => Self { plain: *b"%25", length: 3, raw_length: 3 },
            _ => Self::from_byte(byte, 3),
        }
    }

    /// The first character of `raw`, which is not empty.
    fn first(raw: &[u8]) -> Self {
        match escape(raw) {
            Some(byte) => Self::from_escaped(byte),
            None if raw[0] == b'%' => Self { plain: *b"%25", length: 3, raw_length: 1 },
            None => Self::from_byte(raw[0], 1),
        }
    }

    /// The last character of `raw`, which is not empty. Escapes cannot overlap, because `%` is not
    /// a hexadecimal digit, so reading backwards finds the same characters as reading forwards.
    fn last(raw: &[u8]) -> Self {
        let tail = &raw[raw.len().saturating_sub(3)..];
        match escape(tail) {
            Some(byte) => Self::from_escaped(byte),
            None => Self::first(&raw[raw.len() - 1..]),
        }
    }
}

/// The byte that the escape at the start of `raw` stands for, if there is one.
fn escape(raw: &[u8]) -> Option<u8> {
    match raw {
        [b'%', high, low, ..] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Writes the plain form of `raw` to the start of `out` and returns its length, or `None` if it
/// does not fit.
pub(crate) fn write_plain(raw: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut at, mut length) = (0, 0);
    while at < raw.len() {
        let character = PlainCharacter::first(&raw[at..]);
        out.get_mut(length..length + character.length)?.copy_from_slice(character.plain());
        at += character.raw_length;
        length += character.length;
    }
    Some(length)
}

/// The plain form of `raw`.
pub(crate) fn plain(raw: &[u8]) -> Vec<u8> {
    // A stray `%` grows to three bytes; all other characters do not grow.
    let mut out = vec![0; raw.len() * 3];
    let length = write_plain(raw, &mut out).expect("no character grows more than threefold");
    out.truncate(length);
    out
}

/// If `raw` starts with the plain text `prefix`, returns the length of that part of `raw`.
pub(crate) fn raw_prefix(raw: &[u8], prefix: &[u8]) -> Option<usize> {
    let (mut at, mut unmatched) = (0, prefix);
    while !unmatched.is_empty() {
        let character = PlainCharacter::first(raw.get(at..).filter(|rest| !rest.is_empty())?);
        unmatched = unmatched.strip_prefix(character.plain())?;
        at += character.raw_length;
    }
    Some(at)
}

/// If `raw` ends with the plain text `suffix`, returns the length of that part of `raw`.
pub(crate) fn raw_suffix(raw: &[u8], suffix: &[u8]) -> Option<usize> {
    let (mut rest, mut unmatched) = (raw, suffix);
    while !unmatched.is_empty() {
        if rest.is_empty() {
            return None;
        }
        let character = PlainCharacter::last(rest);
        unmatched = unmatched.strip_suffix(character.plain())?;
        rest = &rest[..rest.len() - character.raw_length];
    }
    Some(raw.len() - rest.len())
}

/// Why a value could not be decoded. Positions are byte offsets in the raw value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The `%` at this position is not followed by two hexadecimal digits.
    InvalidEscape {
        /// The position of the `%`.
        position: usize,
    },
    /// The decoded bytes are not UTF-8.
    InvalidUtf8 {
        /// The number of valid decoded bytes before the first invalid one.
        valid_bytes: usize,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidEscape { position } => {
                write!(out, "`%` at byte {position} is not followed by two hexadecimal digits")
            }
            Self::InvalidUtf8 { valid_bytes } => {
                write!(out, "the decoded value is not UTF-8 after {valid_bytes} bytes")
            }
        }
    }
}

impl std::error::Error for DecodeError {}

/// Decodes the escapes of a parameter's raw value once, including `%2F`.
///
/// Borrows if there is nothing to decode. A `+` stays a `+`: it means a space only in forms.
///
/// ```
/// assert_eq!(peregrine_router::decode(b"caf%C3%A9%2Fbar").unwrap(), "café/bar");
/// ```
///
/// # Errors
///
/// If a `%` does not start an escape, or the decoded bytes are not UTF-8.
pub fn decode(value: &[u8]) -> Result<Cow<'_, str>, DecodeError> {
    let not_utf8 =
        |error: std::str::Utf8Error| DecodeError::InvalidUtf8 { valid_bytes: error.valid_up_to() };
    if !value.contains(&b'%') {
        return std::str::from_utf8(value).map(Cow::Borrowed).map_err(not_utf8);
    }
    let mut out = Vec::with_capacity(value.len());
    let mut position = 0;
    while position < value.len() {
        if value[position] == b'%' {
            let byte = escape(&value[position..]).ok_or(DecodeError::InvalidEscape { position })?;
            out.push(byte);
            position += 3;
        } else {
            out.push(value[position]);
            position += 1;
        }
    }
    String::from_utf8(out).map(Cow::Owned).map_err(|error| not_utf8(error.utf8_error()))
}

#[cfg(test)]
mod tests {
    use super::{DecodeError, decode, plain, raw_prefix, raw_suffix};

    #[test]
    fn the_plain_form_keeps_escaped_slashes_and_percent_signs() {
        for (raw, expected) in [
            ("caf%C3%A9", "café"),
            ("%61%62", "ab"),
            ("a%2fb%2Fc", "a%2Fb%2Fc"),
            ("%252F", "%252F"),
            ("100%", "100%25"),
            ("%%34%31", "%2541"),
            ("%zz%4", "%25zz%254"),
        ] {
            assert_eq!(plain(raw.as_bytes()), expected.as_bytes(), "{raw}");
            assert_eq!(plain(expected.as_bytes()), expected.as_bytes(), "{raw} twice");
        }
    }

    #[test]
    fn raw_affixes_never_split_an_escape() {
        assert_eq!(raw_prefix(b"%76%32x", b"v2"), Some(6));
        assert_eq!(raw_prefix(b"v", b"v2"), None);
        assert_eq!(raw_suffix(b"x%2ejson", b".json"), Some(7));
        assert_eq!(raw_suffix(b"a%2F", b"F"), None);
        assert_eq!(raw_suffix(b"a%2f", b"%2F"), Some(3));
        assert_eq!(raw_suffix(b"%2541", b"41"), Some(2));
        assert_eq!(raw_prefix(b"", b""), Some(0));
    }

    #[test]
    fn decode_decodes_once_and_reports_invalid_escapes_and_utf8() {
        assert_eq!(decode(b"a+b").unwrap(), "a+b");
        assert_eq!(decode(b"%252F").unwrap(), "%2F");
        assert_eq!(decode(b"a%2"), Err(DecodeError::InvalidEscape { position: 1 }));
        assert_eq!(decode(b"a%FF"), Err(DecodeError::InvalidUtf8 { valid_bytes: 1 }));
        assert_eq!(decode(b"ab\xFF"), Err(DecodeError::InvalidUtf8 { valid_bytes: 2 }));
    }
}
