//! The connection's end of the pipe through which a handler reads a request's body.

use bytes::Bytes;
use http::HeaderMap;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::PipeWriter;
use std::task::{Context, Poll};

/// The state of receiving the current request's body.
#[derive(Default)]
pub(crate) enum RequestBodySender {
    /// There is no body, or all of it was received, or receiving it failed.
    #[default]
    Complete,
    /// The body is sent through a pipe.
    Open {
        pipe: PipeWriter,
        /// Whether the peer waits for `100 Continue` before it sends the body.
        awaits_continue: bool,
        /// Whether the peer declared the length of the content.
        has_length: bool,
    },
    /// The rest of the body is unwanted.
    Discarding,
}

/// Whether more of the body may be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyCapacity {
    /// Yes.
    Ready,
    /// Yes, after the caller has sent `100 Continue`.
    SendContinue,
    /// No: the pipe is full until the handler reads.
    Full,
    /// No: the peer waits for `100 Continue`, and the handler has not started to read the body.
    AwaitingDemand,
    /// No: there is nothing to receive, or the rest is unwanted.
    Closed,
}

impl RequestBodySender {
    /// Returns whether more may be received. If not, the task of `cx` is woken when that changes.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> BodyCapacity {
        let Self::Open { pipe, awaits_continue, .. } = self else {
            return BodyCapacity::Closed;
        };
        let capacity = if *awaits_continue { pipe.poll_demand(cx) } else { pipe.poll_capacity(cx) };
        match capacity {
            Poll::Pending if *awaits_continue => BodyCapacity::AwaitingDemand,
            Poll::Pending => BodyCapacity::Full,
            Poll::Ready(Ok(())) if *awaits_continue => {
                *awaits_continue = false;
                BodyCapacity::SendContinue
            }
            Poll::Ready(Ok(())) => BodyCapacity::Ready,
            Poll::Ready(Err(_closed)) => {
                *self = Self::Discarding;
                BodyCapacity::Closed
            }
        }
    }

    /// Returns whether the rest of the body is unwanted.
    pub(crate) fn is_discarding(&self) -> bool {
        match self {
            Self::Complete => false,
            Self::Open { pipe, .. } => pipe.is_closed(),
            Self::Discarding => true,
        }
    }

    /// Returns whether the body's reader still exists and may read more.
    pub(crate) fn has_reader(&self) -> bool {
        matches!(self, Self::Open { pipe, awaits_continue: false, .. } if !pipe.is_closed())
    }

    /// Returns whether the length of the content is unknown.
    pub(crate) fn has_unknown_length(&self) -> bool {
        matches!(self, Self::Open { has_length: false, .. })
    }

    /// How many bytes the reader has read.
    pub(crate) fn consumed(&self) -> u64 {
        match self {
            Self::Open { pipe, .. } => pipe.consumed(),
            Self::Complete | Self::Discarding => 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        if let Self::Open { pipe, .. } = self {
            pipe.send(bytes);
        }
    }

    /// Like [`RequestBodySender::push`], for a task that is about to poll the reader. If that same
    /// task is waiting for content, it is not woken, and the method returns true.
    pub(crate) fn push_without_wake(&mut self, bytes: Bytes, cx: &Context<'_>) -> bool {
        match self {
            Self::Open { pipe, .. } => pipe.send_without_wake(bytes, cx),
            Self::Complete | Self::Discarding => false,
        }
    }

    /// Ends a complete body.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> HeaderMap) {
        if let Self::Open { pipe, .. } = std::mem::take(self) {
            pipe.finish(trailers());
        }
    }

    /// Ends an incomplete body: its reader gets `error`.
    pub(crate) fn fail(&mut self, error: BodyError) {
        if let Self::Open { pipe, .. } = std::mem::take(self) {
            pipe.send_error(error);
        }
    }
}
