//! Ends a worker: first its connections, then the application, then tasks and blocking functions
//! that outlive their requests.
//!
//! The worker waits for these tasks and functions for up to `background_task_timeout`, but not
//! beyond the shutdown timeout. It drops the application before it waits, because some tasks end
//! only then, such as the maintenance task of a connection pool that the application owns.

use super::Worker;
use super::lifecycle::{Lifecycle, WorkerReport, race};
use crate::limits::Limits;
use crate::observe::Instrumentation;
use peregrine_driver::Driver;
use peregrine_web::panic::catch_subscriber_panic;
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
/// In handlers, streams and tasks, [`Shutdown::current`] works without any set-up. The returned
/// value can be moved to other threads. It costs nothing until it is used.
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
        self.0.as_ref().is_some_and(|lifecycle| *lifecycle.borrow() > Lifecycle::Serving)
    }

    /// Completes when the shutdown is requested. The future may be dropped and awaited again.
    #[doc(alias = "cancelled")]
    #[doc(alias = "graceful_shutdown")]
    pub async fn requested(&self) {
        match self.0.clone() {
            Some(mut lifecycle) => drop(next_lifecycle(&mut lifecycle, Lifecycle::Serving).await),
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

/// Sets the lifecycle channel that [`Shutdown::current`] returns on this thread.
pub(crate) fn install(lifecycle: &watch::Receiver<Lifecycle>) {
    install_receiver(Some(lifecycle.clone()));
}

/// As [`install`]. `None` means that there is no server, so no shutdown is ever requested.
pub(crate) fn install_receiver(lifecycle: Option<watch::Receiver<Lifecycle>>) {
    LIFECYCLE.set(lifecycle);
}

/// Returns the lifecycle channel that was last set on this thread.
pub(crate) fn installed() -> Option<watch::Receiver<Lifecycle>> {
    LIFECYCLE.with_borrow(Clone::clone)
}

/// Follows the lifecycle of a worker, and ends the worker at its shutdown.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    mut lifecycle: watch::Receiver<Lifecycle>,
) -> WorkerReport {
    if worker.lifecycle() == Lifecycle::Standby
        && next_lifecycle(&mut lifecycle, Lifecycle::Standby).await == Lifecycle::Serving
    {
        worker.set_lifecycle(Lifecycle::Serving);
    }
    let mut requested = next_lifecycle(&mut lifecycle, Lifecycle::Serving).await;
    let deadline = worker.driver.now().saturating_add(worker.limits.shutdown_timeout);
    if requested == Lifecycle::Draining && !worker.limits.lame_duck_period.is_zero() {
        worker.set_lifecycle(Lifecycle::LameDuck);
        let lame_duck_end =
            worker.driver.now().saturating_add(worker.limits.lame_duck_period).min(deadline);
        race(worker.driver.sleep_until(lame_duck_end), force_close_requested(&mut lifecycle)).await;
        requested = *lifecycle.borrow();
    }
    // From here on, `HandingOver` is the same as `Draining`.
    let state = requested.max(Lifecycle::Draining);
    worker.set_lifecycle(state);
    if state < Lifecycle::ForceClosing {
        let timeout = worker.driver.sleep_until(deadline);
        race(
            worker.instrumentation.wait_work_done(),
            race(timeout, force_close_requested(&mut lifecycle)),
        )
        .await;
        worker.set_lifecycle(Lifecycle::ForceClosing);
    }
    // In `ForceClosing`, all connections end immediately, so this needs no timeout.
    worker.instrumentation.wait_work_done().await;
    let report =
        WorkerReport { force_closed: worker.force_closed.take(), ..WorkerReport::default() };
    let (driver, limits) = (worker.driver.clone(), worker.limits.clone());
    let instrumentation = Rc::clone(&worker.instrumentation);
    drop_application(worker).await;
    let remaining = RemainingWork { driver, limits, instrumentation, deadline, lifecycle };
    remaining.wait().await;
    WorkerReport { stats: remaining.instrumentation.stats(), ..report }
}

/// Waits for a lifecycle state later than `current`. Waits forever if the sender was dropped.
async fn next_lifecycle(
    lifecycle: &mut watch::Receiver<Lifecycle>,
    current: Lifecycle,
) -> Lifecycle {
    // Copy the state out of the channel before the next await: holding the borrowed value across an
    // await would block the sender.
    let next = lifecycle.wait_for(|next| *next > current).await.map(|next| *next);
    match next {
        Ok(next) => next,
        Err(_) => pending().await,
    }
}

/// Completes when the worker must enter `Lifecycle::ForceClosing`.
async fn force_close_requested(lifecycle: &mut watch::Receiver<Lifecycle>) {
    next_lifecycle(lifecycle, Lifecycle::Draining).await;
}

/// Drops the worker and its application once no task of the server uses it any more.
async fn drop_application<D: Driver>(worker: Rc<Worker<D>>) {
    worker.timers.stop();
    // The tasks that still use the worker have been woken, and end when they are polled next.
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
    /// Waits for tasks, and then configures the driver to wait for blocking functions.
    async fn wait(&self) {
        let now = self.driver.now();
        let deadline = self.deadline.min(now.saturating_add(self.limits.background_task_timeout));
        self.wait_for_tasks(deadline).await;
        self.instrumentation.set_aborted_tasks(self.driver.tokio_tasks());
        // `None`, which means no deadline, if the deadline is too far away for `Instant`.
        let deadline_instant =
            Instant::now().checked_add(deadline.saturating_sub(self.driver.now()));
        let (instrumentation, lifecycle) =
            (Rc::clone(&self.instrumentation), self.lifecycle.clone());
        // Only sets how long `Driver::run` waits later.
        self.driver.keep_waiting_for_blocking_tasks_while(move |still_running| {
            instrumentation.set_abandoned_blocking_tasks(still_running);
            deadline_instant.is_none_or(|deadline| Instant::now() < deadline)
                && *lifecycle.borrow() < Lifecycle::ForceClosing
        });
    }

    async fn wait_for_tasks(&self, deadline: Duration) {
        // The tasks may wait for events that the driver does not know.
        let _keep_awake = self.driver.keep_awake();
        let started_at = self.driver.now();
        let (mut pause, mut has_warned, mut is_expired) = (TASK_CHECK_INTERVAL_MIN, false, false);
        loop {
            let (tasks, now) = (self.driver.tokio_tasks(), self.driver.now());
            if tasks == 0 || is_expired {
                return;
            }
            is_expired = now >= deadline || *self.lifecycle.borrow() >= Lifecycle::ForceClosing;
            if is_expired {
                // Tasks that are about to end anyway, because the application aborted them or their
                // connection has just ended, get a moment, so that they are not counted as aborted
                // by the shutdown.
                self.driver.sleep_until(now + TASK_CHECK_INTERVAL_MIN).await;
                continue;
            }
            if !has_warned && now >= started_at + TASK_WARNING_DELAY {
                has_warned = true;
                let remaining = deadline.saturating_sub(now);
                catch_subscriber_panic(|| {
                    tracing::warn!(target: "peregrine", tasks, remaining = ?remaining,
                    "waiting for tasks that outlive their requests: await `Shutdown::requested` in \
                     endless tasks, or lower `Limits::background_task_timeout`")
                });
            }
            let pause_end = self.driver.sleep_until((now + pause).min(deadline));
            let mut lifecycle = self.lifecycle.clone();
            race(pause_end, force_close_requested(&mut lifecycle)).await;
            pause = (pause * 2).min(TASK_CHECK_INTERVAL_MAX);
        }
    }
}
