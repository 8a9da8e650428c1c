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
        let ends = header.has_flags(flags::END_STREAM);
        if header.has_flags(flags::END_HEADERS) {
            return self.receive_header_block(limits, header.stream_id, ends, fragment, buffers);
        }
        self.charge_fragment(fragment)?;
        let mut block = Box::new(HeaderBlock {
            stream: header.stream_id,
            end_stream: ends,
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
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        match self.streams.find(id) {
            StreamLookup::Idle => self.receive_request(limits, id, ends, block, buffers),
            StreamLookup::Open(slot) if self.streams.at(slot).is_receiving() => {
                self.receive_trailers(limits, StreamKey { id, slot }, ends, block, buffers)
            }
            found => self.header_block_on_closed_stream(limits, id, found, block, buffers),
        }
    }

    /// Reads a block on a stream that cannot accept it.
    #[cold]
    fn header_block_on_closed_stream(
        &mut self,
        limits: &Limits,
        id: u32,
        found: StreamLookup,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        // RFC 9113 §4.3: a block is decoded even if it is discarded, to keep the tables in sync.
        self.decode(limits, block, &mut DiscardSink)?;
        match found {
            StreamLookup::Open(slot) => {
                let (stream, reject) = (StreamKey { id, slot }, Http2Error::StreamHalfClosed);
                return self.stream_error(limits, stream, reject, buffers.out);
            }
            // RFC 9113 §5.1: HEADERS on a stream that both sides ended is a connection error.
            StreamLookup::Closed(CloseKind::EndStream) => return Err(Http2Error::StreamClosed),
            // RFC 9113 §5.1.1: an identifier smaller than one that was used is a connection error.
            StreamLookup::Closed(CloseKind::Unknown) | StreamLookup::Idle => {
                return Err(Http2Error::StreamIdNotIncreasing);
            }
            StreamLookup::Closed(CloseKind::ResetByPeer) => {
                let reject = Http2Error::StreamReset;
                self.write_peer_caused_reset(limits, id, reject, buffers.out)?;
                return Ok(Some(Event::StreamError { id, error: reject }));
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
        // Fields that a sink rejects are still decoded, up to a multiple of the limit of a head.
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
        ends: bool,
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
            return self.refuse_stream(limits, id, ends, block, buffers);
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut sink = RequestSink::new(limits, buffers.bytes, buffers.head, &mut scratch);
        let decoded = self.decode(limits, block, &mut sink);
        let accepted = sink.finish(ends);
        self.scratch = scratch;
        decoded?;
        let by_head = buffers.head.method == Method::Head;
        match accepted {
            Ok(accepted) => {
                let stream = self.open_stream(limits, id, &accepted, by_head);
                let HeadInfo { body, expects_continue: expecting, .. } = accepted;
                Ok(Some(Event::Request(Request { stream, body, expect_continue: expecting })))
            }
            Err(HeadError::Request(reject)) => {
                self.budget.charge(Cost::RequestRefused)?;
                let body = if ends { BodyLength::None } else { BodyLength::Chunked };
                let accepted = HeadInfo { body, ..HeadInfo::REFUSED };
                let stream = self.open_stream(limits, id, &accepted, by_head);
                let state = self.streams.at_mut(stream.slot);
                (state.discarding, state.was_refused) = (true, true);
                Ok(Some(Event::RequestError { stream, error: reject }))
            }
            Err(HeadError::Stream(reject)) => {
                // RFC 9113 §8.1.1: a malformed request is a stream error of type PROTOCOL_ERROR.
                self.streams.mark_refused(id);
                if !ends {
                    self.budget
                        .on_stream_reset(self.initial_stream_window(limits), self.flow.target);
                }
                self.write_peer_caused_reset(limits, id, reject, buffers.out)?;
                Ok(Some(Event::StreamError { id, error: reject }))
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
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        self.decode(limits, block, &mut DiscardSink)?;
        self.streams.mark_refused(id);
        self.budget.charge(Cost::RequestRefused)?;
        if !ends {
            self.budget.on_stream_reset(self.initial_stream_window(limits), self.flow.target);
        }
        if matches!(self.goaway, GoAwayState::Final(_)) {
            // RFC 9113 §6.8: streams above the last one are ignored.
            return Ok(None);
        }
        // RFC 9113 §5.1.2: a stream that exceeds the limit is refused; the client may try again.
        let reject = Http2Error::StreamsTooMany;
        self.budget.count_control_frame(limits)?;
        super::frame::write_rst_stream(id, reject.code(), buffers.out);
        Ok(Some(Event::StreamError { id, error: reject }))
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
        accepted: &HeadInfo,
        by_head: bool,
    ) -> StreamKey {
        let ends = accepted.body == BodyLength::None;
        let early = self.early_priorities.iter_mut().find(|(early, _)| *early == id);
        // RFC 9218 §7.1: a PRIORITY_UPDATE that arrived before the request overrides its field.
        let early = early.map(|early| std::mem::take(early).1);
        let window = self.initial_stream_window(limits).cast_signed();
        self.streams.open(Stream {
            content_length_left: accepted
                .content_length
                .filter(|_| !accepted.is_tunnel)
                .unwrap_or(u64::MAX),
            body_bytes_allowed: if accepted.is_tunnel {
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
            state: if ends { State::HalfClosedRemote } else { State::Open },
            sending: ResponseState::Waiting,
            priority: early.or(accepted.priority).unwrap_or(Priority::DEFAULT),
            has_data: false,
            queued: false,
            is_head_request: by_head,
            is_tunnel: accepted.is_tunnel,
            discarding: false,
            has_content: false,
            is_closing: false,
            was_refused: false,
            expects_continue: accepted.expects_continue,
        })
    }

    /// Reads the block that ends a request.
    fn receive_trailers(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Http2Error> {
        let mut sink = TrailerSink::new(&limits.request);
        self.decode(limits, block, &mut sink)?;
        let stream = self.streams.at_mut(key.slot);
        let refusal = match sink.finish() {
            // RFC 9113 §8.1: a second block that does not end the stream is malformed.
            _ if !ends => HeadError::Stream(Http2Error::TrailersWithoutEndStream),
            Ok(_) if !matches!(stream.content_length_left, 0 | u64::MAX) => {
                HeadError::Stream(Http2Error::ContentLengthMismatch)
            }
            Ok(trailers) => {
                let is_wanted = !stream.discarding;
                self.trailers = trailers.filter(|_| is_wanted);
                self.receive_end_stream(key, buffers.out);
                return Ok(is_wanted.then_some(Event::End { stream: key }));
            }
            Err(refusal) => refusal,
        };
        match refusal {
            HeadError::Stream(reject) => self.stream_error(limits, key, reject, buffers.out),
            HeadError::Request(reject) => {
                self.budget.charge(Cost::RequestRefused)?;
                let stream = self.streams.at_mut(key.slot);
                let is_new = !std::mem::replace(&mut stream.discarding, true);
                stream.was_refused = true;
                self.receive_end_stream(key, buffers.out);
                Ok(is_new.then_some(Event::RequestError { stream: key, error: reject }))
            }
        }
    }
}

/// A block may decode to this multiple of the limit of a head before the connection ends.
const DECODED_SIZE_FACTOR_MAX: usize = 16;

/// The length of the deprecated priority in a HEADERS frame.
const PRIORITY_BYTES: usize = 5;
