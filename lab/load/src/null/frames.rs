//! The null server's HTTP/2: it finds where requests end and answers fixed frames.

use std::io;

use crate::client::fault::Fault;
use crate::client::reply::{Parsed, parse_reply};
use crate::http2::frame::{ACK, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, Header, Kind, PREFACE};
use crate::http2::{literal, write_frame};

/// What is sent first: windows so wide that no request waits for one.
const WINDOW: u32 = (1 << 31) - 1;
const WINDOW_FIRST: u32 = 65_535;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// When the window of the connection is filled up again.
const REFILL_BYTES: u32 = 1 << 30;

/// The static table's number for `:status`, as a literal without indexing (RFC 7541, appendix A).
const STATUS: u8 = 8;

/// What is known of one connection.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// Bytes of a frame that is not whole yet.
    part: Vec<u8>,
    is_greeted: bool,
    consumed: u32,
}

/// The frames of a reply whose HTTP/1.1 form is `bytes`, for no stream yet.
///
/// # Errors
///
/// `InvalidInput` if the bytes are no reply.
pub fn reply(bytes: &[u8], is_head: bool) -> io::Result<Vec<u8>> {
    let Ok(Parsed::Whole(_, reply)) = parse_reply(bytes, is_head) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "these bytes are no reply"));
    };
    let mut block = vec![STATUS, 3];
    block.extend_from_slice(reply.status.to_string().as_bytes());
    for (name, value) in reply.lines() {
        // RFC 9113 §8.2.2: frames take the place of chunks.
        if !name.eq_ignore_ascii_case(b"transfer-encoding") {
            literal(name, value, &mut block);
        }
    }
    let mut trailers = Vec::new();
    for (name, value) in reply.trailer_lines() {
        literal(name, value, &mut trailers);
    }
    let (mut out, mut rest) = (Vec::new(), &*reply.body);
    let ends = |rest: &[u8]| match rest.is_empty() && trailers.is_empty() {
        true => END_STREAM,
        false => 0,
    };
    write_frame(&mut out, Kind::Headers, END_HEADERS | ends(rest), 0, &block);
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.len().min(FRAME_BYTES_MAX));
        rest = after;
        write_frame(&mut out, Kind::Data, ends(rest), 0, part);
    }
    if !trailers.is_empty() {
        write_frame(&mut out, Kind::Headers, END_HEADERS | END_STREAM, 0, &trailers);
    }
    Ok(out)
}

impl Frames {
    /// Puts `reply` into `out` for each request that ends in `bytes`.
    pub(super) fn answer(
        &mut self,
        bytes: &[u8],
        reply: &[u8],
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let invalid = |_: Fault| io::Error::from(io::ErrorKind::InvalidData);
        if self.part.is_empty() {
            let used = self.read(bytes, reply, out).map_err(invalid)?;
            self.part.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        let used = self.read(&part, reply, out).map_err(invalid)?;
        part.drain(..used);
        self.part = part;
        Ok(())
    }

    fn read(&mut self, bytes: &[u8], reply: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        let mut used = 0;
        if !self.is_greeted {
            if bytes.len() < PREFACE.len() {
                return Ok(0);
            }
            if !bytes.starts_with(PREFACE) {
                return Err(Fault::Malformed);
            }
            used = PREFACE.len();
            self.is_greeted = true;
            let ([a, b], [c, d, e, f]) = (INITIAL_WINDOW_SIZE.to_be_bytes(), WINDOW.to_be_bytes());
            write_frame(out, Kind::Settings, 0, 0, &[a, b, c, d, e, f]);
            let increment = WINDOW - WINDOW_FIRST;
            write_frame(out, Kind::WindowUpdate, 0, 0, &increment.to_be_bytes());
        }
        while let Some(header) = Header::read(&bytes[used..])? {
            let end = used + Header::BYTES + header.length;
            let Some(payload) = bytes.get(used + Header::BYTES..end) else { break };
            used = end;
            match header.kind {
                Some(Kind::Settings) if !header.has(ACK) => {
                    write_frame(out, Kind::Settings, ACK, 0, &[]);
                }
                Some(Kind::Ping) if !header.has(ACK) => {
                    write_frame(out, Kind::Ping, ACK, 0, payload);
                }
                Some(Kind::Data) => self.consumed += header.length as u32,
                _ => {}
            }
            if self.consumed >= REFILL_BYTES {
                write_frame(out, Kind::WindowUpdate, 0, 0, &self.consumed.to_be_bytes());
                self.consumed = 0;
            }
            let is_request = matches!(header.kind, Some(Kind::Headers | Kind::Data));
            if is_request && header.has(END_STREAM) {
                on_stream(reply, header.stream, out);
            }
        }
        Ok(used)
    }
}

/// The frames of a reply, for this stream.
fn on_stream(reply: &[u8], stream: u32, out: &mut Vec<u8>) {
    let mut place = out.len();
    out.extend_from_slice(reply);
    while let Some(&[a, b, c, _, _]) = out.get(place..).and_then(<[u8]>::first_chunk) {
        out[place + 5..place + Header::BYTES].copy_from_slice(&stream.to_be_bytes());
        place += Header::BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
    }
}
