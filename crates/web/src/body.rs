//! Bodies of requests and responses: nothing, bytes, or a stream.

use crate::pipe::{Piece, Reader};
use crate::pool;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use peregrine_proto::Reject;
use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The body of a request or a response.
///
/// It implements [`http_body::Body`], so it goes wherever tower services and axum take one. A body
/// that was complete before the handler ran costs no allocation and no copy.
#[derive(Default)]
pub struct Body(Kind);

#[derive(Default)]
enum Kind {
    #[default]
    Empty,
    Static(&'static [u8]),
    Bytes(Bytes),
    /// From the thread's stock of buffers, and given back to it.
    Buffer(Vec<u8>),
    Incoming(Incoming),
    Stream(Stream),
    Limited(Box<Limited>),
}

type Stream = Pin<Box<dyn HttpBody<Data = Bytes, Error = BodyError>>>;

/// A stream that was given a limit.
struct Limited {
    stream: Stream,
    left: u64,
    limit: u64,
}

struct Incoming {
    reader: Reader,
    left: u64,
    limit: u64,
}

/// Why a body could not be read or sent to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum BodyError {
    /// The peer left before the body was complete.
    Disconnected,
    /// The body is larger than its limit, in bytes.
    TooLarge {
        /// The limit in force.
        limit: u64,
    },
    /// The peer sent the body slower than the minimum rate.
    TooSlow,
    /// The body breaks a rule of the protocol, or passes one of its limits.
    Rejected(Reject),
    /// A stream that the application made failed.
    Failed(Box<dyn Error + Send + Sync>),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("the peer left before the body was complete"),
            Self::TooLarge { limit } => write!(f, "the body is larger than {limit} bytes"),
            Self::TooSlow => f.write_str("the body came slower than the minimum rate"),
            Self::Rejected(reject) => write!(f, "the body was refused: {reject}"),
            Self::Failed(error) => write!(f, "the body's source failed: {error}"),
        }
    }
}

impl Error for BodyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(error) => Some(&**error),
            _ => None,
        }
    }
}

impl BodyError {
    /// An error of ours that went through the body of somebody else is still what it was.
    fn of(error: Box<dyn Error + Send + Sync>) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => *ours,
            Err(error) => Self::Failed(error),
        }
    }
}

impl Body {
    /// A body of no bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Kind::Empty)
    }

    /// A body in a buffer of the thread's stock ([`crate::pool`]).
    #[must_use]
    pub fn buffer(buffer: Vec<u8>) -> Self {
        Self(Kind::Buffer(buffer))
    }

    /// A body that a connection writes into a pipe. More than `limit` bytes are an error.
    #[must_use]
    pub fn incoming(reader: Reader, limit: u64) -> Self {
        Self(Kind::Incoming(Incoming { reader, left: limit, limit }))
    }

    /// Any [`http_body::Body`]. It need not be `Send`. A [`BodyError`] of it stays what it is.
    pub fn new<B>(body: B) -> Self
    where
        B: HttpBody<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Kind::Stream(Box::pin(body.map_err(|error| BodyError::of(error.into())))))
    }

    /// Pieces from a stream, sent as they come. Without a known length, HTTP/1.1 sends them chunked.
    pub fn stream<S, T, E>(stream: S) -> Self
    where
        S: futures_core::Stream<Item = Result<T, E>> + 'static,
        T: Into<Bytes>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Kind::Stream(Box::pin(Pieces(Box::pin(stream)))))
    }

    /// The whole body, if it is here already.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            Kind::Empty => Some(&[]),
            Kind::Static(bytes) => Some(bytes),
            Kind::Bytes(bytes) => Some(bytes),
            Kind::Buffer(bytes) => Some(bytes),
            Kind::Incoming(_) | Kind::Stream(_) | Kind::Limited(_) => None,
        }
    }

    /// Bytes still to come, if known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match &self.0 {
            Kind::Incoming(incoming) => incoming.reader.left(),
            Kind::Stream(stream) => stream.size_hint().exact(),
            Kind::Limited(limited) => limited.stream.size_hint().exact(),
            _ => self.as_slice().map(|bytes| bytes.len() as u64),
        }
    }

    /// The limit in force for a request's body, in bytes. `None` for bodies that are here already
    /// (they were held against it before) or were made by the application.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.0 {
            Kind::Incoming(incoming) => Some(incoming.limit),
            Kind::Limited(limited) => Some(limited.limit),
            _ => None,
        }
    }

    /// Lowers or raises the limit of a request's body before it is read. A body that is here already
    /// and larger becomes an error; a stream becomes one when it passes the limit.
    #[must_use]
    pub fn limited(mut self, limit: u64) -> Self {
        match std::mem::take(&mut self.0) {
            Kind::Incoming(incoming) => {
                return Self(Kind::Incoming(Incoming { left: limit, limit, ..incoming }));
            }
            Kind::Stream(stream) => {
                return Self(Kind::Limited(Box::new(Limited { stream, left: limit, limit })));
            }
            Kind::Limited(mut limited) => {
                (limited.left, limited.limit) = (limit, limit);
                return Self(Kind::Limited(limited));
            }
            whole => self.0 = whole,
        }
        if self.as_slice().is_some_and(|bytes| bytes.len() as u64 > limit) {
            return Self(Kind::Stream(Box::pin(Broken(Some(BodyError::TooLarge { limit })))));
        }
        self
    }

    /// The next piece of data; `None` at the end. Trailers are passed over; to see them, use
    /// [`http_body::Body::poll_frame`].
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        loop {
            match poll_fn(|context| Pin::new(&mut *self).poll_frame(context)).await? {
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The whole body in one buffer of the thread's stock. Give it back with [`crate::pool::give`]
    /// when done, or keep it.
    ///
    /// # Errors
    /// The body could not be read to its end, or is larger than `limit` bytes.
    pub async fn collect(mut self, limit: u64) -> Result<Vec<u8>, BodyError> {
        if let Kind::Buffer(buffer) = &mut self.0 {
            if buffer.len() as u64 > limit {
                return Err(BodyError::TooLarge { limit });
            }
            return Ok(std::mem::take(buffer));
        }
        if self.length().is_some_and(|length| length > limit) {
            return Err(BodyError::TooLarge { limit });
        }
        let mut all = pool::take();
        while let Some(piece) = self.next().await {
            let piece = piece?;
            if all.len() as u64 + piece.len() as u64 > limit {
                return Err(BodyError::TooLarge { limit });
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }

    /// The whole body as shared bytes.
    ///
    /// # Errors
    /// As [`Body::collect`].
    pub async fn into_bytes(mut self, limit: u64) -> Result<Bytes, BodyError> {
        match &mut self.0 {
            Kind::Static(bytes) if bytes.len() as u64 <= limit => Ok(Bytes::from_static(bytes)),
            Kind::Bytes(bytes) if bytes.len() as u64 <= limit => Ok(std::mem::take(bytes)),
            _ => {
                let buffer = self.collect(limit).await?;
                let bytes = Bytes::copy_from_slice(&buffer);
                pool::give(buffer);
                Ok(bytes)
            }
        }
    }

    fn take_whole(&mut self) -> Option<Bytes> {
        let kind = std::mem::take(&mut self.0);
        let bytes = match kind {
            Kind::Empty => return None,
            Kind::Static(bytes) => Bytes::from_static(bytes),
            Kind::Bytes(bytes) => bytes,
            Kind::Buffer(buffer) => Bytes::from(buffer),
            Kind::Incoming(_) | Kind::Stream(_) | Kind::Limited(_) => {
                self.0 = kind;
                return None;
            }
        };
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let Kind::Buffer(buffer) = &mut self.0 {
            pool::give(std::mem::take(buffer));
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Kind::Incoming(incoming) => incoming.poll_frame(context),
            Kind::Stream(stream) => stream.as_mut().poll_frame(context),
            Kind::Limited(limited) => limited.poll_frame(context),
            _ => Poll::Ready(self.take_whole().map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Incoming(incoming) => incoming.reader.is_ended(),
            Kind::Stream(stream) => stream.is_end_stream(),
            Kind::Limited(limited) => limited.stream.is_end_stream(),
            _ => self.as_slice().is_none_or(<[u8]>::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Stream(stream) => stream.size_hint(),
            Kind::Limited(limited) => limited.stream.size_hint(),
            _ => self.length().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

impl Incoming {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(match ready!(self.reader.poll_next(context)) {
            None => None,
            Some(Err(error)) => Some(Err(error)),
            Some(Ok(Piece::Trailers(trailers))) => Some(Ok(Frame::trailers(trailers))),
            Some(Ok(Piece::Data(bytes))) => Some(match self.left.checked_sub(bytes.len() as u64) {
                Some(left) => {
                    self.left = left;
                    Ok(Frame::data(bytes))
                }
                None => Err(BodyError::TooLarge { limit: self.limit }),
            }),
        })
    }
}

impl Limited {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.stream.as_mut().poll_frame(context));
        let bytes = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        Poll::Ready(match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                frame
            }
            None => Some(Err(BodyError::TooLarge { limit: self.limit })),
        })
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_slice(), self.length()) {
            (Some(bytes), _) => write!(f, "Body({} bytes)", bytes.len()),
            (None, Some(length)) => write!(f, "Body(stream of {length} bytes)"),
            (None, None) => f.write_str("Body(stream)"),
        }
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Self(Kind::Static(text.as_bytes()))
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Kind::Static(bytes))
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Kind::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Kind::Buffer(bytes))
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self(Kind::Buffer(text.into_bytes()))
    }
}

/// Pieces of a stream as frames.
struct Pieces<S>(Pin<Box<S>>);

impl<S, T, E> HttpBody for Pieces<S>
where
    S: futures_core::Stream<Item = Result<T, E>>,
    T: Into<Bytes>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let next = ready!(self.0.as_mut().poll_next(context));
        Poll::Ready(next.map(|piece| match piece {
            Ok(bytes) => Ok(Frame::data(bytes.into())),
            Err(error) => Err(BodyError::Failed(error.into())),
        }))
    }
}

/// A body that is an error.
struct Broken(Option<BodyError>);

impl HttpBody for Broken {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(self.0.take().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipe::pipe;
    use http::HeaderMap;
    use std::pin::pin;
    use std::task::Waker;

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(future).poll(&mut context) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("expected the future to be ready"),
        }
    }

    #[test]
    fn every_kind_of_whole_body_is_collected_to_the_same_bytes() {
        for body in [
            Body::from("hello"),
            Body::from(&b"hello"[..]),
            Body::from(Bytes::from_static(b"hello")),
            Body::from(b"hello".to_vec()),
            Body::from(String::from("hello")),
        ] {
            assert_eq!(body.length(), Some(5));
            assert_eq!(now(body.collect(5)).expect("within the limit"), b"hello");
        }
    }

    #[test]
    fn one_byte_more_than_the_limit_is_an_error_for_every_kind() {
        let (writer, reader) = pipe(100, None);
        writer.push(Bytes::from_static(b"hello"));
        writer.finish(HeaderMap::new());
        for body in [
            Body::from("hello"),
            Body::from(b"hello".to_vec()),
            Body::from("hello").limited(4),
            Body::incoming(reader, 4),
            Body::new(Body::from("hello")).limited(100).limited(4),
        ] {
            assert!(matches!(now(body.collect(4)), Err(BodyError::TooLarge { limit: 4 })));
        }
    }

    #[test]
    fn a_stream_gives_its_pieces_and_its_error() {
        struct Two(u8);
        impl futures_core::Stream for Two {
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
        let mut body = Body::stream(Two(0));
        assert_eq!(body.length(), None);
        assert_eq!(now(body.next()).expect("a piece").expect("no error"), "a");
        let error = now(body.next()).expect("an error").expect_err("an error");
        assert_eq!(error.to_string(), "the body's source failed: broke");
        assert!(now(body.next()).is_none());
    }
}
