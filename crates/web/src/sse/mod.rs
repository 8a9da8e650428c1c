//! Server-sent events (WHATWG HTML, section 9.2): a response that stays open and sends one event
//! after another.
//!
//! ```
//! use peregrine::prelude::*;
//!
//! async fn hello() -> Sse {
//!     let (sender, sse) = sse::channel();
//!     sender.try_send(Event::default().event("greeting").data("hello")).expect("there is room");
//!     sse
//! }
//!
//! let mut response = App::new().get("/", hello).test().get("/").send_blocking();
//! assert_eq!(response.header("content-type"), Some("text/event-stream"));
//! let event = response.event_blocking().expect("an event was sent");
//! assert_eq!((event.name.as_str(), event.data.as_str()), ("greeting", "hello"));
//! assert!(response.event_blocking().is_none());
//! ```
//!
//! Start with [`Sse`]; use [`channel`] to push events.

mod channel;
mod event;
mod last_event_id;

pub use channel::{DEFAULT_CHANNEL_CAPACITY, SendError, Sender, channel, channel_with_capacity};
pub use event::{Event, InvalidEvent};
pub use last_event_id::LastEventId;

use crate::http::body::{Body, BodyError};
use crate::http::response::{IntoResponse, Response};
use crate::http::timer::{self, Timer};
use bytes::Bytes;
use futures_core::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body::{Body as HttpBody, Frame};
use std::error::Error;
use std::fmt;
use std::mem::{replace, take};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a stream of events may be silent before a comment is sent, unless [`Sse::keep_alive`]
/// sets another time. The standard recommends this interval, and it is shorter than the 30 to 60 s
/// after which proxies abort a silent response.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The maximum number of events that a stream can still send after the server begins to drain, so
/// that a producer that always has an event ready cannot delay the shutdown.
const DRAIN_EVENTS_MAX: usize = 1_000;

/// A comment, which is not an event. It ends with an empty line, because some readers parse nothing
/// until they see one.
const COMMENT: &[u8] = b":\n\n";

/// A response of events: `text/event-stream`, which caches do not store and proxies should not
/// buffer.
///
/// Each event is sent as soon as it is available. A slow reader slows down the producer: the stream
/// is polled for the next event only when there is room for it. If a reader reads nothing at all,
/// the server's minimum rate ends the response; a reader that has read everything may wait for the
/// next event for days.
///
/// - While the producer is silent, the reader receives a comment every [`KEEP_ALIVE`], so that
///   proxies keep the connection open. [`Sse::keep_alive`] changes the interval.
/// - When the client disconnects, the stream is dropped, even if there is nothing to send.
/// - When the server drains, the stream ends after the events that are ready, so that it does not
///   delay the shutdown. Clients reconnect and reach another server. [`Sse::final_event`] adds a
///   last event; [`Sse::continue_during_drain`] lets the producer end the stream.
///
/// On a thread that runs neither a server of this framework nor its test client, no comments are
/// sent, and the stream does not end when the server drains. On the thread of
/// `peregrine::tower::spawn_tower`, comments are sent, but the stream does not end when the server
/// drains.
#[must_use = "a response does nothing unless it is returned"]
pub struct Sse {
    source: Pin<Box<dyn EventSource>>,
    keep_alive: Option<Duration>,
    on_drain: OnDrain,
}

#[derive(Default)]
enum OnDrain {
    #[default]
    Close,
    SendFinal(Event),
    Continue,
}

/// An item of a stream of events: an [`Event`], or a `Result` of one.
pub trait IntoEvent {
    /// The event.
    ///
    /// # Errors
    /// The item is an error: the stream has failed.
    fn into_event(self) -> Result<Event, Box<dyn Error + Send + Sync>>;
}

impl IntoEvent for Event {
    fn into_event(self) -> Result<Event, Box<dyn Error + Send + Sync>> {
        Ok(self)
    }
}

impl<E: Into<Box<dyn Error + Send + Sync>>> IntoEvent for Result<Event, E> {
    fn into_event(self) -> Result<Event, Box<dyn Error + Send + Sync>> {
        self.map_err(Into::into)
    }
}

/// A source of serialized events.
trait EventSource {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>>;
}

impl<S: Stream<Item: IntoEvent>> EventSource for S {
    fn poll_event(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        let serialize = |event: Event| event.into_bytes().map_err(Into::into);
        self.poll_next(cx).map(|next| next.map(|item| item.into_event().and_then(serialize)))
    }
}

impl Sse {
    /// Sends the events of a stream, which need not be `Send`. An error of the stream, or an
    /// invalid event, is logged and aborts the response; the client then reconnects.
    pub fn new<S>(events: S) -> Self
    where
        S: Stream<Item: IntoEvent> + 'static,
    {
        Self::from_source(Box::pin(events))
    }

    fn from_source(source: Pin<Box<dyn EventSource>>) -> Self {
        Self { source, keep_alive: Some(KEEP_ALIVE), on_drain: OnDrain::Close }
    }

    /// Sets how long the stream may be silent before a comment is sent; `None` or zero means that
    /// none is sent. The default is [`KEEP_ALIVE`]. A worker's clock has a resolution of 100 ms.
    pub fn keep_alive(mut self, silence: impl Into<Option<Duration>>) -> Self {
        self.keep_alive = silence.into().filter(|silence| !silence.is_zero());
        self
    }

    /// Adds a last event, which is sent when the server drains. With [`Event::retry`] it sets when
    /// clients reconnect.
    #[doc(alias = "goodbye")]
    pub fn final_event(mut self, event: Event) -> Self {
        self.on_drain = OnDrain::SendFinal(event);
        self
    }

    /// Keeps the stream open when the server drains. The producer must await `peregrine::Shutdown`
    /// and end the stream itself. The server aborts a stream that is still open after
    /// `shutdown_timeout`.
    pub fn continue_during_drain(mut self) -> Self {
        self.on_drain = OnDrain::Continue;
        self
    }
}

impl IntoResponse for Sse {
    fn into_response(self) -> Response {
        let Self { source, keep_alive, on_drain } = self;
        let timer = TimerState::New;
        let body =
            EventBody { source: Some(source), keep_alive, on_drain, timer, events_since_drain: 0 };
        Response::new(StatusCode::OK)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
            // The response has no end, and its events are soon out of date.
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
            // nginx buffers responses without this field.
            .with_header(
                HeaderName::from_static("x-accel-buffering"),
                HeaderValue::from_static("no"),
            )
            .with_body(Body::new(body))
    }
}

impl fmt::Debug for Sse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sse").field("keep_alive", &self.keep_alive).finish_non_exhaustive()
    }
}

/// The response body.
struct EventBody {
    /// `None` when the stream has ended.
    source: Option<Pin<Box<dyn EventSource>>>,
    keep_alive: Option<Duration>,
    on_drain: OnDrain,
    timer: TimerState,
    /// The number of events sent since the drain began.
    events_since_drain: usize,
}

/// The timer, which also reports whether the server drains and wakes the body when that begins.
enum TimerState {
    /// The body has not been polled yet.
    New,
    /// The thread has no timers, or the stream has ended.
    NoTimer,
    /// The last poll produced an event or a comment. The timer is reset when the producer is next
    /// silent; an earlier setting has no meaning.
    Sending(Box<dyn Timer>),
    /// The producer is silent. The timer is set if `keep_alive` is; it is polled in any case, to be
    /// woken when the server drains.
    Silent(Box<dyn Timer>),
}

impl EventBody {
    /// Whether the stream ends as soon as no event is ready, because the server drains.
    fn ends_when_pending(&self) -> bool {
        let (TimerState::Sending(timer) | TimerState::Silent(timer)) = &self.timer else {
            return false;
        };
        !matches!(self.on_drain, OnDrain::Continue) && timer.is_server_draining()
    }

    /// Ends the stream because of the drain. Returns the event of [`Sse::final_event`], if there is
    /// one.
    fn close(&mut self) -> Option<Result<Bytes, Box<dyn Error + Send + Sync>>> {
        self.source = None;
        self.timer = TimerState::NoTimer;
        match take(&mut self.on_drain) {
            OnDrain::SendFinal(event) => Some(event.into_bytes().map_err(Into::into)),
            OnDrain::Close | OnDrain::Continue => None,
        }
    }

    /// Called while the producer is silent. Ready when a comment must be sent. Otherwise, the timer
    /// wakes the body when a comment is due or the drain begins.
    fn poll_keep_alive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer = match replace(&mut self.timer, TimerState::NoTimer) {
            TimerState::Sending(mut timer) => {
                if let Some(silence) = self.keep_alive {
                    timer.reset(silence);
                }
                TimerState::Silent(timer)
            }
            state => state,
        };
        let TimerState::Silent(timer) = &mut self.timer else { return Poll::Pending };
        timer.poll_elapsed(cx)
    }

    /// Restarts the period of silence, because something is sent.
    fn reset_keep_alive(&mut self) {
        self.timer = match replace(&mut self.timer, TimerState::NoTimer) {
            TimerState::Silent(timer) => TimerState::Sending(timer),
            state => state,
        };
    }

    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        if matches!(self.timer, TimerState::New) {
            self.timer = timer::new_timer().map_or(TimerState::NoTimer, TimerState::Sending);
        }
        let ends_when_pending = self.ends_when_pending();
        if ends_when_pending && self.events_since_drain >= DRAIN_EVENTS_MAX {
            return Poll::Ready(self.close());
        }
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        match source.as_mut().poll_event(cx) {
            Poll::Ready(next) => {
                self.reset_keep_alive();
                self.events_since_drain += usize::from(ends_when_pending);
                if !matches!(next, Some(Ok(_))) {
                    self.source = None;
                    self.timer = TimerState::NoTimer;
                }
                Poll::Ready(next)
            }
            Poll::Pending if ends_when_pending => Poll::Ready(self.close()),
            Poll::Pending => self.poll_keep_alive(cx).map(|()| {
                self.reset_keep_alive();
                Some(Ok(Bytes::from_static(COMMENT)))
            }),
        }
    }
}

impl HttpBody for EventBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let event = self.poll_event(cx);
        event.map(|event| event.map(|event| event.map(Frame::data).map_err(BodyError::Stream)))
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none()
    }
}
