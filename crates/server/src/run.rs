//! Runs a worker: opens its listeners, drives its timer wheel, and shuts it down.

use crate::accept::balance::Member;
use crate::accept::{self, Spreading};
use crate::connection::{Entrance, sessions};
use crate::limits::OverloadLimits;
use crate::listener::Door;
use crate::listener::config::Listen;
use crate::observe::Observed;
use crate::worker::lifecycle::{Order, Report, before, first_of};
use crate::worker::locals::announce_clock;
use crate::worker::{Worker, WorkerLimits, shutdown};
use peregrine_driver::Driver;
use peregrine_web::application::Application;
use peregrine_web::panics::contained;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// The time between two log lines that summarise rejected requests and handshakes.
const REFUSALS_PAUSE: Duration = Duration::from_secs(60);

/// Runs a worker until an order ends it. At the end, it waits for tasks that outlive their
/// requests, for at most [`Limits::background_timeout`](crate::Limits::background_timeout). After
/// that, [`Driver::run`] also waits for blocking functions, and records in `observed` how many are
/// left. If there are several workers, `member` balances connections between them.
///
/// # Errors
/// The driver cannot listen on one of the sockets.
pub async fn run<D: Driver>(
    driver: D,
    listens: Vec<Listen<D::Socket>>,
    application: Application,
    limits: impl Into<WorkerLimits>,
    observed: Rc<Observed>,
    orders: watch::Receiver<Order>,
    member: Option<Member<D::Passed>>,
) -> std::io::Result<Report> {
    shutdown::announce(&orders);
    let present = *orders.borrow();
    let WorkerLimits { limits, overload, spare_connections } = limits.into();
    let limits = (limits, spare_connections);
    let worker = Rc::new(Worker::new(driver, application, limits, observed, present));
    announce_clock(&worker);
    let sessions = Rc::new(sessions());
    let member = member.map(Rc::new);
    if let Some(member) = member.clone() {
        worker.observed.tell_open(move |connections| member.has_open(connections));
    }
    for (number, listen) in listens.into_iter().enumerate() {
        let (shared, live) = (listen.shared.clone(), listen.live.clone());
        let (door, socket) = Door::new(&worker, listen);
        let listener = worker.driver.listen(socket)?;
        let entrance = Rc::new(Entrance { door, sessions: Rc::clone(&sessions) });
        let worker = Rc::clone(&worker);
        let spreading = member.clone().map(|member| Spreading { member, listener: number });
        // `pending` keeps the worker running until the listener has accepted the connections in the
        // backlog.
        let pending = worker.observed.pending();
        let driver = worker.driver.clone();
        driver.spawn_boxed(Box::pin(async move {
            accept::run(worker, entrance, listener, shared, live, spreading).await;
            drop(pending);
        }));
    }
    worker.driver.spawn_boxed(Box::pin(turn_wheel(Rc::clone(&worker))));
    if let Some(changes) = overload {
        worker.driver.spawn_boxed(Box::pin(follow_limits(Rc::clone(&worker), changes)));
    }
    Ok(shutdown::run(worker, orders).await)
}

/// Applies new limits whenever they change.
async fn follow_limits<D: Driver>(
    worker: Rc<Worker<D>>,
    mut changes: watch::Receiver<OverloadLimits>,
) {
    let alarm = worker.wheel.alarm();
    while let Some(Ok(())) = before(changes.changed(), worker.ordered(&alarm, Order::Cut)).await {
        worker.overload.renew(&changes.borrow_and_update());
    }
}

async fn turn_wheel<D: Driver>(worker: Rc<Worker<D>>) {
    let mut told = None;
    while !worker.wheel.is_stopped() {
        let sooner = poll_fn(|context| worker.wheel.poll_sooner(context));
        match worker.wheel.next() {
            Some(at) => first_of(worker.driver.sleep_until(at), sooner).await,
            None => sooner.await,
        }
        let now = worker.driver.now();
        worker.wheel.turn(now);
        if told.is_none_or(|told| now >= told + REFUSALS_PAUSE) && tell_refusals(&worker.observed) {
            told = Some(now);
        }
    }
    tell_refusals(&worker.observed);
}

/// Logs one line for all rejected requests and handshakes. Returns false if there were none.
fn tell_refusals(observed: &Observed) -> bool {
    let refusals = observed.take_refusals();
    if refusals.is_empty() {
        return false;
    }
    let reasons: Vec<_> = refusals.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let reasons = reasons.join(", ");
    contained(|| {
        tracing::info!(target: "peregrine", reasons,
        "requests or handshakes were rejected; the DEBUG level logs each one")
    });
    true
}
