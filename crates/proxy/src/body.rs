//! The bodies of requests to upstreams, and of the responses from them.

use crate::attempt::saturating_add;
use crate::headers;
use crate::pool::{ConnectionPool, UpstreamConnection};
use crate::slots::{Abort, Slot};
use crate::upstreams::UpstreamSet;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use peregrine_web::memory::MemoryReservation;
use peregrine_web::{Body, BodyError};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// The progress of sending a request's content.
#[derive(Default)]
pub(crate) struct RequestProgress {
    /// Whether reading the content has begun.
    pub(crate) is_started: Cell<bool>,
    /// When the upstream last accepted a part of the content, or its end.
    pub(crate) last_activity: Cell<Option<Instant>>,
    /// Whether the upstream is waiting for content that the client has not sent yet.
    pub(crate) awaiting_client: Cell<bool>,
    /// The error that ended the content.
    pub(crate) error: RefCell<Option<BodyError>>,
}

/// The content of a request, in the form that the connection to the upstream reads.
pub(crate) struct UpstreamRequestBody {
    body: Body,
    progress: Rc<RequestProgress>,
}

impl UpstreamRequestBody {
    pub(crate) fn new(body: Body, progress: &Rc<RequestProgress>) -> Self {
        Self { body, progress: Rc::clone(progress) }
    }

    pub(crate) fn into_body(self) -> Body {
        self.body
    }
}

/// The client's content failed; [`RequestProgress`] has the error.
#[derive(Debug)]
pub(crate) struct RequestBodyError;

impl fmt::Display for RequestBodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's content could not be read")
    }
}

impl std::error::Error for RequestBodyError {}

impl HttpBody for UpstreamRequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let progress = Rc::clone(&self.progress);
        progress.is_started.set(true);
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        progress.awaiting_client.set(polled.is_pending());
        let frame = ready!(polled);
        progress.last_activity.set(Some(Instant::now()));
        Poll::Ready(frame.map(|frame| {
            frame.map(headers::filter_trailers).map_err(|error| {
                *progress.error.borrow_mut() = Some(error);
                RequestBodyError
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The amount that an upstream may send before the client reads its response: the window of an
/// HTTP/2 stream, or the read buffer of an HTTP/1.1 connection.
pub(crate) const UNREAD_BYTES_MAX: u32 = 64 * 1024;

/// A request in progress, which is counted for its upstream until it is dropped. It holds one of
/// the slots of its pool, and reserves the memory that its response may occupy while its client
/// does not read.
pub(crate) struct InFlightAttempt {
    set: Arc<UpstreamSet>,
    /// The index of the upstream in `set`.
    pub(crate) index: usize,
    slot: Slot,
    _reservation: MemoryReservation,
}

impl InFlightAttempt {
    pub(crate) fn new(set: &Arc<UpstreamSet>, index: usize, slot: Slot) -> Self {
        set.upstreams[index].in_flight.fetch_add(1, Ordering::Relaxed);
        let reservation = MemoryReservation::new(UNREAD_BYTES_MAX as usize);
        Self { set: Arc::clone(set), index, slot, _reservation: reservation }
    }
}

impl Drop for InFlightAttempt {
    fn drop(&mut self) {
        self.set.upstreams[self.index].in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The content of a response as it arrives. After its end, its connection is available for another
/// request.
pub(crate) struct UpstreamResponseBody {
    /// Shared with the slot, which may abort the response.
    response: Rc<Abortable>,
    pool: Rc<ConnectionPool>,
    idle_timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A response that its slot can abort; `None` afterwards.
struct Abortable(RefCell<Option<UnreadResponse>>);

/// A response whose content has not been read to its end.
struct UnreadResponse {
    body: Incoming,
    /// `None` once the connection was returned to the pool or has failed.
    connection: Option<UpstreamConnection>,
    in_flight: Option<InFlightAttempt>,
}

/// The response was aborted because other clients needed its connection.
#[derive(Debug)]
struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "aborted: the client did not read, and other clients waited for connections to the \
             upstream (ReverseProxy::connections_max)",
        )
    }
}

impl std::error::Error for Aborted {}

impl Abort for Abortable {
    fn abort(&self) {
        let unread = self.0.borrow_mut().take();
        drop(unread);
    }
}

impl UnreadResponse {
    fn release_connection(&mut self, pool: &Rc<ConnectionPool>) {
        self.in_flight = None;
        if let Some(connection) = self.connection.take() {
            pool.put_idle(connection);
        }
    }

    fn drop_connection(&mut self) {
        (self.connection, self.in_flight) = (None, None);
    }

    fn set_unread(&self, is_unread: bool) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.slot.set_unread(is_unread);
        }
    }
}

impl UpstreamResponseBody {
    pub(crate) fn new(
        body: Incoming,
        connection: UpstreamConnection,
        pool: &Rc<ConnectionPool>,
        in_flight: InFlightAttempt,
        idle_timeout: Duration,
    ) -> Self {
        let mut unread =
            UnreadResponse { body, connection: Some(connection), in_flight: Some(in_flight) };
        unread.set_unread(true);
        if unread.body.is_end_stream() {
            unread.release_connection(pool);
        }
        let response = Rc::new(Abortable(RefCell::new(Some(unread))));
        if let Some(UnreadResponse { in_flight: Some(in_flight), .. }) = &*response.0.borrow() {
            let response: Rc<dyn Abort> = Rc::<Abortable>::clone(&response);
            in_flight.slot.set_response(Rc::downgrade(&response));
        }
        Self { response, pool: Rc::clone(pool), idle_timeout, timer: None }
    }
}

impl HttpBody for UpstreamResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut response = this.response.0.borrow_mut();
        let Some(unread) = &mut *response else {
            return Poll::Ready(Some(Err(BodyError::Stream(Aborted.into()))));
        };
        let Poll::Ready(frame) = Pin::new(&mut unread.body).poll_frame(cx) else {
            unread.set_unread(false);
            // The timer runs only while waiting for the upstream: the body is not polled while its
            // client does not read, so a slow client does not cause a timeout.
            let until = saturating_add(Instant::now(), this.idle_timeout);
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
            ready!(timer.as_mut().poll(cx));
            unread.drop_connection();
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        this.timer = None;
        match &frame {
            None => unread.release_connection(&this.pool),
            Some(Err(_)) => unread.drop_connection(),
            // A reader that knows the length does not poll again after the last frame.
            Some(Ok(_)) if unread.body.is_end_stream() => unread.release_connection(&this.pool),
            Some(Ok(_)) => unread.set_unread(true),
        }
        Poll::Ready(frame.map(|frame| {
            frame.map(headers::filter_trailers).map_err(|error| BodyError::Stream(error.into()))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.response.0.borrow().as_ref().is_some_and(|unread| unread.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let response = self.response.0.borrow();
        response.as_ref().map_or_else(SizeHint::default, |unread| unread.body.size_hint())
    }
}

/// An empty body with the length that a response to GET would have, if the upstream sent one.
pub(crate) struct HeadResponseBody(pub(crate) Option<u64>);

impl HttpBody for HeadResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
