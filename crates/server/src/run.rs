//! Runs a worker: opens its listeners, drives its timer wheel, and shuts it down.

use crate::accept::balance::Balancer;
use crate::accept::{self, ListenerBalancing};
use crate::connection::{ListenerState, active_state_pool};
use crate::limits::OverloadLimits;
use crate::listener::ListenerContext;
use crate::listener::config::BoundListener;
use crate::observe::Instrumentation;
use crate::worker::lifecycle::{Lifecycle, WorkerReport, race, run_until};
use crate::worker::locals::install_clock;
use crate::worker::{Worker, WorkerLimits, shutdown};
use peregrine_driver::Driver;
use peregrine_web::built::BuiltApp;
use peregrine_web::panic::catch_log_panic;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// The time between two log lines that summarise rejected requests and handshakes.
const REJECTION_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Runs a worker until its shutdown. At the end, it waits for tasks that outlive their requests,
/// for at most [`Limits::background_task_timeout`](crate::Limits::background_task_timeout). After
/// that, [`Driver::run_worker`] also waits for blocking functions, and records in `observed` how
/// many are left. If there are several workers, `member` balances connections between them.
///
/// # Errors
/// The driver cannot listen on one of the sockets.
pub async fn run_worker<D: Driver>(
    driver: D,
    listens: Vec<BoundListener<D::Socket>>,
    application: BuiltApp,
    limits: impl Into<WorkerLimits>,
    observed: Rc<Instrumentation>,
    orders: watch::Receiver<Lifecycle>,
    member: Option<Balancer<D::Handoff>>,
) -> std::io::Result<WorkerReport> {
    shutdown::install(&orders);
    let present = *orders.borrow();
    let WorkerLimits {
        limits,
        overload_updates: overload,
        reserved_connections: spare_connections,
    } = limits.into();
    let limits = (limits, spare_connections);
    let worker = Rc::new(Worker::new(driver, application, limits, observed, present));
    install_clock(&worker);
    let sessions = Rc::new(active_state_pool());
    let member = member.map(Rc::new);
    if let Some(member) = member.clone() {
        worker
            .instrumentation
            .on_open_connections(move |connections| member.set_open_connections(connections));
    }
    for (number, listen) in listens.into_iter().enumerate() {
        let (shared, live) = (listen.sharing.clone(), listen.updates.clone());
        let (door, socket) = ListenerContext::new(&worker, listen);
        let listener = worker.driver.listen(socket)?;
        let entrance =
            Rc::new(ListenerState { context: door, active_states: Rc::clone(&sessions) });
        let worker = Rc::clone(&worker);
        let spreading = member
            .clone()
            .map(|member| ListenerBalancing { balancer: member, listener_index: number });
        // `pending` keeps the worker running until the listener has accepted the connections in the
        // backlog.
        let pending = worker.instrumentation.track();
        let driver = worker.driver.clone();
        driver.spawn_boxed(Box::pin(async move {
            accept::run(worker, entrance, listener, shared, live, spreading).await;
            drop(pending);
        }));
    }
    worker.driver.spawn_boxed(Box::pin(drive_timers(Rc::clone(&worker))));
    if let Some(changes) = overload {
        worker.driver.spawn_boxed(Box::pin(watch_overload_limits(Rc::clone(&worker), changes)));
    }
    Ok(shutdown::run(worker, orders).await)
}

/// Applies new limits whenever they change.
async fn watch_overload_limits<D: Driver>(
    worker: Rc<Worker<D>>,
    mut changes: watch::Receiver<OverloadLimits>,
) {
    let alarm = worker.timers.timer();
    while let Some(Ok(())) =
        run_until(changes.changed(), worker.lifecycle_reached(&alarm, Lifecycle::ForceClosing))
            .await
    {
        worker.admission.set_limits(&changes.borrow_and_update());
    }
}

async fn drive_timers<D: Driver>(worker: Rc<Worker<D>>) {
    let mut told = None;
    while !worker.timers.is_stopped() {
        let sooner = poll_fn(|cx| worker.timers.poll_earlier(cx));
        match worker.timers.next_expiration() {
            Some(at) => race(worker.driver.sleep_until(at), sooner).await,
            None => sooner.await,
        }
        let now = worker.driver.now();
        worker.timers.advance(now);
        if told.is_none_or(|told| now >= told + REJECTION_LOG_INTERVAL)
            && log_rejections(&worker.instrumentation)
        {
            told = Some(now);
        }
    }
    log_rejections(&worker.instrumentation);
}

/// Logs one line for all rejected requests and handshakes. Returns false if there were none.
fn log_rejections(observed: &Instrumentation) -> bool {
    let refusals = observed.take_rejections();
    if refusals.is_empty() {
        return false;
    }
    let reasons: Vec<_> = refusals.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let reasons = reasons.join(", ");
    catch_log_panic(|| {
        tracing::info!(target: "peregrine", reasons,
        "requests or handshakes were rejected; the DEBUG level logs each one")
    });
    true
}
