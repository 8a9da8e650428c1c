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
    BlockingTasks, Driver, DriverMetrics, DriverStats, Handoff, Options, Socket, SocketOptions,
};
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};

use crate::affinity::AffinityGuard;
use crate::buffer_pool::BufferPool;
use crate::listener::TokioListener;
use crate::poll_clock::{self, PollClock};
use crate::socket::AsyncSocket;
use crate::stream::TokioStream;

/// The maximum number of sockets reported by one poll of the kernel. It is small, so that a request
/// and a task that it spawns run while both are in the CPU's caches. When 1,500 busy connections
/// were reported by one poll, each spawned task waited for all of them, which made such a request a
/// fifth slower.
const IO_EVENTS_PER_POLL: usize = 64;

/// The number of task polls between two polls of the kernel while tasks are ready: enough for all
/// tasks made ready by one poll of the kernel, with three polls per request that waits for a
/// spawned task. tokio's default of 61 would poll the kernel in between.
const EVENT_INTERVAL: u32 = 4 * IO_EVENTS_PER_POLL as u32;

/// One worker of the portable driver: a cheap handle to the thread's tokio runtime.
#[derive(Clone)]
pub struct Tokio {
    worker: Rc<TokioWorker>,
}

/// The state shared by all handles, listeners and connections of one thread.
pub(crate) struct TokioWorker {
    start: Instant,
    pub(crate) pool: Rc<BufferPool>,
    /// The size of a large read in bytes.
    pub(crate) large_receive_bytes: usize,
    pub(crate) socket_options: SocketOptions,
    pub(crate) stats: LocalStats,
    poll_clock: PollClock,
    blocking_tasks: BlockingTasks,
}

/// The driver's own counters.
#[derive(Default)]
pub(crate) struct LocalStats {
    /// Where the counters are published for other threads.
    metrics: Option<Arc<DriverMetrics>>,
    /// The number of reads, writes and accepts.
    pub(crate) syscalls: Cell<u64>,
    pub(crate) accepted: Cell<u64>,
    /// The number of connections with unwritten bytes.
    pub(crate) pending_writes: Cell<u64>,
}

impl LocalStats {
    /// Counts a read, a write or an accept.
    pub(crate) fn record_syscall(&self) {
        increment(&self.syscalls);
        if let Some(metrics) = &self.metrics {
            metrics.syscalls.add(1);
        }
    }

    /// Adds `delta` to the number of connections with unwritten bytes.
    pub(crate) fn add_pending_writes(&self, delta: i64) {
        self.pending_writes.set(self.pending_writes.get().wrapping_add_signed(delta));
        if let Some(metrics) = &self.metrics {
            metrics.in_flight.add(delta);
        }
    }
}

/// Makes the runtime count its sleeps.
fn count_parks(builder: &mut Builder, parks: &Arc<AtomicU64>) {
    let parks = Arc::clone(parks);
    builder.on_thread_unpark(move || poll_clock::count_park(&parks));
}

/// Makes the runtime count its sleeps and measure how long it is awake between them.
fn measure_iterations(
    builder: &mut Builder,
    parks: &Arc<AtomicU64>,
    metrics: &Arc<DriverMetrics>,
    start: Instant,
) {
    let (woken_at, metrics) = (Arc::new(AtomicU64::new(0)), Arc::clone(metrics));
    let now = move || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (last_woken, parks) = (Arc::clone(&woken_at), Arc::clone(parks));
    let unparked = move || {
        poll_clock::count_park(&parks);
        last_woken.store(now(), Ordering::Relaxed);
    };
    builder.on_thread_unpark(unparked).on_thread_park(move || {
        let time = now().saturating_sub(woken_at.load(Ordering::Relaxed));
        metrics.record_iteration(Duration::from_nanos(time));
    });
}

/// Increments a counter.
pub(crate) fn increment(count: &Cell<u64>) {
    count.set(count.get() + 1);
}

/// Empty, because tokio has only one way to park, which suits every kind of wait.
#[derive(Debug)]
pub struct KeepAwake(());

impl Driver for Tokio {
    type Socket = Socket;
    type Listener = TokioListener;
    type Stream = TokioStream;
    type Handoff = Handoff;
    type KeepAwake = KeepAwake;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        let _pinned = options.cpu.map(AffinityGuard::pin).transpose()?;
        let (guard, driver) = RuntimeGuard::start(options)?;
        let mut output = None;
        let main = async { output = Some(main(driver.clone()).await) };
        guard.run(&driver, Box::pin(main));
        Ok(output.expect("`main` has completed"))
    }

    fn listen(&self, socket: Socket) -> io::Result<TokioListener> {
        TokioListener::new(socket, Rc::clone(&self.worker))
    }

    fn hand_off(&self, stream: TokioStream) -> io::Result<Handoff> {
        stream.into_handoff()
    }

    fn accept_handoff(&self, handoff: Handoff) -> io::Result<TokioStream> {
        Ok(TokioStream::new(AsyncSocket::from_handoff(handoff)?, Rc::clone(&self.worker)))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        // A panic is stored in the task's result, and dropping the handle does not stop the task.
        drop(tokio::task::spawn_local(task));
    }

    fn now(&self) -> Duration {
        self.worker.start.elapsed()
    }

    fn polled_at(&self) -> Duration {
        self.worker.poll_clock.polled_at()
    }

    // A task that only wakes itself is polled `EVENT_INTERVAL` times before tokio polls its
    // sockets.
    const SELF_WAKE_YIELDS: bool = false;

    fn yield_now(&self, cx: &mut Context<'_>) {
        // The first poll of this future arranges a wake-up after tokio has polled its sockets.
        let _ = pin!(tokio::task::yield_now()).poll(cx);
    }

    fn unix_time(&self) -> Duration {
        // If the clock is set to a time before 1970, dates on the wire are that of the epoch.
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn sleep_until(&self, at: Duration) {
        match self.worker.start.checked_add(at) {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => pending().await,
        }
    }

    fn keep_awake(&self) -> KeepAwake {
        KeepAwake(())
    }

    fn tokio_tasks(&self) -> usize {
        let tasks = Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        tasks.saturating_sub(self.worker.poll_clock.tasks())
    }

    fn keep_waiting_for_blocking_tasks_while(
        &self,
        keep_waiting: impl FnMut(usize) -> bool + 'static,
    ) {
        self.worker.blocking_tasks.set_keep_waiting(keep_waiting);
    }

    /// `syscalls` is the number of reads, writes, accepts and parks of the thread; the runtime does
    /// not report polls of the kernel without parking. `in_flight` is the number of connections
    /// with unwritten bytes.
    fn stats(&self) -> DriverStats {
        let parks = Handle::try_current().map_or(0, |handle| handle.metrics().worker_park_count(0));
        let stats = &self.worker.stats;
        DriverStats {
            syscalls: stats.syscalls.get() + parks,
            accepted: stats.accepted.get(),
            buffers_exhausted: self.worker.pool.exhausted(),
            in_flight: stats.pending_writes.get(),
        }
    }
}

/// A runtime that waits for blocking functions only for a limited time when it is dropped, even by
/// a panic.
struct RuntimeGuard {
    runtime: Option<LocalRuntime>,
    blocking_timeout: Duration,
}

impl RuntimeGuard {
    fn start(options: &Options) -> io::Result<(Self, Tokio)> {
        let blocking_tasks = BlockingTasks::default();
        let (started, stopped) = (blocking_tasks.threads(), blocking_tasks.threads());
        let start = Instant::now();
        let mut builder = Builder::new_current_thread();
        let parks = Arc::default();
        match &options.metrics {
            None => count_parks(&mut builder, &parks),
            Some(metrics) => {
                metrics.set_blocking_threads(blocking_tasks.threads());
                measure_iterations(&mut builder, &parks, metrics, start);
            }
        }
        let runtime = builder
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .max_io_events_per_tick(IO_EVENTS_PER_POLL)
            .on_thread_start(move || started.on_start())
            .on_thread_stop(move || stopped.on_stop())
            .build_local(LocalOptions::default())?;
        let guard = Self { runtime: Some(runtime), blocking_timeout: Duration::ZERO };
        let worker = Rc::new(TokioWorker {
            start,
            pool: Rc::new(BufferPool::new(options)),
            large_receive_bytes: options.large_receive_bytes_clamped(),
            socket_options: options.socket_options.clone(),
            stats: LocalStats { metrics: options.metrics.clone(), ..LocalStats::default() },
            poll_clock: PollClock::new(start, parks),
            blocking_tasks,
        });
        Ok((guard, Tokio { worker }))
    }

    /// Runs a worker from start to end. Takes `main` boxed, so that this is compiled only once.
    /// `main` is dropped while the runtime is entered, even if it panics.
    fn run(mut self, driver: &Tokio, main: Pin<Box<dyn Future<Output = ()> + '_>>) {
        let blocking_tasks = &driver.worker.blocking_tasks;
        self.runtime().block_on(async move {
            main.await;
            blocking_tasks.wait_for_queued(driver, || tokio::task::spawn_blocking(|| ())).await;
        });
        blocking_tasks.shut_down(|timeout| {
            self.blocking_timeout = timeout;
            drop(self);
        });
    }

    fn runtime(&self) -> &LocalRuntime {
        self.runtime.as_ref().expect("the runtime exists until the drop")
    }
}

impl Drop for RuntimeGuard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // This drops the remaining tasks, for which the runtime is still entered.
            runtime.shutdown_timeout(self.blocking_timeout);
        }
    }
}
