//! Content on its way: to the upstream, and back.

use crate::attempt::later;
use crate::fields;
use crate::pool::{Pool, Sender};
use crate::upstreams::Set;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use peregrine_web::account::Charge;
use peregrine_web::{Body, BodyError};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep_until};

/// How far a request's content is.
#[derive(Default)]
pub(crate) struct Progress {
    /// Was any of it asked for?
    pub(crate) is_begun: Cell<bool>,
    /// When the upstream last took some of it, or all.
    pub(crate) moved: Cell<Option<Instant>>,
    /// Is there more to come from the client, for which the upstream waits too?
    pub(crate) is_waiting: Cell<bool>,
    /// What broke it off.
    pub(crate) error: RefCell<Option<BodyError>>,
}

/// The content of a request, as the connection to the upstream has it.
pub(crate) struct Sent {
    body: Body,
    progress: Rc<Progress>,
}

impl Sent {
    pub(crate) fn new(body: Body, progress: &Rc<Progress>) -> Self {
        Self { body, progress: Rc::clone(progress) }
    }

    pub(crate) fn into_body(self) -> Body {
        self.body
    }
}

/// The client's content broke off; `Progress` knows why.
#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the content of the request broke off")
    }
}

impl std::error::Error for Broken {}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let progress = Rc::clone(&self.progress);
        progress.is_begun.set(true);
        let polled = Pin::new(&mut self.body).poll_frame(context);
        progress.is_waiting.set(polled.is_pending());
        let frame = ready!(polled);
        progress.moved.set(Some(Instant::now()));
        Poll::Ready(frame.map(|frame| {
            frame.map(fields::trailers).map_err(|error| {
                *progress.error.borrow_mut() = Some(error);
                Broken
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

/// What an upstream may send before its response is read: the window of a stream of HTTP/2, or the
/// read buffer of a connection of HTTP/1.1.
pub(crate) const UNREAD_BYTES_MAX: u32 = 64 * 1024;

/// A request in progress, which counts for its upstream until it is dropped. It holds one of the
/// places of its pool, and is charged with all that its response may occupy while its client reads
/// nothing.
pub(crate) struct Busy {
    set: Arc<Set>,
    pub(crate) number: usize,
    _place: OwnedSemaphorePermit,
    _unread: Charge,
}

impl Busy {
    pub(crate) fn new(set: &Arc<Set>, number: usize, place: OwnedSemaphorePermit) -> Self {
        set.all[number].busy.fetch_add(1, Ordering::Relaxed);
        let unread = Charge::of(UNREAD_BYTES_MAX as usize);
        Self { set: Arc::clone(set), number, _place: place, _unread: unread }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.set.all[self.number].busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The content of a response, as it comes. When it has ended, its connection waits for another request.
pub(crate) struct Received {
    body: Incoming,
    /// None: the connection has another end.
    sender: Option<Sender>,
    pool: Rc<Pool>,
    busy: Option<Busy>,
    idle_timeout: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl Received {
    pub(crate) fn new(
        body: Incoming,
        sender: Sender,
        pool: &Rc<Pool>,
        busy: Busy,
        idle_timeout: Duration,
    ) -> Self {
        let mut received = Self {
            body,
            sender: Some(sender),
            pool: Rc::clone(pool),
            busy: Some(busy),
            idle_timeout,
            alarm: None,
        };
        if received.body.is_end_stream() {
            received.end();
        }
        received
    }

    fn end(&mut self) {
        self.busy = None;
        if let Some(sender) = self.sender.take() {
            self.pool.give(sender);
        }
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            // Only a wait costs a timer. What the client does not take is not asked for, and so does not count.
            let until = later(Instant::now(), self.idle_timeout);
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
            ready!(alarm.as_mut().poll(context));
            (self.sender, self.busy) = (None, None);
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        self.alarm = None;
        match &frame {
            None => self.end(),
            Some(Err(_)) => (self.sender, self.busy) = (None, None),
            // Who knows the length does not ask once more.
            Some(Ok(_)) if self.body.is_end_stream() => self.end(),
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame.map(|frame| {
            frame.map(fields::trailers).map_err(|error| BodyError::Failed(error.into()))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// No content, but the length of what a GET would have, as far as the upstream told it.
pub(crate) struct Promised(pub(crate) Option<u64>);

impl HttpBody for Promised {
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
