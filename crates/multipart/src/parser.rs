//! The parser: bytes in, events out. It does no I/O and buffers no content.
//!
//! A delimiter is CR LF, two hyphens and the boundary. Only its first byte can be a CR, so a
//! possible delimiter at the end of the input is described by a single number: how many of its
//! bytes have arrived. If it turns out not to be a delimiter, the bytes that were held back are a
//! prefix of the delimiter, so they need not be stored.
//!
//! | state | input | next state | event |
//! |---|---|---|---|
//! | preamble | anything but a delimiter | preamble | |
//! | preamble | a delimiter | after boundary | |
//! | after boundary | the end of the line | headers | |
//! | after boundary | two hyphens | epilogue | `End` |
//! | headers | an empty line | body | `PartStart` |
//! | body | anything but a delimiter | body | `Data` |
//! | body | a delimiter | after boundary | `PartEnd` |
//! | epilogue | anything | epilogue | |

use crate::error::MultipartError;
use crate::limits::MultipartLimits;
use crate::part_headers::PartHeaders;
use bytes::{Buf, Bytes};
use memchr::memmem::Finder;
use memchr::{memchr, memrchr};

/// Parses one form. Feed it with [`Parser::receive`], and call [`Parser::finish`] at the end of the
/// body.
#[derive(Debug)]
pub struct Parser {
    limits: MultipartLimits,
    delimiter: Bytes,
    finder: Finder<'static>,
    state: ParserState,
    /// The head of a part, as far as received.
    head: Vec<u8>,
    field_count: usize,
    file_count: usize,
    is_file: bool,
    /// The bytes of content in this part, and in all parts.
    part_bytes: u64,
    total_bytes: u64,
    /// The bytes before the first part, after the last one, and after boundaries.
    preamble_bytes: usize,
    /// How many of the bytes held back do not belong to content: the line end before the first
    /// delimiter, which is optional, and the empty line before a part without content.
    held_preamble_bytes: usize,
}

/// The length of a line end. A delimiter at the beginning of the form or of a part's content needs
/// no line end of its own, so parsing starts there as if one had been received.
const CRLF_BYTES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    /// Before the first delimiter, of which this many bytes have arrived.
    Preamble(usize),
    AfterBoundary(AfterBoundary),
    /// In a part's head, after this many lines. The current line begins at `line_start` in the
    /// buffered head.
    Headers {
        lines: usize,
        line_start: usize,
    },
    /// In content, with this many bytes of a possible delimiter.
    Body(usize),
    Epilogue,
}

/// The position in the line after a delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterBoundary {
    Start,
    Hyphen,
    Padding,
    Cr,
}

/// The events of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part begins.
    PartStart(PartHeaders),
    /// A chunk of the part's content, never empty.
    Data(Bytes),
    /// The part has ended.
    PartEnd,
    /// The form has ended.
    End,
}

/// The result of a search in content.
enum Scan {
    Data(Bytes),
    Delimiter,
}

impl Parser {
    /// Creates a parser for a form with this boundary.
    ///
    /// # Errors
    /// The boundary is not allowed by RFC 2046, section 5.1.1.
    pub fn new(boundary: &[u8], limits: &MultipartLimits) -> Result<Self, MultipartError> {
        if !is_valid_boundary(boundary) {
            return Err(MultipartError::InvalidBoundary);
        }
        let delimiter = [b"\r\n--", boundary].concat();
        Ok(Self {
            limits: *limits,
            finder: Finder::new(&delimiter).into_owned(),
            delimiter: delimiter.into(),
            state: ParserState::Preamble(CRLF_BYTES),
            head: Vec::new(),
            field_count: 0,
            file_count: 0,
            is_file: false,
            part_bytes: 0,
            total_bytes: 0,
            preamble_bytes: 0,
            held_preamble_bytes: CRLF_BYTES,
        })
    }

    /// Parses the next event in `input`, which is advanced past it. Returns `None` once all input
    /// is consumed.
    ///
    /// # Errors
    /// The form breaks a rule or exceeds a limit. The parser must not be used any further.
    pub fn receive(&mut self, input: &mut Bytes) -> Result<Option<Event>, MultipartError> {
        while !input.is_empty() {
            match self.state {
                ParserState::Preamble(matched) => self.parse_preamble(matched, input)?,
                ParserState::AfterBoundary(position) => {
                    if let Some(event) = self.parse_after_boundary(position, input)? {
                        return Ok(Some(event));
                    }
                }
                ParserState::Headers { lines, line_start } => {
                    if let Some(head) = self.parse_headers(lines, line_start, input)? {
                        return self.begin_part(head).map(Some);
                    }
                }
                ParserState::Body(matched) => match self.scan_body(matched, input) {
                    (_, Some(Scan::Delimiter)) => {
                        self.state = ParserState::AfterBoundary(AfterBoundary::Start);
                        return Ok(Some(Event::PartEnd));
                    }
                    (matched, Some(Scan::Data(data))) => {
                        self.state = ParserState::Body(matched);
                        return self.count_data(data).map(Some);
                    }
                    (matched, None) => self.state = ParserState::Body(matched),
                },
                ParserState::Epilogue => {
                    self.count_preamble(input.len())?;
                    input.clear();
                }
            }
        }
        Ok(None)
    }

    /// Checks, at the end of the body, that the form is complete.
    ///
    /// # Errors
    /// The form is incomplete.
    pub fn finish(&self) -> Result<(), MultipartError> {
        if self.state == ParserState::Epilogue { Ok(()) } else { Err(MultipartError::Incomplete) }
    }

    /// The number of bytes that the parser buffers.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.head.capacity()
    }

    /// Skips data before the first delimiter.
    fn parse_preamble(&mut self, matched: usize, input: &mut Bytes) -> Result<(), MultipartError> {
        let (matched, scan) = self.scan_body(matched, input);
        self.state = ParserState::Preamble(matched);
        match scan {
            Some(Scan::Delimiter) => self.state = ParserState::AfterBoundary(AfterBoundary::Start),
            Some(Scan::Data(data)) => self.count_preamble(data.len())?,
            None => {}
        }
        Ok(())
    }

    /// Parses one byte after a boundary.
    fn parse_after_boundary(
        &mut self,
        position: AfterBoundary,
        input: &mut Bytes,
    ) -> Result<Option<Event>, MultipartError> {
        let next = match (position, input.get_u8()) {
            (AfterBoundary::Start, b'-') => AfterBoundary::Hyphen,
            (AfterBoundary::Start | AfterBoundary::Padding, b'\r') => AfterBoundary::Cr,
            // RFC 2046 §5.1.1: white space may follow a boundary.
            (AfterBoundary::Start | AfterBoundary::Padding, b' ' | b'\t') => {
                self.count_preamble(1)?;
                AfterBoundary::Padding
            }
            (AfterBoundary::Hyphen, b'-') => {
                self.state = ParserState::Epilogue;
                return Ok(Some(Event::End));
            }
            (AfterBoundary::Cr, b'\n') => {
                self.head.clear();
                self.state = ParserState::Headers { lines: 0, line_start: 0 };
                return Ok(None);
            }
            _ => return Err(MultipartError::InvalidDelimiter),
        };
        self.state = ParserState::AfterBoundary(next);
        Ok(None)
    }

    /// Reads lines of a part's head. Returns the head once its last line has arrived.
    fn parse_headers(
        &mut self,
        mut lines: usize,
        mut line_start: usize,
        input: &mut Bytes,
    ) -> Result<Option<PartHeaders>, MultipartError> {
        while !input.is_empty() {
            let end = memchr(b'\n', input);
            let line = input.split_to(end.map_or(input.len(), |index| index + 1));
            if self.head.len() + line.len() > self.limits.part_headers_bytes_max {
                return Err(MultipartError::PartHeadersTooLarge(
                    self.limits.part_headers_bytes_max,
                ));
            }
            self.head.extend_from_slice(&line);
            if end.is_none() {
                break;
            }
            match &self.head[line_start..] {
                b"\r\n" => return PartHeaders::parse(&self.head[..line_start]).map(Some),
                line if !line.ends_with(b"\r\n") => return Err(MultipartError::InvalidHeaderLine),
                _ if lines == self.limits.part_headers_max => {
                    return Err(MultipartError::TooManyPartHeaders(self.limits.part_headers_max));
                }
                _ => {}
            }
            (lines, line_start) = (lines + 1, self.head.len());
        }
        self.state = ParserState::Headers { lines, line_start };
        Ok(None)
    }

    fn begin_part(&mut self, head: PartHeaders) -> Result<Event, MultipartError> {
        self.is_file = head.is_file();
        if self.field_count == self.limits.fields_max {
            return Err(MultipartError::TooManyFields(self.limits.fields_max));
        }
        self.field_count += 1;
        if self.is_file && self.file_count == self.limits.files_max {
            return Err(MultipartError::TooManyFiles(self.limits.files_max));
        }
        self.file_count += usize::from(self.is_file);
        self.part_bytes = 0;
        self.held_preamble_bytes = CRLF_BYTES;
        self.state = ParserState::Body(CRLF_BYTES);
        Ok(Event::PartStart(head))
    }

    /// Finds data or a delimiter in content, given that `matched` bytes of a possible delimiter
    /// have arrived before. Also returns how many have arrived now.
    fn scan_body(&mut self, matched: usize, input: &mut Bytes) -> (usize, Option<Scan>) {
        if matched > 0 {
            let expected = &self.delimiter[matched..];
            let count = expected.len().min(input.len());
            if input[..count] != expected[..count] {
                let preamble = std::mem::take(&mut self.held_preamble_bytes);
                let content = self.delimiter.slice(preamble..matched);
                return (0, (!content.is_empty()).then_some(Scan::Data(content)));
            }
            input.advance(count);
            let is_complete = count == expected.len();
            return (matched + count, is_complete.then_some(Scan::Delimiter));
        }
        let data_len = match self.finder.find(input) {
            Some(0) => {
                input.advance(self.delimiter.len());
                return (0, Some(Scan::Delimiter));
            }
            Some(index) => index,
            None => {
                let last = input.len().saturating_sub(self.delimiter.len());
                let delimiter_start = memrchr(b'\r', &input[last..]).map(|index| last + index);
                let delimiter_start =
                    delimiter_start.filter(|index| self.delimiter.starts_with(&input[*index..]));
                delimiter_start.unwrap_or(input.len())
            }
        };
        if data_len == 0 {
            let matched = input.len();
            input.clear();
            return (matched, None);
        }
        (0, Some(Scan::Data(input.split_to(data_len))))
    }

    /// Counts content against the limits, and returns it as an event.
    fn count_data(&mut self, data: Bytes) -> Result<Event, MultipartError> {
        let bytes = data.len() as u64;
        self.part_bytes += bytes;
        self.total_bytes += bytes;
        let MultipartLimits { field_bytes_max, file_bytes_max, total_bytes_max, .. } = self.limits;
        match self.is_file {
            true if self.part_bytes > file_bytes_max => {
                Err(MultipartError::FileTooLarge(file_bytes_max))
            }
            false if self.part_bytes > field_bytes_max => {
                Err(MultipartError::FieldTooLarge(field_bytes_max))
            }
            _ if self.total_bytes > total_bytes_max => {
                Err(MultipartError::TotalTooLarge(total_bytes_max))
            }
            _ => Ok(Event::Data(data)),
        }
    }

    /// Counts bytes outside of parts against the limit.
    fn count_preamble(&mut self, bytes: usize) -> Result<(), MultipartError> {
        self.preamble_bytes = self.preamble_bytes.saturating_add(bytes);
        if self.preamble_bytes > self.limits.part_headers_bytes_max {
            return Err(MultipartError::PartHeadersTooLarge(self.limits.part_headers_bytes_max));
        }
        Ok(())
    }
}

/// RFC 2046, section 5.1.1: a boundary has 1 to 70 of these characters and does not end with a
/// space.
fn is_valid_boundary(boundary: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    let (Some(last), 1..=70) = (boundary.last(), boundary.len()) else { return false };
    *last != b' ' && boundary.iter().all(is_allowed)
}
