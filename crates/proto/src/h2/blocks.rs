//! Header blocks: turns HEADERS and CONTINUATION frames into requests and trailers.

use super::budget::Deed;
use super::connection::{Connection, Going};
use super::event::{Event, Request};
use super::frame::{Header, flag, without_padding};
use super::hpack::Sink;
use super::limits::{Limits, STREAMS_CEILING, WINDOW_DEFAULT};
use super::priority::Priority;
use super::receive::Buffers;
use super::recent::Closed;
use super::reject::Reject;
use super::request::{Accepted, NoSink, Refusal, RequestSink, TrailerSink};
use super::streams::{Found, NOWHERE, Sending, State, Stream, StreamKey};
use crate::{BodyLength, Method};

/// A header block that is not complete.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: u32,
    /// Whether the block ends its stream.
    ends: bool,
    count: u16,
    bytes: Vec<u8>,
}

impl Block {
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.bytes.capacity()
    }

    /// Appends a frame's fragment of the block.
    // RFC 9113 §10.5.1: a block that is too large can be rejected by ending the connection, because
    // without decoding it the tables would differ.
    fn add(&mut self, limits: &Limits, fragment: &[u8]) -> Result<(), Reject> {
        let bytes_max = limits.block_bytes_max as usize;
        if self.bytes.len() + fragment.len() > bytes_max || self.count > limits.continuations_max {
            return Err(Reject::BlockTooLong);
        }
        self.bytes.extend_from_slice(fragment);
        Ok(())
    }
}

impl Connection {
    /// Reads a HEADERS frame.
    #[inline]
    pub(super) fn headers(
        &mut self,
        limits: &Limits,
        header: Header,
        payload: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        // RFC 9113 §6.2: padding that exceeds the rest of the payload is a PROTOCOL_ERROR.
        let payload = without_padding(header, payload).ok_or(Reject::PaddingTooLong)?;
        let fragment = match header.has(flag::PRIORITY) {
            // RFC 9113 §5.3.2: the deprecated priority is skipped.
            true => payload.get(PRIORITY_BYTES..).ok_or(Reject::HeadersTooShort)?,
            false => payload,
        };
        let ends = header.has(flag::END_STREAM);
        if header.has(flag::END_HEADERS) {
            return self.block(limits, header.stream, ends, fragment, buffers);
        }
        self.charge_fragment(fragment)?;
        let mut block =
            Box::new(Block { stream: header.stream, ends, count: 0, bytes: Vec::new() });
        block.add(limits, fragment)?;
        self.receive.block = Some(block);
        Ok(None)
    }

    /// Reads a CONTINUATION frame.
    pub(super) fn continuation(
        &mut self,
        limits: &Limits,
        header: Header,
        fragment: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        let mut block = self.receive.block.take().expect("a CONTINUATION follows an open block");
        self.charge_fragment(fragment)?;
        block.count += 1;
        block.add(limits, fragment)?;
        if header.has(flag::END_HEADERS) {
            return self.block(limits, block.stream, block.ends, &block.bytes, buffers);
        }
        self.receive.block = Some(block);
        Ok(None)
    }

    fn charge_fragment(&mut self, fragment: &[u8]) -> Result<(), Reject> {
        let is_empty = fragment.is_empty();
        self.budget.charge(if is_empty { Deed::EmptyFragment } else { Deed::Fragment })
    }

    /// Reads a complete header block.
    #[inline]
    fn block(
        &mut self,
        limits: &Limits,
        id: u32,
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        match self.streams.find(id) {
            Found::Idle => self.request(limits, id, ends, block, buffers),
            Found::Open(slot) if self.streams.at(slot).receives() => {
                self.trailer_block(limits, StreamKey { id, slot }, ends, block, buffers)
            }
            found => self.late_block(limits, id, found, block, buffers),
        }
    }

    /// Reads a block on a stream that cannot accept it.
    #[cold]
    fn late_block(
        &mut self,
        limits: &Limits,
        id: u32,
        found: Found,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        // RFC 9113 §4.3: a block is decoded even if it is discarded, to keep the tables in sync.
        self.decode(limits, block, &mut NoSink)?;
        match found {
            Found::Open(slot) => {
                let (stream, reject) = (StreamKey { id, slot }, Reject::StreamHalfClosed);
                return self.fault(limits, stream, reject, buffers.out);
            }
            // RFC 9113 §5.1: HEADERS on a stream that both sides ended is a connection error.
            Found::Closed(Closed::Ended) => return Err(Reject::StreamEnded),
            // RFC 9113 §5.1.1: an identifier smaller than one that was used is a connection error.
            Found::Closed(Closed::Unknown) | Found::Idle => return Err(Reject::StreamBackward),
            Found::Closed(Closed::ByPeer) => {
                let reject = Reject::StreamReset;
                self.answer_reset(limits, id, reject, buffers.out)?;
                return Ok(Some(Event::Rejected { id, reject }));
            }
            Found::Closed(Closed::ByUs) => self.budget.charge(Deed::Late)?,
        }
        Ok(None)
    }

    /// Decodes a block and charges its cost.
    #[inline]
    fn decode(
        &mut self,
        limits: &Limits,
        block: &[u8],
        sink: &mut impl Sink,
    ) -> Result<(), Reject> {
        // Fields that a sink rejects are still decoded, up to a multiple of the limit of a head.
        let bytes_max = limits.fields_bytes_max() as usize * EXCESS;
        let bytes = self.decoder.decode(block, bytes_max, sink)?;
        self.budget.charge(Deed::Fields(bytes))
    }

    /// Reads the block that opens a stream.
    #[inline]
    fn request(
        &mut self,
        limits: &Limits,
        id: u32,
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        // RFC 9113 §5.1.1: streams that a client opens have odd identifiers.
        if id.is_multiple_of(2) {
            return Err(Reject::StreamEven);
        }
        self.streams.begin(id);
        if self.streams.count() >= limits.streams_max.min(STREAMS_CEILING)
            || matches!(self.going, Going::Last(_))
        {
            return self.turn_away(limits, id, ends, block, buffers);
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
                let stream = self.open(limits, id, &accepted, by_head);
                let Accepted { body, expecting, .. } = accepted;
                Ok(Some(Event::Request(Request { stream, body, expect_continue: expecting })))
            }
            Err(Refusal::Answer(reject)) => {
                self.budget.charge(Deed::Refused)?;
                let body = if ends { BodyLength::None } else { BodyLength::Chunked };
                let accepted = Accepted { body, ..Accepted::REFUSED };
                let stream = self.open(limits, id, &accepted, by_head);
                let state = self.streams.at_mut(stream.slot);
                (state.discarding, state.refused) = (true, true);
                Ok(Some(Event::Refuse { stream, reject }))
            }
            Err(Refusal::Reset(reject)) => {
                // RFC 9113 §8.1.1: a malformed request is a stream error of type PROTOCOL_ERROR.
                self.streams.refuse(id);
                if !ends {
                    self.budget.ended_early(self.first_window(limits), self.flow.target);
                }
                self.answer_reset(limits, id, reject, buffers.out)?;
                Ok(Some(Event::Rejected { id, reject }))
            }
        }
    }

    /// Reads the block of a stream that is refused: there are too many, or the connection is
    /// draining.
    #[cold]
    fn turn_away(
        &mut self,
        limits: &Limits,
        id: u32,
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        self.decode(limits, block, &mut NoSink)?;
        self.streams.refuse(id);
        self.budget.charge(Deed::Refused)?;
        if !ends {
            self.budget.ended_early(self.first_window(limits), self.flow.target);
        }
        if matches!(self.going, Going::Last(_)) {
            // RFC 9113 §6.8: streams above the last one are ignored.
            return Ok(None);
        }
        // RFC 9113 §5.1.2: a stream that exceeds the limit is refused; the client may try again.
        let reject = Reject::StreamsTooMany;
        self.budget.answer(limits)?;
        super::frame::write_reset(id, reject.code(), buffers.out);
        Ok(Some(Event::Rejected { id, reject }))
    }

    /// How much content a client may send immediately on a stream that it opens.
    // RFC 9113 §6.9.2: until it has seen our settings, the initial value applies.
    const fn first_window(&self, limits: &Limits) -> u32 {
        let window = limits.stream_window;
        if self.settings_hold || window > WINDOW_DEFAULT { window } else { WINDOW_DEFAULT }
    }

    #[inline]
    fn open(&mut self, limits: &Limits, id: u32, accepted: &Accepted, by_head: bool) -> StreamKey {
        let ends = accepted.body == BodyLength::None;
        let early = self.early.iter_mut().find(|(early, _)| *early == id);
        // RFC 9218 §7.1: a PRIORITY_UPDATE that arrived before the request overrides its field.
        let early = early.map(|early| std::mem::take(early).1);
        let window = self.first_window(limits).cast_signed();
        self.streams.open(Stream {
            content_left: accepted
                .content_length
                .filter(|_| !accepted.is_tunnel)
                .unwrap_or(u64::MAX),
            allowance: if accepted.is_tunnel { u64::MAX } else { limits.request.body_bytes_max },
            left: 0,
            id,
            send_window: self.initial_window,
            window,
            held: 0,
            unacknowledged: 0,
            room_min: 0,
            previous: NOWHERE,
            next: NOWHERE,
            state: if ends { State::HalfClosedRemote } else { State::Open },
            sending: Sending::Waiting,
            priority: early.or(accepted.priority).unwrap_or(Priority::DEFAULT),
            wants: false,
            queued: false,
            by_head,
            is_tunnel: accepted.is_tunnel,
            discarding: false,
            has_content: false,
            leaving: false,
            refused: false,
            expecting: accepted.expecting,
        })
    }

    /// Reads the block that ends a request.
    fn trailer_block(
        &mut self,
        limits: &Limits,
        key: StreamKey,
        ends: bool,
        block: &[u8],
        buffers: &mut Buffers<'_>,
    ) -> Result<Option<Event>, Reject> {
        let mut sink = TrailerSink::new(&limits.request);
        self.decode(limits, block, &mut sink)?;
        let stream = self.streams.at_mut(key.slot);
        let refusal = match sink.finish() {
            // RFC 9113 §8.1: a second block that does not end the stream is malformed.
            _ if !ends => Refusal::Reset(Reject::TrailersUnended),
            Ok(_) if !matches!(stream.content_left, 0 | u64::MAX) => {
                Refusal::Reset(Reject::ContentLengthDiffers)
            }
            Ok(trailers) => {
                let is_wanted = !stream.discarding;
                self.trailers = trailers.filter(|_| is_wanted);
                self.end_receive(key, buffers.out);
                return Ok(is_wanted.then_some(Event::End { stream: key }));
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Reset(reject) => self.fault(limits, key, reject, buffers.out),
            Refusal::Answer(reject) => {
                self.budget.charge(Deed::Refused)?;
                let stream = self.streams.at_mut(key.slot);
                let is_new = !std::mem::replace(&mut stream.discarding, true);
                stream.refused = true;
                self.end_receive(key, buffers.out);
                Ok(is_new.then_some(Event::Refuse { stream: key, reject }))
            }
        }
    }
}

/// A block may decode to this multiple of the limit of a head before the connection ends.
const EXCESS: usize = 16;

/// The length of the deprecated priority in a HEADERS frame.
const PRIORITY_BYTES: usize = 5;
