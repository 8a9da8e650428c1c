//! The application of long runs: handlers that work for hours and record how they ended.

use crate::server::app::{pattern, stream};
use crate::server::failing::{panics, stall};
use bytes::Bytes;
use http::header::UPGRADE;
use http::{HeaderValue, StatusCode};
use peregrine::web::extract::{Path, State};
use peregrine::web::upgrade::UpgradeHandler;
use peregrine::web::{App, Body, HandlerExt, Problem, Response};
use peregrine_driver_sim::Network;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Handlers marked to run to completion, by the ID in their path.
#[derive(Clone, Default)]
pub(super) struct Ledger(Rc<RefCell<BTreeMap<u64, Work>>>);

/// One such handler.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// When its last wait started.
    pub(super) started_at: Duration,
    /// How long that wait is.
    pub(super) wait_time: Duration,
    /// When it completed.
    pub(super) ended_at: Option<Duration>,
    /// When its peer disconnected.
    pub(super) disconnected_at: Option<Duration>,
}

impl Ledger {
    /// Records that the peer of this handler disconnected.
    pub(super) fn record_disconnect(&self, id: u64) {
        if let Some(work) = self.0.borrow_mut().get_mut(&id) {
            work.disconnected_at.get_or_insert_with(now);
        }
    }

    /// Every handler that started.
    pub(super) fn entries(&self) -> Vec<(u64, Work)> {
        self.0.borrow().iter().map(|(id, work)| (*id, *work)).collect()
    }
}

fn now() -> Duration {
    Network::current().expect("lives are simulated").now()
}

/// The application, plus the panicking handlers of the cases.
pub(super) fn app(ledger: Ledger) -> App {
    let app = App::new()
        .state(ledger)
        .get("/hello", || "hello")
        .get("/large/{bytes}", async |Path(bytes): Path<usize>| pattern(bytes))
        .get("/endless", || {
            let piece = Bytes::from(pattern(1_000));
            stream(move |_| Poll::Ready(Some(Ok(piece.clone()))))
        })
        .get("/drip/{pieces}/{seconds}", async |Path((pieces, seconds)): Path<(usize, u64)>| {
            drip(pieces, Duration::from_secs(seconds))
        })
        .get("/sleep/{seconds}", async |Path(seconds): Path<u64>| {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            "slept"
        })
        .get("/work/{id}/{seconds}", work.run_to_completion())
        .post("/work/{id}/{seconds}", work.run_to_completion().body_limit(u64::MAX))
        .post("/count", count.body_limit(u64::MAX))
        .post("/nap/{seconds}", nap.body_limit(u64::MAX))
        .get("/stall/{seconds}", async |Path(seconds): Path<u64>| stall(seconds))
        .get("/upgrade", upgrade)
        .get("/panic", || -> &'static str { panic!("on purpose") })
        .get("/panic-late", async || -> &'static str {
            tokio::time::sleep(Duration::from_secs(1)).await;
            panic!("on purpose")
        });
    panics(super::sockets::handlers(app))
}

/// One piece after each pause.
fn drip(pieces: usize, pause: Duration) -> Body {
    let mut remaining = 0..pieces;
    let mut sleep = Box::pin(tokio::time::sleep(pause));
    stream(move |cx| {
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        sleep = Box::pin(tokio::time::sleep(pause));
        Poll::Ready(remaining.next().map(|_| Ok(Bytes::from_static(b"drip"))))
    })
}

/// Reads its body, however that ends, and then works.
async fn work(
    Path((id, seconds)): Path<(u64, u64)>,
    State(ledger): State<Ledger>,
    mut body: Body,
) -> &'static str {
    let wait_time = Duration::from_secs(seconds);
    let started =
        Work { started_at: now(), wait_time: Duration::MAX, ended_at: None, disconnected_at: None };
    ledger.0.borrow_mut().insert(id, started);
    while let Some(Ok(_)) = body.next().await {}
    let write = |change: &dyn Fn(&mut Work)| {
        change(ledger.0.borrow_mut().get_mut(&id).expect("the account is in the ledger"));
    };
    write(&|work| (work.started_at, work.wait_time) = (now(), wait_time));
    tokio::time::sleep(wait_time).await;
    write(&|work| work.ended_at = Some(now()));
    "worked"
}

async fn count(mut body: Body) -> Result<String, Problem> {
    let mut count = 0;
    while let Some(piece) = body.next().await {
        count += piece?.len();
    }
    Ok(count.to_string())
}

/// Ignores its body for a while.
async fn nap(Path(seconds): Path<u64>, body: Body) -> Result<String, Problem> {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    count(body).await
}

fn upgrade() -> Response {
    let echo = UpgradeHandler::new(|mut io| async move {
        while let Ok(Some(bytes)) = io.recv().await {
            if io.send(bytes).await.is_err() {
                return;
            }
        }
    });
    let response = Response::new(StatusCode::SWITCHING_PROTOCOLS).with_upgrade(echo);
    response.with_field(UPGRADE, HeaderValue::from_static("echo"))
}
