//! The connection's end of the pipe through which a handler reads a request's body.

use bytes::Bytes;
use http::HeaderMap;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::Writer;
use std::task::{Context, Poll};

/// The state of receiving the current request's body.
#[derive(Default)]
pub(crate) enum Upload {
    /// There is no body, or all of it was received, or receiving it failed.
    #[default]
    Done,
    /// The body is sent through a pipe.
    Flowing {
        pipe: Writer,
        /// Whether the peer waits for `100 Continue` before it sends the body.
        is_awaited: bool,
        /// Whether the peer declared the length of the content.
        is_promised: bool,
    },
    /// The rest of the body is unwanted.
    Unwanted,
}

/// Whether more of the body may be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Yes.
    Free,
    /// Yes, after the caller has sent `100 Continue`.
    Awaited,
    /// No: the pipe is full until the handler reads.
    Full,
    /// No: the peer waits for `100 Continue`, and the handler has not started to read the body.
    Unasked,
    /// No: there is nothing to receive, or the rest is unwanted.
    None,
}

impl Upload {
    /// Returns whether more may be received. If not, the task of `context` is woken when that
    /// changes.
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

    /// Returns whether the rest of the body is unwanted.
    pub(crate) fn is_unwanted(&self) -> bool {
        match self {
            Self::Done => false,
            Self::Flowing { pipe, .. } => pipe.is_reader_gone(),
            Self::Unwanted => true,
        }
    }

    /// Returns whether the body's reader still exists and may read more.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self, Self::Flowing { pipe, is_awaited: false, .. } if !pipe.is_reader_gone())
    }

    /// Returns whether the length of the content is unknown.
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

    /// Like [`Upload::push`], for a task that is about to poll the reader. If that same task is
    /// waiting for content, it is not woken, and the method returns true.
    pub(crate) fn push_before_poll(&mut self, bytes: Bytes, context: &Context<'_>) -> bool {
        match self {
            Self::Flowing { pipe, .. } => pipe.push_before_poll(bytes, context),
            Self::Done | Self::Unwanted => false,
        }
    }

    /// Tells the reader that the body is complete.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> HeaderMap) {
        if let Self::Flowing { pipe, .. } = std::mem::take(self) {
            pipe.finish(trailers());
        }
    }

    /// Ends an incomplete body: its reader gets `error`.
    pub(crate) fn fail(&mut self, error: BodyError) {
        if let Self::Flowing { pipe, .. } = std::mem::take(self) {
            pipe.fail(error);
        }
    }
}
