//! Parts of a body, for connections that can send files without reading them.

use super::BodyError;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame};
use http_body_util::combinators::MapErr;
use std::fs::File;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The next part of a body.
#[derive(Debug)]
pub enum BodyPart {
    /// Bytes in memory, or trailers.
    Frame(Frame<Bytes>),
    /// A range of a file that is, as far as the server can determine, in the system's page cache.
    File {
        /// The file.
        file: Arc<File>,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes.
        len: u64,
    },
}

/// A body that contains parts of files. If it is polled for frames instead of parts, the frames
/// contain the bytes of the files.
pub trait FileBody: HttpBody<Data = Bytes, Error = BodyError> {
    /// The next part, for a connection that can send files without reading them. The default
    /// implementation yields frames only.
    ///
    /// Parts of files have a bounded length, so that other connections can be served between them.
    fn poll_part(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyPart, BodyError>>> {
        self.poll_frame(cx).map(|frame| frame.map(|frame| frame.map(BodyPart::Frame)))
    }
}

/// The adapter that [`Body::new`](super::Body::new) uses has no parts of files.
impl<B, F> FileBody for MapErr<B, F> where Self: HttpBody<Data = Bytes, Error = BodyError> {}
