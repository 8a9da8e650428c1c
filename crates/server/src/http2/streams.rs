//! The open streams of a connection and their exchanges, in memory that is reused.

use super::ready_set::Woken;
use crate::exchange::Exchange;
use crate::exchange::body_sender::Upload;
use crate::io::output::held_of;
use crate::io::transfer_rate::Meter;
use crate::panic::Quiet;
use bytes::Bytes;
use http::HeaderMap;
use peregrine_proto::h2::{Request, StreamKey};
use peregrine_web::Body;
use peregrine_web::account::Charge;
use peregrine_web::head::Head;
use peregrine_web::pipe::{Reader, Taken};
use std::mem::take;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

/// How many stream entries a session keeps for its next connection. Further ones are freed.
const STREAMS_KEPT_MAX: usize = 16;

/// One stream: its exchange, its request's content, and the progress in both directions.
pub(super) struct Stream {
    /// The stream's key; `None` for a free entry.
    pub(super) key: Option<StreamKey>,
    pub(super) step: Step,
    pub(super) exchange: Exchange,
    pub(super) upload: Upload,
    /// Counts the bytes that the content's reader has read, even after all content is in the pipe.
    pub(super) taken: Option<Taken>,
    /// How many of these bytes were reported to the protocol core, which opens the windows by them.
    pub(super) taken_told: u64,
    /// Received content that is not in a pipe yet. One buffer, even if the frames were small.
    pub(super) gathered: Vec<u8>,
    /// The trailers (possibly empty) of a request that is complete but not fully in the pipe yet.
    pub(super) end: Option<HeaderMap>,
    /// Whether the server waits for content.
    pub(super) is_awaiting: bool,
    /// How fast the peer sends on all streams while the server waits for content.
    pub(super) receiving: Meter,
    pub(super) received: u64,
    /// How long neither side has sent anything in a conversation.
    pub(super) talking: Meter,
    /// Whether this is a gRPC call, which is a conversation even before its response.
    pub(super) is_call: bool,
    /// The length of the content, if it is known.
    pub(super) length: Option<u64>,
    /// Content that was discarded.
    pub(super) thrown_away: u64,
    /// Whether the request is for another protocol.
    pub(super) is_tunnel: bool,
    /// The input of that protocol, until the handler responds.
    pub(super) tunnel: Option<Reader>,
    /// Bytes that had moved in either direction at the last check.
    pub(super) moved: u64,
    /// How fast the peer opens the stream's window while the server waits for it.
    pub(super) sending: Meter,
    pub(super) sent: u64,
    /// How fast all streams move while the server waits for the connection's window.
    pub(super) sharing: Meter,
    pub(super) deadlines: Deadlines,
    /// Accounts for the memory of received content, and of content that waits to be sent.
    charge: Charge,
    pub(super) waker: Waker,
}

/// The current step of a stream.
pub(super) enum Step {
    /// Collects content before the handler is called, as long as there are received bytes to parse:
    /// most content arrives together with its head.
    Gather { head: Head, request: Request },
    /// The handler works on its response.
    Handler,
    /// A body in memory is sent, from this offset on.
    Whole { body: Quiet<Body>, from: usize },
    /// A body is sent frame by frame.
    Frames(Frames),
    /// The response is complete, and a task continues to read the request's content.
    ReadOn,
    /// The response is complete, and the rest of the request is discarded.
    Unread,
    /// The entry is free.
    Free,
}

/// The body of a response that is being sent.
#[derive(Default)]
pub(super) struct Frames {
    /// Content that was polled from the body and is not sent yet.
    pub(super) data: Quiet<Bytes>,
    /// Bytes still to be sent, if the length was declared.
    pub(super) left: Option<u64>,
    /// Whether the body has ended: only `trailers` follow `data`.
    pub(super) is_over: bool,
    pub(super) trailers: HeaderMap,
}

/// The deadlines of a stream, on the driver's clock.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Deadlines {
    pub(super) handler: Duration,
    pub(super) exchange: Duration,
    pub(super) receive: Duration,
    pub(super) send: Duration,
    /// Depends on the step: for a reader to read more, for discarded content to end, or for bytes
    /// of an upgraded protocol.
    pub(super) rest: Duration,
}

impl Deadlines {
    pub(super) const NONE: Self = Self {
        handler: Duration::MAX,
        exchange: Duration::MAX,
        receive: Duration::MAX,
        send: Duration::MAX,
        rest: Duration::MAX,
    };

    pub(super) fn first(&self) -> Duration {
        self.handler.min(self.exchange).min(self.receive).min(self.send).min(self.rest)
    }
}

impl Stream {
    fn new(number: u32, woken: &Arc<Woken>) -> Self {
        Self {
            key: None,
            step: Step::Free,
            exchange: Exchange::default(),
            upload: Upload::Done,
            taken: None,
            taken_told: 0,
            gathered: Vec::new(),
            end: None,
            is_awaiting: false,
            receiving: Meter::default(),
            received: 0,
            talking: Meter::default(),
            is_call: false,
            length: None,
            thrown_away: 0,
            is_tunnel: false,
            tunnel: None,
            moved: 0,
            sending: Meter::default(),
            sent: 0,
            sharing: Meter::default(),
            deadlines: Deadlines::NONE,
            charge: Charge::new(),
            waker: woken.waker(number),
        }
    }

    /// Returns whether a handler is working or a response is being sent.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.step, Step::Handler | Step::Whole { .. } | Step::Frames(_))
    }

    /// Returns whether the stream is a conversation, in which both sides may be silent.
    pub(super) fn is_conversation(&self) -> bool {
        let is_answering = matches!(self.step, Step::Whole { .. } | Step::Frames(_));
        let is_called = self.is_call && matches!(self.step, Step::Handler);
        (is_answering || is_called) && self.upload.is_open_ended()
    }

    /// Copies the head of a request whose handler is not called to the metrics and the access log.
    pub(super) fn keep_head(&mut self) {
        if let Step::Gather { head, .. } = &self.step {
            self.exchange.tally.route(head.route());
            self.exchange.tally.keep(head);
        }
    }

    /// Clears the entry, but keeps its reusable memory and its waker.
    fn clear(&mut self) {
        self.keep_head();
        self.key = None;
        self.step = Step::Free;
        self.exchange.clear();
        self.upload = Upload::Done;
        self.taken = None;
        self.gathered = Vec::new();
        self.end = None;
        (self.is_tunnel, self.tunnel, self.moved) = (false, None, 0);
        (self.is_awaiting, self.receiving, self.received) = (false, Meter::default(), 0);
        (self.talking, self.is_call) = (Meter::default(), false);
        (self.sending, self.sent, self.sharing) = (Meter::default(), 0, Meter::default());
        (self.taken_told, self.thrown_away, self.length) = (0, 0, None);
        self.deadlines = Deadlines::NONE;
        self.charge.set(0);
    }
}

/// The streams of one connection.
#[derive(Default)]
pub(super) struct Streams {
    /// Entries, indexed by number. A number stays valid for the whole session.
    all: Vec<Stream>,
    free: Vec<u32>,
    /// Numbers of streams, indexed by the streams' places in the protocol core.
    by_place: Vec<u32>,
    /// How many streams are `Unread`.
    pub(super) unread: usize,
    pub(super) woken: Arc<Woken>,
    /// Whether `woken` may hold a connection's waker.
    is_armed: bool,
}

impl Streams {
    /// Allocates an entry for a new stream.
    pub(super) fn open(&mut self, key: StreamKey) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            let number = u32::try_from(self.all.len()).expect("there are at most 32,768 streams");
            self.all.push(Stream::new(number, &self.woken));
            number
        });
        self.at(number).key = Some(key);
        if self.by_place.len() <= key.place() {
            self.by_place.resize(key.place() + 1, 0);
        }
        self.by_place[key.place()] = number;
        number
    }

    /// The number of an open stream.
    pub(super) fn find(&self, key: StreamKey) -> Option<u32> {
        let number = *self.by_place.get(key.place())?;
        (self.all.get(number as usize)?.key == Some(key)).then_some(number)
    }

    pub(super) fn at(&mut self, number: u32) -> &mut Stream {
        &mut self.all[number as usize]
    }

    /// The stream with this number, if it is open.
    pub(super) fn get(&mut self, number: u32) -> Option<&mut Stream> {
        self.all.get_mut(number as usize).filter(|stream| stream.key.is_some())
    }

    /// Accounts for the current memory of a stream.
    pub(super) fn weigh(&mut self, number: u32) {
        let Some(stream) = self.get(number) else { return };
        let unsent = match &stream.step {
            Step::Whole { body, .. } => body.held_bytes(),
            Step::Frames(frames) => held_of(&frames.data),
            _ => 0,
        };
        stream.charge.set(stream.gathered.capacity() + unsent);
    }

    /// The memory of the table.
    pub(super) fn places_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Stream>()
    }

    /// Closes a stream and drops everything in it that belongs to the application.
    pub(super) fn close(&mut self, number: u32) {
        let stream = self.at(number);
        let was_unread = matches!(stream.step, Step::Unread);
        stream.clear();
        self.unread -= usize::from(was_unread);
        self.free.push(number);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.all.len()
    }

    /// All numbers. Some may be free.
    pub(super) fn numbers(&self) -> std::ops::Range<u32> {
        0..u32::try_from(self.all.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn open_streams(&self) -> impl Iterator<Item = &Stream> {
        self.all.iter().filter(|stream| stream.key.is_some())
    }

    /// Returns whether a task still reads the content of a request whose response is complete.
    pub(super) fn is_read_on(&self) -> bool {
        self.open_streams().any(|stream| matches!(stream.step, Step::ReadOn))
    }

    /// Returns whether, on any stream whose response is complete, more than `bytes_max` bytes were
    /// discarded or are still missing from the declared length.
    pub(super) fn is_more_to_come_than(&self, bytes_max: u64) -> bool {
        let mut open = self.open_streams();
        open.any(|stream| {
            let left = stream.length.map_or(0, |length| length.saturating_sub(stream.received));
            matches!(stream.step, Step::Unread) && left.max(stream.thrown_away) > bytes_max
        })
    }

    /// Drops everything that belongs to the application, for the next session.
    pub(super) fn reset(&mut self) {
        if !self.is_empty() {
            for stream in &mut self.all {
                stream.clear();
            }
        }
        self.all.truncate(STREAMS_KEPT_MAX);
        self.free.clear();
        self.free.extend(self.numbers().rev());
        self.by_place.clear();
        self.unread = 0;
        // Usually no stream waited, so skip the lock, which is expensive right after a turn. If a
        // stream is woken late, a stream of the next session is polled once too often, which is
        // harmless.
        if take(&mut self.is_armed) {
            self.woken.forget();
        }
    }

    /// Ends a turn: when the next stream is woken, it wakes `connection`. Returns false if a stream
    /// was woken already.
    pub(super) fn arm(&mut self, connection: &Waker) -> bool {
        self.is_armed = true;
        self.woken.arm(connection)
    }
}
