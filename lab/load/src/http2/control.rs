//! Frames that steer a connection, and flow control of what is sent.

use super::frame::{ACK, END_STREAM, FRAME_BYTES_MAX, Header, Kind};
use super::{Http2, INITIAL_WINDOW_SIZE, Sink, WINDOW_MAX, write_frame};
use crate::client::fault::Fault;

/// Parameters of SETTINGS that a server sends.
const MAX_CONCURRENT_STREAMS: u16 = 3;
const MAX_FRAME_SIZE: u16 = 5;

/// The bits of a stream's number, or of an increment: the highest one is reserved.
const NUMBER_MASK: u32 = (1 << 31) - 1;

impl Http2 {
    pub(super) fn on_reset(&mut self, header: Header, sink: &mut Sink<'_>) -> Result<(), Fault> {
        if header.length != 4 {
            return Err(Fault::Malformed);
        }
        // A stream that is over was answered before its request was read whole.
        if self.stream(header.stream)?.is_some()
            && let Some(stream) = self.close(header.stream)
        {
            sink(stream.number, Err(Fault::StreamReset));
        }
        Ok(())
    }

    pub(super) fn on_settings(
        &mut self,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        if header.stream != 0 || !payload.len().is_multiple_of(6) {
            return Err(Fault::Malformed);
        }
        if header.has(ACK) {
            return if payload.is_empty() { Ok(()) } else { Err(Fault::Malformed) };
        }
        for setting in payload.chunks_exact(6) {
            let parameter = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            match parameter {
                MAX_CONCURRENT_STREAMS => self.streams_max = value as usize,
                INITIAL_WINDOW_SIZE if i64::from(value) > WINDOW_MAX => {
                    return Err(Fault::Malformed);
                }
                INITIAL_WINDOW_SIZE => {
                    let change = i64::from(value) - self.window_initial;
                    self.window_initial = i64::from(value);
                    self.streams.iter_mut().flatten().for_each(|one| one.window += change);
                }
                // RFC 9113 §6.5.2.
                MAX_FRAME_SIZE if !(1 << 14..1 << 24).contains(&value) => {
                    return Err(Fault::Malformed);
                }
                _ => {}
            }
        }
        self.has_settings = true;
        write_frame(out, Kind::Settings, ACK, 0, &[]);
        self.send_unsent(out);
        Ok(())
    }

    pub(super) fn on_goaway(
        &mut self,
        header: Header,
        payload: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), Fault> {
        let (0, &[a, b, c, d, e, f, g, h, ..]) = (header.stream, payload) else {
            return Err(Fault::Malformed);
        };
        let last = u32::from_be_bytes([a, b, c, d]) & NUMBER_MASK;
        if u32::from_be_bytes([e, f, g, h]) != 0 {
            return Err(Fault::GoneAway);
        }
        self.is_leaving = true;
        // RFC 9113 §6.8: later streams were not and will not be processed.
        let mut id = self.first;
        let end = self.next();
        while id < end {
            if id > last
                && let Some(stream) = self.close(id)
            {
                sink(stream.number, Err(Fault::GoneAway));
            }
            id += 2;
        }
        Ok(())
    }

    pub(super) fn on_window_update(
        &mut self,
        header: Header,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Fault> {
        let &[a, b, c, d] = payload else { return Err(Fault::Malformed) };
        let increment = i64::from(u32::from_be_bytes([a, b, c, d]) & NUMBER_MASK);
        let window = match header.stream {
            0 => Some(&mut self.window),
            id => self.stream(id)?.map(|stream| &mut stream.window),
        };
        // Updates for a stream that is over may still be on their way.
        let Some(window) = window else { return Ok(()) };
        *window += increment;
        if increment == 0 || *window > WINDOW_MAX {
            return Err(Fault::Malformed);
        }
        self.send_unsent(out);
        Ok(())
    }

    /// Sends what the windows allow of bodies that wait.
    fn send_unsent(&mut self, out: &mut Vec<u8>) {
        if self.stalled == 0 || self.window <= 0 {
            return;
        }
        let mut id = self.first;
        for stream in &mut self.streams {
            if let Some(stream) = stream
                && !stream.unsent.is_empty()
            {
                let sent = send_body(&stream.unsent, id, &mut self.window, &mut stream.window, out);
                stream.unsent.drain(..sent);
                self.stalled -= usize::from(stream.unsent.is_empty());
            }
            id += 2;
        }
    }
}

/// Puts as much of a body into `out` as both windows allow, and says how much that was.
pub(super) fn send_body(
    body: &[u8],
    id: u32,
    connection: &mut i64,
    stream: &mut i64,
    out: &mut Vec<u8>,
) -> usize {
    let mut sent = 0;
    while sent < body.len() {
        let window = usize::try_from((*connection).min(*stream)).unwrap_or(0);
        let count = (body.len() - sent).min(window).min(FRAME_BYTES_MAX);
        if count == 0 {
            break;
        }
        let part = &body[sent..sent + count];
        sent += count;
        *connection -= count as i64;
        *stream -= count as i64;
        let ends = if sent == body.len() { END_STREAM } else { 0 };
        write_frame(out, Kind::Data, ends, id, part);
    }
    sent
}
