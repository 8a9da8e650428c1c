//! The thread-local state of a worker: its clock and its shutdown orders.
//!
//! A worker normally has its own thread and sets both once. If several workers share a thread, as
//! in a simulation, each sets them again before it continues. Response bodies use the clock to send
//! something after a period of silence. The alarms of the clock also report whether the worker
//! drains.

use super::lifecycle::Order;
use super::{Worker, shutdown};
use crate::timer_wheel;
use peregrine_driver::Driver;
use peregrine_web::clock::{self, Alarm, Clock};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// A copy of the thread-local state.
#[derive(Clone, Default)]
pub struct Locals {
    clock: Option<Rc<dyn Clock>>,
    orders: Option<watch::Receiver<Order>>,
}

impl Locals {
    /// Returns the state that was last set on this thread.
    #[must_use]
    pub fn current() -> Self {
        Self { clock: clock::current(), orders: shutdown::announced() }
    }

    /// Sets this state on the thread.
    pub fn announce(&self) {
        match &self.clock {
            Some(clock) => clock::announce(Rc::clone(clock)),
            None => clock::forget(),
        }
        shutdown::announce_all(self.orders.clone());
    }
}

impl std::fmt::Debug for Locals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locals").field("clock", &self.clock.is_some()).finish_non_exhaustive()
    }
}

/// Sets the worker's clock as the clock of the current thread. The clock does not keep the worker
/// alive.
pub(crate) fn announce_clock<D: Driver>(worker: &Rc<Worker<D>>) {
    clock::announce(Rc::new(WorkerClock(Rc::downgrade(worker))));
}

struct WorkerClock<D: Driver>(Weak<Worker<D>>);

impl<D: Driver> Clock for WorkerClock<D> {
    fn alarm(&self) -> Option<Box<dyn Alarm>> {
        let worker = self.0.upgrade()?;
        let alarm = worker.wheel.alarm();
        Some(Box::new(WorkerAlarm { alarm, worker: Weak::clone(&self.0) }))
    }
}

struct WorkerAlarm<D: Driver> {
    alarm: timer_wheel::Alarm,
    worker: Weak<Worker<D>>,
}

impl<D: Driver> Alarm for WorkerAlarm<D> {
    fn set(&mut self, after: Duration) {
        if let Some(worker) = self.worker.upgrade() {
            self.alarm.set(worker.driver.now().saturating_add(after));
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.alarm.poll(context)
    }

    fn now(&self) -> Duration {
        self.worker.upgrade().map_or(Duration::ZERO, |worker| worker.driver.now())
    }

    fn is_draining(&self) -> bool {
        self.worker.upgrade().is_none_or(|worker| worker.order() >= Order::Drain)
    }
}
