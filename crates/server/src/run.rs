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
use peregrine_web::panic::catch_subscriber_panic;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::watch;

/// The minimum time between two log lines that summarise rejected requests and handshakes.
const REJECTION_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Runs a worker until it has shut down. After its last connection has ended, the worker waits for
/// tasks that outlive their requests, for at most
/// [`Limits::background_task_timeout`](crate::Limits::background_task_timeout). After that,
/// [`Driver::run`] waits for blocking functions until the same deadline, and `instrumentation`
/// records how many are then still running. If the server has several workers, `balancer` moves new
/// connections to workers that have fewer.
///
/// # Errors
/// The driver cannot listen on one of the sockets.
pub async fn run_worker<D: Driver>(
    driver: D,
    listeners: Vec<BoundListener<D::Socket>>,
    application: BuiltApp,
    limits: impl Into<WorkerLimits>,
    instrumentation: Rc<Instrumentation>,
    lifecycle: watch::Receiver<Lifecycle>,
    balancer: Option<Balancer<D::Handoff>>,
) -> std::io::Result<WorkerReport> {
    shutdown::install(&lifecycle);
    let initial_lifecycle = *lifecycle.borrow();
    let WorkerLimits { limits, overload_updates, reserves_connections } = limits.into();
    let worker = Rc::new(Worker::new(
        driver,
        application,
        (limits, reserves_connections),
        instrumentation,
        initial_lifecycle,
    ));
    install_clock(&worker);
    let active_state_pool = Rc::new(active_state_pool());
    let balancer = balancer.map(Rc::new);
    if let Some(balancer) = balancer.clone() {
        worker
            .instrumentation
            .set_on_open_connections(move |connections| balancer.set_open_connections(connections));
    }
    for (listener_index, bound) in listeners.into_iter().enumerate() {
        let (socket_sharing, config_updates) = (bound.sharing.clone(), bound.updates.clone());
        let (context, socket) = ListenerContext::new(&worker, bound);
        let listener = worker.driver.listen(socket)?;
        let listener_state =
            Rc::new(ListenerState { context, active_state_pool: Rc::clone(&active_state_pool) });
        let worker = Rc::clone(&worker);
        let balancing =
            balancer.clone().map(|balancer| ListenerBalancing { balancer, listener_index });
        // Keeps the worker running until the listener has accepted the connections in the backlog.
        let pending_work = worker.instrumentation.track_pending_work();
        let driver = worker.driver.clone();
        driver.spawn_boxed(Box::pin(async move {
            accept::run(
                worker,
                listener_state,
                listener,
                socket_sharing,
                config_updates,
                balancing,
            )
            .await;
            drop(pending_work);
        }));
    }
    worker.driver.spawn_boxed(Box::pin(drive_timers(Rc::clone(&worker))));
    if let Some(overload_updates) = overload_updates {
        let watcher = watch_overload_limits(Rc::clone(&worker), overload_updates);
        worker.driver.spawn_boxed(Box::pin(watcher));
    }
    Ok(shutdown::run(worker, lifecycle).await)
}

/// Applies changes of the overload limits until the worker is in [`Lifecycle::ForceClosing`].
async fn watch_overload_limits<D: Driver>(
    worker: Rc<Worker<D>>,
    mut overload_updates: watch::Receiver<OverloadLimits>,
) {
    let timer = worker.timers.timer();
    while let Some(Ok(())) = run_until(
        overload_updates.changed(),
        worker.lifecycle_reached(&timer, Lifecycle::ForceClosing),
    )
    .await
    {
        worker.admission.set_limits(&overload_updates.borrow_and_update());
    }
}

/// Advances the timer wheel and logs rejections until the worker has ended.
async fn drive_timers<D: Driver>(worker: Rc<Worker<D>>) {
    let mut last_logged = None;
    while !worker.timers.is_stopped() {
        let rescheduled = poll_fn(|cx| worker.timers.poll_rescheduled(cx));
        match worker.timers.next_expiration() {
            Some(deadline) => race(worker.driver.sleep_until(deadline), rescheduled).await,
            None => rescheduled.await,
        }
        let now = worker.driver.now();
        worker.timers.advance(now);
        if last_logged.is_none_or(|last_logged| now >= last_logged + REJECTION_LOG_INTERVAL)
            && log_rejections(&worker.instrumentation)
        {
            last_logged = Some(now);
        }
    }
    log_rejections(&worker.instrumentation);
}

/// Logs one line for all requests and handshakes that were rejected since the last call. Returns
/// false if there were none.
fn log_rejections(instrumentation: &Instrumentation) -> bool {
    let rejections = instrumentation.take_rejections();
    if rejections.is_empty() {
        return false;
    }
    let reasons: Vec<_> =
        rejections.iter().map(|(name, count)| format!("{count} {name}")).collect();
    let reasons = reasons.join(", ");
    catch_subscriber_panic(|| {
        tracing::info!(target: "peregrine", reasons,
        "requests or handshakes were rejected; the DEBUG level logs each one")
    });
    true
}
