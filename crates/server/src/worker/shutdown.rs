//! The end of a worker: connections first, then the application, then the work that requests left
//! behind.
//!
//! Tasks that were spawned on the worker's runtime outlive the requests that spawned them, and so do
//! functions on its blocking threads. The worker waits for both until the deadline. The application is
//! dropped before: a task that serves only as long as somebody holds the other end (a pool's
//! maintenance, the driver of a client's connection) ends by that.

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

/// The first pause between two looks at the number of tasks, doubled each time up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// How long the worker waits for tasks before the log says so.
const SILENCE: Duration = Duration::from_secs(1);

thread_local! {
    /// The orders to the worker of this thread.
    static ORDERS: RefCell<Option<watch::Receiver<Order>>> = const { RefCell::new(None) };
}

/// Tells work that has no end of its own when to come to one: the server was ordered to shut down.
///
/// [`Shutdown::current`] works in handlers, streams and tasks without set-up, and what it gives may be
/// taken along to other threads. It costs nothing until it is asked for.
#[derive(Clone)]
pub struct Shutdown(Option<watch::Receiver<Order>>);

impl Shutdown {
    /// The shutdown of the server whose worker runs on this thread. On any other thread, and in tests
    /// without a server, it never comes.
    #[must_use]
    pub fn current() -> Self {
        Self(ORDERS.with_borrow(Clone::clone))
    }

    /// Was the shutdown ordered?
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.0.as_ref().is_some_and(|orders| *orders.borrow() > Order::Serve)
    }

    /// Ends when the shutdown is ordered. Dropping the future loses nothing.
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

/// The same, or that there is nobody who gives orders.
pub(crate) fn announce_all(orders: Option<watch::Receiver<Order>>) {
    ORDERS.set(orders);
}

/// What was announced last.
pub(crate) fn announced() -> Option<watch::Receiver<Order>> {
    ORDERS.with_borrow(Clone::clone)
}

/// Ends a worker when it is ordered to.
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

/// The next order that goes beyond `present`. When nobody can give orders any more, none comes.
async fn next_order(orders: &mut watch::Receiver<Order>, present: Order) -> Order {
    // What is borrowed from the channel must not be held while this waits: tasks on any thread may.
    let order = orders.wait_for(|order| *order > present).await.map(|order| *order);
    match order {
        Ok(order) => order,
        Err(_) => pending().await,
    }
}

/// Ends when the worker is ordered to end at once.
async fn cut(orders: &mut watch::Receiver<Order>) {
    next_order(orders, Order::Drain).await;
}

/// Drops the worker, and the application with it, when no task of the server's holds it any more.
async fn drop_application<D: Driver>(worker: Rc<Worker<D>>) {
    worker.wheel.stop();
    // All of them were woken, and end when they are polled.
    while Rc::strong_count(&worker) > 1 {
        worker.driver.sleep_until(worker.driver.now() + PAUSE_MIN).await;
    }
}

/// Work that requests left behind.
struct Left<D> {
    driver: D,
    limits: Limits,
    observed: Rc<Observed>,
    /// When the time to shut down is over.
    deadline: Duration,
    orders: watch::Receiver<Order>,
}

impl<D: Driver> Left<D> {
    /// Waits for tasks, and lets the driver wait for blocking functions.
    async fn outlive(&self) {
        let now = self.driver.now();
        let until = self.deadline.min(now.saturating_add(self.limits.background_timeout));
        self.await_tasks(until).await;
        self.observed.tasks_cut(self.driver.tokio_tasks());
        // A time that is too far away for the clock has no end.
        let until = Instant::now().checked_add(until.saturating_sub(self.driver.now()));
        let (observed, orders) = (Rc::clone(&self.observed), self.orders.clone());
        self.driver.outlast(move |functions| {
            observed.functions_left(functions);
            until.is_none_or(|until| Instant::now() < until) && *orders.borrow() < Order::Cut
        });
    }

    async fn await_tasks(&self, until: Duration) {
        // Tasks wait for things that the driver does not know.
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
                // Tasks that were just aborted, or have just lost what they served, are not blamed.
                self.driver.sleep_until(now + PAUSE_MIN).await;
                continue;
            }
            if !is_told && now >= began + SILENCE {
                is_told = true;
                let left = until.saturating_sub(now);
                contained(|| {
                    tracing::warn!(target: "peregrine", tasks, ?left,
                    "waiting for tasks that outlive their requests; \
                     let tasks without an end await `Shutdown::ordered`, or lower \
                     `Limits::background_timeout`")
                });
            }
            let over = self.driver.sleep_until((now + pause).min(until));
            let mut orders = self.orders.clone();
            first_of(over, cut(&mut orders)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
