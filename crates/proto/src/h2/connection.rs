//! One HTTP/2 connection: the state shared by both directions, and the calls that concern both.

use super::budget::{Budget, Cost};
use super::control::RESPONSES_SEEN_PING;
use super::error::Http2Error;
use super::event::{Event, NextAction, ResetCause, WaitingFor};
use super::flow::{ReceiveFlow, window_increment};
use super::frame::{self, ErrorCode, FrameType, PAYLOAD_BYTES_DEFAULT, setting_id};
use super::hold::HeldFragments;
use super::hpack::{Decoder, Encoder, TABLE_BYTES_DEFAULT};
use super::limits::{Limits, STREAMS_CEILING, WINDOW_DEFAULT};
use super::priority::{Priority, Queues};
use super::receive::{FrameReadState, ReceivePath};
use super::recent::CloseKind;
use super::streams::{State, StreamKey, Streams, Transition};
use crate::trailers::Trailers;

/// One HTTP/2 connection, without buffers except the HPACK tables.
///
/// Kinds of methods, in the order of use:
///
/// - bytes in: [`receive`](Self::receive) until it needs input,
///   [`release_capacity`](Self::release_capacity) for content that was consumed,
///   [`receive_eof`](Self::receive_eof);
/// - bytes out: optionally [`send_interim`](Self::send_interim), then
///   [`send_response`](Self::send_response), then content and its end, by
///   [`send_data`](Self::send_data) and [`finish`](Self::finish); or [`reset`](Self::reset) instead
///   of the rest;
/// - the end of a turn: [`reset_unfinished`](Self::reset_unfinished);
/// - queries: [`next_action`](Self::next_action), [`waiting_for`](Self::waiting_for),
///   [`is_stream_window_exhausted`](Self::is_stream_window_exhausted),
///   [`trailers`](Self::trailers);
/// - settings: [`begin_shutdown`](Self::begin_shutdown), [`go_away_now`](Self::go_away_now),
///   [`close`](Self::close), [`discard_body`](Self::discard_body), [`trim`](Self::trim),
///   [`shrink`](Self::shrink);
/// - notifications: [`refill_budget`](Self::refill_budget),
///   [`output_flushed`](Self::output_flushed).
///
/// The connection decides which content is sent when; the bytes stay with the caller. Content that
/// is available and not longer than [`send_capacity`](Self::send_capacity) can be sent immediately.
/// Other content is announced by [`mark_ready`](Self::mark_ready), and sent when
/// [`next_ready`](Self::next_ready) returns its stream.
///
/// A call with the key of a closed stream does nothing: the caller may not know yet that the peer
/// has reset it.
///
/// ```
/// use peregrine_proto::{Date, HeadIndex, h1::ResponseLength};
/// use peregrine_proto::h2::{MoreData, Connection, Event, Limits, frame};
///
/// let (limits, date) = (Limits::default(), Date::from_unix_seconds(784_111_777));
/// let (mut bytes, mut head, mut out) = (Vec::new(), HeadIndex::new(), Vec::new());
/// let mut connection = Connection::new(&limits, &mut out);
///
/// let mut unread = frame::PREFACE.to_vec();
/// frame::write_settings([], &mut unread);
/// // GET, https, /, and the authority `a`, by HPACK.
/// let end = frame::flags::END_STREAM | frame::flags::END_HEADERS;
/// frame::write_frame(frame::FrameType::Headers, end, 1, b"\x82\x87\x84\x01\x01a", &mut unread);
///
/// let (used, event) = connection.receive(&limits, &unread, &mut bytes, &mut head, &mut out);
/// assert_eq!(event, Event::Settings);
/// let unread = &unread[used..];
/// let (used, event) = connection.receive(&limits, unread, &mut bytes, &mut head, &mut out);
/// assert_eq!(used, unread.len());
/// let Event::Request(request) = event else { panic!("{event:?}") };
/// assert_eq!(head.authority.slice(&bytes), b"a");
///
/// let length = ResponseLength::Exact(2);
/// connection.send_response(&limits, request.stream, 200, [], length, &date, &mut out);
/// assert!(connection.send_capacity(&limits, request.stream) >= 2);
/// connection.send_data(&limits, request.stream, b"hi", MoreData::End, &mut out);
/// connection.reset_unfinished(&mut out, |_| {});
/// ```
#[derive(Debug)]
pub struct Connection {
    pub(super) receive: ReceivePath,
    pub(super) streams: Streams,
    pub(super) queues: Queues,
    pub(super) flow: ReceiveFlow,
    /// How much content the client allows the server to send; never below 0.
    pub(super) send_window: i32,
    /// Bytes sent that no WINDOW_UPDATE for the connection has covered yet.
    pub(super) unacknowledged: u32,
    /// The streams whose next DATA frame waits for a larger window.
    pub(super) held_fragments: HeldFragments,
    /// The client's SETTINGS_INITIAL_WINDOW_SIZE.
    pub(super) peer_initial_window: i32,
    /// The client's SETTINGS_MAX_FRAME_SIZE.
    pub(super) peer_frame_bytes_max: u32,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) budget: Budget,
    /// A buffer for combining strings.
    pub(super) scratch: Vec<u8>,
    /// The trailers of the last `End`.
    pub(super) trailers: Option<Box<Trailers>>,
    /// Priorities of streams that are not open yet; identifier 0 marks a free entry.
    pub(super) early_priorities: [(u32, Priority); EARLY_PRIORITIES],
    pub(super) goaway: GoAwayState,
    /// Whether the client has sent GOAWAY.
    pub(super) peer_goaway: bool,
    /// Whether the client has acknowledged the settings.
    pub(super) settings_acked: bool,
    /// How many streams have a complete response and an incomplete request.
    pub(super) unfinished_requests: u16,
    /// Whether the PING that gives such streams time to end has not been acknowledged yet.
    pub(super) responses_seen_ping_pending: bool,
    /// Whether the keep-alive PING has not been acknowledged yet.
    pub(super) keep_alive_ping_pending: bool,
}

const _: () = assert!(size_of::<Connection>() <= 1024, "every idle connection holds one");

/// The maximum number of stored priorities of streams that are not open yet.
const EARLY_PRIORITIES: usize = 4;

/// The progress of a graceful shutdown of the connection. RFC 9113 §6.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAwayState {
    /// The shutdown has not begun: all requests are served.
    NotSent,
    /// GOAWAY was sent; requests that the client sent before receiving it are still served.
    Sent,
    /// Streams above this one are not served.
    Final(u32),
}

impl Connection {
    /// Creates a connection. Writes the server's preface, which need not wait for the client's.
    // RFC 9113 §3.4: the server connection preface is a SETTINGS frame, the first one that it
    // sends.
    #[must_use]
    pub fn new(limits: &Limits, out: &mut Vec<u8>) -> Self {
        use setting_id::{ENABLE_CONNECT_PROTOCOL, HEADER_TABLE_SIZE, INITIAL_WINDOW_SIZE};
        use setting_id::{MAX_CONCURRENT_STREAMS, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE};
        let table_bytes = limits.hpack_decoder_table_bytes_max;
        let settings = [
            (HEADER_TABLE_SIZE, table_bytes, table_bytes != TABLE_BYTES_DEFAULT),
            (MAX_CONCURRENT_STREAMS, limits.concurrent_streams_max.min(STREAMS_CEILING), true),
            (
                INITIAL_WINDOW_SIZE,
                limits.initial_stream_window,
                limits.initial_stream_window != WINDOW_DEFAULT,
            ),
            (
                MAX_FRAME_SIZE,
                limits.payload_bytes_max(),
                limits.payload_bytes_max() != PAYLOAD_BYTES_DEFAULT,
            ),
            (MAX_HEADER_LIST_SIZE, limits.fields_bytes_max(), true),
            // RFC 8441 §3: a server uses this setting to announce support for extended CONNECT.
            (ENABLE_CONNECT_PROTOCOL, 1, limits.enable_connect_protocol),
            // RFC 9218 §2.1: a server that does not use the priority tree announces it.
            (setting_id::NO_RFC7540_PRIORITIES, 1, true),
        ];
        let sent_settings = settings.iter().filter(|(_, _, must_send)| *must_send);
        frame::write_settings(
            sent_settings.map(|(identifier, value, _)| (*identifier, *value)),
            out,
        );
        let mut flow = ReceiveFlow::new(limits);
        if let Some(increment) = flow.take_window_update() {
            frame::write_window_update(0, increment, out);
        }
        Self {
            receive: ReceivePath::new(),
            streams: Streams::new(),
            queues: Queues::new(),
            flow,
            send_window: WINDOW_DEFAULT.cast_signed(),
            unacknowledged: 0,
            held_fragments: HeldFragments::NONE,
            peer_initial_window: WINDOW_DEFAULT.cast_signed(),
            peer_frame_bytes_max: PAYLOAD_BYTES_DEFAULT,
            decoder: Decoder::new(),
            encoder: Encoder::new(limits.hpack_encoder_table_bytes_max),
            budget: Budget::new(limits),
            scratch: Vec::new(),
            trailers: None,
            early_priorities: [(0, Priority::DEFAULT); EARLY_PRIORITIES],
            goaway: GoAwayState::NotSent,
            peer_goaway: false,
            settings_acked: false,
            unfinished_requests: 0,
            responses_seen_ping_pending: false,
            keep_alive_ping_pending: false,
        }
    }

    /// Reports that request content was consumed, so that the client may send the same amount
    /// again. A WINDOW_UPDATE is sent as soon as half a window was consumed.
    pub fn release_capacity(&mut self, stream: StreamKey, bytes: usize, out: &mut Vec<u8>) {
        let target = self.flow.stream_target;
        let is_closed = self.receive.step == FrameReadState::Closed;
        let Some(state) = self.streams.get_mut(stream).filter(|_| !is_closed) else { return };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(state.unreleased);
        state.unreleased -= bytes;
        self.flow.unreleased -= bytes;
        if state.is_receiving()
            && let Some(increment) = window_increment(target, state.recv_window, state.unreleased)
        {
            state.recv_window += increment.cast_signed();
            frame::write_window_update(stream.id, increment, out);
        }
        self.update_connection_window(out);
    }

    /// Sends a WINDOW_UPDATE for the connection if half of its window was consumed.
    #[inline]
    pub(super) fn update_connection_window(&mut self, out: &mut Vec<u8>) {
        if self.receive.step != FrameReadState::Closed
            && let Some(increment) = self.flow.take_window_update()
        {
            frame::write_window_update(0, increment, out);
        }
    }

    /// Declares that the rest of a request's content is unwanted: no `Data` and no `End` follow.
    /// Content that was yielded counts as consumed.
    pub fn discard_body(&mut self, stream: StreamKey, out: &mut Vec<u8>) {
        let Some(state) = self.streams.get_mut(stream) else { return };
        state.discarding = true;
        self.flow.unreleased -= std::mem::take(&mut state.unreleased);
        self.update_connection_window(out);
    }

    /// Resets a stream for a reason other than an error of the client.
    pub fn reset(&mut self, stream: StreamKey, code: ErrorCode, out: &mut Vec<u8>) {
        let Some(_) = self.streams.get(stream) else { return };
        frame::write_rst_stream(stream.id, code, out);
        self.close_stream(stream, Transition::Reset, out);
    }

    /// Resets a stream because the client violated a rule.
    pub(super) fn stream_error(
        &mut self,
        limits: &Limits,
        stream: StreamKey,
        error: Http2Error,
        out: &mut Vec<u8>,
    ) -> Result<Option<Event>, Http2Error> {
        self.write_peer_caused_reset(limits, stream.id, error, out)?;
        let should_report = !self.streams.at(stream.slot).is_closing;
        self.close_stream(stream, Transition::Reset, out);
        Ok(should_report.then_some(Event::Reset { stream, cause: ResetCause::StreamError(error) }))
    }

    /// Writes a reset that the client has caused, and charges it.
    // RFC 9113 §5.4.2: a stream error is answered with RST_STREAM.
    pub(super) fn write_peer_caused_reset(
        &mut self,
        limits: &Limits,
        id: u32,
        error: Http2Error,
        out: &mut Vec<u8>,
    ) -> Result<(), Http2Error> {
        self.budget.charge(Cost::StreamError)?;
        self.budget.count_control_frame(limits)?;
        frame::write_rst_stream(id, error.code(), out);
        Ok(())
    }

    /// Closes an open stream. Its unreleased content counts as consumed; after a reset by the
    /// server, more content may be in transit.
    #[inline]
    pub(super) fn close_stream(
        &mut self,
        key: StreamKey,
        transition: Transition,
        out: &mut Vec<u8>,
    ) {
        self.queues.remove(&mut self.streams, key.slot);
        self.held_fragments.remove(self.streams.at_mut(key.slot));
        let stream = self.streams.at_mut(key.slot);
        self.flow.unreleased -= stream.unreleased;
        self.unfinished_requests -= u16::from(stream.has_unfinished_request());
        if transition == Transition::Reset && stream.is_receiving() {
            self.budget
                .on_stream_reset(stream.recv_window.max(0).cast_unsigned(), self.flow.target);
        }
        stream.transition(transition);
        let close_kind = match transition {
            Transition::ReceiveEnd | Transition::SendEnd => CloseKind::EndStream,
            Transition::Reset => CloseKind::ResetByServer,
            Transition::ResetByPeer => CloseKind::ResetByPeer,
        };
        self.streams.close(key, close_kind);
        self.update_connection_window(out);
    }

    /// Must be called at the end of a turn. Passes each stream whose response is complete while its
    /// request is not to `on_close`, and yields no more events for it.
    ///
    /// The client gets one round trip to receive the response and to end the stream itself, because
    /// some clients drop a response that is immediately followed by a reset. A PING measures the
    /// round trip; streams that have not ended by then are reset. If none of the streams has
    /// received content, this does nothing.
    // RFC 9113 §8.1: after a complete response, the server may ask the client to stop sending the
    // request, by RST_STREAM with NO_ERROR.
    pub fn reset_unfinished(&mut self, out: &mut Vec<u8>, mut on_close: impl FnMut(StreamKey)) {
        if self.unfinished_requests == 0
            || self.responses_seen_ping_pending
            || self.receive.step == FrameReadState::Closed
        {
            return;
        }
        if !self.streams.all().any(|stream| stream.has_unfinished_request() && stream.has_content) {
            return;
        }
        for slot in 0..self.streams.slots() {
            let stream = self.streams.at_mut(slot);
            if stream.id != 0 && stream.has_unfinished_request() {
                (stream.is_closing, stream.discarding) = (true, true);
                self.flow.unreleased -= std::mem::take(&mut stream.unreleased);
                on_close(StreamKey { id: stream.id, slot });
            }
        }
        self.update_connection_window(out);
        self.responses_seen_ping_pending = true;
        frame::write_frame(FrameType::Ping, 0, 0, &RESPONSES_SEEN_PING, out);
    }

    /// Resets the streams whose response the client has received, but whose request it has not
    /// ended.
    pub(super) fn reset_unfinished_requests(&mut self, out: &mut Vec<u8>) {
        for slot in 0..self.streams.slots() {
            let stream = self.streams.at(slot);
            if stream.id != 0 && stream.is_closing {
                self.reset(StreamKey { id: stream.id, slot }, ErrorCode::NO_ERROR, out);
            }
        }
    }

    /// The next step of the connection.
    #[must_use]
    pub fn next_action(&self) -> NextAction {
        let is_done = self.peer_goaway || matches!(self.goaway, GoAwayState::Final(_));
        if self.receive.step == FrameReadState::Closed || (is_done && self.streams.count() == 0) {
            NextAction::Close
        } else {
            NextAction::Receive
        }
    }

    /// The event that the connection is waiting for.
    #[must_use]
    pub fn waiting_for(&self) -> WaitingFor {
        match self.receive.waiting_for() {
            WaitingFor::NextRequest if self.streams.count() > 0 => WaitingFor::Streams,
            waiting => waiting,
        }
    }

    /// Returns whether the client may send content on a stream: neither the stream's window nor
    /// that of the connection is exhausted, or a DATA frame has begun and is incomplete.
    #[must_use]
    pub fn can_receive_data(&self, stream: StreamKey) -> bool {
        if self.receive.expects_data(stream) {
            return true;
        }
        self.flow.window > 0 && self.streams.get(stream).is_some_and(|state| state.recv_window > 0)
    }

    /// Returns whether the client has ever opened a stream.
    #[must_use]
    pub const fn has_received_request(&self) -> bool {
        self.streams.highest() > 0
    }

    /// Returns whether a stream is open: its response or its request is not complete.
    #[must_use]
    pub fn is_stream_open(&self, stream: StreamKey) -> bool {
        self.streams.get(stream).is_some()
    }

    /// The number of open streams.
    #[must_use]
    pub const fn open_streams(&self) -> usize {
        self.streams.count() as usize
    }

    /// The trailers of the request whose `End` was the last event. Fields without a meaning in a
    /// trailer section (framing, routing, authentication and similar) are omitted.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.trailers.iter().flat_map(|trailers| trailers.iter())
    }

    /// Reports that all output was sent, so the peer is reading. This resets the count of pending
    /// acknowledgements and resets: a server that never calls this closes the connection after
    /// [`pending_control_frames_max`](Limits::pending_control_frames_max) of them.
    pub fn output_flushed(&mut self) {
        self.budget.control_frames_flushed();
    }

    /// The remaining abuse budget; see [`Limits::abuse_budget_max`].
    #[must_use]
    pub fn budget_left(&self) -> u32 {
        self.budget.units_left()
    }

    /// Frees the scratch memory and, if no stream is open, the memory of closed streams. This has
    /// no effect on the wire. Call it when the connection has been idle for a moment.
    pub fn trim(&mut self) {
        self.streams.shrink();
        self.decoder.trim();
        self.scratch = Vec::new();
        self.trailers = None;
    }

    /// Like [`trim`](Self::trim), and also frees memory of the HPACK tables: call it after a long
    /// time without requests. The encoder's table is emptied, which the next response signals; the
    /// decoder's table retains its entries, but no spare memory.
    pub fn shrink(&mut self) {
        self.trim();
        self.decoder.shrink();
        self.encoder.shrink();
    }

    /// The heap memory in bytes: that of the HPACK tables, and all other memory.
    #[must_use]
    pub fn memory_bytes(&self) -> (usize, usize) {
        let table_bytes = self.decoder.memory_bytes() + self.encoder.memory_bytes();
        let other_bytes = self.streams.memory_bytes()
            + self.scratch.capacity()
            + self.receive.memory_bytes()
            + self.trailers.as_ref().map_or(0, |_| size_of::<Trailers>());
        (table_bytes, other_bytes)
    }

    /// Checks all invariants.
    pub fn assert_invariants(&self) {
        self.streams.assert_invariants();
        self.queues.assert_invariants(&self.streams);
        self.decoder.assert_invariants();
        self.encoder.assert_invariants();
        let unreleased: u64 = self.streams.all().map(|stream| u64::from(stream.unreleased)).sum();
        assert_eq!(
            unreleased,
            u64::from(self.flow.unreleased),
            "unreleased content belongs to streams"
        );
        assert!(self.send_window >= 0, "no setting changes the connection's window");
        for stream in self.streams.all() {
            assert_eq!(stream.queued, stream.may_send(), "streams that can send are queued");
        }
        self.held_fragments.assert_invariants(&self.streams);
        let unfinished = self.streams.all().filter(|stream| stream.has_unfinished_request());
        assert_eq!(unfinished.count(), usize::from(self.unfinished_requests));
    }

    /// Ends the client's side of a stream.
    #[inline]
    pub(super) fn receive_end_stream(&mut self, key: StreamKey, out: &mut Vec<u8>) {
        let stream = self.streams.at_mut(key.slot);
        if stream.state == State::Open {
            return stream.transition(Transition::ReceiveEnd);
        }
        self.close_stream(key, Transition::ReceiveEnd, out);
    }
}
