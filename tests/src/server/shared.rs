//! Handlers with large responses in shared memory.

use super::app::{Shared, pattern, produced, stream};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use peregrine::App;
use peregrine::web::extract::{Path, State};
use peregrine::web::{Body, BodyError};
use std::cell::RefCell;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};

/// The most bytes of one body.
pub const MOST: usize = 6 << 20;

/// The common prefix of all bodies.
static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| pattern(MOST));

thread_local! {
    static SHARED: RefCell<Bytes> = RefCell::new(Bytes::copy_from_slice(&ALL));
}

fn shared(from: usize, bytes: usize) -> Bytes {
    SHARED.with_borrow(|all| all.slice(from..from + bytes))
}

/// The content of the responses.
#[must_use]
pub fn content(bytes: usize) -> &'static [u8] {
    &ALL[..bytes]
}

pub(super) fn shared_content_handlers(app: App) -> App {
    app.get("/shared/{bytes}", async |Path(bytes): Path<usize>| shared(0, bytes))
        .get("/static/{bytes}", async |Path(bytes): Path<usize>| content(bytes))
        .get("/frames/{count}/{bytes}", async |Path((count, bytes)): Path<(usize, usize)>| {
            let mut from = 0;
            Body::from_stream(produced(move |_| {
                let frame = shared(from, bytes.min(count * bytes - from));
                from += frame.len();
                Poll::Ready((!frame.is_empty()).then_some(Ok::<_, BodyError>(frame)))
            }))
        })
        .get("/mixed/{bytes}", async |Path(bytes): Path<usize>| {
            let (mut from, mut step) = (0, 1);
            Body::from_stream(produced(move |_| {
                let frame = shared(from, step.min(bytes - from));
                from += frame.len();
                step = if step > 300_000 { 1 } else { step * 3 };
                Poll::Ready((!frame.is_empty()).then_some(Ok::<_, BodyError>(frame)))
            }))
        })
        .get("/sized/{count}/{bytes}", async |Path((count, bytes)): Path<(usize, usize)>| {
            Body::new(Sized { from: 0, frame: bytes, all: count * bytes })
        })
        .get("/endless-frames/{bytes}", async |State(state): State<Shared>, Path(bytes)| {
            let watch = state.begin();
            stream(move |_| {
                watch.shared().produced.add(bytes);
                Poll::Ready(Some(Ok(shared(0, bytes))))
            })
        })
}

/// Frames whose total length is known.
struct Sized {
    from: usize,
    frame: usize,
    all: usize,
}

impl http_body::Body for Sized {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = shared(self.from, self.frame.min(self.all - self.from));
        self.from += frame.len();
        Poll::Ready((!frame.is_empty()).then_some(Ok(Frame::data(frame))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.all - self.from) as u64)
    }
}
