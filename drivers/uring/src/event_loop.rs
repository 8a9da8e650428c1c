//! The worker's event loop, which runs as one task of a tokio runtime, and its two ways to sleep.
//!
//! If events can only come from the ring, the thread sleeps in the ring: submitting, waiting and
//! reaping are one system call. If tokio has tasks, or a `KeepAwake` exists, the thread sleeps
//! in tokio, which is notified of completions through an eventfd registered with the ring. While
//! the ring is busy, the loop yields to tokio every few iterations.
//!
//! A sleep in the ring is short, because tokio's events are not seen in the meantime. A worker that
//! stays idle for longer than such a sleep then sleeps in tokio, where it sees all events and needs
//! no time limit.
//!
//! The loop is a task because a task wakes another task of the same runtime without a system call.
//! Waking the future that the thread blocks on takes one, so only the future passed to `run` is
//! polled there.

use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::task::{JoinError, spawn_local, unconstrained};
use tokio::time::{Instant, Sleep};

use crate::executor::ParkTarget;
use crate::ring::EnterWait;
use crate::timer::LoopClock;
use crate::worker::{UringWorker, create_eventfd};

/// The number of iterations before the loop yields to tokio, if tokio has tasks.
const ITERATIONS_PER_YIELD: u32 = 8;
/// The longest sleep in the ring. The loop yields to tokio after it, so events that the driver does
/// not know about (a timer without a `KeepAwake`, a task spawned on the runtime by another thread)
/// are late, not lost.
const RING_WAIT_MAX: Duration = Duration::from_millis(100);
/// The longest time that tokio's timer is set to: tokio does not support times far in the future.
const TIMER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Runs `main` and the worker's tasks; the thread blocks on this future. Must be called within the
/// runtime.
///
/// # Errors
/// No descriptor is left for the event that tokio watches, or the ring fails.
pub(crate) async fn run<F: Future>(
    worker: Rc<UringWorker>,
    main: F,
    spin: Duration,
) -> io::Result<F::Output> {
    let mut event_loop = EventLoop::new(Rc::clone(&worker), spin)?;
    // Unconstrained: otherwise all tasks of the worker would share the budget of one tokio task and
    // starve each other.
    let event_loop = unconstrained(poll_fn(move |cx| event_loop.poll(cx)));
    let mut event_loop = pin!(spawn_local(event_loop));
    let mut main = pin!(main);
    poll_fn(|cx| {
        if let Poll::Ready(output) = worker.executor.poll_main(main.as_mut(), cx) {
            return Poll::Ready(Ok(output));
        }
        event_loop.as_mut().poll(cx).map(|result| Err(result.unwrap_or_else(propagate_panic)))
    })
    .await
}

/// Resumes a panic of the loop, which is a bug in the driver, in the worker's caller.
fn propagate_panic(error: JoinError) -> io::Error {
    match error.try_into_panic() {
        Ok(payload) => std::panic::resume_unwind(payload),
        Err(cancelled) => io::Error::other(cancelled),
    }
}

/// The number of tokio's tasks, without the loop itself.
pub(crate) fn tokio_tasks(metrics: &RuntimeMetrics) -> usize {
    metrics.num_alive_tasks().saturating_sub(1)
}

/// Runs the worker's tasks, until the ring fails.
struct EventLoop {
    worker: Rc<UringWorker>,
    metrics: RuntimeMetrics,
    spin: Duration,
    parker: TokioParker,
    /// Iterations since the loop last yielded to tokio.
    iterations: u32,
    /// The number of tokio's tasks when the loop was polled.
    tokio_tasks: usize,
    load: LoadLevel,
}

/// How busy the worker is, which decides where it sleeps if it could sleep in the ring or in tokio.
///
/// | from | to | when |
/// |---|---|---|
/// | Busy | Settling | a sleep in the ring timed out |
/// | Settling | Busy | tasks were polled |
/// | Settling | Idle | another sleep timed out |
/// | Idle | Idle | tasks were polled, long after the last ones |
/// | Idle | Busy | tasks were polled, soon after the last ones |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoadLevel {
    Busy,
    Settling,
    /// With the time at which tasks were last polled.
    Idle(Duration),
}

impl LoadLevel {
    /// The next level after tasks were polled.
    fn on_work(self, clock: &LoopClock) -> Self {
        let Self::Idle(last) = self else { return Self::Busy };
        let is_soon = clock.now().saturating_sub(last) < RING_WAIT_MAX;
        if is_soon { Self::Busy } else { Self::Idle(clock.now()) }
    }

    /// The next level after a sleep has timed out.
    fn on_timeout(self, now: Duration) -> Self {
        match self {
            Self::Busy => Self::Settling,
            Self::Settling => Self::Idle(now),
            Self::Idle(last) => Self::Idle(last),
        }
    }
}

/// The resources for sleeping in tokio. Created at the start, because a worker that has run out of
/// descriptors must still be able to sleep.
struct TokioParker {
    event: AsyncFd<File>,
    timer: Pin<Box<Sleep>>,
    /// The time of the driver's clock at which `timer` fires, while it is running.
    timer_at: Option<Duration>,
}

/// The next step of the loop.
enum NextStep {
    Iterate,
    /// Let tokio's ready tasks run.
    RunTokioTasks,
    /// Let tokio's ready tasks run, then let tokio poll its sockets and timers.
    YieldToTokio,
    Park,
}

impl EventLoop {
    fn new(worker: Rc<UringWorker>, spin: Duration) -> io::Result<Self> {
        let metrics = Handle::current().metrics();
        let parker = TokioParker::new(&worker)?;
        Ok(Self {
            worker,
            metrics,
            spin,
            parker,
            iterations: 0,
            tokio_tasks: 0,
            load: LoadLevel::Busy,
        })
    }

    /// Ready when the ring has failed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        match self.run_iterations(cx) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Runs iterations until the loop must yield the thread.
    fn run_iterations(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.unpark();
        self.tokio_tasks = tokio_tasks(&self.metrics);
        loop {
            self.worker.clock.invalidate(true);
            self.worker.begin_iteration();
            self.worker.dispatch();
            self.worker.run_deferred()?;
            self.worker.executor.run_ready();
            if self.worker.executor.polls() > 0 {
                self.load = self.load.on_work(&self.worker.clock);
            }
            self.iterations += 1;
            self.worker.end_iteration();
            match self.enter()? {
                NextStep::Iterate => {}
                NextStep::RunTokioTasks => {
                    self.worker.clock.invalidate(false);
                    cx.waker().wake_by_ref();
                    return Ok(());
                }
                NextStep::YieldToTokio => {
                    self.worker.clock.invalidate(false);
                    self.iterations = 0;
                    // The first poll makes tokio wake this task after all others.
                    if pin!(tokio::task::yield_now()).poll(cx).is_pending() {
                        return Ok(());
                    }
                }
                NextStep::Park => {
                    if self.park(cx)? {
                        self.worker.clock.invalidate(false);
                        self.iterations = 0;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Submits the iteration's operations to the kernel, and sleeps in the ring if appropriate.
    fn enter(&mut self) -> io::Result<NextStep> {
        let worker = &self.worker;
        worker.rearm_starved();
        let tokio_tasks = tokio_tasks(&self.metrics);
        let tokio_alive = worker.keep_awake_count.get() > 0 || tokio_tasks > 0;
        let next = if worker.executor.is_main_ready()
            || tokio_alive && self.iterations >= ITERATIONS_PER_YIELD
        {
            NextStep::YieldToTokio
        } else if tokio_tasks > self.tokio_tasks {
            // New tokio tasks usually produce a response, so they run first: all responses are then
            // submitted together.
            return Ok(NextStep::RunTokioTasks);
        } else {
            NextStep::Iterate
        };
        if worker.executor.any_ready() {
            worker.ring.borrow_mut().enter(EnterWait::DontWait)?;
            return Ok(next);
        }
        worker.rearm_starved_owned();
        let has_slept = worker.take_wait_timed_out();
        if has_slept {
            self.load = self.load.on_timeout(worker.clock.now());
        }
        let is_idle = matches!(self.load, LoadLevel::Idle(_));
        if tokio_alive || worker.executor.is_main_ready() || is_idle {
            let mut ring = worker.ring.borrow_mut();
            ring.enter(EnterWait::DontWait)?;
            let can_park = matches!(next, NextStep::Iterate) && !ring.has_work();
            return Ok(if can_park { NextStep::Park } else { next });
        }
        if !self.spin.is_zero() && self.spin()? {
            return Ok(NextStep::Iterate);
        }
        self.iterations = 0;
        if has_slept {
            return Ok(NextStep::YieldToTokio);
        }
        if worker.executor.remote().try_park(ParkTarget::Ring) {
            let limit = worker.arm_wait_timeout(RING_WAIT_MAX)?;
            worker.ring.borrow_mut().enter(EnterWait::Completion(limit))?;
            worker.executor.remote().unpark();
        }
        Ok(NextStep::Iterate)
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let deadline = self.worker.timers.borrow().next_deadline()?;
        // The tasks of this iteration may have taken a long time.
        self.worker.clock.invalidate(true);
        Some(deadline.saturating_sub(self.worker.clock.now()))
    }

    /// Polls for work for up to the configured time without sleeping. Returns true if there is
    /// some.
    fn spin(&self) -> io::Result<bool> {
        self.worker.ring.borrow_mut().enter(EnterWait::DontWait)?;
        let start = std::time::Instant::now();
        let timeout = self.until_next_timer().unwrap_or(self.spin).min(self.spin);
        loop {
            if self.worker.ring.borrow_mut().has_work() {
                // Deferred work becomes completions only at the next enter.
                self.worker.ring.borrow_mut().enter(EnterWait::DontWait)?;
                return Ok(true);
            }
            if self.worker.executor.remote().any_injected() {
                return Ok(true);
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Prepares to sleep in tokio. Returns false if there is work to do first.
    fn park(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let worker = &self.worker;
        worker.ring.borrow_mut().set_eventfd_enabled(true);
        let is_parked = worker.executor.remote().try_park(ParkTarget::Tokio(cx.waker()))
            && !worker.ring.borrow_mut().has_work()
            && self.parker.wait(worker, cx)?;
        if is_parked {
            worker.executor.park();
        } else {
            self.unpark();
            // Deferred work becomes completions only at the next enter.
            self.worker.ring.borrow_mut().enter(EnterWait::DontWait)?;
        }
        Ok(is_parked)
    }

    fn unpark(&mut self) {
        self.worker.executor.unpark();
        self.worker.executor.remote().unpark();
        self.worker.ring.borrow_mut().set_eventfd_enabled(false);
    }
}

impl TokioParker {
    fn new(worker: &UringWorker) -> io::Result<Self> {
        let event = File::from(create_eventfd()?);
        // A `File` always returns the same descriptor, and closes it only when `AsyncFd` drops the
        // `File`, after deregistering it from tokio.
        #[allow(deprecated, reason = "needed for the minimum version of tokio")]
        let event = AsyncFd::with_interest(event, Interest::READABLE)?;
        worker.ring.borrow_mut().register_eventfd(&event)?;
        Ok(Self { event, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), timer_at: None })
    }

    /// Registers with the event and the timer. Returns false if one of them has already fired.
    fn wait(&mut self, worker: &UringWorker, cx: &mut Context<'_>) -> io::Result<bool> {
        // Tokio reports each new signal of an eventfd even if the eventfd is not read, so it is
        // never read. A signal may be left over from an earlier sleep; it costs one more round.
        while let Poll::Ready(guard) = self.event.poll_read_ready(cx) {
            guard?.clear_ready();
            if worker.ring.borrow_mut().has_work() {
                return Ok(false);
            }
        }
        let Some(deadline) = worker.timers.borrow().next_deadline() else { return Ok(true) };
        // The timer is moved only to an earlier time. If it fires too early, one useless wake-up is
        // cheaper than resetting it in each iteration.
        if self.timer_at.is_none_or(|timer_at| timer_at > deadline) {
            worker.clock.invalidate(true);
            let now = worker.clock.now();
            let remaining = deadline.saturating_sub(now).min(TIMER_MAX);
            self.timer.as_mut().reset(Instant::now() + remaining);
            self.timer_at = Some(now + remaining);
        }
        Ok(self.poll_timer(cx).is_pending())
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(cx));
        self.timer_at = None;
        Poll::Ready(())
    }
}
