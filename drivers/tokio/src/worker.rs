//! The driver's handle, its runtime and its clock.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use peregrine_driver::{Counters, Driver, Options, Socket};
use tokio::runtime::{Builder, Handle, LocalOptions};

use crate::listener::Listener;
use crate::pin::pin_thread;
use crate::pool::Pool;
use crate::stream::Stream;

/// Task polls between two looks at the kernel while tasks are ready. One look usually makes as many
/// tasks ready as there are active connections; tokio's default of 61 would cut their round in two.
const EVENT_INTERVAL: u32 = 127;

/// One worker of the portable driver: a cheap handle to the thread's tokio runtime.
#[derive(Clone)]
pub struct Tokio {
    worker: Rc<Worker>,
}

/// What all handles, listeners and connections of one thread share.
pub(crate) struct Worker {
    start: Instant,
    pub(crate) pool: Rc<Pool>,
    pub(crate) figures: Figures,
}

/// Counts that this driver keeps itself.
#[derive(Default)]
pub(crate) struct Figures {
    /// Reads, writes and accepts that were made.
    pub(crate) calls: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    /// Sends whose future is gone and whose bytes are not all written.
    pub(crate) left: Cell<u64>,
}

/// Adds one to a count.
pub(crate) fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// Nothing: tokio's own way to park serves every kind of waiting.
#[derive(Debug)]
pub struct Hold(());

impl Driver for Tokio {
    type Socket = Socket;
    type Listener = Listener;
    type Stream = Stream;
    type Hold = Hold;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        if let Some(cpu) = options.cpu {
            pin_thread(cpu)?;
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build_local(LocalOptions::default())?;
        let worker = Rc::new(Worker {
            start: Instant::now(),
            pool: Rc::new(Pool::new(options)),
            figures: Figures::default(),
        });
        let output = runtime.block_on(async { main(Self { worker }).await });
        // The remaining tasks are dropped here, while the runtime is still entered for them.
        drop(runtime);
        Ok(output)
    }

    fn listen(&self, socket: Socket) -> io::Result<Listener> {
        Listener::new(socket, Rc::clone(&self.worker))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // A panic stays in the task's result, and dropping the handle lets the task go on.
        drop(tokio::task::spawn_local(task));
    }

    fn now(&self) -> Duration {
        self.worker.start.elapsed()
    }

    fn unix_time(&self) -> Duration {
        // A clock before 1970 is a broken clock: dates on the wire then start at the epoch.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn sleep_until(&self, at: Duration) {
        match self.worker.start.checked_add(at) {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => pending().await,
        }
    }

    fn hold(&self) -> Hold {
        Hold(())
    }

    /// `enters` counts reads, writes, accepts and the times the thread parked; looks at the kernel
    /// without parking are not known. `in_flight` counts sends that go on without their future.
    fn counters(&self) -> Counters {
        let parks = Handle::try_current().map_or(0, |handle| handle.metrics().worker_park_count(0));
        let figures = &self.worker.figures;
        Counters {
            enters: figures.calls.get() + parks,
            accepted: figures.accepted.get(),
            buffers_exhausted: self.worker.pool.exhausted(),
            in_flight: figures.left.get(),
        }
    }
}
