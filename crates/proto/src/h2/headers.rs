//! Header blocks: turns HEADERS and CONTINUATION frames into requests and trailers.

use super::budget::Cost;
use super::connection::{Connection, GoAwayState};
use super::error::Http2Error;
use super::event::{Event, Request};
use super::frame::{FrameHeader, flags, strip_padding};
use super::hpack::FieldSink;
use super::limits::{Limits, STREAMS_CEILING, WINDOW_DEFAULT};
use super::priority::Priority;
use super::receive::Buffers;
use super::recent::CloseKind;
use super::request::{DiscardSink, HeadError, HeadInfo, RequestSink, TrailerSink};
use super::streams::{NO_SLOT, ResponseState, State, Stream, StreamKey, StreamLookup};
use crate::{BodyLength, Method};

/// A header block that is not complete.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: u32,
    /// Whether the block ends its stream.
    end_stream: bool,
    continuations: u16,
    bytes: Vec<u8>,
}

impl HeaderBlock {
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.capacity()
    }

    /// Appends a frame's fragment of the block.
    // RFC 9113 §10.5.1: a block that is too large can be rejected by ending the connection, because
    // without decoding it the tables would differ.
    fn add(&mut self, limits: &Limits, fragment: &[u8]) -> Result<(), Http2Error> {
        let bytes_max = limits.header_block_bytes_max as usize;
        if self.bytes.len() + fragment.len() > bytes_max
            || self.continuations > limits.continuation_frames_max
        {
            return Err(Http2Error::HeaderBlockTooLong);
        }
        self.bytes.extend_from_slice(fragment);
        Ok(())
    }
}

impl Connection {
    /// Reads a HEADERS frame.
    #[inline]
    pub(super) fn receive_headers(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        payload: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        // RFC 9113 §6.2: padding that exceeds the rest of the payload is a PROTOCOL_ERROR.
        let payload = strip_padding(header, payload).ok_or(Http2Error::PaddingTooLong)?;
        let fragment = match header.has_flags(flags::PRIORITY) {
            // RFC 9113 §5.3.2: the deprecated priority is skipped.
            true => payload.get(PRIORITY_BYTES..).ok_or(Http2Error::HeadersTooShort)?,
            false => payload,
        };
        let end_stream = header.has_flags(flags::END_STREAM);
        if header.has_flags(flags::END_HEADERS) {
            return self.receive_header_block(
                limits,
                header.stream_id,
                end_stream,
                fragment,
                buffers,
            );
        }
        self.charge_fragment(fragment)?;
        let mut block = Box::new(HeaderBlock {
            stream: header.stream_id,
            end_stream,
            continuations: 0,
            bytes: Vec::new(),
        });
        block.add(limits, fragment)?;
        self.receive.block = Some(block);
        Ok(None)
    }

    /// Reads a CONTINUATION frame.
    pub(super) fn receive_continuation(
        &mut self,
        limits: &Limits,
        header: FrameHeader,
        fragment: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        let mut block = self.receive.block.take().expect("a CONTINUATION follows an open block");
        self.charge_fragment(fragment)?;
        block.continuations += 1;
        block.add(limits, fragment)?;
        if header.has_flags(flags::END_HEADERS) {
            return self.receive_header_block(
                limits,
                block.stream,
                block.end_stream,
                &block.bytes,
                buffers,
            );
        }
        self.receive.block = Some(block);
        Ok(None)
    }

    fn charge_fragment(&mut self, fragment: &[u8]) -> Result<(), Http2Error> {
        let is_empty = fragment.is_empty();
        self.budget.charge(if is_empty { Cost::EmptyFragment } else { Cost::Fragment })
    }

    /// Reads a complete header block.
    #[inline]
    fn receive_header_block(
        &mut self,
        limits: &Limits,
        id: u32,
        end_stream: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        match self.streams.find(id) {
            StreamLookup::Idle => self.receive_request(limits, id, end_stream, block, buffers),
            StreamLookup::Open(slot) if self.streams.at(slot).is_receiving() => {
                self.receive_trailers(limits, StreamKey { id, slot }, end_stream, block, buffers)
            }
            lookup => self.header_block_on_closed_stream(limits, id, lookup, block, buffers),
        }
    }

    /// Reads a block on a stream that the client must no longer send on.
    #[cold]
    fn header_block_on_closed_stream(
        &mut self,
        limits: &Limits,
        id: u32,
        lookup: StreamLookup,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        // RFC 9113 §4.3: a block is decoded even if it is discarded, to keep the tables in sync.
        self.decode(limits, block, &mut DiscardSink)?;
        match lookup {
            StreamLookup::Open(slot) => {
                let (stream, error) = (StreamKey { id, slot }, Http2Error::StreamHalfClosed);
                return self.stream_error(limits, stream, error, buffers.out);
            }
            // RFC 9113 §5.1: HEADERS on a stream that both sides ended is a connection error.
            StreamLookup::Closed(CloseKind::EndStream) => return Err(Http2Error::StreamClosed),
            // RFC 9113 §5.1.1: an identifier smaller than one that was used is a connection error.
            StreamLookup::Closed(CloseKind::Unknown) | StreamLookup::Idle => {
                return Err(Http2Error::StreamIdNotIncreasing);
            }
            StreamLookup::Closed(CloseKind::ResetByPeer) => {
                let error = Http2Error::StreamReset;
                self.write_peer_caused_reset(limits, id, error, buffers.out)?;
                return Ok(Some(Event::StreamError { id, error }));
            }
            StreamLookup::Closed(CloseKind::ResetByServer) => {
                self.budget.charge(Cost::FrameOnClosedStream)?
            }
        }
        Ok(None)
    }

    /// Decodes a block and charges its cost.
    #[inline]
    fn decode(
        &mut self,
        limits: &Limits,
        block: &[u8],
        sink: &mut impl FieldSink,
    ) -> Result<(), Http2Error> {
        // Fields that a sink rejects are still decoded to keep the table in sync, so the limit is a
        // multiple of that of a head.
        let bytes_max = limits.fields_bytes_max() as usize * DECODED_SIZE_FACTOR_MAX;
        let bytes = self.decoder.decode(block, bytes_max, sink)?;
        self.budget.charge(Cost::Fields(bytes))
    }

    /// Reads the block that opens a stream.
    #[inline]
    fn receive_request(
        &mut self,
        limits: &Limits,
        id: u32,
        end_stream: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        // RFC 9113 §5.1.1: streams that a client opens have odd identifiers.
        if id.is_multiple_of(2) {
            return Err(Http2Error::StreamIdEven);
        }
        self.streams.mark_used(id);
        if self.streams.count() >= limits.concurrent_streams_max.min(STREAMS_CEILING)
            || matches!(self.goaway, GoAwayState::Final(_))
        {
            return self.refuse_stream(limits, id, end_stream, block, buffers);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut sink = RequestSink::new(limits, buffers.bytes, buffers.head, &mut scratch);
        let decoded = self.decode(limits, block, &mut sink);
        let head_info = sink.finish(end_stream);
        self.scratch = scratch;
        decoded?;
        let is_head_request = buffers.head.method == Method::Head;
        match head_info {
            Ok(head_info) => {
                let stream = self.open_stream(limits, id, &head_info, is_head_request);
                let HeadInfo { body, expects_continue, .. } = head_info;
                Ok(Some(Event::Request(Request {
                    stream,
                    body,
                    expect_continue: expects_continue,
                })))
            }
            Err(HeadError::Request(error)) => {
                self.budget.charge(Cost::RequestRefused)?;
                let body = if end_stream { BodyLength::None } else { BodyLength::Unknown };
                let head_info = HeadInfo { body, ..HeadInfo::REFUSED };
                let stream = self.open_stream(limits, id, &head_info, is_head_request);
                let state = self.streams.at_mut(stream.slot);
                (state.discarding, state.was_refused) = (true, true);
                Ok(Some(Event::RequestError { stream, error }))
            }
            Err(HeadError::Stream(error)) => {
                // RFC 9113 §8.1.1: a malformed request is a stream error of type PROTOCOL_ERROR.
                self.streams.mark_refused(id);
                if !end_stream {
                    self.budget
                        .on_stream_reset(self.initial_stream_window(limits), self.flow.target);
                }
                self.write_peer_caused_reset(limits, id, error, buffers.out)?;
                Ok(Some(Event::StreamError { id, error }))
            }
        }
    }

    /// Reads the block of a stream that is refused: there are too many, or the connection is
    /// draining.
    #[cold]
    fn refuse_stream(
        &mut self,
        limits: &Limits,
        id: u32,
        end_stream: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        self.decode(limits, block, &mut DiscardSink)?;
        self.streams.mark_refused(id);
        self.budget.charge(Cost::RequestRefused)?;
        if !end_stream {
            self.budget.on_stream_reset(self.initial_stream_window(limits), self.flow.target);
        }
        if matches!(self.goaway, GoAwayState::Final(_)) {
            // RFC 9113 §6.8: streams above the last one are ignored.
            return Ok(None);
        }
        // RFC 9113 §5.1.2: a stream that exceeds the limit is refused; the client may try again.
        let error = Http2Error::StreamsTooMany;
        self.budget.count_control_frame(limits)?;
        super::frame::write_rst_stream(id, error.code(), buffers.out);
        Ok(Some(Event::StreamError { id, error }))
    }

    /// How much content a client may send immediately on a stream that it opens.
    // RFC 9113 §6.9.2: until it has seen our settings, the initial value applies.
    const fn initial_stream_window(&self, limits: &Limits) -> u32 {
        let window = limits.initial_stream_window;
        if self.settings_acked || window > WINDOW_DEFAULT { window } else { WINDOW_DEFAULT }
    }

    #[inline]
    fn open_stream(
        &mut self,
        limits: &Limits,
        id: u32,
        head_info: &HeadInfo,
        is_head_request: bool,
    ) -> StreamKey {
        let end_stream = head_info.body == BodyLength::None;
        let early_entry = self.early_priorities.iter_mut().find(|(entry_id, _)| *entry_id == id);
        // RFC 9218 §7.1: a PRIORITY_UPDATE that arrived before the request overrides its field.
        let early_priority = early_entry.map(|entry| std::mem::take(entry).1);
        let window = self.initial_stream_window(limits).cast_signed();
        self.streams.open(Stream {
            content_length_left: head_info
                .content_length
                .filter(|_| !head_info.is_tunnel)
                .unwrap_or(u64::MAX),
            body_bytes_allowed: if head_info.is_tunnel {
                u64::MAX
            } else {
                limits.request.body_bytes_max
            },
            send_bytes_left: 0,
            id,
            send_window: self.peer_initial_window,
            recv_window: window,
            unreleased: 0,
            unacknowledged: 0,
            capacity_min: 0,
            previous: NO_SLOT,
            next: NO_SLOT,
            state: if end_stream { State::HalfClosedRemote } else { State::Open },
            sending: ResponseState::Waiting,
            priority: early_priority.or(head_info.priority).unwrap_or(Priority::DEFAULT),
            has_data: false,
            queued: false,
            is_head_request,
            is_tunnel: head_info.is_tunnel,
            discarding: false,
            has_content: false,
            is_closing: false,
            was_refused: false,
            expects_continue: head_info.expects_continue,
        })
    }

    /// Reads the block that ends a request.
    fn receive_trailers(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        end_stream: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        let mut sink = TrailerSink::new(&limits.request);
        self.decode(limits, block, &mut sink)?;
        let stream = self.streams.at_mut(key.slot);
        let error = match sink.finish() {
            // RFC 9113 §8.1: a second block that does not end the stream is malformed.
            _ if !end_stream => HeadError::Stream(Http2Error::TrailersWithoutEndStream),
            Ok(_) if !matches!(stream.content_length_left, 0 | u64::MAX) => {
                HeadError::Stream(Http2Error::ContentLengthMismatch)
            }
            Ok(trailers) => {
                let should_report = !stream.discarding;
                self.trailers = trailers.filter(|_| should_report);
                self.receive_end_stream(key, buffers.out);
                return Ok(should_report.then_some(Event::End { stream: key }));
            }
            Err(error) => error,
        };
        match error {
            HeadError::Stream(error) => self.stream_error(limits, key, error, buffers.out),
            HeadError::Request(error) => {
                self.budget.charge(Cost::RequestRefused)?;
                let stream = self.streams.at_mut(key.slot);
                let should_report = !std::mem::replace(&mut stream.discarding, true);
                stream.was_refused = true;
                self.receive_end_stream(key, buffers.out);
                Ok(should_report.then_some(Event::RequestError { stream: key, error }))
            }
        }
    }
}

/// A block whose decoded size exceeds this multiple of the limit of a head ends the connection.
const DECODED_SIZE_FACTOR_MAX: usize = 16;

/// The length of the deprecated priority in a HEADERS frame.
const PRIORITY_BYTES: usize = 5;
