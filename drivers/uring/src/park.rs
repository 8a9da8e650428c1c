//! The worker's loop: turns of the ring, run as one task of a tokio runtime, and two ways to sleep.
//!
//! If events can only come from the ring, the thread sleeps in the ring: submitting, waiting and
//! reaping are one system call. If tokio has tasks, or the driver is held awake, the thread sleeps
//! in tokio, which learns of completions through an eventfd registered with the ring. While the
//! ring is busy, the loop yields to tokio every few turns.
//!
//! A sleep in the ring is short, because tokio's events are not seen in the meantime. A worker that
//! has been idle for the length of one sleeps in tokio, where it sees all events and needs no time
//! limit.
//!
//! A task wakes another task of the same runtime without a system call. Waking the future that the
//! thread blocks on takes one, so only the future passed to `run` lives there.

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

use crate::ring::Wait;
use crate::task::Sleeping;
use crate::timer::Clock;
use crate::worker::{Shared, new_event};

/// The number of turns before the loop yields to tokio, if tokio has tasks.
const TURNS_PER_YIELD: u32 = 8;
/// The longest sleep in the ring. The loop yields to tokio after it, so events that the driver does
/// not know about (a timer without a hold, a task spawned on the runtime by another thread) are
/// late, not lost.
const RING_SLEEP_MAX: Duration = Duration::from_millis(100);
/// The longest time that tokio's timer is set to. Some times are too far in the future for it.
const TIMER_MAX: Duration = Duration::from_secs(24 * 3600);

/// Runs `main` and the worker's tasks; the thread blocks on this future. Must be called within the
/// runtime.
///
/// # Errors
/// No descriptor is left for the event that tokio watches, or the ring fails.
pub(crate) async fn run<F: Future>(
    shared: Rc<Shared>,
    main: F,
    spin: Duration,
) -> io::Result<F::Output> {
    let mut looping = Loop::new(Rc::clone(&shared), spin)?;
    // Otherwise all tasks of the worker would share one tokio budget and starve each other.
    let looping = unconstrained(poll_fn(move |context| looping.poll(context)));
    let mut looping = pin!(spawn_local(looping));
    let mut main = pin!(main);
    poll_fn(|context| {
        if let Poll::Ready(output) = shared.tasks.poll_main(main.as_mut(), context) {
            return Poll::Ready(Ok(output));
        }
        looping.as_mut().poll(context).map(|ended| Err(ended.unwrap_or_else(resume)))
    })
    .await
}

/// The loop panicked, which is a bug in the driver. Resumes the panic in the worker's caller.
fn resume(ended: JoinError) -> io::Error {
    match ended.try_into_panic() {
        Ok(payload) => std::panic::resume_unwind(payload),
        Err(cancelled) => io::Error::other(cancelled),
    }
}

/// The number of tokio's tasks, without the loop itself.
pub(crate) fn tokio_tasks(metrics: &RuntimeMetrics) -> usize {
    metrics.num_alive_tasks().saturating_sub(1)
}

/// Runs the worker's tasks, until the ring fails.
struct Loop {
    shared: Rc<Shared>,
    metrics: RuntimeMetrics,
    spin: Duration,
    parking: Parking,
    /// Turns since the loop last yielded to tokio.
    turns: u32,
    /// The number of tokio's tasks when the loop was polled.
    tokio_tasks: usize,
    pace: Pace,
}

/// How busy the worker is, which decides where it sleeps if both are possible.
///
/// | from | to | when |
/// |---|---|---|
/// | Busy | Fading | a sleep in the ring timed out |
/// | Fading | Busy | tasks were polled |
/// | Fading | Quiet | another sleep timed out |
/// | Quiet | Busy | tasks were polled, and again soon after |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    Busy,
    Fading,
    /// With the time at which tasks were last polled.
    Quiet(Duration),
}

impl Pace {
    /// The pace after tasks were polled.
    fn active(self, clock: &Clock) -> Self {
        let Self::Quiet(last) = self else { return Self::Busy };
        let is_soon = clock.now().saturating_sub(last) < RING_SLEEP_MAX;
        if is_soon { Self::Busy } else { Self::Quiet(clock.now()) }
    }

    /// The pace after a sleep has timed out.
    fn slept(self, now: Duration) -> Self {
        match self {
            Self::Busy => Self::Fading,
            Self::Fading => Self::Quiet(now),
            Self::Quiet(last) => Self::Quiet(last),
        }
    }
}

/// The resources for sleeping in tokio. Created at the start: a worker that has run out of
/// descriptors must still be able to sleep.
struct Parking {
    event: AsyncFd<File>,
    timer: Pin<Box<Sleep>>,
    /// The time of the driver's clock at which `timer` fires, while it is running.
    timer_at: Option<Duration>,
}

/// The next step of the loop.
enum Next {
    Turn,
    /// Let tokio's ready tasks run.
    LetTasks,
    /// The same, then let tokio poll its sockets and timers.
    Yield,
    Park,
}

impl Loop {
    fn new(shared: Rc<Shared>, spin: Duration) -> io::Result<Self> {
        let metrics = Handle::current().metrics();
        let parking = Parking::new(&shared)?;
        Ok(Self { shared, metrics, spin, parking, turns: 0, tokio_tasks: 0, pace: Pace::Busy })
    }

    /// Ready when the ring has failed.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        match self.take_turns(context) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        }
    }

    /// Turns the ring until the loop must yield the thread.
    fn take_turns(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.awake();
        self.tokio_tasks = tokio_tasks(&self.metrics);
        loop {
            self.shared.clock.turn(true);
            self.shared.begin_turn();
            self.shared.dispatch();
            self.shared.between_batches()?;
            self.shared.tasks.run_ready();
            if self.shared.tasks.polls() > 0 {
                self.pace = self.pace.active(&self.shared.clock);
            }
            self.turns += 1;
            self.shared.end_turn();
            match self.enter()? {
                Next::Turn => {}
                Next::LetTasks => {
                    self.shared.clock.turn(false);
                    context.waker().wake_by_ref();
                    return Ok(());
                }
                Next::Yield => {
                    self.shared.clock.turn(false);
                    self.turns = 0;
                    // This first poll schedules a wake-up by tokio after the other tasks.
                    if pin!(tokio::task::yield_now()).poll(context).is_pending() {
                        return Ok(());
                    }
                }
                Next::Park => {
                    if self.park(context)? {
                        self.shared.clock.turn(false);
                        self.turns = 0;
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Submits the turn's operations to the kernel, and sleeps in the ring if appropriate.
    fn enter(&mut self) -> io::Result<Next> {
        let shared = &self.shared;
        shared.feed_starved();
        let tokio_tasks = tokio_tasks(&self.metrics);
        let tokio_alive = shared.holds.get() > 0 || tokio_tasks > 0;
        let next = if shared.tasks.is_main_due() || tokio_alive && self.turns >= TURNS_PER_YIELD {
            Next::Yield
        } else if tokio_tasks > self.tokio_tasks {
            // New tokio tasks usually produce a response, which is submitted with the others.
            return Ok(Next::LetTasks);
        } else {
            Next::Turn
        };
        if shared.tasks.any_ready() {
            shared.ring.borrow_mut().enter(Wait::No)?;
            return Ok(next);
        }
        shared.relieve_starved();
        let has_slept = shared.take_sleep_ended();
        if has_slept {
            self.pace = self.pace.slept(shared.clock.now());
        }
        let is_quiet = matches!(self.pace, Pace::Quiet(_));
        if tokio_alive || shared.tasks.is_main_due() || is_quiet {
            let mut ring = shared.ring.borrow_mut();
            ring.enter(Wait::No)?;
            let is_idle = matches!(next, Next::Turn) && !ring.has_work();
            return Ok(if is_idle { Next::Park } else { next });
        }
        if !self.spin.is_zero() && self.spin()? {
            return Ok(Next::Turn);
        }
        self.turns = 0;
        if has_slept {
            return Ok(Next::Yield);
        }
        if shared.tasks.remote().fall_asleep(Sleeping::InRing) {
            let limit = shared.limit_sleep(RING_SLEEP_MAX)?;
            shared.ring.borrow_mut().enter(Wait::Completion(limit))?;
            shared.tasks.remote().awake();
        }
        Ok(Next::Turn)
    }

    fn until_next_timer(&self) -> Option<Duration> {
        let deadline = self.shared.timers.borrow().next_deadline()?;
        // The tasks of this turn may have taken a long time.
        self.shared.clock.turn(true);
        Some(deadline.saturating_sub(self.shared.clock.now()))
    }

    /// Polls for work for a while without sleeping. Returns true if there is some.
    fn spin(&self) -> io::Result<bool> {
        self.shared.ring.borrow_mut().enter(Wait::No)?;
        let start = std::time::Instant::now();
        let timeout = self.until_next_timer().unwrap_or(self.spin).min(self.spin);
        loop {
            if self.shared.ring.borrow_mut().has_work() {
                // Deferred work becomes completions only at the next enter.
                self.shared.ring.borrow_mut().enter(Wait::No)?;
                return Ok(true);
            }
            if self.shared.tasks.remote().any_injected() {
                return Ok(true);
            }
            if start.elapsed() >= timeout {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }

    /// Arranges to be woken by tokio. Returns false if there is work to do first.
    fn park(&mut self, context: &mut Context<'_>) -> io::Result<bool> {
        let shared = &self.shared;
        shared.ring.borrow_mut().notify(true);
        let asleep = shared.tasks.remote().fall_asleep(Sleeping::InTokio(context.waker()))
            && !shared.ring.borrow_mut().has_work()
            && self.parking.wait(shared, context)?;
        if asleep {
            shared.tasks.park();
        } else {
            self.awake();
            // Deferred work becomes completions only at the next enter.
            self.shared.ring.borrow_mut().enter(Wait::No)?;
        }
        Ok(asleep)
    }

    fn awake(&mut self) {
        self.shared.tasks.unpark();
        self.shared.tasks.remote().awake();
        self.shared.ring.borrow_mut().notify(false);
    }
}

impl Parking {
    fn new(shared: &Shared) -> io::Result<Self> {
        let event = File::from(new_event()?);
        // A `File` returns the same descriptor at each call and closes it when it is dropped, which
        // `AsyncFd` does after deregistering it from tokio.
        #[allow(deprecated, reason = "needed for the minimum version of tokio")]
        let event = AsyncFd::with_interest(event, Interest::READABLE)?;
        shared.ring.borrow_mut().register_event(&event)?;
        Ok(Self { event, timer: Box::pin(tokio::time::sleep(Duration::ZERO)), timer_at: None })
    }

    /// Registers with the event and the timer. Returns false if one of them has already fired.
    fn wait(&mut self, shared: &Shared, context: &mut Context<'_>) -> io::Result<bool> {
        // Tokio reports each new signal of an eventfd even if it is not read, so it is never read.
        // An old signal may be left over; it costs one more round.
        while let Poll::Ready(guard) = self.event.poll_read_ready(context) {
            guard?.clear_ready();
            if shared.ring.borrow_mut().has_work() {
                return Ok(false);
            }
        }
        let Some(deadline) = shared.timers.borrow().next_deadline() else { return Ok(true) };
        // A timer that fires too early causes one useless wake-up, which is cheaper than moving it
        // in each turn.
        if self.timer_at.is_none_or(|timer_at| timer_at > deadline) {
            shared.clock.turn(true);
            let now = shared.clock.now();
            let rest = deadline.saturating_sub(now).min(TIMER_MAX);
            self.timer.as_mut().reset(Instant::now() + rest);
            self.timer_at = Some(now + rest);
        }
        Ok(self.poll_timer(context).is_pending())
    }

    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.timer.as_mut().poll(context));
        self.timer_at = None;
        Poll::Ready(())
    }
}
