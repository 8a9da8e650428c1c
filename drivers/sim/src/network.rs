//! The public handle of the simulated network.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::mem::take;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use peregrine_driver::{Driver, Options};

use crate::client::Client;
use crate::drop_at::DropAt;
use crate::endpoint::SimEndpoint;
use crate::faults::Faults;
use crate::run::Sim;
use crate::state::{NetworkState, PortState, Side};
use crate::tasks::{RunQueue, Spawned};
use crate::trace::RunFailure;

/// The maximum number of polls before a task chosen by [`Network::drop_task_at`] is dropped.
const DROP_AFTER_POLLS_MAX: u64 = 12;

/// Events later than this never happen: 136 years.
pub(crate) const TIME_HORIZON: Duration = Duration::from_secs(u32::MAX as u64);

/// An in-memory network: a cheap handle, for one thread.
///
/// ```
/// use peregrine_driver::{Driver, Listener, Options, Stream};
/// use peregrine_driver_sim::{Faults, Network};
///
/// let network = Network::new(7, Faults::harmless());
/// let port = network.bind();
/// let client = network.connect(&port);
/// let reply = network.run(&Options::default(), async |driver| {
///     let listener = driver.listen(port).unwrap();
///     driver.spawn(async move {
///         // These faults make some attempts fail.
///         let stream = loop {
///             if let Ok(stream) = listener.accept().await {
///                 break stream;
///             }
///         };
///         stream.send(&mut b"hello".to_vec());
///         stream.flush().await.unwrap();
///     });
///     client.recv_all().await.unwrap()
/// });
/// assert_eq!(reply.unwrap(), b"hello");
/// ```
#[derive(Clone)]
pub struct Network {
    shared: Rc<NetworkShared>,
}

pub(crate) struct NetworkShared {
    state: RefCell<NetworkState>,
    /// Spawned tasks that the loop has not picked up yet.
    spawned: RefCell<Vec<Spawned>>,
    pub(crate) ready: Arc<RunQueue>,
}

thread_local! {
    /// The network that [`Sim`] runs on; `Driver::run` has no parameter for it.
    static CURRENT: RefCell<Weak<NetworkShared>> = const { RefCell::new(Weak::new()) };
}

/// A bound port of a simulated network, to which clients can connect. If the port is dropped before
/// a listener exists, these clients wait forever.
#[derive(Debug)]
pub struct Port {
    pub(crate) id: u64,
}

impl Network {
    /// Creates a network in which everything follows from `seed`. It becomes the thread's current
    /// network, on which [`Sim`] runs.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let shared = Rc::new(NetworkShared {
            state: RefCell::new(NetworkState::new(seed, faults)),
            spawned: RefCell::default(),
            ready: Arc::default(),
        });
        let network = Self { shared };
        network.make_current();
        network
    }

    fn make_current(&self) {
        CURRENT.set(Rc::downgrade(&self.shared));
    }

    /// The network that was last created or run on this thread, as long as a handle exists.
    #[must_use]
    pub fn current() -> Option<Self> {
        let shared = CURRENT.with_borrow(Weak::upgrade)?;
        Some(Self { shared })
    }

    /// Runs `main` on this network, like [`Driver::run`] on the current one.
    ///
    /// # Errors
    /// No tokio runtime can be created.
    ///
    /// # Panics
    /// If `main` waits and no further event is possible, or if the time limit is exceeded
    /// ([`Network::set_time_max`]).
    pub fn run<M, F>(&self, options: &Options, main: M) -> io::Result<F::Output>
    where
        M: FnOnce(Sim) -> F,
        F: Future,
    {
        self.make_current();
        Sim::run(options, main)
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.with(|state| state.seed)
    }

    /// Creates a port. Like a bound socket, it accepts connections into its backlog before there is
    /// a listener.
    #[must_use]
    pub fn bind(&self) -> Port {
        let id = self.with(|state| {
            let id = state.next_id();
            state.ports.insert(id, PortState::default());
            id
        });
        Port { id }
    }

    /// Connects to `port`. If its listener is gone or refuses new connections, everything on the
    /// connection fails with `ConnectionRefused`, immediately or later.
    #[must_use]
    pub fn connect(&self, port: &Port) -> Client {
        self.connect_to(port.id)
    }

    /// Connects to the port with this [`Port::id`], for use after the port itself was moved.
    #[must_use]
    pub fn connect_to(&self, port: u64) -> Client {
        let id = self.with(|state| state.connect(port));
        Client::new(SimEndpoint::new(self.clone(), id, Side::Client))
    }

    /// Spawns a task that is not part of the tested program, such as a client.
    /// [`Network::drop_task_at`] neither counts nor drops such tasks. They can be spawned before
    /// the run.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.add_task(Box::pin(task), None);
    }

    /// Changes the faults from now on. The capacity of existing connections stays the same.
    pub fn set_faults(&self, faults: Faults) {
        self.with(|state| state.faults = faults);
    }

    /// Fails a run that is not finished at this virtual time. Default never.
    pub fn set_time_max(&self, time_max: Duration) {
        self.with(|state| state.time_max = time_max);
    }

    /// Fails a run that is not finished after this many polls of tasks, however little virtual time
    /// passes. Default never.
    pub fn set_polls_max(&self, polls_max: u64) {
        self.with(|state| state.polls_max = polls_max);
    }

    /// Makes a stuck run unwind silently: the caller that catches the panic reports it with
    /// [`Network::failure`].
    pub fn suppress_panic_message(&self) {
        self.with(|state| state.suppress_panic_message = true);
    }

    /// Why the last run failed, if it got stuck.
    #[must_use]
    pub fn failure(&self) -> Option<RunFailure> {
        self.with(|state| state.failure.clone())
    }

    /// Stops adding to the [event log](Self::event_log) and the [trace](Self::trace_digest), for
    /// when later events only come from cleaning up after a failure. A run that gets stuck stops
    /// recording automatically.
    pub fn stop_recording(&self) {
        self.with(|state| state.trace.stop_recording());
    }

    /// Returns whether recording has stopped.
    #[must_use]
    pub fn is_recording_stopped(&self) -> bool {
        self.with(|state| state.trace.is_recording_stopped())
    }

    /// Adds a line to the [event log](Self::event_log), which is included in the
    /// [trace](Self::trace_digest) as well.
    pub fn log(&self, text: impl Into<String>) {
        let text = text.into();
        self.with(|state| state.trace.log(state.now, text));
    }

    /// The last events, without internal ones, with their times.
    #[must_use]
    pub fn event_log(&self) -> Vec<(Duration, String)> {
        self.with(|state| state.trace.event_log())
    }

    /// The number of polls of tasks so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.with(|state| state.stats.polls)
    }

    /// Drops one of the tasks that are spawned on the driver at a random one of its awaits, if it
    /// waits often enough. `number` is the task's position in the order of spawning, from 0.
    pub fn drop_task_at(&self, number: u64) {
        self.with(|state| {
            let polls = 1 + state.random.below(DROP_AFTER_POLLS_MAX);
            state.scheduled_drops.insert(number, polls);
        });
    }

    /// Wraps `future` so that it is dropped with probability `per_mille` at each of its awaits,
    /// including the moment before its first poll.
    pub fn drop_at<F: Future>(&self, per_mille: u32, future: F) -> DropAt<F> {
        DropAt::new(self.clone(), per_mille, future)
    }

    /// Waits until `duration` of virtual time has passed.
    pub async fn sleep(&self, duration: Duration) {
        let at = self.now().saturating_add(duration);
        self.sleep_until(at, Duration::ZERO).await;
    }

    /// Advances virtual time by `duration` while no task runs, like a function that blocks its
    /// thread: data in transit arrives and timers expire, but tasks notice neither before the end.
    ///
    /// # Panics
    /// If no run is in progress.
    pub fn block_thread(&self, duration: Duration) {
        self.with(|state| {
            state.record("block", [0, 0, 0]);
            state.now = state.now.saturating_add(duration);
        });
        // The clock has advanced once this future starts to wait for other tasks.
        let mut advance = std::pin::pin!(tokio::time::advance(duration));
        let _ = advance.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// A number below `limit` derived from the seed, or 0 if `limit` is 0.
    #[must_use]
    pub fn random_below(&self, limit: u64) -> u64 {
        self.with(|state| state.random.below(limit))
    }

    /// Virtual time since the network was created.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.with(|state| state.now)
    }

    /// A digest of everything that happened so far. Two runs with the same seed and the same tasks
    /// have the same digest.
    #[must_use]
    pub fn trace_digest(&self) -> u64 {
        self.with(|state| state.trace.digest())
    }

    /// The number of tasks that panicked so far.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.with(|state| state.stats.panics)
    }

    /// The number of connections of which at least one end is still held.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.with(|state| state.connections.len())
    }

    /// The number of connection attempts refused so far.
    #[must_use]
    pub fn connections_refused(&self) -> u64 {
        self.with(|state| state.stats.connections_refused)
    }

    /// The number of bytes that the server's kernel still holds for connections that the server has
    /// closed, because the peer's kernel has not acknowledged them.
    #[must_use]
    pub fn orphaned_bytes(&self) -> usize {
        self.with(|state| state.orphaned_bytes())
    }

    /// The number of received chunks that were not dropped yet.
    #[must_use]
    pub fn outstanding_chunks(&self) -> u32 {
        self.with(|state| state.receive_buffers.in_use)
    }

    pub(crate) fn ready(&self) -> &Arc<RunQueue> {
        &self.shared.ready
    }

    /// Calls `update` with the state, then wakes the tasks it has made ready.
    pub(crate) fn with<T>(&self, update: impl FnOnce(&mut NetworkState) -> T) -> T {
        let (result, wakes) = {
            let mut state = self.shared.state.borrow_mut();
            (update(&mut state), take(&mut state.pending_wakes))
        };
        for waker in wakes {
            waker.wake();
        }
        result
    }

    /// Passes a task to the loop. `number` is its position among the driver's tasks, if it is one.
    pub(crate) fn add_task(&self, task: Pin<Box<dyn Future<Output = ()>>>, number: Option<u64>) {
        self.shared.spawned.borrow_mut().push(Spawned { task, number });
        self.shared.ready.wake_loop();
    }

    pub(crate) fn take_spawned(&self) -> Vec<Spawned> {
        self.shared.spawned.take()
    }

    /// Completes when `delay` has passed after the time `at`.
    pub(crate) fn sleep_until(&self, at: Duration, delay: Duration) -> Sleep {
        Sleep { network: self.clone(), at, delay, entry: None }
    }
}

impl Port {
    /// The port's id, for [`Network::connect_to`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }
}

/// A wait in virtual time. Dropping it removes its event.
pub(crate) struct Sleep {
    network: Network,
    at: Duration,
    delay: Duration,
    entry: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let due = this.at.saturating_add(this.delay);
        let (done, _old) = this.network.with(|state| {
            let old = this.entry.take().and_then(|entry| state.cancel(entry));
            if state.now < due && due < TIME_HORIZON {
                this.entry = Some(state.wake_at(due, cx.waker().clone()));
            }
            (state.now >= due, old)
        });
        if done { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            drop(self.network.with(|state| state.cancel(entry)));
        }
    }
}
