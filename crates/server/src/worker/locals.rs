//! The thread-local state of a worker: its clock and its lifecycle channel.
//!
//! A worker normally has its own thread and sets both once. If several workers share a thread, as
//! in a simulation, each worker sets them again before it runs. Response bodies use the clock, for
//! example to send a keep-alive message after a period of silence. The clock's timers also report
//! whether the worker is draining.

use super::lifecycle::Lifecycle;
use super::{Worker, shutdown};
use crate::timer_wheel;
use peregrine_driver::Driver;
use peregrine_web::timer::{self, Timer, TimerSource};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;

/// A copy of the thread-local state.
#[derive(Clone, Default)]
pub struct WorkerLocals {
    clock: Option<Rc<dyn TimerSource>>,
    lifecycle: Option<watch::Receiver<Lifecycle>>,
}

impl WorkerLocals {
    /// Returns the state that was last set on this thread.
    #[must_use]
    pub fn current() -> Self {
        Self { clock: timer::current(), lifecycle: shutdown::installed() }
    }

    /// Sets this state on the current thread.
    pub fn install(&self) {
        match &self.clock {
            Some(clock) => timer::install(Rc::clone(clock)),
            None => timer::uninstall(),
        }
        shutdown::install_receiver(self.lifecycle.clone());
    }
}

impl std::fmt::Debug for WorkerLocals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerLocals").field("clock", &self.clock.is_some()).finish_non_exhaustive()
    }
}

/// Sets the worker's clock as the clock of the current thread. The clock does not keep the worker
/// alive.
pub(crate) fn install_clock<D: Driver>(worker: &Rc<Worker<D>>) {
    timer::install(Rc::new(WorkerClock(Rc::downgrade(worker))));
}

struct WorkerClock<D: Driver>(Weak<Worker<D>>);

impl<D: Driver> TimerSource for WorkerClock<D> {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        let worker = self.0.upgrade()?;
        let timer = worker.timers.timer();
        Some(Box::new(WorkerTimer { timer, worker: Weak::clone(&self.0) }))
    }
}

struct WorkerTimer<D: Driver> {
    timer: timer_wheel::Timer,
    worker: Weak<Worker<D>>,
}

impl<D: Driver> Timer for WorkerTimer<D> {
    fn reset(&mut self, after: Duration) {
        if let Some(worker) = self.worker.upgrade() {
            self.timer.set(worker.driver.now().saturating_add(after));
        }
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll(cx)
    }

    fn now(&self) -> Duration {
        self.worker.upgrade().map_or(Duration::ZERO, |worker| worker.driver.now())
    }

    fn is_server_draining(&self) -> bool {
        self.worker.upgrade().is_none_or(|worker| worker.lifecycle() >= Lifecycle::Draining)
    }
}
