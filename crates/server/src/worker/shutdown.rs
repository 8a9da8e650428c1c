//! Ends a worker: first its connections, then the application, then tasks and blocking functions
//! that outlive their requests.
//!
//! Tasks on the worker's runtime, and functions on its blocking threads, may outlive the requests
//! that started them. The worker waits for both until the deadline. Before that, it drops the
//! application, because some tasks end only then, such as the maintenance task of a connection pool
//! that the application owns.

use super::Worker;
use super::lifecycle::{Order, Report, first_of};
use crate::limits::Limits;
use crate::observe::Observed;
use peregrine_driver::Driver;
use peregrine_web::panics::contained;
use std::cell::RefCell;
use std::fmt;
use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The first pause between two checks of the number of tasks. It doubles each time, up to the
/// maximum.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// If the worker waits for tasks for longer than this, it logs a warning.
const SILENCE: Duration = Duration::from_secs(1);

thread_local! {
    /// The orders to the worker of this thread.
    static ORDERS: RefCell<Option<watch::Receiver<Order>>> = const { RefCell::new(None) };
}

/// Notifies tasks, streams and handlers of the order to shut down the server, so that endless ones
/// can end.
///
/// In handlers, streams and tasks, [`Shutdown::current`] works without any set-up. The value may be
/// moved to other threads. It costs nothing until it is used.
#[derive(Clone)]
pub struct Shutdown(Option<watch::Receiver<Order>>);

impl Shutdown {
    /// Returns the shutdown of the server whose worker runs on this thread. On any other thread,
    /// and in tests without a server, the returned shutdown is never ordered.
    #[must_use]
    pub fn current() -> Self {
        Self(ORDERS.with_borrow(Clone::clone))
    }

    /// Returns whether the shutdown was ordered.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.0.as_ref().is_some_and(|orders| *orders.borrow() > Order::Serve)
    }

    /// Completes when the shutdown is ordered. The future may be dropped and awaited again.
    pub async fn ordered(&self) {
        match self.0.clone() {
            Some(mut orders) => drop(next_order(&mut orders, Order::Serve).await),
            None => pending().await,
        }
    }
}

impl fmt::Debug for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shutdown").field("is_ordered", &self.is_ordered()).finish_non_exhaustive()
    }
}

/// Makes [`Shutdown::current`] work on this thread.
pub(crate) fn announce(orders: &watch::Receiver<Order>) {
    announce_all(Some(orders.clone()));
}

/// As [`announce`]. `None` means that no orders will be given.
pub(crate) fn announce_all(orders: Option<watch::Receiver<Order>>) {
    ORDERS.set(orders);
}

/// Returns the orders that were last set on this thread.
pub(crate) fn announced() -> Option<watch::Receiver<Order>> {
    ORDERS.with_borrow(Clone::clone)
}

/// Waits for the orders to a worker, and ends the worker when it is ordered to end.
pub(crate) async fn run<D: Driver>(
    worker: Rc<Worker<D>>,
    mut orders: watch::Receiver<Order>,
) -> Report {
    if worker.order() == Order::Wait && next_order(&mut orders, Order::Wait).await == Order::Serve {
        worker.give(Order::Serve);
    }
    let mut first = next_order(&mut orders, Order::Serve).await;
    let deadline = worker.driver.now().saturating_add(worker.limits.shutdown_timeout);
    if first == Order::Drain && !worker.limits.lame_duck.is_zero() {
        worker.give(Order::LameDuck);
        let over = worker.driver.now().saturating_add(worker.limits.lame_duck).min(deadline);
        first_of(worker.driver.sleep_until(over), cut(&mut orders)).await;
        first = *orders.borrow();
    }
    first = first.max(Order::Drain);
    worker.give(first);
    if first < Order::Cut {
        let over = worker.driver.sleep_until(deadline);
        first_of(worker.observed.empty(), first_of(over, cut(&mut orders))).await;
        worker.give(Order::Cut);
    }
    worker.observed.empty().await;
    let report = Report { cut: worker.cut.take(), ..Report::default() };
    let (driver, limits) = (worker.driver.clone(), worker.limits.clone());
    let observed = Rc::clone(&worker.observed);
    drop_application(worker).await;
    let left = Left { driver, limits, observed, deadline, orders };
    left.outlive().await;
    Report { snapshot: left.observed.snapshot(), ..report }
}

/// Waits for an order after `present`. Waits forever if no more orders can be given.
async fn next_order(orders: &mut watch::Receiver<Order>, present: Order) -> Order {
    // Copy the order out of the channel at once: holding the borrowed value across an await would
    // block the sender.
    let order = orders.wait_for(|order| *order > present).await.map(|order| *order);
    match order {
        Ok(order) => order,
        Err(_) => pending().await,
    }
}

/// Completes when the worker gets `Order::Cut`.
async fn cut(orders: &mut watch::Receiver<Order>) {
    next_order(orders, Order::Drain).await;
}

/// Drops the worker and its application once no task of the server uses it any more.
async fn drop_application<D: Driver>(worker: Rc<Worker<D>>) {
    worker.wheel.stop();
    // The tasks that still use the worker were woken, and end when they are polled.
    while Rc::strong_count(&worker) > 1 {
        worker.driver.sleep_until(worker.driver.now() + PAUSE_MIN).await;
    }
}

/// Tasks and blocking functions that may outlive their requests.
struct Left<D> {
    driver: D,
    limits: Limits,
    observed: Rc<Observed>,
    /// When the shutdown timeout expires.
    deadline: Duration,
    orders: watch::Receiver<Order>,
}

impl<D: Driver> Left<D> {
    /// Waits for tasks, and then makes the driver wait for blocking functions.
    async fn outlive(&self) {
        let now = self.driver.now();
        let until = self.deadline.min(now.saturating_add(self.limits.background_timeout));
        self.await_tasks(until).await;
        self.observed.tasks_cut(self.driver.tokio_tasks());
        // If the deadline is too far away for `Instant`, wait without a deadline.
        let until = Instant::now().checked_add(until.saturating_sub(self.driver.now()));
        let (observed, orders) = (Rc::clone(&self.observed), self.orders.clone());
        self.driver.outlast(move |functions| {
            observed.functions_left(functions);
            until.is_none_or(|until| Instant::now() < until) && *orders.borrow() < Order::Cut
        });
    }

    async fn await_tasks(&self, until: Duration) {
        // The tasks wait for events that the driver does not know.
        let _hold = self.driver.hold();
        let began = self.driver.now();
        let (mut pause, mut is_told, mut is_over) = (PAUSE_MIN, false, false);
        loop {
            let (tasks, now) = (self.driver.tokio_tasks(), self.driver.now());
            if tasks == 0 || is_over {
                return;
            }
            is_over = now >= until || *self.orders.borrow() >= Order::Cut;
            if is_over {
                // Tasks that were just aborted, or whose connection has just ended, get a moment to
                // end, so that they do not count as cut.
                self.driver.sleep_until(now + PAUSE_MIN).await;
                continue;
            }
            if !is_told && now >= began + SILENCE {
                is_told = true;
                let left = until.saturating_sub(now);
                contained(|| {
                    tracing::warn!(target: "peregrine", tasks, ?left,
                    "waiting for tasks that outlive their requests: await `Shutdown::ordered` in \
                     endless tasks, or lower `Limits::background_timeout`")
                });
            }
            let over = self.driver.sleep_until((now + pause).min(until));
            let mut orders = self.orders.clone();
            first_of(over, cut(&mut orders)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
