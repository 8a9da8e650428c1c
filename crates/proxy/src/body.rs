//! The content of requests to upstreams, and of their responses.

use crate::attempt::later;
use crate::fields;
use crate::pool::{Pool, Sender};
use crate::slots::{Abort, Slot};
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
use tokio::time::{Instant, Sleep, sleep_until};

/// The progress of sending a request's content.
#[derive(Default)]
pub(crate) struct Progress {
    /// Whether any content was read.
    pub(crate) is_begun: Cell<bool>,
    /// When the upstream last accepted a part of the content, or its end.
    pub(crate) moved: Cell<Option<Instant>>,
    /// Whether more content must arrive from the client, for which the upstream is waiting too.
    pub(crate) is_waiting: Cell<bool>,
    /// The error that ended the content.
    pub(crate) error: RefCell<Option<BodyError>>,
}

/// The content of a request, in the form that the connection to the upstream reads.
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

/// The client's content failed; `Progress` has the error.
#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's content could not be read")
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

/// The amount that an upstream may send before the client reads its response: the window of an
/// HTTP/2 stream, or the read buffer of an HTTP/1.1 connection.
pub(crate) const UNREAD_BYTES_MAX: u32 = 64 * 1024;

/// A request in progress, which is counted for its upstream until it is dropped. It holds one of
/// the slots of its pool, and reserves the memory that its response may occupy while its client
/// does not read.
pub(crate) struct Busy {
    set: Arc<Set>,
    pub(crate) number: usize,
    slot: Slot,
    _unread: Charge,
}

impl Busy {
    pub(crate) fn new(set: &Arc<Set>, number: usize, slot: Slot) -> Self {
        set.all[number].busy.fetch_add(1, Ordering::Relaxed);
        let unread = Charge::of(UNREAD_BYTES_MAX as usize);
        Self { set: Arc::clone(set), number, slot, _unread: unread }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.set.all[self.number].busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The content of a response as it arrives. After its end, its connection is available for another
/// request.
pub(crate) struct Received {
    /// Shared with the slot, which may abort the response.
    response: Rc<Abortable>,
    pool: Rc<Pool>,
    idle_timeout: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
}

/// `None` once the response was aborted.
struct Abortable(RefCell<Option<Unread>>);

/// A response whose content has not been read to its end.
struct Unread {
    body: Incoming,
    /// `None` once the connection was returned to the pool or has failed.
    sender: Option<Sender>,
    busy: Option<Busy>,
}

/// The response was aborted because other clients needed its connection.
#[derive(Debug)]
struct Aborted;

impl fmt::Display for Aborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "aborted: the client did not read, and other clients waited for connections to the \
             upstream (Proxy::connections_max)",
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

impl Unread {
    fn end(&mut self, pool: &Rc<Pool>) {
        self.busy = None;
        if let Some(sender) = self.sender.take() {
            pool.give(sender);
        }
    }

    fn fail(&mut self) {
        (self.sender, self.busy) = (None, None);
    }

    fn set_unread(&self, is_unread: bool) {
        if let Some(busy) = &self.busy {
            busy.slot.set_unread(is_unread);
        }
    }
}

impl Received {
    pub(crate) fn new(
        body: Incoming,
        sender: Sender,
        pool: &Rc<Pool>,
        busy: Busy,
        idle_timeout: Duration,
    ) -> Self {
        let mut unread = Unread { body, sender: Some(sender), busy: Some(busy) };
        unread.set_unread(true);
        if unread.body.is_end_stream() {
            unread.end(pool);
        }
        let response = Rc::new(Abortable(RefCell::new(Some(unread))));
        if let Some(Unread { busy: Some(busy), .. }) = &*response.0.borrow() {
            let response: Rc<dyn Abort> = Rc::<Abortable>::clone(&response);
            busy.slot.set_response(Rc::downgrade(&response));
        }
        Self { response, pool: Rc::clone(pool), idle_timeout, alarm: None }
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let mut response = this.response.0.borrow_mut();
        let Some(unread) = &mut *response else {
            return Poll::Ready(Some(Err(BodyError::Failed(Aborted.into()))));
        };
        let Poll::Ready(frame) = Pin::new(&mut unread.body).poll_frame(context) else {
            unread.set_unread(false);
            // A timer is set only while the upstream is being waited for. Content that the client
            // does not read is not polled, so slow clients do not count.
            let until = later(Instant::now(), this.idle_timeout);
            let alarm = this.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
            ready!(alarm.as_mut().poll(context));
            unread.fail();
            return Poll::Ready(Some(Err(BodyError::TooSlow)));
        };
        this.alarm = None;
        match &frame {
            None => unread.end(&this.pool),
            Some(Err(_)) => unread.fail(),
            // A reader that knows the length does not poll again after the last frame.
            Some(Ok(_)) if unread.body.is_end_stream() => unread.end(&this.pool),
            Some(Ok(_)) => unread.set_unread(true),
        }
        Poll::Ready(frame.map(|frame| {
            frame.map(fields::trailers).map_err(|error| BodyError::Failed(error.into()))
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
