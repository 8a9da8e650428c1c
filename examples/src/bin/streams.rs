//! Bodies that are never held in memory as a whole: an upload counted as it arrives, a download
//! generated as it is sent, and events over time. The last event announces the shutdown of the
//! server.
#![forbid(unsafe_code)]

use futures_core::Stream;
use peregrine::Shutdown;
use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Interval, interval};

/// Counts the bytes of the body. The client is throttled while the handler is busy, and rejected at
/// the route's limit.
async fn count(mut body: Body) -> Result<String, Problem> {
    let (mut pieces, mut bytes) = (0, 0);
    while let Some(piece) = body.next().await {
        bytes += piece?.len();
        pieces += 1;
    }
    Ok(format!("{bytes} bytes in {pieces} pieces\n"))
}

/// Lines, each generated when the client is ready for it.
struct Lines(std::ops::RangeInclusive<u32>);

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(|number| Ok(Bytes::from(format!("line {number}\n")))))
    }
}

async fn lines(Path(count): Path<u32>) -> Body {
    Body::from_stream(Lines(1..=count))
}

/// A server-sent event every 100 ms.
struct Ticks {
    clock: Interval,
    left: u32,
    ordered: Pin<Box<dyn Future<Output = ()>>>,
}

impl Stream for Ticks {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        // A long-lived stream has to end when the server starts to shut down.
        if self.ordered.as_mut().poll(cx).is_ready() {
            self.left = 0;
            return Poll::Ready(Some(Ok(Bytes::from_static(
                b"event: end\ndata: come back later\n\n",
            ))));
        }
        ready!(self.clock.poll_tick(cx));
        self.left -= 1;
        Poll::Ready(Some(Ok(Bytes::from(format!("data: {} left\n\n", self.left)))))
    }
}

async fn ticks(Path(left): Path<u32>) -> Response {
    let clock = interval(Duration::from_millis(100));
    let shutdown = Shutdown::current();
    let ordered = Box::pin(async move { shutdown.requested().await });
    Response::new(StatusCode::OK)
        .with_header(
            HeaderName::from_static("content-type"),
            HeaderValue::from_static("text/event-stream"),
        )
        .with_body(Body::from_stream(Ticks { clock, left, ordered }))
}

const ABOUT: &str = "\
Uploads counted as they arrive, downloads generated as they are sent, and events over time.

Try: curl -N http://127.0.0.1:8080/ticks/5";

fn main() -> peregrine::Result<()> {
    let address = peregrine_examples::address(ABOUT);
    Server::bind(address).serve(|| {
        App::new()
            .post("/count", count.body_limit(1 << 30))
            .get("/lines/{count}", lines)
            .get("/ticks/{count}", ticks)
    })
}
