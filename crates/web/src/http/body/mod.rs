//! Bodies of requests and responses: empty, complete in memory, or a stream.

mod error;
pub(crate) mod limits;
mod part;
pub(crate) mod pipe;
pub(crate) mod pool;

pub use self::error::BodyError;
pub use self::limits::BodyLimits;
pub use self::part::{BodyPart, FileBody};

use self::pipe::{PipeFrame, PipeReader};
use crate::http::memory::{MemoryPressure, MemoryReservation, pressure};
use crate::http::panic::catch_panic;
use bytes::Bytes;
use futures_core::Stream;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a request or a response.
///
/// A body implements [`http_body::Body`], so it works with tower services and axum, and
/// [`futures_core::Stream`]. [`Body::new`] and [`Body::from_stream`] convert from those traits. A
/// body that was complete before the handler ran costs no allocation and no copy.
///
/// # Limits
///
/// A body has one limit ([`Body::limit`]), which is checked when the body is read, not before,
/// whether the body is complete or still arriving. Each limit that is set replaces the previous
/// one. The innermost is set last, so it applies, even if it is larger than the others: the route's
/// ([`HandlerExt::body_limit`](crate::HandlerExt::body_limit)), else that of the innermost
/// middleware that called [`Body::limited`], else the server's. When middleware reads a body, the
/// inner limits are not set yet.
///
/// A body that is known to be too large fails at the first attempt to read it, before the server
/// sends 100 (Continue) to a client that waits for it. A body of unknown length fails once it
/// exceeds its limit. After that the body is empty, and the rest is not received.
#[doc(alias = "Payload")]
#[derive(Default)]
pub struct Body {
    kind: BodyKind,
    limits: BodyLimits,
    /// The number of bytes read so far.
    bytes_read: u64,
}

#[derive(Default)]
enum BodyKind {
    #[default]
    Empty,
    Static(&'static [u8]),
    Bytes(Bytes),
    /// A buffer, from the thread's pool or not, that goes to the pool when the body is dropped.
    Buffer(Vec<u8>),
    Incoming(PipeReader),
    /// A body that the application supplied: any call to it may panic.
    Stream(BoxFileBody),
}

type BoxFileBody = Pin<Box<dyn FileBody>>;

/// A complete [`Body`] with its limit, in a form that can move to another thread.
#[doc(alias = "Full")]
#[derive(Debug, Default)]
pub struct FullBody {
    kind: FullKind,
    limits: BodyLimits,
    bytes_read: u64,
}

#[derive(Debug, Default)]
enum FullKind {
    #[default]
    Empty,
    Static(&'static [u8]),
    Bytes(Bytes),
    Buffer(Vec<u8>),
}

impl FullBody {
    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.kind {
            FullKind::Empty => 0,
            FullKind::Static(bytes) => bytes.len(),
            FullKind::Bytes(bytes) => bytes.len(),
            FullKind::Buffer(buffer) => buffer.len(),
        }
    }

    /// Whether the body is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<FullBody> for Body {
    fn from(body: FullBody) -> Self {
        let FullBody { kind, limits, bytes_read } = body;
        let kind = match kind {
            FullKind::Empty => BodyKind::Empty,
            FullKind::Static(bytes) => BodyKind::Static(bytes),
            FullKind::Bytes(bytes) => BodyKind::Bytes(bytes),
            FullKind::Buffer(buffer) => BodyKind::Buffer(buffer),
        };
        Self { kind, limits, bytes_read }
    }
}

impl Body {
    const fn from_kind(kind: BodyKind) -> Self {
        Self { kind, limits: BodyLimits::NONE, bytes_read: 0 }
    }

    /// An empty body.
    #[must_use]
    pub const fn empty() -> Self {
        Self::from_kind(BodyKind::Empty)
    }

    /// A body in `buffer`, which goes to the thread's pool ([`crate::pool`]) when the body is
    /// dropped.
    #[must_use]
    pub fn from_pooled(buffer: Vec<u8>) -> Self {
        Self::from_kind(BodyKind::Buffer(buffer))
    }

    /// A body that a connection receives and passes on through a pipe. Reading more than `limit`
    /// bytes is an error, unless [`Body::limited`] sets another limit.
    #[must_use]
    pub fn incoming(reader: PipeReader, limit: u64) -> Self {
        Self::from_kind(BodyKind::Incoming(reader)).limited(limit)
    }

    /// Converts any [`http_body::Body`], which need not be `Send`. A [`BodyError`] that the body
    /// yields is passed on unchanged.
    ///
    /// If `size_hint` panics, the length counts as unknown. If the destructor panics, the panic is
    /// only logged. A panic while the body is polled propagates to the reader.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::from_kind(BodyKind::Stream(Box::pin(
            body.map_err(|error| BodyError::downcast(error.into())),
        )))
    }

    /// A body that contains parts of files, which some connections send without reading them.
    pub fn from_file_body(body: impl FileBody + 'static) -> Self {
        Self::from_kind(BodyKind::Stream(Box::pin(body)))
    }

    /// Converts a stream, whose items are sent as they arrive. The length is unknown, so HTTP/1.1
    /// sends the body chunked. A [`BodyError`] that the stream yields is passed on unchanged.
    #[doc(alias = "wrap_stream")]
    #[doc(alias = "StreamBody")]
    pub fn from_stream<S, T, E>(stream: S) -> Self
    where
        S: Stream<Item = Result<T, E>> + 'static,
        T: Into<Bytes>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self::from_kind(BodyKind::Stream(Box::pin(StreamFrames(Box::pin(stream)))))
    }

    /// The whole body, if it is complete and within its limit.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.as_full().filter(|bytes| self.limit_error(bytes.len() as u64).is_none())
    }

    /// The number of bytes of memory that only this body holds. Static content, content shared with
    /// other owners, and streams do not count.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.kind {
            BodyKind::Bytes(bytes) if bytes.is_unique() => bytes.len(),
            BodyKind::Buffer(bytes) => bytes.capacity(),
            _ => 0,
        }
    }

    /// The whole body if it is complete, regardless of its limit.
    fn as_full(&self) -> Option<&[u8]> {
        match &self.kind {
            BodyKind::Empty => Some(&[]),
            BodyKind::Static(bytes) => Some(bytes),
            BodyKind::Bytes(bytes) => Some(bytes),
            BodyKind::Buffer(bytes) => Some(bytes),
            BodyKind::Incoming(_) | BodyKind::Stream(_) => None,
        }
    }

    /// Converts a complete body into a form that can move to another thread.
    ///
    /// # Errors
    /// The body is not complete; it is returned unchanged.
    pub fn try_into_full(mut self) -> Result<FullBody, Self> {
        let kind = match std::mem::take(&mut self.kind) {
            BodyKind::Empty => FullKind::Empty,
            BodyKind::Static(bytes) => FullKind::Static(bytes),
            BodyKind::Bytes(bytes) => FullKind::Bytes(bytes),
            BodyKind::Buffer(buffer) => FullKind::Buffer(buffer),
            kind @ (BodyKind::Incoming(_) | BodyKind::Stream(_)) => {
                self.kind = kind;
                return Err(self);
            }
        };
        Ok(FullBody { kind, limits: self.limits, bytes_read: self.bytes_read })
    }

    /// The number of bytes still to be read, if known.
    #[doc(alias = "size_hint")]
    #[doc(alias = "content_length")]
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match &self.kind {
            BodyKind::Incoming(reader) => reader.remaining(),
            BodyKind::Stream(stream) => size_hint_of(stream).exact(),
            _ => self.as_full().map(|bytes| bytes.len() as u64),
        }
    }

    /// The next chunk of data; `None` at the end. Trailers are skipped; to see them, use
    /// [`http_body::Body::poll_frame`].
    #[doc(alias = "chunk")]
    #[doc(alias = "frame")]
    #[doc(alias = "data")]
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| Stream::poll_next(Pin::new(&mut *self), cx)).await
    }

    /// Reads the whole body into one buffer of the thread's pool. Return the buffer with
    /// [`crate::pool::put`] when done, or keep it.
    ///
    /// # Errors
    /// The body could not be read completely, it is larger than `limit` bytes or its own limit, or
    /// the worker is close to its memory limit ([`BodyError::Overloaded`]).
    pub async fn collect(mut self, limit: u64) -> Result<Vec<u8>, BodyError> {
        if let Some(error) = self.length().and_then(|length| self.limit_error(length)) {
            return Err(error);
        }
        if self.length().is_some_and(|length| length > limit) {
            return Err(BodyError::TooLarge { limit });
        }
        if let BodyKind::Buffer(buffer) = &mut self.kind {
            return Ok(std::mem::take(buffer));
        }
        let (mut collected, mut reservation) = (pool::get(), MemoryReservation::empty());
        while let Some(chunk) = self.next().await {
            let chunk = chunk?;
            if collected.len() as u64 + chunk.len() as u64 > limit {
                return Err(BodyError::TooLarge { limit });
            }
            collected.extend_from_slice(&chunk);
            reservation.resize(collected.capacity());
            if pressure() >= MemoryPressure::Critical {
                return Err(BodyError::Overloaded);
            }
        }
        Ok(collected)
    }

    /// Reads the whole body into shared bytes.
    ///
    /// # Errors
    /// As [`Body::collect`].
    #[doc(alias = "to_bytes")]
    pub async fn into_bytes(mut self, limit: u64) -> Result<Bytes, BodyError> {
        if self.as_slice().is_some_and(|bytes| bytes.len() as u64 <= limit) {
            match &mut self.kind {
                BodyKind::Static(bytes) => return Ok(Bytes::from_static(bytes)),
                BodyKind::Bytes(bytes) => return Ok(std::mem::take(bytes)),
                _ => {}
            }
        }
        let buffer = self.collect(limit).await?;
        let bytes = Bytes::copy_from_slice(&buffer);
        pool::put(buffer);
        Ok(bytes)
    }

    /// Whether the body is in a buffer that goes to the thread's pool ([`crate::pool`]) when the
    /// body is dropped.
    #[must_use]
    pub fn is_pooled(&self) -> bool {
        matches!(self.kind, BodyKind::Buffer(_))
    }

    /// The whole body as shared bytes, without a copy, if it is complete and within its limit.
    ///
    /// Its buffer then does not go to the thread's pool.
    ///
    /// # Errors
    /// The body is not complete or exceeds its limit; it is returned unchanged.
    pub fn try_into_bytes(mut self) -> Result<Bytes, Self> {
        match self.as_slice() {
            Some(_) => Ok(self.take_full().unwrap_or_default()),
            None => Err(self),
        }
    }

    /// The next part, for a connection that can send files without reading them. A body with a
    /// limit yields only frames, because only their bytes are counted.
    pub fn poll_part(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyPart, BodyError>>> {
        if self.limits.max.is_none()
            && let BodyKind::Stream(stream) = &mut self.kind
        {
            return stream.as_mut().poll_part(cx);
        }
        self.poll_frame(cx).map(|frame| frame.map(|frame| frame.map(BodyPart::Frame)))
    }

    /// Takes the content of a complete body; `None` if it is empty. Not for a stream, which it
    /// would drop.
    fn take_full(&mut self) -> Option<Bytes> {
        let bytes = match std::mem::take(&mut self.kind) {
            BodyKind::Static(bytes) => Bytes::from_static(bytes),
            BodyKind::Bytes(bytes) => bytes,
            BodyKind::Buffer(buffer) => Bytes::from(buffer),
            BodyKind::Empty | BodyKind::Incoming(_) | BodyKind::Stream(_) => return None,
        };
        (!bytes.is_empty()).then_some(bytes)
    }
}

/// The size hint of a stream that the application supplied.
fn size_hint_of(stream: &BoxFileBody) -> SizeHint {
    catch_panic("`size_hint` of a stream", || stream.size_hint()).unwrap_or_default()
}

impl Drop for Body {
    fn drop(&mut self) {
        match std::mem::take(&mut self.kind) {
            BodyKind::Buffer(buffer) => pool::put(buffer),
            BodyKind::Stream(stream) => {
                catch_panic("the destructor of a stream", || drop(stream));
            }
            _ => {}
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        // A body that is known to be too large fails before its pipe or stream is polled. Replacing
        // the body drops the pipe's reader or the stream, so the rest is not received.
        if self.limits.max.is_some()
            && let Some(error) = self.length().and_then(|length| self.limit_error(length))
        {
            *self = Self::empty();
            return Poll::Ready(Some(Err(error)));
        }
        let frame = match &mut self.kind {
            BodyKind::Incoming(reader) => ready!(reader.poll_frame(cx)).map(|frame| {
                frame.map(|frame| match frame {
                    PipeFrame::Data(bytes) => Frame::data(bytes),
                    PipeFrame::Trailers(trailers) => Frame::trailers(trailers),
                })
            }),
            BodyKind::Stream(stream) => ready!(stream.as_mut().poll_frame(cx)),
            _ => self.take_full().map(|bytes| Ok(Frame::data(bytes))),
        };
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let data_bytes = data.map_or(0, |data| data.len() as u64);
        if let Some(error) = self.limit_error(data_bytes) {
            *self = Self::empty();
            return Poll::Ready(Some(Err(error)));
        }
        self.bytes_read += data_bytes;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Incoming(reader) => reader.is_end_stream(),
            BodyKind::Stream(stream) => {
                catch_panic("`is_end_stream` of a stream", || stream.is_end_stream())
                    .unwrap_or_default()
            }
            _ => self.as_full().is_none_or(<[u8]>::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Stream(stream) => size_hint_of(stream),
            _ => self.length().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// Yields the data in chunks, for code that only handles streams. Trailers are skipped.
impl Stream for Body {
    type Item = Result<Bytes, BodyError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while let Some(frame) = ready!(self.as_mut().poll_frame(cx)) {
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(Err(_)) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        Poll::Ready(None)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_full(), self.length()) {
            (Some(bytes), _) => write!(f, "Body({} bytes)", bytes.len()),
            (None, Some(length)) => write!(f, "Body(stream of {length} bytes)"),
            (None, None) => f.write_str("Body(stream)"),
        }
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self::from_kind(BodyKind::Static(text.as_bytes()))
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self::from_kind(BodyKind::Static(bytes))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::from_kind(BodyKind::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from_kind(BodyKind::Buffer(bytes))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::from_kind(BodyKind::Buffer(text.into_bytes()))
    }
}

/// Converts the items of a stream into frames.
struct StreamFrames<S>(Pin<Box<S>>);

impl<S> FileBody for StreamFrames<S> where Self: HttpBody<Data = Bytes, Error = BodyError> {}

impl<S, T, E> HttpBody for StreamFrames<S>
where
    S: futures_core::Stream<Item = Result<T, E>>,
    T: Into<Bytes>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = ready!(self.0.as_mut().poll_next(cx));
        Poll::Ready(next.map(|item| match item {
            Ok(bytes) => Ok(Frame::data(bytes.into())),
            Err(error) => Err(BodyError::downcast(error.into())),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::body::pipe::pipe;
    use http::HeaderMap;
    use std::pin::pin;
    use std::task::Waker;

    fn assert_ready<T>(future: impl Future<Output = T>) -> T {
        let mut cx = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut cx) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("expected the future to be ready"),
        }
    }

    #[test]
    fn every_kind_of_full_body_collects_to_the_same_bytes() {
        for body in [
            Body::from("hello"),
            Body::from(&b"hello"[..]),
            Body::from(Bytes::from_static(b"hello")),
            Body::from(b"hello".to_vec()),
            Body::from(String::from("hello")),
        ] {
            assert_eq!(body.length(), Some(5));
            assert_eq!(assert_ready(body.collect(5)).expect("within the limit"), b"hello");
        }
    }

    #[test]
    fn a_full_body_becomes_shared_bytes_without_a_copy() {
        let text: &'static [u8] = b"hello";
        let vector = b"hello".to_vec();
        let bytes = Bytes::from(b"hello".to_vec());
        let addresses = [text.as_ptr(), vector.as_ptr(), bytes.as_ptr()];
        for (body, address) in [Body::from(text), Body::from(vector), Body::from(bytes.clone())]
            .into_iter()
            .zip(addresses)
        {
            let shared = body.try_into_bytes().expect("the body is complete");
            assert_eq!((&*shared, shared.as_ptr()), (text, address));
        }
        assert!(Body::empty().try_into_bytes().expect("the body is complete").is_empty());
        assert!(Body::from("hello").limited(4).try_into_bytes().is_err());
        assert!(Body::new(Body::from("hello")).try_into_bytes().is_err());
    }

    #[test]
    fn memory_bytes_excludes_shared_and_static_content() {
        let bytes = Bytes::from(b"hello".to_vec());
        let shared = Body::from(bytes.clone());
        assert_eq!(shared.memory_bytes(), 0);
        drop(bytes);
        assert_eq!(shared.memory_bytes(), 5);
        assert_eq!(Body::from(b"hello".to_vec()).memory_bytes(), 5);
        for body in [Body::from("hello"), Body::from(Bytes::from_static(b"hello")), Body::empty()] {
            assert_eq!(body.memory_bytes(), 0);
        }
    }

    #[test]
    fn every_kind_of_body_fails_one_byte_above_its_limit() {
        let (writer, reader) = pipe(100, None);
        writer.send(Bytes::from_static(b"hello"));
        writer.finish(HeaderMap::new());
        for body in [
            Body::from("hello"),
            Body::from(b"hello".to_vec()),
            Body::from("hello").limited(4),
            Body::incoming(reader, 4),
            Body::new(Body::from("hello")).limited(100).limited(4),
        ] {
            assert!(matches!(assert_ready(body.collect(4)), Err(BodyError::TooLarge { limit: 4 })));
        }
    }

    #[test]
    fn catches_panics_in_the_hints_and_the_destructor_of_a_stream() {
        struct Bomb(u8);
        impl HttpBody for Bomb {
            type Data = Bytes;
            type Error = BodyError;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
                self.0 += 1;
                let frame = Frame::data(Bytes::from_static(b"data"));
                Poll::Ready((self.0 == 1).then_some(Ok(frame)))
            }
            fn size_hint(&self) -> SizeHint {
                panic!("panic in size_hint");
            }
            fn is_end_stream(&self) -> bool {
                panic!("panic in is_end_stream");
            }
        }
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("panic in the destructor");
            }
        }
        let body = Body::new(Bomb(0));
        assert_eq!((body.length(), body.is_end_stream()), (None, false));
        assert_eq!(
            (HttpBody::size_hint(&body).lower(), HttpBody::size_hint(&body).upper()),
            (0, None)
        );
        assert_eq!(assert_ready(body.limited(4).collect(4)).expect("within the limit"), b"data");
        drop(Body::new(Bomb(0)));
    }

    #[test]
    fn a_body_that_exceeded_its_limit_is_empty_and_closes_its_pipe() {
        let (writer, reader) = pipe(100, None);
        let mut body = Body::incoming(reader, 3);
        writer.send(Bytes::from_static(b"ab"));
        assert_eq!(assert_ready(body.next()).expect("a chunk").expect("within the limit"), "ab");
        writer.send(Bytes::from_static(b"cd"));
        let error = assert_ready(body.next()).expect("an error").expect_err("one byte too many");
        assert!(matches!(error, BodyError::TooLarge { limit: 3 }));
        assert!(writer.is_closed() && assert_ready(body.next()).is_none());
    }

    #[test]
    fn a_body_known_to_be_too_large_is_never_requested() {
        let (writer, reader) = pipe(100, Some(5));
        let mut body = Body::incoming(reader, 4);
        assert!(matches!(assert_ready(body.next()), Some(Err(BodyError::TooLarge { limit: 4 }))));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(
            matches!(writer.poll_demand(&mut cx), Poll::Ready(Err(_))),
            "the body was requested"
        );
    }

    #[test]
    fn the_last_limit_set_applies_and_is_checked_on_read() {
        let body = Body::from("hello").limited(4);
        assert_eq!((body.limit(), body.as_slice(), body.length()), (Some(4), None, Some(5)));
        assert!(assert_ready(body.collect(9)).is_err());
        let body = Body::from("hello").limited(4).limited(5);
        assert_eq!(body.as_slice(), Some(&b"hello"[..]));
        assert_eq!(assert_ready(body.into_bytes(9)).expect("within the limit"), "hello");
    }

    #[test]
    fn a_stream_body_yields_the_items_and_the_error_of_its_stream() {
        struct TwoItems(u8);
        impl futures_core::Stream for TwoItems {
            type Item = Result<&'static str, std::io::Error>;
            fn poll_next(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Self::Item>> {
                self.0 += 1;
                Poll::Ready(match self.0 {
                    1 => Some(Ok("a")),
                    2 => Some(Err(std::io::Error::other("broke"))),
                    _ => None,
                })
            }
        }
        let mut body = Body::from_stream(TwoItems(0));
        assert_eq!(body.length(), None);
        assert_eq!(assert_ready(body.next()).expect("a chunk").expect("no error"), "a");
        let error = assert_ready(body.next()).expect("an error").expect_err("an error");
        assert_eq!(error.to_string(), "the body's source failed: broke");
        assert!(assert_ready(body.next()).is_none());
    }
}
