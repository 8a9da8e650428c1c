//! The open streams of a connection and their exchanges, in memory that is reused.

use super::woken_streams::WokenStreams;
use crate::exchange::Exchange;
use crate::exchange::request_body::RequestBodySender;
use crate::io::output::accounted_bytes;
use crate::io::transfer_rate::TransferRate;
use crate::panic::CatchDropPanic;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_proto::h2::{Request, StreamKey};
use peregrine_web::Body;
use peregrine_web::head::RequestHead;
use peregrine_web::memory::MemoryReservation;
use peregrine_web::pipe::{ConsumedBytes, PipeReader};
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// How many stream entries are retained for the next connection. Further ones are freed.
const RETAINED_STREAMS_MAX: usize = 16;

/// One stream: its exchange, its request's content, and the progress in both directions.
pub(super) struct Stream {
    /// The stream's key in the protocol core. `None` for a free entry.
    pub(super) key: Option<StreamKey>,
    pub(super) state: StreamState,
    pub(super) exchange: Exchange,
    pub(super) request_body: RequestBodySender,
    /// Counts the bytes that the body's reader has read. Also used after `request_body` is
    /// finished, because the pipe may still contain content. `None` if the request has no pipe, its
    /// reader was dropped, or the response is complete and the rest of the request is discarded.
    pub(super) consumed: Option<ConsumedBytes>,
    /// How many bytes of `consumed` were reported to the protocol core, which opens the windows by
    /// that number.
    pub(super) released: u64,
    /// Received content that is not in a pipe yet. Content of many small frames shares one buffer.
    pub(super) buffered: Vec<u8>,
    /// The trailers (possibly empty) of a request that is complete but not fully in the pipe yet.
    pub(super) pending_trailers: Option<HeaderMap>,
    /// Whether the server waits for content of this request: all that arrived was passed on, the
    /// pipe has room, and the request is not complete.
    pub(super) awaits_data: bool,
    /// Measures how fast the peer sends on all streams together while the server waits for content
    /// of this one.
    pub(super) receive_rate: TransferRate,
    /// Bytes of content received on this stream.
    pub(super) received: u64,
    /// Detects that neither side of a bidirectional stream has sent content for too long.
    pub(super) activity_rate: TransferRate,
    /// Whether this is a gRPC call, which counts as bidirectional even before its response.
    pub(super) is_grpc_call: bool,
    /// The length of the request's content, if the peer declared it.
    pub(super) content_length: Option<u64>,
    /// Bytes of the request's content that were discarded.
    pub(super) discarded_bytes: u64,
    /// Whether the request is an extended CONNECT: it requests a tunnel for another protocol.
    pub(super) is_tunnel: bool,
    /// The tunnel's input, until the handler responds.
    pub(super) tunnel_reader: Option<PipeReader>,
    /// Bytes received and sent in total at the last check for an idle tunnel.
    pub(super) last_transferred: u64,
    /// Measures how fast content is sent on this stream while it waits for the stream's window.
    pub(super) send_rate: TransferRate,
    /// Bytes of content sent on this stream.
    pub(super) sent: u64,
    /// Measures how fast content is sent on all streams together while this one waits for the
    /// connection's window.
    pub(super) connection_send_rate: TransferRate,
    pub(super) deadlines: StreamDeadlines,
    /// Accounts for the memory of received content, and of content that waits to be sent.
    reservation: MemoryReservation,
    pub(super) waker: Waker,
}

/// The current state of a stream.
pub(super) enum StreamState {
    /// Collects content until the request is complete or all received bytes have been parsed. Only
    /// then is the handler called, because most content arrives together with its head.
    Buffering { head: RequestHead, request: Request },
    /// The handler is running.
    RunningHandler,
    /// A body in memory is being sent. Everything before `offset` has been sent.
    SendingFull { body: CatchDropPanic<Body>, offset: usize },
    /// A body that the application produces piece by piece, or the output of a tunnel, is being
    /// sent.
    SendingStreamed(BodyFrames),
    /// The response is complete, and a task continues to read the request's content.
    ReceivingAfterResponse,
    /// The response is complete, and the rest of the request is being discarded.
    DiscardingBody,
    /// The entry is free. Also the state of an open stream while `begin` or `respond` replaces
    /// `Buffering`.
    Vacant,
}

/// The state of a response's body that the application produces piece by piece. The exchange holds
/// the body itself.
#[derive(Default)]
pub(super) struct BodyFrames {
    /// Content that was polled from the body and is not sent yet.
    pub(super) data: CatchDropPanic<Bytes>,
    /// Bytes still to be sent, if the length was declared.
    pub(super) remaining: Option<u64>,
    /// Whether the body has ended, so that only `trailers` follow `data`.
    pub(super) has_ended: bool,
    pub(super) trailers: HeaderMap,
}

/// The deadlines of a stream, on the driver's clock. [`Duration::MAX`] means that there is none.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct StreamDeadlines {
    pub(super) handler: Duration,
    pub(super) exchange: Duration,
    pub(super) receive: Duration,
    pub(super) send: Duration,
    /// The deadline of the current [`StreamState`]. By then, the task must read more
    /// (`ReceivingAfterResponse`), the discarded content must end (`DiscardingBody`), or bytes must
    /// pass through the tunnel in either direction (`SendingStreamed`).
    pub(super) current_state: Duration,
}

impl StreamDeadlines {
    pub(super) const NONE: Self = Self {
        handler: Duration::MAX,
        exchange: Duration::MAX,
        receive: Duration::MAX,
        send: Duration::MAX,
        current_state: Duration::MAX,
    };

    /// The earliest deadline.
    pub(super) fn next_deadline(&self) -> Duration {
        self.handler.min(self.exchange).min(self.receive).min(self.send).min(self.current_state)
    }
}

impl Stream {
    fn new(slot: u32, woken_streams: &Arc<WokenStreams>) -> Self {
        Self {
            key: None,
            state: StreamState::Vacant,
            exchange: Exchange::default(),
            request_body: RequestBodySender::Finished,
            consumed: None,
            released: 0,
            buffered: Vec::new(),
            pending_trailers: None,
            awaits_data: false,
            receive_rate: TransferRate::default(),
            received: 0,
            activity_rate: TransferRate::default(),
            is_grpc_call: false,
            content_length: None,
            discarded_bytes: 0,
            is_tunnel: false,
            tunnel_reader: None,
            last_transferred: 0,
            send_rate: TransferRate::default(),
            sent: 0,
            connection_send_rate: TransferRate::default(),
            deadlines: StreamDeadlines::NONE,
            reservation: MemoryReservation::empty(),
            waker: woken_streams.waker(slot),
        }
    }

    /// Returns whether the handler is running or a response is being sent.
    pub(super) fn is_responding(&self) -> bool {
        matches!(
            self.state,
            StreamState::RunningHandler
                | StreamState::SendingFull { .. }
                | StreamState::SendingStreamed(_)
        )
    }

    /// Returns whether this is a bidirectional stream: both sides can send at the same time, so
    /// either may be silent for a while.
    pub(super) fn is_bidi(&self) -> bool {
        let is_sending_response =
            matches!(self.state, StreamState::SendingFull { .. } | StreamState::SendingStreamed(_));
        let is_open_call = self.is_grpc_call && matches!(self.state, StreamState::RunningHandler);
        (is_sending_response || is_open_call) && self.request_body.has_unknown_length()
    }

    /// If the handler has not been called, copies the request's head to the metrics and the access
    /// log.
    pub(super) fn record_head(&mut self) {
        if let StreamState::Buffering { head, .. } = &self.state {
            self.exchange.metrics.set_route(head.route_id());
            self.exchange.metrics.set_head(head);
        }
    }

    /// Clears the entry, except for its waker and the memory that `exchange` reuses.
    fn clear(&mut self) {
        self.record_head();
        self.key = None;
        self.state = StreamState::Vacant;
        self.exchange.reset();
        self.request_body = RequestBodySender::Finished;
        self.consumed = None;
        self.buffered = Vec::new();
        self.pending_trailers = None;
        (self.is_tunnel, self.tunnel_reader, self.last_transferred) = (false, None, 0);
        (self.awaits_data, self.receive_rate, self.received) = (false, TransferRate::default(), 0);
        (self.activity_rate, self.is_grpc_call) = (TransferRate::default(), false);
        (self.send_rate, self.sent, self.connection_send_rate) =
            (TransferRate::default(), 0, TransferRate::default());
        (self.released, self.discarded_bytes, self.content_length) = (0, 0, None);
        self.deadlines = StreamDeadlines::NONE;
        self.reservation.resize(0);
    }
}

/// The streams of one connection.
#[derive(Default)]
pub(super) struct Streams {
    /// Entries, indexed by slot. Only `reset` removes any. After `close`, `open` reuses the slot.
    entries: Vec<Stream>,
    free: Vec<u32>,
    /// Slots of streams, indexed by [`StreamKey::index`].
    by_key: Vec<u32>,
    /// How many streams are `DiscardingBody`.
    pub(super) discarding: usize,
    /// The streams whose waker was called since the last turn.
    pub(super) woken: Arc<WokenStreams>,
    /// Whether `woken` may hold a connection's waker, because a turn has ended with open streams.
    is_armed: bool,
}

impl Streams {
    /// Allocates an entry for a new stream, and returns its slot.
    pub(super) fn open(&mut self, key: StreamKey) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = u32::try_from(self.entries.len()).expect("there are at most 32,768 streams");
            self.entries.push(Stream::new(slot, &self.woken));
            slot
        });
        self.at(slot).key = Some(key);
        if self.by_key.len() <= key.index() {
            self.by_key.resize(key.index() + 1, 0);
        }
        self.by_key[key.index()] = slot;
        slot
    }

    /// The slot of a stream, if it is open.
    pub(super) fn find(&self, key: StreamKey) -> Option<u32> {
        let slot = *self.by_key.get(key.index())?;
        (self.entries.get(slot as usize)?.key == Some(key)).then_some(slot)
    }

    /// The entry at a slot, even if it is free.
    pub(super) fn at(&mut self, slot: u32) -> &mut Stream {
        &mut self.entries[slot as usize]
    }

    /// The stream at a slot, if it is open.
    pub(super) fn get(&mut self, slot: u32) -> Option<&mut Stream> {
        self.entries.get_mut(slot as usize).filter(|stream| stream.key.is_some())
    }

    /// Accounts for the current memory of a stream.
    pub(super) fn update_reservation(&mut self, slot: u32) {
        let Some(stream) = self.get(slot) else { return };
        let unsent_bytes = match &stream.state {
            StreamState::SendingFull { body, .. } => body.memory_bytes(),
            StreamState::SendingStreamed(frames) => accounted_bytes(&frames.data),
            _ => 0,
        };
        stream.reservation.resize(stream.buffered.capacity() + unsent_bytes);
    }

    /// The memory of the entries, in bytes.
    pub(super) fn table_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Stream>()
    }

    /// Closes a stream and drops everything in it that belongs to the application.
    pub(super) fn close(&mut self, slot: u32) {
        let stream = self.at(slot);
        let was_discarding = matches!(stream.state, StreamState::DiscardingBody);
        stream.clear();
        self.discarding -= usize::from(was_discarding);
        self.free.push(slot);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    /// All slots, including free ones.
    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn open_streams(&self) -> impl Iterator<Item = &Stream> {
        self.entries.iter().filter(|stream| stream.key.is_some())
    }

    /// Returns whether a task still reads the content of a request whose response is complete.
    pub(super) fn has_receiving(&self) -> bool {
        self.open_streams()
            .any(|stream| matches!(stream.state, StreamState::ReceivingAfterResponse))
    }

    /// Returns whether any stream that is `DiscardingBody` has discarded more than `bytes_max`
    /// bytes, or is known to have more than that still to receive.
    pub(super) fn exceeds_discard_limit(&self, bytes_max: u64) -> bool {
        let mut streams = self.open_streams();
        streams.any(|stream| {
            let remaining =
                stream.content_length.map_or(0, |length| length.saturating_sub(stream.received));
            matches!(stream.state, StreamState::DiscardingBody)
                && remaining.max(stream.discarded_bytes) > bytes_max
        })
    }

    /// Drops everything that belongs to the application, before the streams are reused.
    pub(super) fn reset(&mut self) {
        if !self.is_empty() {
            for stream in &mut self.entries {
                stream.clear();
            }
        }
        self.entries.truncate(RETAINED_STREAMS_MAX);
        self.free.clear();
        self.free.extend(self.slots().rev());
        self.by_key.clear();
        self.discarding = 0;
        // `clear` takes a lock, so call it only if `woken` may hold a waker. A wake-up that remains
        // causes a stream of the next connection to be polled unnecessarily, which is harmless.
        if take(&mut self.is_armed) {
            self.woken.clear();
        }
    }

    /// Ends a turn: the next stream that is woken also calls `connection_waker`. If a stream has
    /// been woken during the turn, does not store the waker, and returns false.
    pub(super) fn arm(&mut self, connection_waker: &Waker) -> bool {
        self.is_armed = true;
        self.woken.arm(connection_waker)
    }
}
