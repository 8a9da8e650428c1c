//! Ends a worker: first its connections, then the application, then tasks and blocking functions
//! that outlive their requests.
//!
//! Tasks on the worker's runtime, and functions on its blocking threads, may outlive the requests
//! that started them. The worker waits for both until the deadline. Before that, it drops the
//! application, because some tasks end only then, such as the maintenance task of a connection pool
//! that the application owns.

use super::Worker;
use super::lifecycle::{Lifecycle, WorkerReport, race};
use crate::limits::Limits;
use crate::observe::Instrumentation;
use peregrine_driver::Driver;
use peregrine_web::panic::catch_log_panic;
use std::cell::RefCell;
use std::fmt;
use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The first pause between two checks of the number of tasks. It doubles each time, up to the
/// maximum.
const TASK_CHECK_INTERVAL_MIN: Duration = Duration::from_millis(1);
const TASK_CHECK_INTERVAL_MAX: Duration = Duration::from_millis(50);

/// If the worker waits for tasks for longer than this, it logs a warning.
const TASK_WARNING_DELAY: Duration = Duration::from_secs(1);

thread_local! {
    /// The lifecycle channel of this thread's worker.
    static LIFECYCLE: RefCell<Option<watch::Receiver<Lifecycle>>> = const { RefCell::new(None) };
}

/// Notifies tasks, streams and handlers of the server's shutdown, so that endless ones can end.
///
/// In handlers, streams and tasks, [`Shutdown::current`] works without any set-up. The value may be
/// moved to other threads. It costs nothing until it is used.
#[doc(alias = "CancellationToken")]
#[doc(alias = "with_graceful_shutdown")]
#[doc(alias = "ServerHandle")]
#[derive(Clone)]
pub struct Shutdown(Option<watch::Receiver<Lifecycle>>);

impl Shutdown {
    /// Returns the shutdown of the server whose worker runs on this thread. On any other thread,
    /// and in tests without a server, the returned shutdown is never requested.
    #[must_use]
    pub fn current() -> Self {
        Self(LIFECYCLE.with_borrow(Clone::clone))
    }

    /// Returns whether the shutdown was requested.
    #[doc(alias = "is_cancelled")]
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.as_ref().is_some_and(|orders| *orders.borrow() > Lifecycle::Serving)
    }

    /// Completes when the shutdown is requested. The future may be dropped and awaited again.
    #[doc(alias = "cancelled")]
    #[doc(alias = "graceful_shutdown")]
    pub async fn requested(&self) {
        match self.0.clone() {
            Some(mut orders) => drop(next_lifecycle(&mut orders, Lifecycle::Serving).await),
            None => pending().await,
        }
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown")
            .field("is_requested", &self.is_requested())
            .finish_non_exhaustive()
    }
}

/// Makes [`Shutdown::current`] work on this thread.
pub(crate) fn install(orders: &watch::Receiver<Lifecycle>) {
    install_receiver(Some(orders.clone()));
}

/// As [`install`]. `None` means that the lifecycle will not change.
pub(crate) fn install_receiver(orders: Option<watch::Receiver<Lifecycle>>) {
    LIFECYCLE.set(orders);
}

/// Returns the lifecycle channel that was last set on this thread.
pub(crate) fn installed() -> Option<watch::Receiver<Lifecycle>> {
    LIFECYCLE.with_borrow(Clone::clone)
}

/// Follows the lifecycle of a worker, and ends the worker at its shutdown.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    mut orders: watch::Receiver<Lifecycle>,
) -> WorkerReport {
    if worker.lifecycle() == Lifecycle::Standby
        && next_lifecycle(&mut orders, Lifecycle::Standby).await == Lifecycle::Serving
    {
        worker.set_lifecycle(Lifecycle::Serving);
    }
    let mut first = next_lifecycle(&mut orders, Lifecycle::Serving).await;
    let deadline = worker.driver.now().saturating_add(worker.limits.shutdown_timeout);
    if first == Lifecycle::Draining && !worker.limits.lame_duck_period.is_zero() {
        worker.set_lifecycle(Lifecycle::LameDuck);
        let over = worker.driver.now().saturating_add(worker.limits.lame_duck_period).min(deadline);
        race(worker.driver.sleep_until(over), force_close_requested(&mut orders)).await;
        first = *orders.borrow();
    }
    first = first.max(Lifecycle::Draining);
    worker.set_lifecycle(first);
    if first < Lifecycle::ForceClosing {
        let over = worker.driver.sleep_until(deadline);
        race(worker.instrumentation.wait_idle(), race(over, force_close_requested(&mut orders)))
            .await;
        worker.set_lifecycle(Lifecycle::ForceClosing);
    }
    worker.instrumentation.wait_idle().await;
    let report =
        WorkerReport { force_closed: worker.force_closed.take(), ..WorkerReport::default() };
    let (driver, limits) = (worker.driver.clone(), worker.limits.clone());
    let observed = Rc::clone(&worker.instrumentation);
    drop_application(worker).await;
    let left =
        RemainingWork { driver, limits, instrumentation: observed, deadline, lifecycle: orders };
    left.wait().await;
    WorkerReport { stats: left.instrumentation.stats(), ..report }
}

/// Waits for a lifecycle state after `present`. Waits forever if no other state can follow.
async fn next_lifecycle(orders: &mut watch::Receiver<Lifecycle>, present: Lifecycle) -> Lifecycle {
    // Copy the state out of the channel at once: holding the borrowed value across an await would
    // block the sender.
    let order = orders.wait_for(|order| *order > present).await.map(|order| *order);
    match order {
        Ok(order) => order,
        Err(_) => pending().await,
    }
}

/// Completes when the worker gets `Lifecycle::ForceClosing`.
async fn force_close_requested(orders: &mut watch::Receiver<Lifecycle>) {
    next_lifecycle(orders, Lifecycle::Draining).await;
}

/// Drops the worker and its application once no task of the server uses it any more.
async fn drop_application<D: Driver>(worker: Rc<Worker<D>>) {
    worker.timers.stop();
    // The tasks that still use the worker were woken, and end when they are polled.
    while Rc::strong_count(&worker) > 1 {
        worker.driver.sleep_until(worker.driver.now() + TASK_CHECK_INTERVAL_MIN).await;
    }
}

/// Tasks and blocking functions that may outlive their requests.
struct RemainingWork<D> {
    driver: D,
    limits: Limits,
    instrumentation: Rc<Instrumentation>,
    /// When the shutdown timeout expires.
    deadline: Duration,
    lifecycle: watch::Receiver<Lifecycle>,
}

impl<D: Driver> RemainingWork<D> {
    /// Waits for tasks, and then makes the driver wait for blocking functions.
    async fn wait(&self) {
        let now = self.driver.now();
        let until = self.deadline.min(now.saturating_add(self.limits.background_task_timeout));
        self.wait_for_tasks(until).await;
        self.instrumentation.set_aborted_tasks(self.driver.tokio_tasks());
        // If the deadline is too far away for `Instant`, wait without a deadline.
        let until = Instant::now().checked_add(until.saturating_sub(self.driver.now()));
        let (observed, orders) = (Rc::clone(&self.instrumentation), self.lifecycle.clone());
        self.driver.wait_for_blocking_tasks_while(move |functions| {
            observed.set_abandoned_blocking_tasks(functions);
            until.is_none_or(|until| Instant::now() < until)
                && *orders.borrow() < Lifecycle::ForceClosing
        });
    }

    async fn wait_for_tasks(&self, until: Duration) {
        // The tasks wait for events that the driver does not know.
        let _hold = self.driver.keep_awake();
        let began = self.driver.now();
        let (mut pause, mut is_told, mut is_over) = (TASK_CHECK_INTERVAL_MIN, false, false);
        loop {
            let (tasks, now) = (self.driver.tokio_tasks(), self.driver.now());
            if tasks == 0 || is_over {
                return;
            }
            is_over = now >= until || *self.lifecycle.borrow() >= Lifecycle::ForceClosing;
            if is_over {
                // Tasks that were just aborted, or whose connection has just ended, get a moment to
                // end, so that they do not count as cut.
                self.driver.sleep_until(now + TASK_CHECK_INTERVAL_MIN).await;
                continue;
            }
            if !is_told && now >= began + TASK_WARNING_DELAY {
                is_told = true;
                let left = until.saturating_sub(now);
                catch_log_panic(|| {
                    tracing::warn!(target: "peregrine", tasks, remaining = ?left,
                    "waiting for tasks that outlive their requests: await `Shutdown::requested` in \
                     endless tasks, or lower `Limits::background_task_timeout`")
                });
            }
            let over = self.driver.sleep_until((now + pause).min(until));
            let mut orders = self.lifecycle.clone();
            race(over, force_close_requested(&mut orders)).await;
            pause = (pause * 2).min(TASK_CHECK_INTERVAL_MAX);
        }
    }
}
