//! A request's body on its way to the handler: the connection's end of the pipe.

use bytes::Bytes;
use http::HeaderMap;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::Writer;
use std::task::{Context, Poll};

/// What the connection has to do for the body of the present request.
#[derive(Default)]
pub(crate) enum Upload {
    /// Nothing: there is no body, or all of it was received, or it broke off.
    #[default]
    Done,
    /// The body flows into a pipe.
    Flowing {
        pipe: Writer,
        /// The peer waits for an interim 100 response before it sends.
        is_awaited: bool,
        /// The peer told how much content there is.
        is_promised: bool,
    },
    /// Nobody wants the rest.
    Unwanted,
}

/// May more be received for the body?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Yes.
    Free,
    /// Yes, once an interim 100 response is sent.
    Awaited,
    /// Not before the handler takes what is there.
    Full,
    /// Not before the handler asks for the body, which the peer waits for.
    Unasked,
    /// There is nothing to receive, or nobody wants it.
    None,
}

impl Upload {
    /// Whether there is room. Registers the caller where there is none yet.
    pub(crate) fn poll_room(&mut self, context: &mut Context<'_>) -> Room {
        let Self::Flowing { pipe, is_awaited, .. } = self else { return Room::None };
        let polled = if *is_awaited { pipe.poll_wanted(context) } else { pipe.poll_room(context) };
        match polled {
            Poll::Pending if *is_awaited => Room::Unasked,
            Poll::Pending => Room::Full,
            Poll::Ready(Ok(())) if *is_awaited => {
                *is_awaited = false;
                Room::Awaited
            }
            Poll::Ready(Ok(())) => Room::Free,
            Poll::Ready(Err(_gone)) => {
                *self = Self::Unwanted;
                Room::None
            }
        }
    }

    /// Is there more to come that nobody wants?
    pub(crate) fn is_unwanted(&self) -> bool {
        match self {
            Self::Done => false,
            Self::Flowing { pipe, .. } => pipe.is_reader_gone(),
            Self::Unwanted => true,
        }
    }

    /// Is there somebody who may read on?
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::Flowing { pipe, is_awaited: false, .. } if !pipe.is_reader_gone())
    }

    /// Did the peer not tell how much content there is?
    pub(crate) fn is_open_ended(&self) -> bool {
        matches!(self, Self::Flowing { is_promised: false, .. })
    }

    /// Bytes that the reader has taken.
    pub(crate) fn consumed(&self) -> u64 {
        match self {
            Self::Flowing { pipe, .. } => pipe.consumed(),
            Self::Done | Self::Unwanted => 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        if let Self::Flowing { pipe, .. } = self {
            pipe.push(bytes);
        }
    }

    /// As [`Upload::push`], by a task that polls the reader next, if that is who waits: then nobody is woken. True if so.
    pub(crate) fn push_before_poll(&mut self, bytes: Bytes, context: &Context<'_>) -> bool {
        match self {
            Self::Flowing { pipe, .. } => pipe.push_before_poll(bytes, context),
            Self::Done | Self::Unwanted => false,
        }
    }

    /// The body is complete.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> HeaderMap) {
        if let Self::Flowing { pipe, .. } = std::mem::take(self) {
            pipe.finish(trailers());
        }
    }

    /// The body will not be complete, and `error` tells its reader.
    pub(crate) fn fail(&mut self, error: BodyError) {
        if let Self::Flowing { pipe, .. } = std::mem::take(self) {
            pipe.fail(error);
        }
    }
}
