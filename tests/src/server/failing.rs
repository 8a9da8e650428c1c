//! Misbehaving handlers: panics at unusual points, streams without bytes, functions that block,
//! protocols that do not read.

use super::app::{Shared, stream};
use bytes::Bytes;
use http::header::UPGRADE;
use http::{HeaderValue, StatusCode};
use http_body::{Frame, SizeHint};
use peregrine::Shutdown;
use peregrine::web::extract::{Path, State};
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::web::{App, Body, BodyError, HandlerExt, Request, Response, Service};
use peregrine_driver_sim::Network;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

/// Empty pieces after which a stream gives up: no other task ran meanwhile.
const EMPTY_PIECES_MAX: usize = 1_000_000;

/// Adds the misbehaving handlers.
pub(super) fn failing_handlers(app: App) -> App {
    let stop_flag = Arc::new(AtomicBool::new(false));
    let stop_setter = Arc::clone(&stop_flag);
    panics(app)
        .get("/empties", move || {
            let stop_flag = Arc::clone(&stop_flag);
            let mut remaining = EMPTY_PIECES_MAX;
            let mut is_finished = false;
            stream(move |_| {
                remaining = remaining.saturating_sub(1);
                let text = match (stop_flag.load(Ordering::SeqCst), remaining) {
                    _ if is_finished => return Poll::Ready(None),
                    (true, _) => "stopped",
                    (false, 0) => "gave up",
                    (false, _) => return Poll::Ready(Some(Ok(Bytes::new()))),
                };
                is_finished = true;
                Poll::Ready(Some(Ok(Bytes::from_static(text.as_bytes()))))
            })
        })
        .get("/stop-empties", move || {
            stop_setter.store(true, Ordering::SeqCst);
            "stopped"
        })
        .get("/stall/{seconds}", async |Path(seconds): Path<u64>| stall(seconds))
        .any("/hold-body", async |State(shared): State<Shared>, body: Body| {
            shared.wait().await;
            drop(body);
            "held"
        })
        .post("/read-to-end", read_to_end.run_to_completion().body_limit(u64::MAX))
        .get("/wait-to-end-a-moment", {
            async fn wait(State(shared): State<Shared>) -> &'static str {
                shared.wait().await;
                "waited"
            }
            wait.run_to_completion().timeout(Duration::from_millis(500))
        })
        .get("/stream-silent", || {
            let mut first = Some("a piece\n");
            stream(move |_| match first.take() {
                Some(piece) => Poll::Ready(Some(Ok(Bytes::from_static(piece.as_bytes())))),
                None => Poll::Pending,
            })
        })
        .get("/upgrade-deaf", ignores_input)
        .get("/upgrade-obedient", ends_on_shutdown)
}

/// Adds the handlers that panic.
pub(super) fn panics(app: App) -> App {
    app.get("/panic-eager", PanicsEagerly)
        .get("/panic-in-drop", panic_in_drop.timeout(Duration::from_millis(500)))
        .get("/stream-panics", || {
            let mut pieces = ["a piece\n", "another\n"].into_iter();
            stream(move |_| {
                let piece = pieces.next().expect("on purpose");
                Poll::Ready(Some(Ok(Bytes::from_static(piece.as_bytes()))))
            })
        })
        .get("/stream-panics-in-drop", || {
            let panics_on_drop = PanicsOnDrop;
            let mut pieces = ["a piece\n", "another\n"].into_iter();
            stream(move |_| {
                let _armed = &panics_on_drop;
                Poll::Ready(pieces.next().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))))
            })
        })
        .get("/size-hint-panics", || Body::new(PanicsOnSizeHint))
}

/// Panics when it is dropped.
struct PanicsOnDrop;

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("on purpose, in a destructor");
        }
    }
}

/// Panics before it returns a future.
struct PanicsEagerly;

impl Service for PanicsEagerly {
    fn call(&self, request: Request) -> impl Future<Output = Response> {
        assert!(request.path().is_empty(), "on purpose, before returning a future");
        pending()
    }
}

async fn panic_in_drop() -> &'static str {
    let _panics_on_drop = PanicsOnDrop;
    pending().await
}

/// A body that panics when its length is queried.
struct PanicsOnSizeHint;

impl http_body::Body for PanicsOnSizeHint {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        panic!("on purpose, in the size hint")
    }
}

/// Blocks the thread for this long on the clock of the simulated network.
pub(super) fn stall(seconds: u64) -> &'static str {
    let network = Network::current().expect("the handler runs on a simulated network");
    network.block_thread(Duration::from_secs(seconds));
    "stalled"
}

/// Reads its body to the end, clean or not, and completes.
async fn read_to_end(State(shared): State<Shared>, mut body: Body) -> &'static str {
    let watch = shared.begin();
    while let Some(Ok(piece)) = body.next().await {
        shared.consumed.add(piece.len());
    }
    watch.finish();
    "read"
}

fn switching(protocol: UpgradeHandler) -> Response {
    let response = Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(protocol);
    response.with_field(UPGRADE, HeaderValue::from_static("any"))
}

/// A protocol that does not read.
async fn ignores_input(State(shared): State<Shared>) -> Response {
    switching(UpgradeHandler::new(move |io| async move {
        shared.wait().await;
        drop(io);
    }))
}

/// A protocol that sends a message and ends when the server shuts down.
async fn ends_on_shutdown(State(shared): State<Shared>) -> Response {
    let shutdown = Shutdown::current();
    switching(UpgradeHandler::new(move |mut io| async move {
        let watch = shared.begin();
        shutdown.requested().await;
        if io.send(Bytes::from_static(b"goodbye")).await.is_ok() {
            watch.finish();
        }
    }))
}
