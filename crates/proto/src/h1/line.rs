//! Lines of a head or trailer section: their ends, their limits, and how far they were parsed.

use crate::{FieldIndex, RequestError};

/// A line after the request line, and where the next one begins.
pub(super) enum Line {
    Field(FieldIndex, usize),
    Empty(usize),
}

/// Why the bytes do not yield a line or head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    /// There are too few bytes.
    Incomplete,
    /// The bytes violate a rule.
    Invalid(RequestError),
}

/// How far an incomplete head was parsed: `line <= scanned <= 65,535`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ParseProgress {
    /// Where the first incomplete line begins.
    pub(super) line: u16,
    /// Before this offset no line feed ends that line.
    pub(super) scanned: u16,
}

impl ParseProgress {
    pub(super) fn new(line: usize, scanned: usize) -> Self {
        let line = u16::try_from(line).expect("a head is at most 65,535 bytes");
        Self { line, scanned: u16::try_from(scanned).expect("a head is at most 65,535 bytes") }
    }

    /// Returns whether the incomplete line still has no end, judging only by the new bytes and the
    /// last old one, which may be a carriage return.
    #[inline]
    pub(super) fn has_no_line_end(self, window: &[u8]) -> bool {
        self.scanned > self.line && line_end(&window[usize::from(self.scanned) - 1..]).is_none()
    }
}

/// The limits of the current line.
pub(super) struct LineLimits {
    /// The longest line with its end, in bytes.
    pub(super) line_max: usize,
    /// The reject for a longer line.
    pub(super) too_long: RequestError,
    /// The reject if no byte may follow the current ones; `None` if more may arrive.
    pub(super) head_full: Option<RequestError>,
}

impl LineLimits {
    /// The outcome of a stop in a line, independent of how the bytes are cut: an error counts only
    /// in a complete line that is not too long, and a line without its end is too long as soon as
    /// it must be. `rest` begins with the line; `again` parses the given number of its bytes.
    #[cold]
    pub(super) fn resolve(
        &self,
        rest: &[u8],
        stop: ParseError,
        again: impl FnOnce(usize) -> Option<ParseError>,
    ) -> ParseError {
        let within = &rest[..rest.len().min(self.line_max)];
        match line_end(within) {
            None => self.incomplete_line(rest.len()),
            Some(LineEnd::Lf) => stop,
            // Bytes after the line must not matter, because they may not have arrived yet.
            Some(LineEnd::BareCr(end)) => match again(end) {
                Some(ParseError::Invalid(reject)) => ParseError::Invalid(reject),
                Some(ParseError::Incomplete) | None => ParseError::Invalid(RequestError::BareCr),
            },
        }
    }

    /// The outcome if `length` bytes of a line hold no end.
    pub(super) fn incomplete_line(&self, length: usize) -> ParseError {
        match self.head_full {
            _ if length >= self.line_max => ParseError::Invalid(self.too_long),
            Some(overfull) => ParseError::Invalid(overfull),
            None => ParseError::Incomplete,
        }
    }
}

/// The end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    /// A line feed.
    Lf,
    /// A carriage return without a line feed, with the number of bytes including the one after it.
    BareCr(usize),
}

/// The end of the first line of `bytes`, if it has arrived.
fn line_end(bytes: &[u8]) -> Option<LineEnd> {
    let at = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n'))?;
    match (bytes[at], bytes.get(at + 1)) {
        (b'\n', _) | (_, Some(b'\n')) => Some(LineEnd::Lf),
        (_, Some(_)) => Some(LineEnd::BareCr(at + 2)),
        (_, None) => None,
    }
}
