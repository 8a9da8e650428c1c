//! The clock of a worker, for bodies that have something to say after a while of silence: alarms on the
//! worker's wheel, which tell of a drain as well.

use crate::lifecycle::Order;
use crate::wheel;
use crate::worker::Worker;
use peregrine_driver::Driver;
use peregrine_web::clock::{Alarm, Clock, announce};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

/// Makes the worker's clock that of its thread. It does not keep the worker.
pub(crate) fn announce_clock<D: Driver>(worker: &Rc<Worker<D>>) {
    announce(Rc::new(WorkerClock(Rc::downgrade(worker))));
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
    alarm: wheel::Alarm,
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
