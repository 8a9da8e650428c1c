//! HTTP/2 from the client's side, without I/O: bytes of the server in, judged replies and bytes for
//! the server out.
//!
//! It forgives nothing: a frame where none may stand, a head that is no head, or a body of another
//! length than the head says are faults of the server. Nothing of the client ever holds a server up:
//! its windows for replies are as wide as the longest reply that is read, and it acknowledges in the
//! same turn.

mod control;
pub(crate) mod frame;
mod head;
mod request;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

pub(crate) use frame::frame as write_frame;
pub use request::Request;
pub(crate) use request::literal;

use crate::client::fault::Fault;
use crate::client::reply::{BODY_BYTES_MAX, HEAD_BYTES_MAX, Reply};
use control::send_body;
use frame::{ACK, END_HEADERS, END_STREAM, FRAME_BYTES_MAX, Header, Kind, PREFACE, PRIORITY};
use head::{Head, Heads};

/// What flow control may allow at most (RFC 9113 §6.9.1).
const WINDOW_MAX: i64 = (1 << 31) - 1;

/// The window before anybody says anything (RFC 9113 §6.9.2).
const WINDOW_FIRST: i64 = 65_535;

/// When the window of the connection is filled up again: in its middle, so that it never ends.
const REFILL_BYTES: u32 = 1 << 30;

/// The last stream that is begun; a connection has no more numbers soon after it.
const STREAM_LAST: u32 = (1 << 31) - (1 << 12);

/// The parameters of SETTINGS that matter to this client.
const ENABLE_PUSH: u16 = 2;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Who takes what came of a request: its number, and the reply with the bytes of its frames, or why
/// there is none.
pub type Sink<'s> = dyn FnMut(u64, Result<(&Reply<'_>, usize), Fault>) + 's;

/// One connection.
pub struct Http2 {
    /// Bytes of a frame that is not whole yet.
    part: Vec<u8>,
    /// The streams from number `first` on, two apart; none: it is over.
    streams: VecDeque<Option<Stream>>,
    first: u32,
    open: usize,
    heads: Heads,
    /// A head whose CONTINUATION is to come.
    unfinished: Option<Unfinished>,
    /// How many streams the server allows at a time.
    streams_max: usize,
    /// What may be sent on the connection, and on a stream that is begun now.
    window: i64,
    window_initial: i64,
    has_settings: bool,
    is_leaving: bool,
    /// Bytes of DATA for which the window was not filled up yet.
    consumed: u32,
    /// How many streams have a body that waits for a window.
    stalled: usize,
}

struct Stream {
    number: u64,
    is_head_request: bool,
    head: Option<Arc<Head>>,
    body: Vec<u8>,
    trailers: Option<Arc<Head>>,
    /// Bytes of its frames.
    wire_bytes: usize,
    window: i64,
    /// What of the request's body waits for a window.
    unsent: Vec<u8>,
}

struct Unfinished {
    stream: u32,
    ends_stream: bool,
    block: Vec<u8>,
    wire_bytes: usize,
}

impl Http2 {
    /// A connection, with what the client says first put into `out`.
    #[must_use]
    pub fn new(out: &mut Vec<u8>) -> Http2 {
        out.extend_from_slice(PREFACE);
        let mut settings = Vec::new();
        for (parameter, value) in [(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, WINDOW_MAX as u32)] {
            settings.extend_from_slice(&parameter.to_be_bytes());
            settings.extend_from_slice(&u32::to_be_bytes(value));
        }
        write_frame(out, Kind::Settings, 0, 0, &settings);
        let increment = (WINDOW_MAX - WINDOW_FIRST) as u32;
        write_frame(out, Kind::WindowUpdate, 0, 0, &increment.to_be_bytes());
        Http2 {
            part: Vec::new(),
            streams: VecDeque::new(),
            first: 1,
            open: 0,
            heads: Heads::default(),
            unfinished: None,
            streams_max: usize::MAX,
            window: WINDOW_FIRST,
            window_initial: WINDOW_FIRST,
            has_settings: false,
            is_leaving: false,
            consumed: 0,
            stalled: 0,
        }
    }

    /// Whether the server's SETTINGS have come, so that requests may be sent within its limits.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.has_settings
    }

    /// Whether the server said that it takes no further requests here.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.is_leaving || self.next() > STREAM_LAST
    }

    /// How many more requests may be begun now.
    #[must_use]
    pub fn room(&self) -> usize {
        match self.has_settings && !self.is_leaving() {
            true => self.streams_max.saturating_sub(self.open),
            false => 0,
        }
    }

    /// How many streams the server allows at a time; none if it sets no limit.
    #[must_use]
    pub fn streams_max(&self) -> Option<usize> {
        (self.streams_max != usize::MAX).then_some(self.streams_max)
    }

    /// Whether the head of a reply has come and the rest of it has not.
    #[must_use]
    pub fn is_within_reply(&self) -> bool {
        self.streams.iter().flatten().any(|stream| stream.head.is_some())
    }

    fn next(&self) -> u32 {
        self.first + 2 * self.streams.len() as u32
    }

    /// Puts a request into `out`. Its number comes back with the reply. There must be room for it.
    pub fn ask(&mut self, request: &Request, number: u64, out: &mut Vec<u8>) {
        debug_assert!(self.room() > 0, "the server's limit is kept");
        let id = self.next();
        let ends = if request.body.is_empty() { END_STREAM } else { 0 };
        let (first, mut rest) = request.block.split_at(request.block.len().min(FRAME_BYTES_MAX));
        let ends_head = if rest.is_empty() { END_HEADERS } else { 0 };
        write_frame(out, Kind::Headers, ends | ends_head, id, first);
        while !rest.is_empty() {
            let (block, after) = rest.split_at(rest.len().min(FRAME_BYTES_MAX));
            rest = after;
            let ends_head = if rest.is_empty() { END_HEADERS } else { 0 };
            write_frame(out, Kind::Continuation, ends_head, id, block);
        }
        let mut stream = Stream {
            number,
            is_head_request: request.is_head,
            head: None,
            body: Vec::new(),
            trailers: None,
            wire_bytes: 0,
            window: self.window_initial,
            unsent: Vec::new(),
        };
        let sent = send_body(&request.body, id, &mut self.window, &mut stream.window, out);
        if sent < request.body.len() {
            stream.unsent.extend_from_slice(&request.body[sent..]);
            self.stalled += 1;
        }
        self.streams.push_back(Some(stream));
        self.open += 1;
    }

    /// Takes what arrived. Replies go to `sink`, and what the protocol wants answered into `out`.
    ///
    /// # Errors
    ///
    /// The fault that makes the rest of the connection unusable.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        if self.part.is_empty() {
            let used = self.read_frames(bytes, out, sink)?;
            self.part.extend_from_slice(&bytes[used..]);
            return Ok(());
        }
        let mut part = std::mem::take(&mut self.part);
        part.extend_from_slice(bytes);
        let used = self.read_frames(&part, out, sink)?;
        part.drain(..used);
        self.part = part;
        Ok(())
    }

    fn read_frames(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Fault> {
        let mut used = 0;
        while let Some(header) = Header::read(&bytes[used..])? {
            let end = used + Header::BYTES + header.length;
            let Some(payload) = bytes.get(used + Header::BYTES..end) else { break };
            used = end;
            self.on_frame(header, payload, out, sink)?;
        }
        Ok(used)
    }

    fn on_frame(
        &mut self,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        // RFC 9113 §3.4: the server begins with SETTINGS; §6.10: nothing stands within a head.
        let is_settings = header.kind == Some(Kind::Settings);
        let continues = header.kind == Some(Kind::Continuation);
        if (!self.has_settings && (!is_settings || header.has(ACK)))
            || continues != self.unfinished.is_some()
        {
            return Err(Fault::Malformed);
        }
        match header.kind {
            Some(Kind::Data) => self.on_data(header, payload, out, sink),
            Some(Kind::Headers) => self.on_headers(header, payload, sink),
            Some(Kind::Continuation) => self.on_continuation(header, payload, sink),
            Some(Kind::Reset) => self.on_reset(header, sink),
            Some(Kind::Settings) => self.on_settings(header, payload, out),
            Some(Kind::Ping) if header.stream == 0 && payload.len() == 8 => {
                if !header.has(ACK) {
                    write_frame(out, Kind::Ping, ACK, 0, payload);
                }
                Ok(())
            }
            Some(Kind::GoAway) => self.on_goaway(header, payload, sink),
            Some(Kind::WindowUpdate) => self.on_window_update(header, payload, out),
            // This client allowed no PUSH_PROMISE.
            Some(Kind::Ping | Kind::PushPromise) => Err(Fault::Malformed),
            // RFC 9113 §5.5: frames of unknown kinds are passed over. Priorities are of no use.
            Some(Kind::Priority) | None => Ok(()),
        }
    }

    /// The stream of this number that is open; none if it is over; an error if it never began.
    fn stream(&mut self, id: u32) -> Result<Option<&mut Stream>, Fault> {
        if id.is_multiple_of(2) || id >= self.next() {
            return Err(Fault::Malformed);
        }
        let Some(place) = id.checked_sub(self.first) else { return Ok(None) };
        Ok(self.streams[place as usize / 2].as_mut())
    }

    /// Takes an open stream out.
    fn close(&mut self, id: u32) -> Option<Stream> {
        let place = id.checked_sub(self.first)? as usize / 2;
        let stream = self.streams.get_mut(place)?.take()?;
        self.open -= 1;
        self.stalled -= usize::from(!stream.unsent.is_empty());
        while let Some(None) = self.streams.front() {
            self.streams.pop_front();
            self.first += 2;
        }
        Some(stream)
    }

    fn on_data(
        &mut self,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let data = header.unpadded(payload)?;
        self.consumed += payload.len() as u32;
        if self.consumed >= REFILL_BYTES {
            write_frame(out, Kind::WindowUpdate, 0, 0, &self.consumed.to_be_bytes());
            self.consumed = 0;
        }
        let Some(stream) = self.stream(header.stream)? else { return Err(Fault::Malformed) };
        stream.wire_bytes += Header::BYTES + payload.len();
        let bytes = stream.body.len() + data.len();
        if stream.head.is_none() || bytes > BODY_BYTES_MAX {
            return Err(Fault::Malformed);
        }
        if !header.has(END_STREAM) {
            if stream.body.is_empty() {
                // A long body finds room at once instead of being moved again and again.
                let length = stream.head.as_ref().and_then(|head| head.length);
                stream.body.reserve_exact(length.unwrap_or(0));
            }
            stream.body.extend_from_slice(data);
            return Ok(());
        }
        if !stream.body.is_empty() {
            stream.body.extend_from_slice(data);
            return self.finish(header.stream, None, sink);
        }
        self.finish(header.stream, Some(data), sink)
    }

    /// Hands a whole reply over: its body is `body`, or was collected.
    fn finish(&mut self, id: u32, body: Option<&[u8]>, sink: &mut Sink<'_>) -> Result<(), Fault> {
        let stream = self.close(id).ok_or(Fault::Malformed)?;
        let head = stream.head.ok_or(Fault::Malformed)?;
        let body = body.unwrap_or(&stream.body);
        let is_bodiless = stream.is_head_request || matches!(head.status, 204 | 304);
        let is_right = match is_bodiless {
            true => body.is_empty(),
            // RFC 9113 §8.1.1: a length that is not that of the DATA makes a reply malformed.
            false => head.length.is_none_or(|length| length == body.len()),
        };
        if !is_right {
            sink(stream.number, Err(Fault::Malformed));
            return Ok(());
        }
        let trailers = stream.trailers.as_ref().map_or(&[][..], |trailers| &trailers.lines);
        let reply = Reply::new(head.status, &head.lines, Cow::Borrowed(body), trailers);
        sink(stream.number, Ok((&reply, stream.wire_bytes)));
        Ok(())
    }

    fn on_headers(
        &mut self,
        header: Header,
        payload: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let mut block = header.unpadded(payload)?;
        if header.has(PRIORITY) {
            block = block.get(5..).ok_or(Fault::Malformed)?;
        }
        let wire_bytes = Header::BYTES + payload.len();
        let ends_stream = header.has(END_STREAM);
        if header.has(END_HEADERS) {
            return self.on_block((header.stream, ends_stream), block, wire_bytes, sink);
        }
        let (stream, block) = (header.stream, block.to_vec());
        self.unfinished = Some(Unfinished { stream, ends_stream, block, wire_bytes });
        Ok(())
    }

    fn on_continuation(
        &mut self,
        header: Header,
        payload: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let Some(mut head) = self.unfinished.take() else { return Err(Fault::Malformed) };
        head.block.extend_from_slice(payload);
        head.wire_bytes += Header::BYTES + payload.len();
        if head.stream != header.stream || head.block.len() > HEAD_BYTES_MAX {
            return Err(Fault::Malformed);
        }
        if header.has(END_HEADERS) {
            let Unfinished { stream, ends_stream, block, wire_bytes } = head;
            return self.on_block((stream, ends_stream), &block, wire_bytes, sink);
        }
        self.unfinished = Some(head);
        Ok(())
    }

    /// A whole head, or trailers.
    fn on_block(
        &mut self,
        (id, ends_stream): (u32, bool),
        block: &[u8],
        wire_bytes: usize,
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let is_trailer = match self.stream(id)? {
            Some(stream) => {
                stream.wire_bytes += wire_bytes;
                stream.head.is_some()
            }
            None => return Err(Fault::Malformed),
        };
        if is_trailer {
            let trailers = self.heads.read_trailers(block)?;
            if let Some(stream) = self.stream(id)? {
                stream.trailers = Some(trailers);
            }
            return if ends_stream { self.finish(id, None, sink) } else { Err(Fault::Malformed) };
        }
        let head = self.heads.read(block)?;
        if head.status < 200 {
            // An interim reply: the real one is to come.
            return if ends_stream { Err(Fault::Malformed) } else { Ok(()) };
        }
        if let Some(stream) = self.stream(id)? {
            stream.head = Some(head);
        }
        if ends_stream { self.finish(id, None, sink) } else { Ok(()) }
    }
}
