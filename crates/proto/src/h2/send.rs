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
    #[expect(clippy::too_many_arguments, reason = "a response has so many parts")]
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
        let mode = body_mode(status, length, state.is_head_request, state.is_tunnel);
        state.expects_continue = false;
        (state.sending, state.send_bytes_left) = match mode {
            BodyFraming::Exact(bytes) => (ResponseState::Exact, bytes),
            _ => (ResponseState::Unknown, 0),
        };
        let ends = matches!(mode, BodyFraming::None | BodyFraming::Exact(0));
        let start = self.begin_block(out);
        self.encoder.status(status, out);
        let own = self.write_fields(fields, out);
        if !own.date {
            // RFC 9110 §6.6.1: an origin server with a clock must generate Date.
            self.encoder.field(KnownField::Date, b"date", date.as_bytes(), out);
        }
        let content_length = match (mode, own.content_length, length) {
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
        self.end_block(stream.id, ends, start, out);
        if ends {
            self.send_end_stream(limits, stream, out);
        }
        mode
    }

    /// Writes an interim response: 100, 102, 103 or another 1xx, but not 101. Writes nothing after
    /// the final response has begun, nor a 100 that the client does not wait for.
    // RFC 9113 §8.6: HTTP/2 removes support for the 101 status.
    pub fn send_interim<'a>(
        &mut self,
        stream: StreamKey,
        status: u16,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        let is_right = match status {
            100 => std::mem::take(&mut state.expects_continue),
            _ => (102..200).contains(&status),
        };
        if is_right && state.sending == ResponseState::Waiting {
            let start = self.begin_block(out);
            self.encoder.status(status, out);
            self.write_fields(fields, out);
            self.end_block(stream.id, false, start, out);
        }
    }

    /// How many bytes of content can be sent at once without overtaking waiting streams: as many as
    /// a DATA frame and the windows allow, or 0.
    #[inline]
    #[must_use]
    pub fn send_capacity(&self, limits: &Limits, stream: StreamKey) -> usize {
        match self.streams.get(stream) {
            Some(state)
                if !self.queues.has_more_urgent(state.priority.urgency)
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

    /// Offers available content of a response. [`next_ready`](Self::next_ready) returns the stream
    /// when it may send.
    pub fn mark_ready(&mut self, stream: StreamKey) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        if matches!(state.sending, ResponseState::Exact | ResponseState::Unknown) {
            state.has_data = true;
            self.requeue(stream.slot);
        }
    }

    /// The stream whose content is sent next, if the windows have room for any: the most urgent of
    /// those that were offered.
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

    /// Writes one DATA frame; `after` is what follows `data`. Returns how many bytes of `data` were
    /// taken: as many as a frame and the windows have [`send_capacity`](Self::send_capacity) for,
    /// and as belong to the response. If not all, the rest counts as [`MoreData::Buffered`], unless
    /// the response is complete. None are taken if the content is held back for a moment, because
    /// the window has room only for a small part of it; [`next_ready`](Self::next_ready) returns
    /// the stream again.
    ///
    /// A response of known length is complete with its last byte, unless [`MoreData::Pending`]
    /// announces possible trailers; with [`MoreData::End`] before that, the stream is reset.
    #[inline]
    pub fn send_data(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        data: &[u8],
        after: MoreData,
        out: &mut Vec<u8>,
    ) -> usize {
        let Some(state) = self.streams.get(stream) else { return 0 };
        let part = self.frame_part(limits, state, data.len());
        let taken = part.len;
        let after = if taken < data.len() { MoreData::Buffered } else { after };
        if self.hold_back_fragment(stream, part) {
            return 0;
        }
        let state = self.streams.at(stream.slot);
        let ends = self.is_last_frame(state, taken, after);
        if taken > 0 || ends {
            let flags = if ends { flags::END_STREAM } else { 0 };
            frame::write_frame(FrameType::Data, flags, stream.id, &data[..taken], out);
        }
        self.on_data_sent(limits, stream, part, after, ends, out);
        if after == MoreData::End && !ends {
            self.finish(limits, stream, [], out);
        }
        taken
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
        let taken = part.len;
        let after = if more || taken < bytes { MoreData::Buffered } else { MoreData::Pending };
        if self.hold_back_fragment(stream, part) {
            return 0;
        }
        let state = self.streams.at(stream.slot);
        let ends = state.sending == ResponseState::Exact && state.send_bytes_left == taken as u64;
        if taken > 0 {
            let flags = if ends { flags::END_STREAM } else { 0 };
            frame::write_header(FrameType::Data, flags, stream.id, taken, out);
        }
        self.on_data_sent(limits, stream, part, after, ends, out);
        taken
    }

    /// How many of `bytes` bytes go into the next DATA frame.
    #[inline]
    fn frame_part(&self, limits: &Limits, stream: &Stream, bytes: usize) -> FramePart {
        let wanted = match stream.sending {
            ResponseState::Waiting | ResponseState::Done => 0,
            ResponseState::Exact => {
                bytes.min(usize::try_from(stream.send_bytes_left).unwrap_or(usize::MAX))
            }
            ResponseState::Unknown => bytes,
        };
        FramePart {
            len: wanted.min(self.send_capacity_of(limits, stream)),
            unlimited_len: wanted.min(self.payload_max(limits)),
        }
    }

    /// Returns whether `taken` bytes, considering `after`, complete a response.
    #[inline]
    fn is_last_frame(&self, stream: &Stream, taken: usize, after: MoreData) -> bool {
        match stream.sending {
            ResponseState::Waiting | ResponseState::Done => false,
            ResponseState::Exact => {
                stream.send_bytes_left == taken as u64 && after != MoreData::Pending
            }
            ResponseState::Unknown => after == MoreData::End,
        }
    }

    /// Updates the state after sending.
    #[inline]
    fn on_data_sent(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        part: FramePart,
        after: MoreData,
        ends: bool,
        out: &mut Vec<u8>,
    ) {
        let bytes = u32::try_from(part.len).expect("a frame's length has 24 bits");
        let stream = self.streams.at_mut(key.slot);
        if stream.sending == ResponseState::Exact {
            stream.send_bytes_left -= u64::from(bytes);
        }
        stream.send_window -= bytes.cast_signed();
        stream.unacknowledged = stream.unacknowledged.saturating_add(bytes);
        stream.has_data = after == MoreData::Buffered
            && matches!(stream.sending, ResponseState::Exact | ResponseState::Unknown);
        self.send_window -= bytes.cast_signed();
        self.unacknowledged = self.unacknowledged.saturating_add(bytes);
        if bytes > 0 {
            let is_released = self.held_fragments.remove(stream);
            self.budget.credit_sent(limits, bytes, part.is_fragment() && !is_released);
        }
        if ends {
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

    /// The response is complete.
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
    fn end_block(&self, id: u32, ends: bool, start: usize, out: &mut Vec<u8>) {
        let length = out.len() - start - HEADER_BYTES;
        let length_max = self.peer_frame_bytes_max as usize;
        if length > length_max {
            return split_block(id, ends, start, length_max, out);
        }
        let flags = flags::END_HEADERS | if ends { flags::END_STREAM } else { 0 };
        let length = u32::try_from(length).expect("a frame's length has 24 bits");
        let header =
            frame::FrameHeader { length, frame_type: FrameType::Headers, flags, stream_id: id };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
    }

    /// Writes the caller's fields, except those that this side controls.
    // RFC 9113 §8.2.2: an endpoint must not generate connection-specific fields.
    #[inline]
    fn write_fields<'a>(
        &mut self,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
    ) -> CallerFields {
        let mut own = CallerFields::default();
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
                    own.content_length =
                        own.content_length.or_else(|| h1::parse_decimal(value).ok());
                }
                KnownField::Date if own.date => {}
                KnownField::Other => self.write_other(name, value, out),
                _ => {
                    own.date |= known == KnownField::Date;
                    self.encoder.field(known, known.name().as_bytes(), value, out);
                }
            }
        }
        own
    }

    fn write_other(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
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

/// The caller's values of fields that this side controls.
#[derive(Clone, Copy, Debug, Default)]
struct CallerFields {
    date: bool,
    content_length: Option<u64>,
}

/// Splits a block that is too long for one frame.
// RFC 9113 §4.3: a block that does not fit into HEADERS continues in CONTINUATION frames.
#[cold]
fn split_block(id: u32, ends: bool, start: usize, length_max: usize, out: &mut Vec<u8>) {
    let block = out.split_off(start + HEADER_BYTES);
    out.truncate(start);
    let count = block.len().div_ceil(length_max);
    for (at, fragment) in block.chunks(length_max).enumerate() {
        let (kind, mut flags) = match at {
            0 => (FrameType::Headers, if ends { flags::END_STREAM } else { 0 }),
            _ => (FrameType::Continuation, 0),
        };
        if at + 1 == count {
            flags |= flags::END_HEADERS;
        }
        frame::write_frame(kind, flags, id, fragment, out);
    }
}

/// How the content is framed.
fn body_mode(status: u16, length: ResponseLength, by_head: bool, is_tunnel: bool) -> BodyFraming {
    match (status, length) {
        // RFC 9110 §6.4.1: responses to HEAD, and those with status 204 or 304, have no content.
        _ if by_head => BodyFraming::None,
        (204 | 304, _) => BodyFraming::None,
        // RFC 9110 §9.3.6: a 2xx response to CONNECT has no Content-Length; the tunnel follows.
        (200..=299, _) if is_tunnel => BodyFraming::Chunked,
        // RFC 9110 §15.3.6: a server must not generate content in a 205 response.
        (205, _) => BodyFraming::Exact(0),
        (_, ResponseLength::Exact(bytes)) => BodyFraming::Exact(bytes),
        (_, ResponseLength::Unknown) => BodyFraming::Chunked,
    }
}
