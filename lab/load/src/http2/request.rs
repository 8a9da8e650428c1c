//! Requests in the form of HTTP/2, made from that of HTTP/1.1.

use memchr::memchr;
use memchr::memmem;

/// Fields that only HTTP/1.1 has, or whose value stands in a pseudo-field (RFC 9113 §8.2.2, §8.3.1).
const LEFT_OUT: [&[u8]; 2] = [b"host", b"connection"];

/// The static table's fields that are used whole (RFC 7541, appendix A).
const GET: u8 = 0x82;
const POST: u8 = 0x83;
const ROOT: u8 = 0x84;
const HTTP: u8 = 0x86;
const HTTPS: u8 = 0x87;

/// The static table's names that are used with other values, as literals that no table remembers.
const AUTHORITY: u8 = 1;
const METHOD: u8 = 2;
const PATH: u8 = 4;

/// A request: a head that leaves the server's table alone, so that it can be sent at any time, and a
/// body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub(super) block: Vec<u8>,
    pub(super) body: Vec<u8>,
    pub(super) is_head: bool,
}

impl Request {
    /// The request whose HTTP/1.1 form is `bytes`, with the scheme of a connection over TLS or none.
    #[must_use]
    pub fn of(bytes: &[u8], is_tls: bool) -> Request {
        let mut request = Request::default();
        request.set(bytes, is_tls);
        request
    }

    /// Becomes the request of [`Request::of`], in the room that is there already.
    pub fn set(&mut self, bytes: &[u8], is_tls: bool) {
        self.block.clear();
        self.body.clear();
        let end = memmem::find(bytes, b"\r\n\r\n").unwrap_or(bytes.len());
        let (head, body) = bytes.split_at(end);
        self.body.extend_from_slice(body.get(4..).unwrap_or_default());
        let (line, mut rest) = split(head, b"\r\n");
        let (method, line) = split(line, b" ");
        let (target, _) = split(line, b" ");
        self.is_head = method == b"HEAD";
        match method {
            b"GET" => self.block.push(GET),
            b"POST" => self.block.push(POST),
            other => known(METHOD, other, &mut self.block),
        }
        self.block.push(if is_tls { HTTPS } else { HTTP });
        match target {
            b"/" => self.block.push(ROOT),
            other => known(PATH, other, &mut self.block),
        }
        let mut fields = self.block.len();
        while !rest.is_empty() {
            let (line, after) = split(rest, b"\r\n");
            rest = after;
            let (name, value) = split(line, b":");
            let value = value.trim_ascii();
            if name.eq_ignore_ascii_case(b"host") {
                // Pseudo-fields come before all others (RFC 9113 §8.3).
                let mut authority = Vec::new();
                known(AUTHORITY, value, &mut authority);
                self.block.splice(fields..fields, authority.iter().copied());
                fields += authority.len();
            } else if !LEFT_OUT.iter().any(|one| name.eq_ignore_ascii_case(one)) {
                literal(name, value, &mut self.block);
            }
        }
    }
}

/// What stands before and behind the first `mark`; nothing behind if there is none.
fn split<'b>(bytes: &'b [u8], mark: &[u8]) -> (&'b [u8], &'b [u8]) {
    let place = match mark {
        [one] => memchr(*one, bytes),
        more => memmem::find(bytes, more),
    };
    place.map_or((bytes, &[]), |place| (&bytes[..place], &bytes[place + mark.len()..]))
}

/// A literal field without indexing whose name stands in the static table (RFC 7541 §6.2.2).
fn known(index: u8, value: &[u8], out: &mut Vec<u8>) {
    out.push(index);
    string(value, out);
}

/// A literal field without indexing, with its name in lower case.
pub(crate) fn literal(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.push(0);
    string(name, out);
    let start = out.len() - name.len();
    out[start..].make_ascii_lowercase();
    string(value, out);
}

/// A string as it is, with its length before it (RFC 7541 §5.1, §5.2).
fn string(text: &[u8], out: &mut Vec<u8>) {
    const PREFIX_MAX: usize = 127;
    if text.len() < PREFIX_MAX {
        out.push(text.len() as u8);
    } else {
        out.push(PREFIX_MAX as u8);
        let mut rest = text.len() - PREFIX_MAX;
        while rest >= 128 {
            out.push((rest % 128 + 128) as u8);
            rest /= 128;
        }
        out.push(rest as u8);
    }
    out.extend_from_slice(text);
}
