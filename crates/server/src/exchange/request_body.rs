//! The connection's end of the pipe through which a handler reads a request's body.

use bytes::Bytes;
use http::HeaderMap;
use peregrine_web::body::BodyError;
use peregrine_web::pipe::PipeWriter;
use std::task::{Context, Poll};

/// Passes the body of the current request to its reader.
#[derive(Default)]
pub(crate) enum RequestBodySender {
    /// The request has no body, or its body was received completely or failed.
    #[default]
    Finished,
    /// Received content is sent through a pipe.
    Open {
        pipe: PipeWriter,
        /// Whether the peer still waits for `100 Continue` before it sends the body.
        awaits_continue: bool,
        /// Whether the peer declared the length of the body.
        has_length: bool,
    },
    /// The reader was dropped or will not read the rest of the body, which is discarded.
    Discarding,
}

/// Whether the caller can receive more of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyCapacity {
    /// More may be received.
    Ready,
    /// More may be received after the caller has sent `100 Continue`.
    SendContinue,
    /// The pipe is full until the handler reads.
    Full,
    /// The peer expects `100 Continue`, and the handler has not started to read the body.
    AwaitingDemand,
    /// There is nothing more to receive.
    Finished,
    /// The reader needs no more, so the rest is to be discarded.
    Discarding,
}

impl RequestBodySender {
    /// Returns whether more may be received. After `Full` and `AwaitingDemand`, the task of `cx` is
    /// woken when that changes.
    pub(crate) fn poll_capacity(&mut self, cx: &mut Context<'_>) -> BodyCapacity {
        let (pipe, awaits_continue) = match self {
            Self::Finished => return BodyCapacity::Finished,
            Self::Discarding => return BodyCapacity::Discarding,
            Self::Open { pipe, awaits_continue, .. } => (pipe, awaits_continue),
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
                BodyCapacity::Discarding
            }
        }
    }

    /// Returns whether the rest of the body is to be discarded.
    pub(crate) fn is_discarding(&self) -> bool {
        match self {
            Self::Finished => false,
            Self::Open { pipe, .. } => pipe.is_closed(),
            Self::Discarding => true,
        }
    }

    /// Returns whether the body's reader still exists and may read more. A reader does not count
    /// while the peer still waits for `100 Continue`.
    pub(crate) fn has_reader(&self) -> bool {
        matches!(self, Self::Open { pipe, awaits_continue: false, .. } if !pipe.is_closed())
    }

    /// Returns whether a body of unknown length is being received.
    pub(crate) fn has_unknown_length(&self) -> bool {
        matches!(self, Self::Open { has_length: false, .. })
    }

    /// How many bytes the reader has read; 0 unless the body is open.
    pub(crate) fn consumed(&self) -> u64 {
        match self {
            Self::Open { pipe, .. } => pipe.consumed(),
            Self::Finished | Self::Discarding => 0,
        }
    }

    /// Passes content to the reader. Has no effect unless the body is open.
    pub(crate) fn push(&mut self, bytes: Bytes) {
        if let Self::Open { pipe, .. } = self {
            pipe.send(bytes);
        }
    }

    /// Like [`RequestBodySender::push`], but does not wake the reader if the task of `cx` also
    /// polls the reader. In that case, returns true, and that task must poll the reader again.
    pub(crate) fn push_without_wake(&mut self, bytes: Bytes, cx: &Context<'_>) -> bool {
        match self {
            Self::Open { pipe, .. } => pipe.send_without_wake(bytes, cx),
            Self::Finished | Self::Discarding => false,
        }
    }

    /// Completes the body with its trailers.
    pub(crate) fn finish(&mut self, trailers: impl FnOnce() -> HeaderMap) {
        if let Self::Open { pipe, .. } = std::mem::take(self) {
            pipe.finish(trailers());
        }
    }

    /// Fails an incomplete body: its reader gets `error`.
    pub(crate) fn fail(&mut self, error: BodyError) {
        if let Self::Open { pipe, .. } = std::mem::take(self) {
            pipe.send_error(error);
        }
    }
}
