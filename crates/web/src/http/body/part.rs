//! What a body gives to a connection that can send files by itself.

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
pub enum Part {
    /// Bytes that are here, or trailers.
    Frame(Frame<Bytes>),
    /// Some bytes of a file, which the system has in its memory, as far as can be told.
    File {
        /// The file.
        file: Arc<File>,
        /// Where the first of them is.
        at: u64,
        /// How many there are.
        length: u64,
    },
}

/// A body that has parts of files in it. Whoever polls it for frames gets their bytes.
pub trait FileBody: HttpBody<Data = Bytes, Error = BodyError> {
    /// The next part, for a connection that can send files by itself. The default knows frames only.
    ///
    /// Parts of files are bounded, so that the peers of other connections have their turns.
    fn poll_part(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Part, BodyError>>> {
        self.poll_frame(context).map(|frame| frame.map(|frame| frame.map(Part::Frame)))
    }
}

/// What [`Body::new`](super::Body::new) makes of any body: it has no files.
impl<B, F> FileBody for MapErr<B, F> where Self: HttpBody<Data = Bytes, Error = BodyError> {}
