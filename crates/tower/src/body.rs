//! Bodies that are `Send`, as mounted services and tower layers require.
//!
//! Peregrine's own bodies are not `Send`. For a mounted service, this module converts a complete
//! body to bytes, and passes the frames of an incomplete body through a channel (`body_channel`).
//!
//! A tower layer usually passes the body on unchanged, on the same thread. So the body of a layer's
//! request stays in a thread-local table (`request_table`), and passes through a channel only if
//! another thread reads it.

use crate::body_channel::{BodyForwarder, ForwardedBody, PolledFrame};
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
/// [`NextService`](crate::NextService) and [`spawn_tower`](crate::spawn_tower). Bytes and strings
/// convert into it.
///
/// A body that was complete before the service was called is stored in this value. Any other body
/// requests one frame at a time from the connection's thread, and only when the service polls the
/// body. Trailers arrive as the last frame. Errors are [`BodyError`]s, such as
/// [`BodyError::Disconnected`] if the connection ends. A body over one of Peregrine's limits
/// instead fails with the `LengthLimitError` of `http-body-util`, which axum and tower's layers
/// convert to a 413.
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
    /// A complete body in Peregrine's own type, which keeps its pooled buffer. If the body is over
    /// its size limit, reading it yields an error.
    Full(FullBody),
    /// An incomplete body of a layer's request or response.
    Local(LocalBody),
    /// An incomplete body of a mounted service's request, or one that is read on another thread.
    Forwarded(ForwardedBody),
}

/// A reference to a body in the thread-local table of its thread.
struct LocalBody {
    handle: LocalHandle,
    /// The number of remaining bytes, if known.
    remaining: Option<u64>,
    is_ended: bool,
}

impl SendBody {
    /// Converts `body` into a `SendBody`. If `body` is incomplete or over its limit, also returns a
    /// forwarder, which the caller must poll on this thread for as long as the body may be read.
    pub(crate) fn from_body(mut body: Body) -> (Self, Option<BodyForwarder>) {
        if let Some(bytes) = body.as_slice() {
            return (Self(body_to_bytes(bytes.len(), &mut body)), None);
        }
        let remaining = body.length();
        let (forwarded, channel) = ForwardedBody::new(remaining);
        (Self(SendBodyKind::Forwarded(forwarded)), Some(BodyForwarder::new(body, channel)))
    }

    /// Converts `body` into a `SendBody`. If `body` is incomplete, it is stored in the row of the
    /// request that `request_ref` refers to, and the result refers to it.
    pub(crate) fn new_local(body: Body, request_ref: &Arc<RequestRef>) -> Self {
        let body = match body.try_into_full() {
            Ok(full) if full.is_empty() => return Self(SendBodyKind::Empty),
            Ok(full) => return Self(SendBodyKind::Full(full)),
            Err(body) => body,
        };
        let remaining = body.length();
        match request_ref.store(LocalValue::Body(body)) {
            Ok(handle) => {
                Self(SendBodyKind::Local(LocalBody { handle, remaining, is_ended: false }))
            }
            // The request is over, so no code would poll a forwarder for this body. The forwarder
            // is dropped here, and the body's reader gets an error.
            Err(LocalValue::Body(body)) => Self::from_body(body).0,
            Err(LocalValue::Call(_)) => unreachable!("the value is a body"),
        }
    }

    /// Returns the body as Peregrine's own type, if it is on this thread.
    ///
    /// # Errors
    /// The body is on another thread, passes through a channel, or belongs to a request that is
    /// over. It is returned unchanged.
    pub(crate) fn try_into_body(self) -> Result<Body, Self> {
        match self.0 {
            SendBodyKind::Empty => Ok(Body::empty()),
            SendBodyKind::Bytes(bytes) => Ok(bytes.into()),
            SendBodyKind::Full(full) => Ok(full.into()),
            SendBodyKind::Forwarded(_) => Err(self),
            SendBodyKind::Local(LocalBody { handle, remaining, is_ended }) => match handle.take() {
                Ok(LocalValue::Body(body)) => Ok(body),
                Ok(LocalValue::Call(_)) => unreachable!("the handle belongs to a body"),
                Err(handle) => {
                    Err(Self(SendBodyKind::Local(LocalBody { handle, remaining, is_ended })))
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

/// Converts a complete body of `length` bytes to `Empty` or `Bytes`.
fn body_to_bytes(length: usize, body: &mut Body) -> SendBodyKind {
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
    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<PolledFrame<BodyError>> {
        // Leaves `Empty`: `Bytes` and `Full` have a single frame, so nothing is left after it.
        match std::mem::take(&mut self.0) {
            SendBodyKind::Empty => Poll::Ready(None),
            SendBodyKind::Bytes(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            // A full body yields its single frame, or an error, at once.
            SendBodyKind::Full(full) => Pin::new(&mut Body::from(full)).poll_frame(cx),
            SendBodyKind::Local(mut local) => match local.poll_frame(cx) {
                Some(polled) => {
                    self.0 = SendBodyKind::Local(local);
                    polled
                }
                // This poll is on another thread, and the body is forwarded from now on.
                None => {
                    let (mut forwarded, channel) = ForwardedBody::new(local.remaining);
                    local.handle.forward_body(channel);
                    let polled = forwarded.poll_frame(cx);
                    self.0 = SendBodyKind::Forwarded(forwarded);
                    polled
                }
            },
            SendBodyKind::Forwarded(mut forwarded) => {
                let polled = forwarded.poll_frame(cx);
                self.0 = SendBodyKind::Forwarded(forwarded);
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
            SendBodyKind::Local(local) => local.is_ended,
            SendBodyKind::Forwarded(forwarded) => forwarded.is_ended,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            SendBodyKind::Empty => SizeHint::with_exact(0),
            SendBodyKind::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            SendBodyKind::Full(full) => SizeHint::with_exact(full.len() as u64),
            SendBodyKind::Local(LocalBody { remaining, .. })
            | SendBodyKind::Forwarded(ForwardedBody { remaining, .. }) => {
                remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
            }
        }
    }
}

impl LocalBody {
    /// Polls the next frame. Returns `None` if the body is on another thread.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Option<Poll<PolledFrame<BodyError>>> {
        if self.is_ended {
            return Some(Poll::Ready(None));
        }
        let lookup = self.handle.with(|value| match value {
            LocalValue::Body(body) => {
                let polled = Pin::new(&mut *body).poll_frame(cx);
                (polled, body.length(), body.is_end_stream())
            }
            LocalValue::Call(_) => unreachable!("the handle belongs to a body"),
        });
        let (polled, remaining, is_ended) = match lookup {
            LocalLookup::Local(state) => state,
            LocalLookup::OtherThread => return None,
            LocalLookup::Gone => (Poll::Ready(Some(Err(BodyError::Disconnected))), Some(0), true),
        };
        self.remaining = remaining;
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

/// A request body with its type erased, for requests sent to another thread.
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
