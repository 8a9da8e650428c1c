//! The parser: bytes in, events out. It does no I/O and buffers no content.
//!
//! A delimiter is CR LF, two hyphens and the boundary. Only its first byte can be a CR, so a
//! possible delimiter at the end of the input is described by a single number: how many of its
//! bytes have arrived. If it turns out not to be a delimiter, the bytes that were held back are a
//! prefix of the delimiter, so they need not be stored.
//!
//! | state | input | next | event |
//! |---|---|---|---|
//! | before | anything but a delimiter | before | |
//! | before | a delimiter | behind a delimiter | |
//! | behind a delimiter | the end of the line | head | |
//! | behind a delimiter | two hyphens | after | `End` |
//! | head | an empty line | content | `Part` |
//! | content | anything but a delimiter | content | `Data` |
//! | content | a delimiter | behind a delimiter | `PartEnd` |
//! | after | anything | after | |

use crate::head::PartHead;
use crate::limits::Limits;
use crate::reject::Reject;
use bytes::{Buf, Bytes};
use memchr::memmem::Finder;
use memchr::{memchr, memrchr};

/// Parses one form. Feed it with [`Parser::receive`], and call [`Parser::finish`] at the end of the
/// body.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    delimiter: Bytes,
    finder: Finder<'static>,
    state: State,
    /// The head of a part, as far as received.
    head: Vec<u8>,
    fields: usize,
    files: usize,
    is_file: bool,
    /// The bytes of content in this part, and in all parts.
    part_bytes: u64,
    all_bytes: u64,
    /// The bytes before the first part, after the last one, and after boundaries.
    around_bytes: usize,
    /// How many of the bytes held back do not belong to content: the line end before the first
    /// delimiter, which is optional, and the empty line before a part without content.
    before_bytes: usize,
}

/// The length of a line end.
const LINE_END: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter, of which this many bytes have arrived.
    Before(usize),
    Behind(Behind),
    /// In a head, with this many lines so far.
    Head {
        lines: usize,
        line_begins: usize,
    },
    /// In content, with this many bytes of a possible delimiter.
    Content(usize),
    After,
}

/// The position in the line after a delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Begin,
    Hyphen,
    Space,
    Return,
}

/// The events of a form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part begins.
    Part(PartHead),
    /// A piece of the part's content, never empty.
    Data(Bytes),
    /// The part has ended.
    PartEnd,
    /// The form has ended.
    End,
}

/// Something found in content.
enum Found {
    Data(Bytes),
    Delimiter,
}

impl Parser {
    /// Creates a parser for a form with this boundary.
    ///
    /// # Errors
    /// RFC 2046, section 5.1.1, does not allow the boundary.
    pub fn new(boundary: &[u8], limits: &Limits) -> Result<Self, Reject> {
        if !is_boundary(boundary) {
            return Err(Reject::InvalidBoundary);
        }
        let delimiter = [b"\r\n--", boundary].concat();
        Ok(Self {
            limits: *limits,
            finder: Finder::new(&delimiter).into_owned(),
            delimiter: delimiter.into(),
            state: State::Before(LINE_END),
            head: Vec::new(),
            fields: 0,
            files: 0,
            is_file: false,
            part_bytes: 0,
            all_bytes: 0,
            around_bytes: 0,
            before_bytes: LINE_END,
        })
    }

    /// The next event in `input`, which is advanced past it. `None` when all input is consumed.
    ///
    /// # Errors
    /// The form breaks a rule or exceeds a limit. Later calls have no meaning.
    pub fn receive(&mut self, input: &mut Bytes) -> Result<Option<Event>, Reject> {
        while !input.is_empty() {
            match self.state {
                State::Before(come) => self.before(come, input)?,
                State::Behind(place) => {
                    if let Some(event) = self.behind(place, input)? {
                        return Ok(Some(event));
                    }
                }
                State::Head { lines, line_begins } => {
                    if let Some(head) = self.head(lines, line_begins, input)? {
                        return self.begin(head).map(Some);
                    }
                }
                State::Content(come) => match self.content(come, input) {
                    (_, Some(Found::Delimiter)) => {
                        self.state = State::Behind(Behind::Begin);
                        return Ok(Some(Event::PartEnd));
                    }
                    (come, Some(Found::Data(data))) => {
                        self.state = State::Content(come);
                        return self.count(data).map(Some);
                    }
                    (come, None) => self.state = State::Content(come),
                },
                State::After => {
                    self.around(input.len())?;
                    input.clear();
                }
            }
        }
        Ok(None)
    }

    /// Ends the input.
    ///
    /// # Errors
    /// The form is incomplete.
    pub fn finish(&self) -> Result<(), Reject> {
        if self.state == State::After { Ok(()) } else { Err(Reject::Incomplete) }
    }

    /// The number of bytes that the parser buffers.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.head.capacity()
    }

    fn before(&mut self, come: usize, input: &mut Bytes) -> Result<(), Reject> {
        let (come, found) = self.content(come, input);
        self.state = State::Before(come);
        match found {
            Some(Found::Delimiter) => self.state = State::Behind(Behind::Begin),
            Some(Found::Data(data)) => self.around(data.len())?,
            None => {}
        }
        Ok(())
    }

    fn behind(&mut self, place: Behind, input: &mut Bytes) -> Result<Option<Event>, Reject> {
        let next = match (place, input.get_u8()) {
            (Behind::Begin, b'-') => Behind::Hyphen,
            (Behind::Begin | Behind::Space, b'\r') => Behind::Return,
            // RFC 2046 §5.1.1: white space may follow a boundary.
            (Behind::Begin | Behind::Space, b' ' | b'\t') => {
                self.around(1)?;
                Behind::Space
            }
            (Behind::Hyphen, b'-') => {
                self.state = State::After;
                return Ok(Some(Event::End));
            }
            (Behind::Return, b'\n') => {
                self.head.clear();
                self.state = State::Head { lines: 0, line_begins: 0 };
                return Ok(None);
            }
            _ => return Err(Reject::InvalidDelimiter),
        };
        self.state = State::Behind(next);
        Ok(None)
    }

    /// Reads lines of a head, and the head after the last one.
    fn head(
        &mut self,
        mut lines: usize,
        mut line_begins: usize,
        input: &mut Bytes,
    ) -> Result<Option<PartHead>, Reject> {
        while !input.is_empty() {
            let end = memchr(b'\n', input);
            let more = input.split_to(end.map_or(input.len(), |at| at + 1));
            if self.head.len() + more.len() > self.limits.head_bytes_max {
                return Err(Reject::HeadTooLong(self.limits.head_bytes_max));
            }
            self.head.extend_from_slice(&more);
            if end.is_none() {
                break;
            }
            match &self.head[line_begins..] {
                b"\r\n" => return PartHead::parse(&self.head[..line_begins]).map(Some),
                line if !line.ends_with(b"\r\n") => return Err(Reject::InvalidLine),
                _ if lines == self.limits.headers_max => {
                    return Err(Reject::TooManyHeaders(self.limits.headers_max));
                }
                _ => {}
            }
            (lines, line_begins) = (lines + 1, self.head.len());
        }
        self.state = State::Head { lines, line_begins };
        Ok(None)
    }

    fn begin(&mut self, head: PartHead) -> Result<Event, Reject> {
        self.is_file = head.is_file();
        if self.fields == self.limits.fields_max {
            return Err(Reject::TooManyFields(self.limits.fields_max));
        }
        self.fields += 1;
        if self.is_file && self.files == self.limits.files_max {
            return Err(Reject::TooManyFiles(self.limits.files_max));
        }
        self.files += usize::from(self.is_file);
        self.part_bytes = 0;
        self.before_bytes = LINE_END;
        self.state = State::Content(LINE_END);
        Ok(Event::Part(head))
    }

    /// Finds data or a delimiter in content, given that `come` bytes of a delimiter have arrived.
    /// Also returns how many have arrived now.
    fn content(&mut self, come: usize, input: &mut Bytes) -> (usize, Option<Found>) {
        if come > 0 {
            let wanted = &self.delimiter[come..];
            let count = wanted.len().min(input.len());
            if input[..count] != wanted[..count] {
                let before = std::mem::take(&mut self.before_bytes);
                let held = self.delimiter.slice(before..come);
                return (0, (!held.is_empty()).then_some(Found::Data(held)));
            }
            input.advance(count);
            let is_whole = count == wanted.len();
            return (come + count, is_whole.then_some(Found::Delimiter));
        }
        let at = match self.finder.find(input) {
            Some(0) => {
                input.advance(self.delimiter.len());
                return (0, Some(Found::Delimiter));
            }
            Some(at) => at,
            None => {
                let last = input.len().saturating_sub(self.delimiter.len());
                let begins = memrchr(b'\r', &input[last..]).map(|at| last + at);
                let begins = begins.filter(|at| self.delimiter.starts_with(&input[*at..]));
                begins.unwrap_or(input.len())
            }
        };
        if at == 0 {
            let come = input.len();
            input.clear();
            return (come, None);
        }
        (0, Some(Found::Data(input.split_to(at))))
    }

    /// Counts content against the limits.
    fn count(&mut self, data: Bytes) -> Result<Event, Reject> {
        let bytes = data.len() as u64;
        self.part_bytes += bytes;
        self.all_bytes += bytes;
        let Limits { field_bytes_max, file_bytes_max, all_bytes_max, .. } = self.limits;
        match self.is_file {
            true if self.part_bytes > file_bytes_max => Err(Reject::FileTooLarge(file_bytes_max)),
            false if self.part_bytes > field_bytes_max => {
                Err(Reject::FieldTooLarge(field_bytes_max))
            }
            _ if self.all_bytes > all_bytes_max => Err(Reject::AllTooLarge(all_bytes_max)),
            _ => Ok(Event::Data(data)),
        }
    }

    /// Counts bytes outside parts against the limit.
    fn around(&mut self, bytes: usize) -> Result<(), Reject> {
        self.around_bytes = self.around_bytes.saturating_add(bytes);
        if self.around_bytes > self.limits.head_bytes_max {
            return Err(Reject::HeadTooLong(self.limits.head_bytes_max));
        }
        Ok(())
    }
}

/// RFC 2046, section 5.1.1: a boundary has 1 to 70 of these characters and does not end with a
/// space.
fn is_boundary(boundary: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    let (Some(last), 1..=70) = (boundary.last(), boundary.len()) else { return false };
    *last != b' ' && boundary.iter().all(is_allowed)
}
