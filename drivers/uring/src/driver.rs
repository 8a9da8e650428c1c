//! The handle that the server is generic over, and the lifetime of a worker from start to end.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use peregrine_driver::{BlockingTasks, Driver, DriverStats, Handoff, Options, Socket};
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};
use tokio::task::unconstrained;

use crate::affinity;
use crate::event_loop;
use crate::listener::UringListener;
use crate::prepare::PreparedRing;
use crate::stream::UringStream;
use crate::timer::Sleep;
use crate::worker::UringWorker;

/// One worker's io_uring driver.
///
/// Tasks of [`Driver::spawn`] that wait for tokio's timers or sockets should call
/// [`Driver::keep_awake`]; otherwise they may be woken up to 100 ms late. Tasks spawned on tokio
/// from this thread need not, because the driver notices them.
///
/// ```
/// use peregrine_driver::{Driver, Options};
/// use peregrine_driver_uring::{Uring, probe};
///
/// # fn main() -> std::io::Result<()> {
/// if let Err(error) = probe() {
///     eprintln!("{error}");
///     return Ok(());
/// }
/// let output = Uring::run(&Options::default(), |driver| async move {
///     driver.sleep_until(driver.now()).await;
///     42
/// })?;
/// assert_eq!(output, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Uring {
    worker: Rc<UringWorker>,
}

/// While this exists, the thread does not sleep in the ring, where it would not see tokio's events.
/// See [`Driver::keep_awake`].
pub struct KeepAwake {
    worker: Rc<UringWorker>,
}

impl Driver for Uring {
    type Socket = Socket;
    type Listener = UringListener;
    type Stream = UringStream;
    type Handoff = Handoff;
    type KeepAwake = KeepAwake;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        if let Some(cpu) = options.cpu {
            affinity::pin_thread(cpu)?;
        }
        run_on_this_thread(PreparedRing::on_this_thread(options)?, options, main)
    }

    fn listen(&self, socket: Socket) -> io::Result<UringListener> {
        UringListener::open(&self.worker, socket)
    }

    fn hand_off(&self, stream: UringStream) -> io::Result<Handoff> {
        stream.hand_off()
    }

    fn accept_handoff(&self, handoff: Handoff) -> io::Result<UringStream> {
        let descriptor = match handoff {
            Handoff::Tcp(socket) => socket.into(),
            Handoff::Unix(socket) => socket.into(),
        };
        Ok(UringStream::open(&self.worker, descriptor))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.worker.executor.spawn(task);
    }

    fn now(&self) -> Duration {
        self.worker.clock.now()
    }

    fn precise_now(&self) -> Duration {
        self.worker.clock.precise_now(self.worker.executor.polls())
    }

    fn coarse_now(&self) -> Duration {
        self.worker.clock.coarse_now(self.worker.executor.polls())
    }

    fn polled_at(&self) -> Duration {
        self.worker.executor.polled_at()
    }

    fn submitted_at(&self, time: Duration) -> Duration {
        self.worker.long_iterations.borrow().submitted_at(time)
    }

    fn on_iteration_end(&self, callback: impl Fn(Duration) + 'static) -> bool {
        self.worker.on_iteration_end.set(Box::new(callback)).is_ok()
    }

    fn unix_time(&self) -> Duration {
        self.worker.clock.unix_time()
    }

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()> {
        Sleep::new(Rc::clone(&self.worker), at)
    }

    fn keep_awake(&self) -> KeepAwake {
        self.worker.keep_awake_count.set(self.worker.keep_awake_count.get() + 1);
        KeepAwake { worker: Rc::clone(&self.worker) }
    }

    fn tokio_tasks(&self) -> usize {
        Handle::try_current().map_or(0, |handle| event_loop::tokio_tasks(&handle.metrics()))
    }

    fn keep_waiting_for_blocking_tasks_while(
        &self,
        keep_waiting: impl FnMut(usize) -> bool + 'static,
    ) {
        self.worker.blocking_tasks.set_keep_waiting(keep_waiting);
    }

    /// `in_flight` does not include the driver's poll for wake-ups by other threads.
    fn stats(&self) -> DriverStats {
        self.worker.stats()
    }
}

impl PreparedRing {
    /// Like [`Uring::run`], on this ring.
    ///
    /// # Errors
    /// The kernel rejected another resource that the driver needs.
    pub fn run<M, F>(self, options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Uring) -> F,
        F: Future,
    {
        if let Some(cpu) = options.cpu {
            affinity::pin_thread(cpu)?;
        }
        run_on_this_thread(self, options, main)
    }
}

/// Runs `main` and all tasks it spawns on the calling thread until `main` completes.
fn run_on_this_thread<M, F>(
    prepared: PreparedRing,
    options: &Options,
    main: M,
) -> io::Result<F::Output>
where
    M: FnOnce(Uring) -> F,
    F: Future,
{
    let blocking_tasks = BlockingTasks::default();
    let (started, stopped) = (blocking_tasks.threads(), blocking_tasks.threads());
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_start(move || started.on_start())
        .on_thread_stop(move || stopped.on_stop())
        .build_local(LocalOptions::default())?;
    if let Some(metrics) = &options.metrics {
        metrics.set_blocking_threads(blocking_tasks.threads());
    }
    let worker = UringWorker::start(prepared, options, blocking_tasks)?;
    let mut guard =
        WorkerGuard { worker, runtime: Some(runtime), blocking_timeout: Duration::ZERO };
    guard.worker.executor.enter();
    let spin = Duration::from_micros(u64::from(options.busy_poll_us));
    let root = async {
        let driver = Uring { worker: Rc::clone(&guard.worker) };
        let main = main(driver.clone());
        let main_then_queued_blocking = async {
            let output = main.await;
            let blocking_tasks = &driver.worker.blocking_tasks;
            blocking_tasks.wait_for_queued(&driver, || tokio::task::spawn_blocking(|| ())).await;
            output
        };
        event_loop::run(Rc::clone(&guard.worker), main_then_queued_blocking, spin).await
    };
    let runtime = guard.runtime.as_ref().expect("the runtime exists until the drop");
    let output = runtime.block_on(unconstrained(root));
    let worker = Rc::clone(&guard.worker);
    worker.blocking_tasks.shut_down(|timeout| {
        guard.blocking_timeout = timeout;
        drop(guard);
    });
    output
}

impl Drop for KeepAwake {
    fn drop(&mut self) {
        self.worker.keep_awake_count.set(self.worker.keep_awake_count.get() - 1);
    }
}

/// A running worker. However `run` is left, even by a panic, dropping the guard releases everything
/// in the only sound order: tasks, tokio's tasks, operations in the kernel, memory.
struct WorkerGuard {
    worker: Rc<UringWorker>,
    runtime: Option<LocalRuntime>,
    /// How long to wait for blocking threads when the runtime shuts down.
    blocking_timeout: Duration,
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let entered = runtime.enter();
            self.worker.executor.close();
            drop(entered);
            runtime.shutdown_timeout(self.blocking_timeout);
        }
        self.worker.shut_down();
        self.worker.executor.leave();
    }
}
