//! The sending side: turns responses into frames, and chooses the next one.

use super::connection::Connection;
use super::event::{MoreData, ReadyStream};
use super::frame::{self, ErrorCode, FrameType, HEADER_BYTES, flags};
use super::hold::FramePart;
use super::limits::Limits;
use super::streams::{ResponseState, State, Stream, StreamKey, Transition};
use crate::h1::{self, BodyFraming, ResponseLength};
use crate::{Date, KnownField, field};

impl Connection {
    /// Writes the head of the final response to a request, and returns how its content is framed. A
    /// response without content, or with 0 bytes of it, is then complete.
    ///
    /// The arguments are handled as by [`h1::Connection::send_response`]: `status` is 200 to 999,
    /// anything else is written as 500; of `fields`, those for connections and transfer codings are
    /// omitted, and so are those whose name is not a token; the first `Date` replaces `date`;
    /// Content-Length is written from `length`, except in responses to HEAD and with status 304.
    /// Names are written in lower case.
    ///
    /// Panics if a response has begun. If the stream is closed, writes nothing and returns
    /// [`BodyFraming::None`].
    #[expect(clippy::too_many_arguments, reason = "a response has this many parts")]
    pub fn send_response<'a>(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        length: ResponseLength,
        date: &Date,
        out: &mut Vec<u8>,
    ) -> BodyFraming {
        let Some(state) = self.streams.get_mut(stream) else { return BodyFraming::None };
        assert!(state.sending == ResponseState::Waiting, "a response has begun");
        let status = if (200..=999).contains(&status) { status } else { 500 };
        let framing = body_framing(status, length, state.is_head_request, state.is_tunnel);
        state.expects_continue = false;
        (state.sending, state.send_bytes_left) = match framing {
            BodyFraming::Exact(bytes) => (ResponseState::Exact, bytes),
            _ => (ResponseState::Unknown, 0),
        };
        let end_stream = matches!(framing, BodyFraming::None | BodyFraming::Exact(0));
        let start = self.begin_block(out);
        self.encoder.status(status, out);
        let caller_fields = self.write_fields(fields, out);
        if !caller_fields.date {
            // RFC 9110 §6.6.1: an origin server with a clock must generate Date.
            self.encoder.field(KnownField::Date, b"date", date.as_bytes(), out);
        }
        let content_length = match (framing, caller_fields.content_length, length) {
            // RFC 9113 §8.1: a head with END_STREAM already announces an empty response.
            // Trailers-only responses, which gRPC uses for errors, are such a head.
            (BodyFraming::Exact(0), None, _) => None,
            // A 205 has no content, for HEAD and for GET.
            _ if status == 205 => None,
            (BodyFraming::Exact(bytes), ..) => Some(bytes),
            // RFC 9110 §8.6: in a response to HEAD and in a 304, Content-Length is the length that
            // the content of a 200 to GET would have; a handler may know it without the content.
            (BodyFraming::None, ..) if status == 204 => None,
            (BodyFraming::None, Some(bytes), _) => Some(bytes),
            (BodyFraming::None, None, ResponseLength::Exact(bytes)) if status != 304 => Some(bytes),
            _ => None,
        };
        if let Some(bytes) = content_length {
            self.scratch.clear();
            h1::write_decimal(bytes, &mut self.scratch);
            self.encoder.field(KnownField::ContentLength, b"content-length", &self.scratch, out);
        }
        self.end_block(stream.id, end_stream, start, out);
        if end_stream {
            self.send_end_stream(limits, stream, out);
        }
        framing
    }

    /// Writes an interim response: 100, 102, 103 or another 1xx, but not 101. Writes nothing after
    /// the final response has begun, and no 100 unless the client waits for it.
    // RFC 9113 §8.6: HTTP/2 removes support for the 101 status.
    pub fn send_interim<'a>(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        let is_allowed = match status {
            100 => std::mem::take(&mut state.expects_continue),
            _ => (102..200).contains(&status),
        };
        if is_allowed && state.sending == ResponseState::Waiting {
            let start = self.begin_block(out);
            self.encoder.status(status, out);
            self.write_fields(fields, out);
            self.end_block(stream.id, false, start, out);
        }
    }

    /// How many bytes of content can be sent immediately: as many as a DATA frame and the windows
    /// allow, or 0 if another stream comes first.
    #[inline]
    #[must_use]
    pub fn send_capacity(&self, limits: &Limits, stream: StreamKey) -> usize {
        match self.streams.get(stream) {
            Some(state)
                if !self.queues.has_at_least_as_urgent(state.priority.urgency)
                    || self.queues.next() == Some(stream.slot) =>
            {
                self.send_capacity_of(limits, state)
            }
            _ => 0,
        }
    }

    #[inline]
    fn send_capacity_of(&self, limits: &Limits, stream: &Stream) -> usize {
        let window = stream.send_window.min(self.send_window).max(0).cast_unsigned();
        (window as usize).min(self.payload_max(limits))
    }

    /// The longest payload of a sent DATA frame.
    #[inline]
    fn payload_max(&self, limits: &Limits) -> usize {
        self.peer_frame_bytes_max.min(limits.data_frame_bytes_max) as usize
    }

    /// Reports that content of a response is available. [`next_ready`](Self::next_ready) returns
    /// the stream when it may send.
    pub fn mark_ready(&mut self, stream: StreamKey) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        if matches!(state.sending, ResponseState::Exact | ResponseState::Unknown) {
            state.has_data = true;
            self.requeue(stream.slot);
        }
    }

    /// The stream whose content is sent next, if the windows have room for any: the most urgent of
    /// those that were marked as ready.
    // RFC 9218 §10: responses are sent by urgency; those that are not incremental in the order of
    // their requests, and incremental ones by sharing.
    #[inline]
    #[must_use]
    pub fn next_ready(&self, limits: &Limits) -> Option<ReadyStream> {
        if self.send_window <= 0 {
            return None;
        }
        let slot = self.queues.next()?;
        let stream = self.streams.at(slot);
        if !stream.fits(self.send_window) {
            return None;
        }
        let bytes_max = self.send_capacity_of(limits, stream);
        Some(ReadyStream { stream: StreamKey { id: stream.id, slot }, bytes_max })
    }

    /// Writes one DATA frame; `more_data` is what follows `data`. Returns how many bytes of `data`
    /// were written: at most [`send_capacity`](Self::send_capacity), and at most the remaining
    /// length of the response. If not all were written, the rest counts as [`MoreData::Buffered`],
    /// unless the response is complete. Nothing is written if the content is held back for a
    /// moment, because the window has room for only a small part of it;
    /// [`next_ready`](Self::next_ready) then returns the stream again later.
    ///
    /// A response of known length is complete with its last byte, unless [`MoreData::Pending`]
    /// announces possible trailers; with [`MoreData::End`] before that, the stream is reset.
    #[inline]
    pub fn send_data(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        data: &[u8],
        more_data: MoreData,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        let part = self.frame_part(limits, state, data.len());
        let frame_len = part.len;
        let more_data = if frame_len < data.len() { MoreData::Buffered } else { more_data };
        if self.hold_back_fragment(stream, part) {
            return 0;
        }
        let state = self.streams.at(stream.slot);
        let end_stream = self.is_last_frame(state, frame_len, more_data);
        if frame_len > 0 || end_stream {
            let flags = if end_stream { flags::END_STREAM } else { 0 };
            frame::write_frame(FrameType::Data, flags, stream.id, &data[..frame_len], out);
        }
        self.on_data_sent(limits, stream, part, more_data, end_stream, out);
        if more_data == MoreData::End && !end_stream {
            self.finish(limits, stream, [], out);
        }
        frame_len
    }

    /// Like [`send_data`](Self::send_data), for content that the caller sends from its own memory:
    /// writes the header of a DATA frame of at most `bytes` bytes and returns its length, which the
    /// caller sends next; 0 while the content is held back. `more` is whether more content is
    /// available after `bytes`. The end of content of unknown length is left to
    /// [`finish`](Self::finish).
    pub fn begin_external_data(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        bytes: usize,
        more: bool,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        let part = self.frame_part(limits, state, bytes);
        let frame_len = part.len;
        let more_data =
            if more || frame_len < bytes { MoreData::Buffered } else { MoreData::Pending };
        if self.hold_back_fragment(stream, part) {
            return 0;
        }
        let state = self.streams.at(stream.slot);
        let end_stream =
            state.sending == ResponseState::Exact && state.send_bytes_left == frame_len as u64;
        if frame_len > 0 {
            let flags = if end_stream { flags::END_STREAM } else { 0 };
            frame::write_header(FrameType::Data, flags, stream.id, frame_len, out);
        }
        self.on_data_sent(limits, stream, part, more_data, end_stream, out);
        frame_len
    }

    /// How many of `bytes` bytes go into the next DATA frame.
    #[inline]
    fn frame_part(&self, limits: &Limits, stream: &Stream, bytes: usize) -> FramePart {
        let available = match stream.sending {
            ResponseState::Waiting | ResponseState::Done => 0,
            ResponseState::Exact => {
                bytes.min(usize::try_from(stream.send_bytes_left).unwrap_or(usize::MAX))
            }
            ResponseState::Unknown => bytes,
        };
        FramePart {
            len: available.min(self.send_capacity_of(limits, stream)),
            unlimited_len: available.min(self.payload_max(limits)),
        }
    }

    /// Returns whether a frame of `frame_len` bytes, followed by `more_data`, completes a response.
    #[inline]
    fn is_last_frame(&self, stream: &Stream, frame_len: usize, more_data: MoreData) -> bool {
        match stream.sending {
            ResponseState::Waiting | ResponseState::Done => false,
            ResponseState::Exact => {
                stream.send_bytes_left == frame_len as u64 && more_data != MoreData::Pending
            }
            ResponseState::Unknown => more_data == MoreData::End,
        }
    }

    /// Updates windows, budget and queue after a DATA frame was written.
    #[inline]
    fn on_data_sent(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        part: FramePart,
        more_data: MoreData,
        end_stream: bool,
        out: &mut Vec<u8>,
    ) {
        let bytes = u32::try_from(part.len).expect("a frame's length has 24 bits");
        let stream = self.streams.at_mut(key.slot);
        if stream.sending == ResponseState::Exact {
            stream.send_bytes_left -= u64::from(bytes);
        }
        stream.send_window -= bytes.cast_signed();
        stream.unacknowledged = stream.unacknowledged.saturating_add(bytes);
        stream.has_data = more_data == MoreData::Buffered
            && matches!(stream.sending, ResponseState::Exact | ResponseState::Unknown);
        self.send_window -= bytes.cast_signed();
        self.unacknowledged = self.unacknowledged.saturating_add(bytes);
        if bytes > 0 {
            let is_released = self.held_fragments.remove(stream);
            self.budget.credit_sent(limits, bytes, part.is_fragment() && !is_released);
        }
        if end_stream {
            return self.send_end_stream(limits, key, out);
        }
        self.requeue(key.slot);
        if bytes > 0 && self.streams.at(key.slot).queued {
            self.queues.rotate(&mut self.streams, key.slot);
        }
    }

    /// Ends a response, unless it is complete: with trailers if there are any. Fields that
    /// [`send_response`](Self::send_response) would omit, or that must not be trailers, are
    /// omitted. If less content was sent than Content-Length announced, or no response has begun,
    /// the stream is reset.
    pub fn finish<'a>(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        trailers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let Some(state) = self.streams.get(stream) else { return };
        match state.sending {
            ResponseState::Done => {}
            // RFC 9113 §8.1.1: a response with less content than it says would be malformed.
            ResponseState::Waiting => self.reset(stream, ErrorCode::INTERNAL_ERROR, out),
            ResponseState::Exact if state.send_bytes_left > 0 => {
                self.reset(stream, ErrorCode::INTERNAL_ERROR, out)
            }
            ResponseState::Exact | ResponseState::Unknown => {
                let mut trailers = trailers
                    .into_iter()
                    // RFC 9110 §6.5.1: fields for framing, routing and similar must not be
                    // trailers.
                    .filter(|(name, _)| KnownField::from_name(name).is_allowed_in_trailers())
                    .peekable();
                if trailers.peek().is_some() {
                    let start = self.begin_block(out);
                    self.write_fields(trailers, out);
                    self.end_block(stream.id, true, start, out);
                } else {
                    frame::write_frame(FrameType::Data, flags::END_STREAM, stream.id, &[], out);
                }
                self.send_end_stream(limits, stream, out);
            }
        }
    }

    /// Ends the server's side of a stream, whose response is complete.
    #[inline]
    fn send_end_stream(&mut self, limits: &Limits, key: StreamKey, out: &mut Vec<u8>) {
        let stream = self.streams.at_mut(key.slot);
        (stream.has_data, stream.send_bytes_left) = (false, 0);
        self.held_fragments.remove(stream);
        if !stream.was_refused {
            self.budget.credit_response(limits);
        }
        if stream.state == State::HalfClosedRemote {
            return self.close_stream(key, Transition::SendEnd, out);
        }
        stream.sending = ResponseState::Done;
        stream.transition(Transition::SendEnd);
        self.unfinished_requests += u16::from(stream.has_unfinished_request());
        self.requeue(key.slot);
    }

    /// Begins a HEADERS frame and returns its offset.
    #[inline]
    fn begin_block(&mut self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_BYTES]);
        self.encoder.begin_block(out);
        start
    }

    /// Ends the HEADERS frame that begins at `start`.
    #[inline]
    fn end_block(&self, id: u32, end_stream: bool, start: usize, out: &mut Vec<u8>) {
        let length = out.len() - start - HEADER_BYTES;
        let length_max = self.peer_frame_bytes_max as usize;
        if length > length_max {
            return split_block(id, end_stream, start, length_max, out);
        }
        let flags = flags::END_HEADERS | if end_stream { flags::END_STREAM } else { 0 };
        let length = u32::try_from(length).expect("a frame's length has 24 bits");
        let header =
            frame::FrameHeader { length, frame_type: FrameType::Headers, flags, stream_id: id };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
    }

    /// Writes the caller's fields, except those that HTTP/2 does not allow and Content-Length.
    // RFC 9113 §8.2.2: an endpoint must not generate connection-specific fields.
    #[inline]
    fn write_fields<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) -> CallerFields {
        let mut caller_fields = CallerFields::default();
        for (name, value) in fields {
            let known = KnownField::from_name(name);
            let value = field::trim_ows(value);
            match known {
                KnownField::TransferEncoding
                | KnownField::Connection
                | KnownField::Upgrade
                | KnownField::KeepAlive
                | KnownField::Te => {}
                KnownField::ContentLength => {
                    caller_fields.content_length =
                        caller_fields.content_length.or_else(|| h1::parse_decimal(value).ok());
                }
                KnownField::Date if caller_fields.date => {}
                KnownField::Other => self.write_other_field(name, value, out),
                _ => {
                    caller_fields.date |= known == KnownField::Date;
                    self.encoder.field(known, known.name().as_bytes(), value, out);
                }
            }
        }
        caller_fields
    }

    fn write_other_field(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        if !field::is_token(name) || name.eq_ignore_ascii_case(b"proxy-connection") {
            return;
        }
        if name.iter().any(u8::is_ascii_uppercase) {
            // RFC 9113 §8.2: field names must be converted to lowercase.
            return self.encoder.field(KnownField::Other, &name.to_ascii_lowercase(), value, out);
        }
        self.encoder.field(KnownField::Other, name, value, out);
    }
}

/// The fields among the caller's that [`Connection::send_response`] otherwise writes itself.
#[derive(Clone, Copy, Debug, Default)]
struct CallerFields {
    date: bool,
    content_length: Option<u64>,
}

/// Splits a block that is too long for one frame.
// RFC 9113 §4.3: a block that does not fit into HEADERS continues in CONTINUATION frames.
#[cold]
fn split_block(id: u32, end_stream: bool, start: usize, length_max: usize, out: &mut Vec<u8>) {
    let block = out.split_off(start + HEADER_BYTES);
    out.truncate(start);
    let count = block.len().div_ceil(length_max);
    for (index, fragment) in block.chunks(length_max).enumerate() {
        let (frame_type, mut flags) = match index {
            0 => (FrameType::Headers, if end_stream { flags::END_STREAM } else { 0 }),
            _ => (FrameType::Continuation, 0),
        };
        if index + 1 == count {
            flags |= flags::END_HEADERS;
        }
        frame::write_frame(frame_type, flags, id, fragment, out);
    }
}

/// How the content is framed.
fn body_framing(
    status: u16,
    length: ResponseLength,
    is_head_request: bool,
    is_tunnel: bool,
) -> BodyFraming {
    match (status, length) {
        // RFC 9110 §6.4.1: responses to HEAD, and those with status 204 or 304, have no content.
        _ if is_head_request => BodyFraming::None,
        (204 | 304, _) => BodyFraming::None,
        // RFC 9110 §9.3.6: a 2xx response to CONNECT has no Content-Length; the tunnel follows.
        (200..=299, _) if is_tunnel => BodyFraming::Chunked,
        // RFC 9110 §15.3.6: a server must not generate content in a 205 response.
        (205, _) => BodyFraming::Exact(0),
        (_, ResponseLength::Exact(bytes)) => BodyFraming::Exact(bytes),
        (_, ResponseLength::Unknown) => BodyFraming::Chunked,
    }
}
