//! Server-sent events (WHATWG HTML, section 9.2): a response that goes on, event by event.
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
//! let mut response = App::new().get("/", hello).test().get("/").send_now();
//! assert_eq!(response.header("content-type"), Some("text/event-stream"));
//! let event = response.event_now().expect("there is one");
//! assert_eq!((event.name.as_str(), event.data.as_str()), ("greeting", "hello"));
//! assert!(response.event_now().is_none());
//! ```
//!
//! Start with [`Sse`]; [`channel`] is for events that are pushed.

mod channel;
mod event;
mod last_event_id;

pub use channel::{CHANNEL_EVENTS_MAX, SendError, Sender, channel, channel_of};
pub use event::{Event, InvalidEvent};
pub use last_event_id::LastEventId;

use crate::http::body::{Body, BodyError};
use crate::http::response::{IntoResponse, Response};
use crate::http::timer::{self, Alarm};
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

/// How long a stream of events is silent before a comment is sent, unless [`Sse::keep_alive`] says
/// otherwise: as often as the standard proposes, and often enough for proxies, which give a silent
/// response up after 30 to 60 s.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The most events that a stream may still have ready when the server drains.
const LAST_EVENTS_MAX: usize = 1_000;

/// A comment, which is no event. The empty line ends it for readers that look for one.
const COMMENT: &[u8] = b":\n\n";

/// A response of events: `text/event-stream`, which nobody stores and no proxy should hold back.
///
/// Each event is sent as soon as it is there. A reader that is slow holds the producer back: the stream
/// is not asked for the next event before there is room for it. A reader that takes nothing at all is
/// ended by the server's least rate; one that takes everything may wait for its next event for days.
///
/// - While the producer is silent, the reader gets a comment every [`KEEP_ALIVE`], so that proxies keep
///   the connection: [`Sse::keep_alive`].
/// - When the reader closes its connection, the stream is dropped, also while there is nothing to
///   send.
/// - When the server drains, the stream ends after the events that are ready, so that it holds nobody
///   up; readers come again, and find another server. [`Sse::goodbye`] adds a last event;
///   [`Sse::through_drain`] leaves the end to the producer.
///
/// Both need a server of this framework or its test client around the application, on the same thread;
/// on that of `peregrine::tower::spawn_tower` there are comments, but a drain is not heard.
#[must_use = "a response does nothing unless it is returned"]
pub struct Sse {
    source: Pin<Box<dyn Source>>,
    keep_alive: Option<Duration>,
    at_drain: AtDrain,
}

#[derive(Default)]
enum AtDrain {
    #[default]
    End,
    Say(Event),
    GoOn,
}

/// What a stream of events may give: an [`Event`], or a `Result` of one.
pub trait IntoEvent {
    /// The event.
    ///
    /// # Errors
    /// There is none, and the stream has failed.
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

/// Where events come from, in the form in which they are sent.
trait Source {
    fn poll_event(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>>;
}

impl<S: Stream<Item: IntoEvent>> Source for S {
    fn poll_event(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        let wire = |event: Event| event.wire().map_err(Into::into);
        self.poll_next(context).map(|next| next.map(|item| item.into_event().and_then(wire)))
    }
}

impl Sse {
    /// The events of a stream, which need not be `Send`. An error of the stream, or an invalid event,
    /// goes to the log and breaks the response off; the reader comes again.
    pub fn new<S>(events: S) -> Self
    where
        S: Stream<Item: IntoEvent> + 'static,
    {
        Self::from_source(Box::pin(events))
    }

    fn from_source(source: Pin<Box<dyn Source>>) -> Self {
        Self { source, keep_alive: Some(KEEP_ALIVE), at_drain: AtDrain::End }
    }

    /// Sets how long the stream is silent before a comment is sent; `None`: however long it is. The
    /// default is [`KEEP_ALIVE`]. A worker's clock has steps of 100 ms.
    pub fn keep_alive(mut self, silence: impl Into<Option<Duration>>) -> Self {
        self.keep_alive = silence.into().filter(|silence| !silence.is_zero());
        self
    }

    /// Adds a last event for when the server drains. One with [`Event::retry`] tells readers when to
    /// come again.
    pub fn goodbye(mut self, event: Event) -> Self {
        self.at_drain = AtDrain::Say(event);
        self
    }

    /// Lets the stream go on when the server drains. The producer is to await `peregrine::Shutdown` and
    /// to end the stream in its own time: what is left after the server's `shutdown_timeout` is cut.
    pub fn through_drain(mut self) -> Self {
        self.at_drain = AtDrain::GoOn;
        self
    }
}

impl IntoResponse for Sse {
    fn into_response(self) -> Response {
        let Self { source, keep_alive, at_drain } = self;
        let state = State::New;
        let events = Events { source: Some(source), keep_alive, at_drain, state, last: 0 };
        Response::new(StatusCode::OK)
            .with_header(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"))
            // What has no end is nothing to keep, and what it said is of its time.
            .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
            // nginx collects responses unless it is told not to.
            .with_header(
                HeaderName::from_static("x-accel-buffering"),
                HeaderValue::from_static("no"),
            )
            .with_body(Body::new(events))
    }
}

impl fmt::Debug for Sse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sse").field("keep_alive", &self.keep_alive).finish_non_exhaustive()
    }
}

/// The body of the response.
struct Events {
    /// `None`: all is said.
    source: Option<Pin<Box<dyn Source>>>,
    keep_alive: Option<Duration>,
    at_drain: AtDrain,
    state: State,
    /// Events that were sent since the drain began.
    last: usize,
}

enum State {
    /// Nobody has asked for an event yet.
    New,
    /// There is no clock on this thread.
    NoClock,
    /// The producer had something to say.
    Busy(Box<dyn Alarm>),
    /// The producer is silent, and the alarm is set.
    Silent(Box<dyn Alarm>),
}

impl Events {
    /// Is the stream to end because the server drains?
    fn is_to_end(&self) -> bool {
        let (State::Busy(alarm) | State::Silent(alarm)) = &self.state else { return false };
        !matches!(self.at_drain, AtDrain::GoOn) && alarm.is_draining()
    }

    /// The end because of the drain.
    fn end(&mut self) -> Option<Result<Bytes, Box<dyn Error + Send + Sync>>> {
        self.source = None;
        self.state = State::NoClock;
        match take(&mut self.at_drain) {
            AtDrain::Say(event) => Some(event.wire().map_err(Into::into)),
            AtDrain::End | AtDrain::GoOn => None,
        }
    }

    /// The producer is silent. Ready when a comment is to be sent.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.state = match replace(&mut self.state, State::NoClock) {
            State::Busy(mut alarm) => {
                if let Some(silence) = self.keep_alive {
                    alarm.set(silence);
                }
                State::Silent(alarm)
            }
            state => state,
        };
        let State::Silent(alarm) = &mut self.state else { return Poll::Pending };
        alarm.poll(context)
    }

    /// Somebody speaks: the silence begins anew.
    fn speak(&mut self) {
        self.state = match replace(&mut self.state, State::NoClock) {
            State::Silent(alarm) => State::Busy(alarm),
            state => state,
        };
    }

    fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Box<dyn Error + Send + Sync>>>> {
        if matches!(self.state, State::New) {
            self.state = timer::alarm().map_or(State::NoClock, State::Busy);
        }
        let is_to_end = self.is_to_end();
        if is_to_end && self.last >= LAST_EVENTS_MAX {
            return Poll::Ready(self.end());
        }
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        match source.as_mut().poll_event(context) {
            Poll::Ready(next) => {
                self.speak();
                self.last += usize::from(is_to_end);
                if !matches!(next, Some(Ok(_))) {
                    self.source = None;
                    self.state = State::NoClock;
                }
                Poll::Ready(next)
            }
            Poll::Pending if is_to_end => Poll::Ready(self.end()),
            Poll::Pending => self.poll_silence(context).map(|()| {
                self.speak();
                Some(Ok(Bytes::from_static(COMMENT)))
            }),
        }
    }
}

impl HttpBody for Events {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let event = self.poll_event(context);
        event.map(|event| event.map(|event| event.map(Frame::data).map_err(BodyError::Failed)))
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_none()
    }
}
