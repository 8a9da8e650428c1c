//! The parser: bytes in, events out. It has no I/O, and keeps no content.
//!
//! A delimiter is CR LF, two hyphens and the boundary. No character of it but the first may be a CR, so a
//! place where one may have begun is known by a single number: how much of it has come. If it turns out
//! to be none, the bytes that were held back are the delimiter's own first ones, and nothing is stored.
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

/// Parses one form. Feed it with [`Parser::receive`], and say with [`Parser::finish`] that nothing more
/// comes.
#[derive(Debug)]
pub struct Parser {
    limits: Limits,
    delimiter: Bytes,
    finder: Finder<'static>,
    state: State,
    /// The head of a part, as far as it has come.
    head: Vec<u8>,
    fields: usize,
    files: usize,
    is_file: bool,
    /// The content of this part, and of all parts, in bytes.
    part_bytes: u64,
    all_bytes: u64,
    /// What stands before the first part, or after the last one, or behind a boundary, in bytes.
    around_bytes: usize,
    /// How many of the bytes held back belong to what stands before: the end of the line in front of the
    /// first delimiter, which need not be there, and the empty line in front of a part without content.
    before_bytes: usize,
}

/// The end of a line.
const LINE_END: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first delimiter, of which this much has come.
    Before(usize),
    Behind(Behind),
    /// Within a head, with this many lines.
    Head {
        lines: usize,
        line_begins: usize,
    },
    /// Within content; this much has come of what may be a delimiter.
    Content(usize),
    After,
}

/// Where in the line behind a delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behind {
    Begin,
    Hyphen,
    Space,
    Return,
}

/// What a form consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A part begins.
    Part(PartHead),
    /// Some of its content, never empty.
    Data(Bytes),
    /// It has ended.
    PartEnd,
    /// The form has ended.
    End,
}

/// What was found in content.
enum Found {
    Data(Bytes),
    Delimiter,
}

impl Parser {
    /// A parser for a form with this boundary.
    ///
    /// # Errors
    /// RFC 2046 §5.1.1 does not allow the boundary.
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

    /// The next event in `input`, which is moved on behind it. `None`: all of it is used.
    ///
    /// # Errors
    /// The form breaks a rule or passes a limit. Nothing that follows means anything then.
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

    /// Nothing more comes.
    ///
    /// # Errors
    /// The form is not complete.
    pub fn finish(&self) -> Result<(), Reject> {
        if self.state == State::After { Ok(()) } else { Err(Reject::Incomplete) }
    }

    /// The bytes that the parser holds.
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

    /// Reads lines of a head, and the head when the last one has come.
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

    /// What comes next in content, if `come` bytes of a delimiter have come already, and how many have
    /// come then.
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

    /// Counts content.
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

    /// Counts what belongs to no part.
    fn around(&mut self, bytes: usize) -> Result<(), Reject> {
        self.around_bytes = self.around_bytes.saturating_add(bytes);
        if self.around_bytes > self.limits.head_bytes_max {
            return Err(Reject::HeadTooLong(self.limits.head_bytes_max));
        }
        Ok(())
    }
}

/// RFC 2046 §5.1.1: a boundary has 1 to 70 of these characters, and does not end with a space.
fn is_boundary(boundary: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(byte);
    let (Some(last), 1..=70) = (boundary.last(), boundary.len()) else { return false };
    *last != b' ' && boundary.iter().all(is_allowed)
}
