//! The simulator's loop: chooses the next task, and advances time when no task can run.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use peregrine_driver::{Driver, DriverStats, Options};
use tokio::runtime::{Builder, Handle, LocalOptions};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::network::{Network, Port};
use crate::state::{NetworkState, Side};
use crate::stream::{SimHandoff, SimListener, SimStream};
use crate::tasks::{RunQueue, Task, TaskWaker};
use crate::trace::RunFailure;

/// The id under which `main` is scheduled. The ids of tasks start at 1.
const MAIN_TASK: u64 = 0;
/// The maximum number of task polls before tokio's own tasks run.
const POLLS_PER_YIELD: usize = 64;
/// How long tokio's own timers may keep a run alive without other events.
const IDLE_TIMEOUT_MAX: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The resolution of tokio's timers.
const TICK: Duration = Duration::from_millis(1);
/// The simulated calendar time at the start: 14 November 2023, 22:13:20 UTC.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// The simulated driver. It runs on the thread's current [`Network`].
#[derive(Clone)]
pub struct Sim {
    network: Network,
    on_before_poll: Option<Rc<dyn Fn()>>,
}

/// Empty: the simulator always knows whether tokio has work.
#[derive(Debug)]
pub struct KeepAwake(());

impl Sim {
    /// The network that the driver runs on.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Returns a driver that calls `callback` before each poll of tasks spawned on it: for several
    /// workers on one thread, each of which needs its own thread-local state while it runs.
    #[must_use]
    pub fn on_before_poll(&self, callback: impl Fn() + 'static) -> Self {
        Self { on_before_poll: Some(Rc::new(callback)), ..self.clone() }
    }
}

impl Driver for Sim {
    type Socket = Port;
    type Listener = SimListener;
    type Stream = SimStream;
    type Handoff = SimHandoff;
    type KeepAwake = KeepAwake;

    fn run<M, F>(options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Self) -> F,
        F: Future,
    {
        let network = Network::current().ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "this thread has no simulated network")
        })?;
        network.with(|state| {
            state.receive_buffers.chunks_max =
                options.receive_buffers.clamp(16, 32_768).next_power_of_two();
            state.receive_buffers.chunk_bytes_max = options.receive_buffer_bytes.clamp(512, 65_536);
        });
        // Without I/O, creating a runtime is cheap, so a thousand runs take little time.
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build_local(LocalOptions::default())?;
        // Unconstrained: the loop polls all tasks from one root future, and they must not share the
        // budget of one tokio task.
        let output = runtime.block_on(tokio::task::unconstrained(async {
            let main = Box::pin(main(Self { network: network.clone(), on_before_poll: None }));
            SimLoop::new(network, main).await
        }));
        drop(runtime);
        Ok(output)
    }

    fn listen(&self, socket: Port) -> io::Result<SimListener> {
        SimListener::new(self.network.clone(), &socket)
    }

    fn hand_off(&self, stream: SimStream) -> io::Result<SimHandoff> {
        Ok(stream.into_handoff())
    }

    fn accept_handoff(&self, handoff: SimHandoff) -> io::Result<SimStream> {
        Ok(handoff.into_stream(&self.network))
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let number = self.network.with(|state| {
            state.stats.tasks += 1;
            state.stats.tasks - 1
        });
        let Some(before_poll) = self.on_before_poll.clone() else {
            return self.network.add_task(Box::pin(task), Some(number));
        };
        let mut task = Box::pin(task);
        let task = poll_fn(move |cx| {
            before_poll();
            task.as_mut().poll(cx)
        });
        self.network.add_task(Box::pin(task), Some(number));
    }

    fn now(&self) -> Duration {
        self.network.now()
    }

    /// When the current iteration began: all tasks polled since then were already ready.
    fn polled_at(&self) -> Duration {
        self.network.with(|state| state.polled_at)
    }

    fn unix_time(&self) -> Duration {
        EPOCH + self.network.now()
    }

    async fn sleep_until(&self, at: Duration) {
        let delay = self.network.with(|state| {
            let delay_ms_max = state.faults.timer_late_ms_max;
            Duration::from_millis(if delay_ms_max == 0 {
                0
            } else {
                state.random.below(delay_ms_max + 1)
            })
        });
        self.network.sleep_until(at, delay).await;
    }

    fn keep_awake(&self) -> KeepAwake {
        KeepAwake(())
    }

    fn tokio_tasks(&self) -> usize {
        Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks())
    }

    /// `syscalls` is how often no task could run; `in_flight` is the number of connections on which
    /// the server has sent bytes that the pipe has not accepted yet.
    fn stats(&self) -> DriverStats {
        self.network.with(|state| {
            let unsent = |side| {
                let connections = state.connections.values();
                connections
                    .filter(|connection| !connection.pipe_ref(side).pending.is_empty())
                    .count()
            };
            DriverStats {
                syscalls: state.stats.idle_polls,
                accepted: state.stats.accepted,
                buffers_exhausted: state.stats.buffers_exhausted,
                in_flight: u64::try_from(unsent(Side::Server)).expect("a count fits 64 bits"),
            }
        })
    }
}

/// The root future of the runtime.
struct SimLoop<F: Future> {
    network: Network,
    ready: Arc<RunQueue>,
    main: Pin<Box<F>>,
    main_waker: Arc<TaskWaker>,
    tasks: BTreeMap<u64, Task>,
    last_task: u64,
    /// The virtual time of the network when tokio's clock was `start`.
    base: Duration,
    start: Instant,
    /// A tokio timer for the network's next event or for `idle_deadline`.
    timer: Pin<Box<Sleep>>,
    /// The number of tasks to poll before the next iteration begins.
    batch_polls_left: usize,
    /// If no event happens by then, the run fails. Set while no event is scheduled.
    idle_deadline: Option<Instant>,
    /// The virtual time at which `idle_deadline` was set.
    idle_since: Duration,
}

impl<F: Future> SimLoop<F> {
    fn new(network: Network, main: Pin<Box<F>>) -> Self {
        let ready = Arc::clone(network.ready());
        ready.clear();
        let start = Instant::now();
        Self {
            main,
            main_waker: TaskWaker::new(MAIN_TASK, &ready),
            tasks: BTreeMap::new(),
            last_task: MAIN_TASK,
            base: network.now(),
            start,
            timer: Box::pin(sleep_until(start)),
            batch_polls_left: 0,
            idle_deadline: None,
            idle_since: Duration::ZERO,
            network,
            ready,
        }
    }

    /// Takes over tasks that were spawned.
    fn take_spawned(&mut self) {
        for spawned in self.network.take_spawned() {
            self.last_task += 1;
            let id = self.last_task;
            let polls_until_drop =
                |number| self.network.with(|state| state.scheduled_drops.remove(&number));
            let polls_left = spawned.number.and_then(polls_until_drop);
            let waker = TaskWaker::new(id, &self.ready);
            self.tasks.insert(id, Task { future: spawned.task, waker, polls_left });
        }
    }

    /// Chooses a random ready task.
    fn next_task(&self) -> Option<u64> {
        let count = self.ready.count();
        if count == 0 {
            return None;
        }
        let id = if self.network.with(|state| state.faults.batch_scheduling) {
            // Tasks that were woken since the iteration began are queued behind those of the
            // iteration.
            let count = count.min(self.batch_polls_left + 1);
            self.ready.take_in_wake_order(self.network.with(|state| state.random.index(count)))
        } else {
            self.ready.take_in_id_order(self.network.with(|state| state.random.index(count)))
        };
        self.network.with(|state| {
            state.stats.polls += 1;
            state.record("poll", [id, 0, 0]);
        });
        Some(id)
    }

    /// Wakes a random task spuriously, with the configured probability.
    fn inject_spurious_wake(&self) {
        let count = self.tasks.len() + 1;
        let chosen = self.network.with(|state| {
            // With a probability of one, the loop would never be idle.
            let chance = state.faults.spurious_wake_per_mille.min(900);
            state.random.chance(chance).then(|| state.random.index(count))
        });
        match chosen {
            None => {}
            Some(0) => std::task::Wake::wake_by_ref(&self.main_waker),
            Some(index) => {
                let (_, task) = self.tasks.iter().nth(index - 1).expect("below the count");
                std::task::Wake::wake_by_ref(&task.waker);
            }
        }
    }

    fn poll_task(&mut self, id: u64) {
        // The task may have ended since it was woken.
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.waker.reset();
        let waker = Waker::from(Arc::clone(&task.waker));
        let cx = &mut Context::from_waker(&waker);
        let future = AssertUnwindSafe(|| task.future.as_mut().poll(cx));
        match catch_unwind(future) {
            Ok(Poll::Pending) => {
                let polls_left = task.polls_left.map(|polls| polls - 1);
                task.polls_left = polls_left;
                if polls_left == Some(0) {
                    self.network.with(|state| state.record("drop", [id, 0, 0]));
                    self.tasks.remove(&id);
                }
            }
            Ok(Poll::Ready(())) => drop(self.tasks.remove(&id)),
            Err(_) => {
                self.network.with(|state| state.stats.panics += 1);
                self.tasks.remove(&id);
            }
        }
    }

    /// Called when no task can run. Pending until the next event; tokio's own tasks may run in
    /// between.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let next = self.network.with(|state| {
            state.stats.idle_polls += 1;
            state.next_event()
        });
        let at = match (next, self.idle_deadline) {
            (Some(next), _) => {
                self.idle_deadline = None;
                // Tokio's timers reach about two years ahead; the loop checks again before that.
                (self.start + next.saturating_sub(self.base)).min(Instant::now() + IDLE_TIMEOUT_MAX)
            }
            (None, Some(deadline)) if Instant::now() >= deadline => {
                // Either nothing can happen any more, or tokio's own timers used up the time
                // without the loop noticing. It counts as a deadlock if the run was idle for more
                // than half of its time limit.
                let half = self.network.with(|state| state.time_max) / 2;
                let is_long =
                    (self.base + self.start.elapsed()).saturating_sub(self.idle_since) > half;
                self.fail(if is_long || half > IDLE_TIMEOUT_MAX {
                    "deadlock"
                } else {
                    "time is over"
                })
            }
            (None, Some(deadline)) => deadline,
            (None, None) => {
                self.idle_since = self.network.now();
                let remaining = self.network.with(|state| state.time_max.saturating_sub(state.now));
                let timeout = IDLE_TIMEOUT_MAX.min(remaining.saturating_add(TICK));
                *self.idle_deadline.insert(Instant::now() + timeout)
            }
        };
        self.timer.as_mut().reset(at);
        self.timer.as_mut().poll(cx)
    }

    /// Ends the run with a report.
    fn fail(&self, cause: &'static str) -> ! {
        let tasks = self.tasks.len();
        let tokio_tasks =
            Handle::try_current().map_or(0, |handle| handle.metrics().num_alive_tasks());
        let text = self.network.with(|state| {
            let (seed, waiting, recent) =
                (state.seed, state.describe_waiters(), state.trace.recent());
            let idle_since = if cause == "deadlock" { self.idle_since } else { state.now };
            let failure =
                RunFailure { cause, tasks, tokio_tasks, idle_since, waiting: waiting.clone() };
            state.failure = Some(failure);
            state.trace.stop_recording();
            format!("seed {seed}: main and {tasks} tasks wait for {waiting}; last:\n{recent}")
        });
        if self.network.with(|state| state.suppress_panic_message) {
            resume_unwind(Box::new(format!("{cause}, {text}")));
        }
        panic!("{cause}, {text}");
    }
}

impl<F: Future> Future for SimLoop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        this.ready.set_loop_waker(cx.waker());
        for _ in 0..POLLS_PER_YIELD {
            let now = this.base + this.start.elapsed();
            // If the idle deadline has passed, `poll_idle` decides how the run fails.
            let is_quiet = this.idle_deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let failure = this.network.with(|state| {
                state.close_dropped_handoffs();
                state.advance(now);
                let is_over = now > state.time_max && !is_quiet;
                let is_busy = state.stats.polls > state.polls_max;
                is_over.then_some("time is over").or(is_busy.then_some("too many steps"))
            });
            if let Some(cause) = failure {
                this.fail(cause);
            }
            this.take_spawned();
            if this.batch_polls_left == 0 {
                this.batch_polls_left = this.ready.count();
                this.network.with(|state| state.polled_at = now);
            }
            this.batch_polls_left = this.batch_polls_left.saturating_sub(1);
            match this.next_task() {
                Some(MAIN_TASK) => {
                    this.main_waker.reset();
                    let waker = Waker::from(Arc::clone(&this.main_waker));
                    let polled = this.main.as_mut().poll(&mut Context::from_waker(&waker));
                    if polled.is_ready() {
                        return polled;
                    }
                }
                Some(id) => this.poll_task(id),
                None => {
                    this.batch_polls_left = 0;
                    match this.poll_idle(cx) {
                        Poll::Ready(()) => continue,
                        Poll::Pending => return Poll::Pending,
                    }
                }
            }
            this.idle_deadline = None;
            this.inject_spurious_wake();
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<F: Future> Drop for SimLoop<F> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.network.with(|state| state.suppress_panic_message) {
            eprintln!("simulated network: seed {}", self.network.seed());
        }
        // Dropping a task may spawn another one.
        self.take_spawned();
        while !self.tasks.is_empty() {
            self.tasks.clear();
            self.take_spawned();
        }
        self.network.with(NetworkState::close_dropped_handoffs);
        self.ready.clear();
    }
}
