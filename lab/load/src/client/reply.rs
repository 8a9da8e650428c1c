//! A strict reader of HTTP/1.1 replies, written for the judge alone.
//!
//! It forgives nothing: bare line feeds, folded lines, bad names, repeated or signed lengths, and
//! a length together with a transfer coding are all faults of the server. Replies that end with
//! the connection are refused too, because a keep-alive workload cannot tell them from cut ones.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::GzDecoder;
use memchr::memchr;

use super::fault::Fault;

/// The longest head that is read, in bytes, with the empty line.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// The longest body that is read, in bytes, framing included.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// A whole reply, borrowed from the bytes it arrived in.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The status code, 100 to 999.
    pub status: u16,
    /// The field lines, each with its line end, without the empty line.
    fields: &'a [u8],
    /// The body, without chunk framing.
    pub body: Cow<'a, [u8]>,
    /// The lines of the trailer fields, as those of the head.
    trailers: &'a [u8],
    /// Whether the server said that it closes the connection after this reply.
    pub is_last: bool,
}

impl<'a> Reply<'a> {
    /// A reply of HTTP/2, whose field lines were put into the form of HTTP/1.1.
    pub(crate) fn new(
        status: u16,
        fields: &'a [u8],
        body: Cow<'a, [u8]>,
        trailers: &'a [u8],
    ) -> Reply<'a> {
        Reply { status, fields, body, trailers, is_last: false }
    }

    /// A message of a WebSocket, which has the status of a reply that is right, and no fields.
    pub(crate) fn message(text: &'a [u8]) -> Reply<'a> {
        Reply::new(200, &[], Cow::Borrowed(text), &[])
    }

    /// The fields in their order: names, and values without the white space around them.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        lines_of(self.fields)
    }

    /// The trailer fields, likewise.
    pub(crate) fn trailer_lines(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        lines_of(self.trailers)
    }

    /// Whether the body is said to be in gzip.
    pub(crate) fn is_gzip(&self) -> bool {
        self.field("content-encoding") == Some(b"gzip")
    }

    /// The body that was brought into gzip.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongBody`] if it is none, is cut short, or has more bytes than are read of any body.
    pub(crate) fn gunzip(&self) -> Result<Vec<u8>, Fault> {
        let mut body = Vec::new();
        let most = BODY_BYTES_MAX as u64;
        let read = GzDecoder::new(&*self.body).take(most + 1).read_to_end(&mut body);
        match read {
            Ok(bytes) if bytes <= BODY_BYTES_MAX => Ok(body),
            _ => Err(Fault::WrongBody),
        }
    }

    /// The value of the first field of this name, in any case; without the white space around it.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'a [u8]> {
        value_of(self.lines(), name)
    }

    /// The value of the first trailer field of this name, likewise.
    #[must_use]
    pub fn trailer(&self, name: &str) -> Option<&'a [u8]> {
        value_of(self.trailer_lines(), name)
    }
}

fn lines_of(mut rest: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    std::iter::from_fn(move || {
        let (line, after) = split_line(rest)?;
        rest = after;
        let colon = memchr(b':', line)?;
        Some((&line[..colon], line[colon + 1..].trim_ascii()))
    })
}

fn value_of<'a>(
    mut lines: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    name: &str,
) -> Option<&'a [u8]> {
    lines.find(|(one, _)| one.eq_ignore_ascii_case(name.as_bytes())).map(|(_, value)| value)
}

/// What stands at the beginning of the bytes read so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// The head is not whole yet.
    PartOfHead,
    /// The head is whole, the body is not.
    PartOfBody,
    /// A whole reply, which takes up this many bytes.
    Whole(usize, Reply<'a>),
}

/// Reads the reply at the beginning of `bytes`.
///
/// # Errors
///
/// [`Fault::Malformed`] if the bytes can never become a reply, or one longer than the limits.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, Fault> {
    parse_reply(bytes, false)
}

/// Reads the reply at the beginning of `bytes`, which has no body if it answers a HEAD request.
///
/// # Errors
///
/// As [`parse`].
pub fn parse_reply(bytes: &[u8], is_head: bool) -> Result<Parsed<'_>, Fault> {
    let Some((status_line, mut rest)) = split_line(bytes) else {
        return part_of_head(bytes);
    };
    let status = parse_status_line(status_line)?;
    let fields_start = bytes.len() - rest.len();
    let mut framing = Framing::default();
    let fields = loop {
        let line_start = bytes.len() - rest.len();
        let Some((line, after)) = split_line(rest) else {
            return part_of_head(bytes);
        };
        rest = after;
        if line.is_empty() {
            break &bytes[fields_start..line_start];
        }
        framing.on_field(line)?;
    };
    let head_bytes = bytes.len() - rest.len();
    if head_bytes > HEAD_BYTES_MAX {
        return Err(Fault::Malformed);
    }
    let Some(Body { bytes: body_bytes, content, trailers }) =
        framing.body(status, is_head, rest)?
    else {
        return Ok(Parsed::PartOfBody);
    };
    let reply = Reply { status, fields, body: content, trailers, is_last: framing.is_last };
    Ok(Parsed::Whole(head_bytes + body_bytes, reply))
}

fn part_of_head(bytes: &[u8]) -> Result<Parsed<'_>, Fault> {
    if bytes.len() > HEAD_BYTES_MAX {
        return Err(Fault::Malformed);
    }
    // Wrong bytes are named at once instead of waiting for a line end that never comes.
    let expected = b"HTTP/1.1 ";
    let known = bytes.len().min(expected.len());
    if bytes[..known] == expected[..known] { Ok(Parsed::PartOfHead) } else { Err(Fault::Malformed) }
}

/// The line at the beginning, without its CRLF, and what follows it.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut searched = 0;
    // A CR without LF stays in the line, where the checks of its content refuse it.
    loop {
        let feed = searched + memchr(b'\n', &bytes[searched..])?;
        if feed > 0 && bytes[feed - 1] == b'\r' {
            return Some((&bytes[..feed - 1], &bytes[feed + 1..]));
        }
        searched = feed + 1;
    }
}

fn parse_status_line(line: &[u8]) -> Result<u16, Fault> {
    // RFC 9112 §4: status-line = HTTP-version SP status-code SP [ reason-phrase ]
    let rest = line.strip_prefix(b"HTTP/1.1 ").ok_or(Fault::Malformed)?;
    let [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', reason @ ..] = rest else {
        return Err(Fault::Malformed);
    };
    check_text(reason)?;
    Ok(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
}

fn check_text(text: &[u8]) -> Result<(), Fault> {
    if text.iter().all(is_text) { Ok(()) } else { Err(Fault::Malformed) }
}

/// RFC 9110 §5.5: a field value holds visible characters, SP, HTAB and obs-text only.
pub(crate) fn is_text(byte: &u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// A whole body.
struct Body<'a> {
    /// How many bytes it takes up, framing included.
    bytes: usize,
    content: Cow<'a, [u8]>,
    /// The lines of the trailer fields.
    trailers: &'a [u8],
}

impl<'a> Body<'a> {
    fn plain(content: &'a [u8]) -> Body<'a> {
        Body { bytes: content.len(), content: Cow::Borrowed(content), trailers: &[] }
    }
}

/// How the body's end is found.
#[derive(Debug, Default)]
struct Framing {
    length: Option<usize>,
    is_chunked: bool,
    is_last: bool,
}

impl Framing {
    fn on_field(&mut self, line: &[u8]) -> Result<(), Fault> {
        let colon = memchr(b':', line).ok_or(Fault::Malformed)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // RFC 9112 §5.1: no white space between the name and the colon. A folded line begins
        // with white space and fails here as well.
        if name.is_empty() || !name.iter().all(|&byte| is_token(byte)) {
            return Err(Fault::Malformed);
        }
        check_text(value)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            // RFC 9112 §6.3: a message with two different lengths is not to be trusted; the judge
            // refuses equal ones as well.
            if self.length.replace(parse_number(value, 10)?).is_some() {
                return Err(Fault::Malformed);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Malformed);
            }
            self.is_chunked = true;
        } else if name.eq_ignore_ascii_case(b"connection") {
            let mut options = value.split(|&byte| byte == b',');
            self.is_last |= options.any(|one| one.trim_ascii().eq_ignore_ascii_case(b"close"));
        }
        Ok(())
    }

    /// The body, or none if it is not whole.
    fn body<'a>(
        &self,
        status: u16,
        is_head: bool,
        bytes: &'a [u8],
    ) -> Result<Option<Body<'a>>, Fault> {
        // RFC 9112 §6.3: a reply to HEAD, 1xx, 204 and 304 end with their head.
        if is_head || status < 200 || status == 204 || status == 304 {
            return Ok(Some(Body::plain(&[])));
        }
        match (self.is_chunked, self.length) {
            (false, Some(length)) => Ok(bytes.get(..length).map(Body::plain)),
            (true, None) => parse_chunks(bytes),
            // RFC 9112 §6.2: a sender must not send both. With neither, only the end of the
            // connection would end the body.
            (true, Some(_)) | (false, None) => Err(Fault::Malformed),
        }
    }
}

pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn parse_number(digits: &[u8], radix: u32) -> Result<usize, Fault> {
    if digits.is_empty() || digits.len() > 16 {
        return Err(Fault::Malformed);
    }
    let mut number = 0_usize;
    for &digit in digits {
        let digit = char::from(digit).to_digit(radix).ok_or(Fault::Malformed)?;
        number = number * radix as usize + digit as usize;
    }
    if number > BODY_BYTES_MAX { Err(Fault::Malformed) } else { Ok(number) }
}

fn parse_chunks(bytes: &[u8]) -> Result<Option<Body<'_>>, Fault> {
    let mut body = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((line, after)) = split_line(rest) else {
            return part_of_chunks(bytes);
        };
        // RFC 9112 §7.1.1: chunk extensions may follow the size; the judge reads past them.
        let size = &line[..memchr(b';', line).unwrap_or(line.len())];
        check_text(line)?;
        let size = parse_number(size.trim_ascii_end(), 16)?;
        rest = after;
        if size == 0 {
            break;
        }
        let Some(chunk) = rest.get(..size) else { return part_of_chunks(bytes) };
        body.extend_from_slice(chunk);
        rest = &rest[size..];
        match rest {
            [b'\r', b'\n', after @ ..] => rest = after,
            [] | [b'\r'] => return part_of_chunks(bytes),
            _ => return Err(Fault::Malformed),
        }
    }
    let trailers = rest;
    loop {
        let trailers = &trailers[..trailers.len() - rest.len()];
        let Some((trailer, after)) = split_line(rest) else {
            return part_of_chunks(bytes);
        };
        rest = after;
        if trailer.is_empty() {
            let used = bytes.len() - rest.len();
            return Ok(Some(Body { bytes: used, content: Cow::Owned(body), trailers }));
        }
        Framing::default().on_field(trailer)?;
    }
}

fn part_of_chunks(bytes: &[u8]) -> Result<Option<Body<'_>>, Fault> {
    if bytes.len() > BODY_BYTES_MAX { Err(Fault::Malformed) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> (usize, Reply<'_>) {
        match parse(bytes) {
            Ok(Parsed::Whole(used, reply)) => (used, reply),
            other => panic!("{:?} gives {other:?}", String::from_utf8_lossy(bytes)),
        }
    }

    #[test]
    fn a_reply_ends_where_its_length_says() {
        let bytes = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length:  5 \r\n\r\nhelloHTTP";
        let (used, reply) = whole(bytes);
        assert_eq!(used, bytes.len() - 4);
        assert_eq!(reply.status, 200);
        assert_eq!(*reply.body, *b"hello");
        assert_eq!(reply.field("SERVER"), Some(&b"x"[..]));
        assert_eq!(reply.field("date"), None);
        assert!(!reply.is_last);
    }

    #[test]
    fn chunks_are_joined_and_trailers_stand_apart() {
        let bytes =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: a, Close\r\n\r\n\
                      5;x=y\r\nhello\r\n3\r\n wo\r\n0\r\nX-Sum: 1\r\n\r\n";
        let (used, reply) = whole(bytes);
        assert_eq!(used, bytes.len());
        assert_eq!(*reply.body, *b"hello wo");
        assert_eq!((reply.trailer("x-sum"), reply.field("x-sum")), (Some(&b"1"[..]), None));
        assert!(reply.is_last);
    }

    #[test]
    fn every_shorter_prefix_is_a_part() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"[..],
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        ] {
            let body = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            for end in 0..bytes.len() {
                let part = if end < body { Parsed::PartOfHead } else { Parsed::PartOfBody };
                assert_eq!(parse(&bytes[..end]), Ok(part), "at {end}");
            }
            assert_eq!(whole(bytes).0, bytes.len());
        }
    }

    #[test]
    fn a_204_has_no_body() {
        let (used, reply) = whole(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert_eq!((used, reply.status), (27, 204));
    }

    #[test]
    fn lax_replies_are_refused() {
        for bytes in [
            &b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"[..],
            b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\nContent-Length: 0\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA: \x01\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nNo colon\r\nContent-Length: 0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
            b"nonsense",
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(parse(bytes), Err(Fault::Malformed), "{text:?}");
        }
    }

    #[test]
    fn a_head_without_end_is_refused_at_the_limit() {
        let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
        while bytes.len() <= HEAD_BYTES_MAX {
            assert_eq!(parse(&bytes), Ok(Parsed::PartOfHead));
            bytes.extend_from_slice(&[b"A: ", &[b'b'; 4000][..], b"\r\n"].concat());
        }
        assert_eq!(parse(&bytes), Err(Fault::Malformed));
    }
}
