//! The handle that the server is generic over, and the lifetime of a worker from start to end.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use peregrine_driver::{Counters, Driver, Functions, Options, Passed, Socket};
use tokio::runtime::{Builder, Handle, LocalOptions, LocalRuntime};
use tokio::task::unconstrained;

use crate::cpu;
use crate::listener::UringListener;
use crate::park;
use crate::prepare::Prepared;
use crate::stream::UringStream;
use crate::timer::Sleep;
use crate::worker::Shared;

/// One worker's io_uring driver.
///
/// Tasks that wait for tokio's timers or sockets directly should hold the driver (see
/// [`Driver::hold`]); otherwise they may be woken up to 100 ms late. This is not necessary for
/// tasks spawned on tokio from this thread, which the driver notices.
///
/// ```
/// use peregrine_driver::{Driver, Options};
/// use peregrine_driver_uring::{Uring, probe};
///
/// # fn main() -> std::io::Result<()> {
/// if let Err(refusal) = probe() {
///     eprintln!("{refusal}");
///     return Ok(());
/// }
/// let answer = Uring::run(&Options::default(), |driver| async move {
///     driver.sleep_until(driver.now()).await;
///     42
/// })?;
/// assert_eq!(answer, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Uring {
    shared: Rc<Shared>,
}

/// Keeps the thread from sleeping in the ring, where it does not see tokio's events. See
/// [`Driver::hold`].
pub struct Hold {
    shared: Rc<Shared>,
}

impl Driver for Uring {
    type Socket = Socket;
    type Listener = UringListener;
    type Stream = UringStream;
    type Passed = Passed;
    type Hold = Hold;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        if let Some(cpu) = options.cpu {
            cpu::pin_to(cpu)?;
        }
        run_here(Prepared::here(options)?, options, main)
    }

    fn listen(&self, socket: Socket) -> io::Result<UringListener> {
        UringListener::open(&self.shared, socket)
    }

    fn pass(&self, stream: UringStream) -> io::Result<Passed> {
        stream.pass()
    }

    fn adopt(&self, passed: Passed) -> io::Result<UringStream> {
        let descriptor = match passed {
            Passed::Tcp(socket) => socket.into(),
            Passed::Unix(socket) => socket.into(),
        };
        Ok(UringStream::open(&self.shared, descriptor))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.shared.tasks.spawn(task);
    }

    fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    fn read_clock(&self) -> Duration {
        self.shared.clock.read(self.shared.tasks.polls())
    }

    fn recent_clock(&self) -> Duration {
        self.shared.clock.recent(self.shared.tasks.polls())
    }

    fn turn_began(&self) -> Duration {
        self.shared.tasks.looked()
    }

    fn left_at(&self, time: Duration) -> Duration {
        self.shared.long_turns.borrow().left_at(time)
    }

    fn at_turn_end(&self, end: impl Fn(Duration) + 'static) -> bool {
        self.shared.turn_end.set(Box::new(end)).is_ok()
    }

    fn unix_time(&self) -> Duration {
        self.shared.clock.unix_time()
    }

    fn sleep_until(&self, at: Duration) -> impl Future<Output = ()> {
        Sleep::new(Rc::clone(&self.shared), at)
    }

    fn hold(&self) -> Hold {
        self.shared.holds.set(self.shared.holds.get() + 1);
        Hold { shared: Rc::clone(&self.shared) }
    }

    fn tokio_tasks(&self) -> usize {
        Handle::try_current().map_or(0, |handle| park::tokio_tasks(&handle.metrics()))
    }

    fn outlast(&self, is_patient: impl FnMut(usize) -> bool + 'static) {
        self.shared.functions.outlast(is_patient);
    }

    /// The counters so far. `in_flight` does not include the driver's poll for wake-ups by other
    /// threads.
    fn counters(&self) -> Counters {
        self.shared.counters()
    }
}

impl Prepared {
    /// Like [`Uring::run`], with this ring.
    ///
    /// # Errors
    /// The kernel rejected something else that the driver needs.
    pub fn run<M, F>(self, options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Uring) -> F,
        F: Future,
    {
        if let Some(cpu) = options.cpu {
            cpu::pin_to(cpu)?;
        }
        run_here(self, options, main)
    }
}

/// Runs `main` and all tasks it spawns on the calling thread until `main` completes.
fn run_here<M, F>(prepared: Prepared, options: &Options, main: M) -> io::Result<F::Output>
where
    M: FnOnce(Uring) -> F,
    F: Future,
{
    let functions = Functions::default();
    let (started, stopped) = (functions.threads(), functions.threads());
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_start(move || started.started())
        .on_thread_stop(move || stopped.stopped())
        .build_local(LocalOptions::default())?;
    if let Some(figures) = &options.figures {
        figures.show_threads(functions.threads());
    }
    let shared = Shared::start(prepared, options, functions)?;
    let mut running = Running { shared, runtime: Some(runtime), end_max: Duration::ZERO };
    running.shared.tasks.enter();
    let spin = Duration::from_micros(u64::from(options.spin_us));
    let root = async {
        let driver = Uring { shared: Rc::clone(&running.shared) };
        let main = main(driver.clone());
        let whole = async {
            let output = main.await;
            let functions = &driver.shared.functions;
            functions.begin(&driver, || tokio::task::spawn_blocking(|| ())).await;
            output
        };
        park::run(Rc::clone(&running.shared), whole, spin).await
    };
    let runtime = running.runtime.as_ref().expect("the runtime exists until the drop");
    let output = runtime.block_on(unconstrained(root));
    let shared = Rc::clone(&running.shared);
    shared.functions.end(|end_max| {
        running.end_max = end_max;
        drop(running);
    });
    output
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.holds.set(self.shared.holds.get() - 1);
    }
}

/// A running worker. However `run` is left, dropping it frees things in the only sound order:
/// tasks, tokio's tasks, operations in the kernel, memory.
struct Running {
    shared: Rc<Shared>,
    runtime: Option<LocalRuntime>,
    /// How long to wait for blocking threads.
    end_max: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            let entered = runtime.enter();
            self.shared.tasks.close();
            drop(entered);
            runtime.shutdown_timeout(self.end_max);
        }
        self.shared.shut_down();
        self.shared.tasks.leave();
    }
}
