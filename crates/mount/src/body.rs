//! Request bodies that are `Send`, as mounted services and tower layers require.
//!
//! Peregrine's own bodies are not `Send`. For a mounted service, this module converts a complete
//! body to bytes, and moves the frames of an incomplete body through a channel (`body_channel`).
//!
//! A tower layer usually passes the body on unchanged, on the same thread. So the body of a layer's
//! request stays in a thread-local table (`request_table`). It moves through a channel only if
//! another thread reads it.

use crate::body_channel::{BodyForwarder, ForwardedBody, FrameResult};
use crate::error::{BoxError, to_tower_error};
use crate::request_table::{LocalHandle, LocalLookup, LocalValue, RequestRef};
use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::body::FullBody;
use peregrine_web::{Body, BodyError};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

/// A complete body of up to this size is copied, so that its buffer returns to the thread's buffer
/// pool. A larger body keeps its buffer.
const COPIED_BYTES_MAX: usize = 8 * 1024;

/// A body that is `Send`, for requests to mounted services and tower layers, and for responses of
/// [`spawn_tower`](crate::spawn_tower). Bytes and strings convert into it.
///
/// A body that was complete before the service was called consists of its bytes only. Any other
/// body requests one frame at a time from the connection's thread, and only when the service polls
/// the body. Trailers arrive as the last frame. An error is a [`BodyError`], such as
/// [`BodyError::Disconnected`] if the connection ends. A body over one of Peregrine's limits fails
/// with the `LengthLimitError` of `http-body-util`, which axum and tower's layers convert to a 413.
///
/// ```
/// use http_body::Body as _;
/// use peregrine::tower::SendBody;
///
/// let body = SendBody::default();
/// assert!(body.is_end_stream());
/// assert_eq!(SendBody::from("text").size_hint().exact(), Some(4));
/// ```
#[derive(Default)]
pub struct SendBody(SendBodyKind);

#[derive(Default)]
enum SendBodyKind {
    #[default]
    Empty,
    Bytes(Bytes),
    /// A complete body in Peregrine's own type, which keeps a pooled buffer or a size limit.
    Full(FullBody),
    Local(LocalBody),
    Forwarded(ForwardedBody),
}

/// A reference to a body that stays on its thread.
struct LocalBody {
    handle: LocalHandle,
    /// Remaining bytes, if known.
    remaining: Option<u64>,
    is_ended: bool,
}

impl SendBody {
    /// Converts `body` into a `SendBody`. If `body` is incomplete, also returns a pump, which the
    /// caller must poll on this thread for as long as the body may be read.
    pub(crate) fn into_forwarded(mut body: Body) -> (Self, Option<BodyForwarder>) {
        if let Some(bytes) = body.as_slice() {
            return (Self(full_body(bytes.len(), &mut body)), None);
        }
        let left = body.length();
        let (bridged, bridge) = ForwardedBody::new(left);
        (Self(SendBodyKind::Forwarded(bridged)), Some(BodyForwarder::new(body, bridge)))
    }

    /// Stores `body` in the row of the request that `passage` refers to.
    pub(crate) fn new_local(body: Body, passage: &Arc<RequestRef>) -> Self {
        let body = match body.try_into_full() {
            Ok(whole) if whole.is_empty() => return Self(SendBodyKind::Empty),
            Ok(whole) => return Self(SendBodyKind::Full(whole)),
            Err(body) => body,
        };
        let left = body.length();
        match passage.store(LocalValue::Body(body)) {
            Ok(handle) => {
                Self(SendBodyKind::Local(LocalBody { handle, remaining: left, is_ended: false }))
            }
            // The request is over, so nothing would poll a pump for this body. The pump is dropped
            // here, and the body's reader gets an error.
            Err(LocalValue::Body(body)) => Self::into_forwarded(body).0,
            Err(LocalValue::Call(_)) => unreachable!("the value is a body"),
        }
    }

    /// Returns the Peregrine body, if it is on this thread.
    ///
    /// # Errors
    /// The body is on another thread. It is returned unchanged.
    pub(crate) fn try_into_body(self) -> Result<Body, Self> {
        match self.0 {
            SendBodyKind::Empty => Ok(Body::empty()),
            SendBodyKind::Bytes(bytes) => Ok(bytes.into()),
            SendBodyKind::Full(whole) => Ok(whole.into()),
            SendBodyKind::Forwarded(_) => Err(self),
            SendBodyKind::Local(LocalBody { handle, remaining: left, is_ended }) => match handle
                .take()
            {
                Ok(LocalValue::Body(body)) => Ok(body),
                Ok(LocalValue::Call(_)) => unreachable!("the handle belongs to a body"),
                Err(handle) => {
                    Err(Self(SendBodyKind::Local(LocalBody { handle, remaining: left, is_ended })))
                }
            },
        }
    }
}

impl From<Bytes> for SendBody {
    fn from(bytes: Bytes) -> Self {
        Self(if bytes.is_empty() { SendBodyKind::Empty } else { SendBodyKind::Bytes(bytes) })
    }
}

impl From<Vec<u8>> for SendBody {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<String> for SendBody {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<&'static str> for SendBody {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

fn full_body(length: usize, body: &mut Body) -> SendBodyKind {
    if length == 0 {
        return SendBodyKind::Empty;
    }
    if length <= COPIED_BYTES_MAX {
        return SendBodyKind::Bytes(Bytes::copy_from_slice(body.as_slice().unwrap_or_default()));
    }
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(body).poll_frame(&mut cx) {
        Poll::Ready(Some(Ok(frame))) => SendBodyKind::Bytes(frame.into_data().unwrap_or_default()),
        _ => unreachable!("a body that is a slice yields it as one frame"),
    }
}

impl SendBody {
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<FrameResult> {
        match std::mem::take(&mut self.0) {
            SendBodyKind::Empty => Poll::Ready(None),
            SendBodyKind::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            SendBodyKind::Full(whole) => Pin::new(&mut Body::from(whole)).poll_frame(cx),
            SendBodyKind::Local(mut kept) => match kept.poll_frame(cx) {
                Some(polled) => {
                    self.0 = SendBodyKind::Local(kept);
                    polled
                }
                None => {
                    let (mut bridged, bridge) = ForwardedBody::new(kept.remaining);
                    kept.handle.forward_body(bridge);
                    let polled = bridged.poll_frame(cx);
                    self.0 = SendBodyKind::Forwarded(bridged);
                    polled
                }
            },
            SendBodyKind::Forwarded(mut bridged) => {
                let polled = bridged.poll_frame(cx);
                self.0 = SendBodyKind::Forwarded(bridged);
                polled
            }
        }
    }
}

impl HttpBody for SendBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.poll_inner(cx));
        Poll::Ready(frame.map(|frame| frame.map_err(to_tower_error)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            SendBodyKind::Empty => true,
            SendBodyKind::Bytes(_) | SendBodyKind::Full(_) => false,
            SendBodyKind::Local(kept) => kept.is_ended,
            SendBodyKind::Forwarded(bridged) => bridged.is_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            SendBodyKind::Empty => SizeHint::with_exact(0),
            SendBodyKind::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            SendBodyKind::Full(whole) => SizeHint::with_exact(whole.len() as u64),
            SendBodyKind::Local(LocalBody { remaining: left, .. })
            | SendBodyKind::Forwarded(ForwardedBody { remaining: left, .. }) => {
                left.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl LocalBody {
    /// Polls the next frame. Returns `None` if the body is on another thread.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Option<Poll<FrameResult>> {
        if self.is_ended {
            return Some(Poll::Ready(None));
        }
        let found = self.handle.with(|thing| match thing {
            LocalValue::Body(body) => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                (polled, body.length(), body.is_end_stream())
            }
            LocalValue::Call(_) => unreachable!("the handle belongs to a body"),
        });
        let (polled, left, is_ended) = match found {
            LocalLookup::Local(found) => found,
            LocalLookup::OtherThread => return None,
            LocalLookup::Gone => (Poll::Ready(Some(Err(BodyError::Disconnected))), Some(0), true),
        };
        self.remaining = left;
        self.is_ended = is_ended || matches!(polled, Poll::Ready(None | Some(Err(_))));
        Some(polled)
    }
}

impl fmt::Debug for SendBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.size_hint().exact() {
            Some(length) => write!(f, "SendBody({length} bytes)"),
            None => f.write_str("SendBody(stream)"),
        }
    }
}

/// A request's body with its type erased, to be sent to the thread of an application.
pub(crate) struct SendBoxBody(Pin<Box<dyn HttpBody<Data = Bytes, Error = BoxError> + Send>>);

impl SendBoxBody {
    pub(crate) fn new<B: HttpBody<Error: Into<BoxError>> + Send + 'static>(body: B) -> Self {
        Self(Box::pin(BytesBody(Box::pin(body))))
    }
}

/// Converts a body's data to [`Bytes`] and its errors to [`BoxError`].
struct BytesBody<B>(Pin<Box<B>>);

impl<B: HttpBody<Error: Into<BoxError>>> HttpBody for BytesBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.0.as_mut().poll_frame(cx));
        let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(bytes)).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl HttpBody for SendBoxBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
