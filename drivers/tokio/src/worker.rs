//! The driver's handle, its runtime and its clock.

use std::cell::Cell;
use std::future::{Future, pending};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use peregrine_driver::{
    Counters, Driver, Figures, Functions, Options, Passed, Socket, SocketOptions,
};
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};

use crate::connection::Connection;
use crate::listener::Listener;
use crate::look::{self, Look};
use crate::pin::Pinned;
use crate::pool::Pool;
use crate::stream::Stream;

/// The maximum number of sockets reported by one poll of the kernel. With a small number, a request
/// and the task that it spawned run while both are in the caches: when 1,500 busy connections were
/// reported at once, each spawned task waited for all of them, which made such a request a fifth
/// slower.
const SOCKETS_PER_LOOK: usize = 64;

/// The number of task polls between two polls of the kernel while tasks are ready: enough for all
/// tasks made ready by one poll of the kernel, with three polls per request that waits for a
/// spawned task. tokio's default of 61 would poll the kernel in between.
const EVENT_INTERVAL: u32 = 4 * SOCKETS_PER_LOOK as u32;

/// One worker of the portable driver: a cheap handle to the thread's tokio runtime.
#[derive(Clone)]
pub struct Tokio {
    worker: Rc<Worker>,
}

/// The state shared by all handles, listeners and connections of one thread.
pub(crate) struct Worker {
    start: Instant,
    pub(crate) pool: Rc<Pool>,
    /// The size of a large read in bytes.
    pub(crate) large_bytes: usize,
    pub(crate) sockets: SocketOptions,
    pub(crate) figures: Own,
    look: Look,
    functions: Functions,
}

/// Counters kept by the driver.
#[derive(Default)]
pub(crate) struct Own {
    /// Where they are published for other threads.
    shown: Option<Arc<Figures>>,
    /// The number of reads, writes and accepts.
    pub(crate) calls: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    /// The number of connections with unwritten bytes.
    pub(crate) left: Cell<u64>,
}

impl Own {
    /// Counts a read, a write or an accept.
    pub(crate) fn call(&self) {
        increment(&self.calls);
        if let Some(shown) = &self.shown {
            shown.enters.add(1);
        }
    }

    /// Adds `more` to the number of connections with unwritten bytes.
    pub(crate) fn leave(&self, more: i64) {
        self.left.set(self.left.get().wrapping_add_signed(more));
        if let Some(shown) = &self.shown {
            shown.in_flight.add(more);
        }
    }
}

/// Makes the runtime count its sleeps.
fn count_sleeps(builder: &mut Builder, sleeps: &Arc<AtomicU64>) {
    let sleeps = Arc::clone(sleeps);
    builder.on_thread_unpark(move || look::slept(&sleeps));
}

/// The same, and measures how long it is awake between two sleeps.
fn measure_turns(
    builder: &mut Builder,
    sleeps: &Arc<AtomicU64>,
    figures: &Arc<Figures>,
    start: Instant,
) {
    let (woken, figures) = (Arc::new(AtomicU64::new(0)), Arc::clone(figures));
    let now = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (began, sleeps) = (Arc::clone(&woken), Arc::clone(sleeps));
    let unparked = move || {
        look::slept(&sleeps);
        began.store(now(), Ordering::Relaxed);
    };
    builder.on_thread_unpark(unparked).on_thread_park(move || {
        let time = now().saturating_sub(woken.load(Ordering::Relaxed));
        figures.turn(Duration::from_nanos(time));
    });
}

/// Increments a counter.
pub(crate) fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// Empty: tokio's way of parking suits every kind of wait.
#[derive(Debug)]
pub struct Hold(());

impl Driver for Tokio {
    type Socket = Socket;
    type Listener = Listener;
    type Stream = Stream;
    type Passed = Passed;
    type Hold = Hold;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        let _pinned = options.cpu.map(Pinned::to).transpose()?;
        let (hosting, driver) = Hosting::start(options)?;
        let mut output = None;
        let main = async { output = Some(main(driver.clone()).await) };
        hosting.run(&driver, Box::pin(main));
        Ok(output.expect("`main` has completed"))
    }

    fn listen(&self, socket: Socket) -> io::Result<Listener> {
        Listener::new(socket, Rc::clone(&self.worker))
    }

    fn pass(&self, stream: Stream) -> io::Result<Passed> {
        stream.pass()
    }

    fn adopt(&self, passed: Passed) -> io::Result<Stream> {
        Ok(Stream::new(Connection::adopt(passed)?, Rc::clone(&self.worker)))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // A panic is stored in the task's result, and dropping the handle does not stop the task.
        drop(tokio::task::spawn_local(task));
    }

    fn now(&self) -> Duration {
        self.worker.start.elapsed()
    }

    fn turn_began(&self) -> Duration {
        self.worker.look.began()
    }

    // A task that only wakes itself is polled `EVENT_INTERVAL` times before tokio polls its
    // sockets.
    const IS_FAIR_TO_OTHERS: bool = false;

    fn others_first(&self, context: &mut Context<'_>) {
        // This first poll arranges a wake-up after that.
        let _ = pin!(tokio::task::yield_now()).poll(context);
    }

    fn unix_time(&self) -> Duration {
        // A clock set before 1970 is wrong; dates on the wire then start at the epoch.
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

    fn tokio_tasks(&self) -> usize {
        let tasks = Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        tasks.saturating_sub(self.worker.look.tasks())
    }

    fn outlast(&self, is_patient: impl FnMut(usize) -> bool + 'static) {
        self.worker.functions.outlast(is_patient);
    }

    /// `enters` counts reads, writes, accepts and how often the thread parked; polls of the kernel
    /// without parking are not known. `in_flight` counts connections with unwritten bytes.
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

/// A runtime that waits only for a limited time for blocking functions, however it ends.
struct Hosting {
    runtime: Option<LocalRuntime>,
    end_max: Duration,
}

impl Hosting {
    fn start(options: &Options) -> io::Result<(Self, Tokio)> {
        let functions = Functions::default();
        let (started, stopped) = (functions.threads(), functions.threads());
        let start = Instant::now();
        let mut builder = Builder::new_current_thread();
        let sleeps = Arc::default();
        match &options.figures {
            None => count_sleeps(&mut builder, &sleeps),
            Some(figures) => {
                figures.show_threads(functions.threads());
                measure_turns(&mut builder, &sleeps, figures, start);
            }
        }
        let runtime = builder
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .max_io_events_per_tick(SOCKETS_PER_LOOK)
            .on_thread_start(move || started.started())
            .on_thread_stop(move || stopped.stopped())
            .build_local(LocalOptions::default())?;
        let hosting = Self { runtime: Some(runtime), end_max: Duration::ZERO };
        let worker = Rc::new(Worker {
            start,
            pool: Rc::new(Pool::new(options)),
            large_bytes: options.large_bytes(),
            sockets: options.sockets.clone(),
            figures: Own { shown: options.figures.clone(), ..Own::default() },
            look: Look::new(start, sleeps),
            functions,
        });
        Ok((hosting, Tokio { worker }))
    }

    /// The lifetime of a worker. Compiled only once, because `main` is boxed. `main` is dropped
    /// while the runtime is entered, even if it panics.
    fn run(mut self, driver: &Tokio, main: Pin<Box<dyn Future<Output = ()> + '_>>) {
        let functions = &driver.worker.functions;
        self.runtime().block_on(async move {
            main.await;
            functions.begin(driver, || tokio::task::spawn_blocking(|| ())).await;
        });
        functions.end(|end_max| {
            self.end_max = end_max;
            drop(self);
        });
    }

    fn runtime(&self) -> &LocalRuntime {
        self.runtime.as_ref().expect("the runtime exists until the drop")
    }
}

impl Drop for Hosting {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The remaining tasks are dropped here, while the runtime is still entered for them.
            runtime.shutdown_timeout(self.end_max);
        }
    }
}
