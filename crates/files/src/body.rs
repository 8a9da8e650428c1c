//! Content that is read while it is sent.

use crate::facts::Content;
use crate::work::Work;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use peregrine_web::account::Charge;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// How much is read at once. Two of these are in memory at most, one on its way and one read ahead.
const CHUNK_BYTES: u64 = 128 * 1024;

/// A piece of a body: bytes at hand, or some of a file. This is all that a driver has to know in order to send
/// a file itself.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    File { at: u64, length: u64 },
}

/// Pieces of one file that stays open. It is read only as far as the peer takes it, on threads that may
/// block.
pub(crate) struct FileBody {
    file: Arc<File>,
    pieces: VecDeque<Piece>,
    reading: Option<Work<io::Result<Vec<u8>>>>,
    /// Bytes still to be sent.
    left: u64,
    charge: Charge,
}

impl FileBody {
    pub(crate) fn new(file: Arc<File>, pieces: VecDeque<Piece>) -> Self {
        let length = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { length, .. } => *length,
        };
        let left = pieces.iter().map(length).sum();
        Self { file, pieces, reading: None, left, charge: Charge::new() }
    }

    /// Begins to read what comes first in the next piece, if that is of the file.
    fn read(&mut self) {
        let Some(Piece::File { at, length }) = self.pieces.front() else { return };
        if *length == 0 {
            return;
        }
        let (file, at) = (Arc::clone(&self.file), *at);
        let bytes = usize::try_from(CHUNK_BYTES.min(*length)).unwrap_or(usize::MAX);
        self.charge.set(bytes);
        self.reading = Some(Work::begin(move || read(&file, at, bytes)));
    }
}

impl HttpBody for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            match self.pieces.front_mut() {
                None => return Poll::Ready(None),
                Some(Piece::File { length: 0, .. }) => {
                    self.pieces.pop_front();
                }
                Some(Piece::Bytes(bytes)) => {
                    let bytes = std::mem::take(bytes);
                    self.pieces.pop_front();
                    self.left -= bytes.len() as u64;
                    return Poll::Ready(Some(Ok(Frame::data(bytes))));
                }
                Some(Piece::File { .. }) => break,
            }
        }
        if self.reading.is_none() {
            self.read();
        }
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let bytes = ready!(reading.poll(context));
        self.reading = None;
        let bytes = match bytes {
            // The length was promised: a file that has become shorter breaks the response off.
            Ok(bytes) if bytes.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => bytes,
        };
        let bytes = bytes.inspect_err(|error| {
            tracing::error!(target: "peregrine", %error, "a file could not be read to its end");
            self.pieces.clear();
        })?;
        let count = bytes.len() as u64;
        if let Some(Piece::File { at, length }) = self.pieces.front_mut() {
            *at += count;
            *length -= count;
        }
        self.left -= count;
        self.charge.set(0);
        self.read();
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// Reads as much as is asked for, or until the file's end.
pub(crate) fn read(file: &File, at: u64, bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match read_at(file, at + filled as u64, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(filled);
    Ok(buffer)
}

#[cfg(unix)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, at)
}

#[cfg(windows)]
fn read_at(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, at)
}

/// The body of these pieces.
pub(crate) fn body(content: &Content, pieces: VecDeque<Piece>) -> peregrine_web::Body {
    match content {
        Content::Open(file) => peregrine_web::Body::new(FileBody::new(Arc::clone(file), pieces)),
        Content::Memory(whole) => {
            let cut = |piece| match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::File { at, length } => {
                    let [at, end] = [at, at + length]
                        .map(|at| usize::try_from(at).unwrap_or(usize::MAX).min(whole.len()));
                    whole.slice(at..end)
                }
            };
            let mut pieces: Vec<Bytes> = pieces.into_iter().map(cut).collect();
            match &mut *pieces {
                [one] => std::mem::take(one).into(),
                pieces => Bytes::from(pieces.concat()).into(),
            }
        }
    }
}
