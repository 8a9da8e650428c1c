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
use crate::faults::Faults;
use crate::link::Link;
use crate::run::Sim;
use crate::state::{End, PortState, State};
use crate::tasks::{Ready, Spawned};
use crate::trace::Stuck;

/// Polls after which a doomed task is gone at the latest.
const DOOMED_POLLS_MAX: u64 = 12;

/// Whatever is to happen later than this never happens: 136 years.
pub(crate) const FAR: Duration = Duration::from_secs(u32::MAX as u64);

/// A network in memory: a cheap handle, for one thread.
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
///         // An attempt may fail by design of these faults; the next one may not.
///         let stream = loop {
///             if let Ok(stream) = listener.accept().await {
///                 break stream;
///             }
///         };
///         stream.send(&mut b"hello".to_vec());
///         stream.sent().await.unwrap();
///     });
///     client.recv_all().await.unwrap()
/// });
/// assert_eq!(reply.unwrap(), b"hello");
/// ```
#[derive(Clone)]
pub struct Network {
    shared: Rc<Shared>,
}

pub(crate) struct Shared {
    state: RefCell<State>,
    /// Tasks that the loop has not taken over yet.
    spawned: RefCell<Vec<Spawned>>,
    pub(crate) ready: Arc<Ready>,
}

thread_local! {
    /// The network that [`Sim`] runs on: `Driver::run` has no parameter for one.
    static CURRENT: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
}

/// A bound place of a simulated network. Clients may connect from now on. Dropping it before
/// anybody listens leaves them waiting.
#[derive(Debug)]
pub struct Port {
    pub(crate) id: u64,
}

impl Network {
    /// A network in which everything follows from `seed`. It becomes the thread's current network,
    /// on which [`Sim`] runs.
    #[must_use]
    pub fn new(seed: u64, faults: Faults) -> Self {
        let shared = Rc::new(Shared {
            state: RefCell::new(State::new(seed, faults)),
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

    /// The network that was made or run last on this thread, as long as someone holds it.
    #[must_use]
    pub fn current() -> Option<Self> {
        let shared = CURRENT.with_borrow(Weak::upgrade)?;
        Some(Self { shared })
    }

    /// Runs `main` on this network, as [`Driver::run`] does on the current one.
    ///
    /// # Errors
    /// The system has no means for a tokio runtime.
    ///
    /// # Panics
    /// When `main` waits and nothing is left that could happen, or time is over
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

    /// A new port, which takes connections before anybody listens, like a bound socket.
    #[must_use]
    pub fn bind(&self) -> Port {
        let id = self.with(|state| {
            let id = state.next_id();
            state.ports.insert(id, PortState::default());
            id
        });
        Port { id }
    }

    /// Connects to `port`. If its listener is gone, or takes nobody new, everything on the connection
    /// fails with `ConnectionRefused`, at once or later.
    #[must_use]
    pub fn connect(&self, port: &Port) -> Client {
        self.connect_to(port.id)
    }

    /// Connects to the port with this [`Port::id`], for when the port itself was given away.
    #[must_use]
    pub fn connect_to(&self, port: u64) -> Client {
        let id = self.with(|state| state.connect(port));
        Client::new(Link::new(self.clone(), id, End::Client))
    }

    /// Starts a task that is no part of what is tested: a client. It is never doomed by
    /// [`Network::drop_task_at`] and not counted for that. It may be started before the run.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.add_task(Box::pin(task), None);
    }

    /// Changes the faults from now on. The capacity of existing connections stays.
    pub fn set_faults(&self, faults: Faults) {
        self.with(|state| state.faults = faults);
    }

    /// Makes a run fail that is not over at this virtual time, however busy it is. Default never.
    pub fn set_time_max(&self, time_max: Duration) {
        self.with(|state| state.time_max = time_max);
    }

    /// Makes a run fail that is not over after so many polls of tasks, however little time they take. Default
    /// never.
    pub fn set_polls_max(&self, polls_max: u64) {
        self.with(|state| state.polls_max = polls_max);
    }

    /// Lets a run that is stuck unwind without a word: whoever catches that tells of it, by [`Network::stuck`].
    pub fn set_silent(&self) {
        self.with(|state| state.is_silent = true);
    }

    /// Why the last run failed, if it could not go on.
    #[must_use]
    pub fn stuck(&self) -> Option<Stuck> {
        self.with(|state| state.stuck.clone())
    }

    /// Ends the [story](Self::story) and the [trace](Self::trace): what happens from now on is but the end of a run
    /// that has failed. A run that is stuck does so by itself.
    pub fn freeze(&self) {
        self.with(|state| state.trace.freeze());
    }

    /// Have they ended?
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.with(|state| state.trace.is_frozen())
    }

    /// Adds a line to the [story](Self::story), which counts for the [trace](Self::trace) too.
    pub fn note(&self, text: impl Into<String>) {
        let text = text.into();
        self.with(|state| state.trace.note(state.now, text));
    }

    /// The last events that whoever uses the network may want to know of, with their times.
    #[must_use]
    pub fn story(&self) -> Vec<(Duration, String)> {
        self.with(|state| state.trace.story())
    }

    /// Polls of tasks so far.
    #[must_use]
    pub fn polls(&self) -> u64 {
        self.with(|state| state.figures.polls)
    }

    /// Drops the `number`-th task that the driver is told to spawn (the first is 0) at a random
    /// one of its awaits, if it waits often enough.
    pub fn drop_task_at(&self, number: u64) {
        self.with(|state| {
            let polls = 1 + state.random.below(DOOMED_POLLS_MAX);
            state.doomed.insert(number, polls);
        });
    }

    /// Wraps `future` so that it is dropped with a chance of `per_mille` at each of its awaits,
    /// the moment before its first poll included.
    pub fn drop_at<F: Future>(&self, per_mille: u32, future: F) -> DropAt<F> {
        DropAt::new(self.clone(), per_mille, future)
    }

    /// Waits until `duration` of virtual time has passed.
    pub async fn sleep(&self, duration: Duration) {
        let at = self.now().saturating_add(duration);
        self.sleep_until(at, Duration::ZERO).await;
    }

    /// Lets `duration` of virtual time pass while nobody runs, as a function does that blocks its
    /// thread: what was under way arrives and timers are due, but neither is noticed before.
    ///
    /// # Panics
    /// Nothing runs on the network.
    pub fn block(&self, duration: Duration) {
        self.with(|state| {
            state.record("block", [0, 0, 0]);
            state.now = state.now.saturating_add(duration);
        });
        // The clock has moved when this future begins to wait for others to have seen it.
        let mut advance = std::pin::pin!(tokio::time::advance(duration));
        let _ = advance.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }

    /// A number below `limit` from the seed, or 0 if `limit` is 0.
    #[must_use]
    pub fn random(&self, limit: u64) -> u64 {
        self.with(|state| state.random.below(limit))
    }

    /// Virtual time since the network was made.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.with(|state| state.now)
    }

    /// A digest of everything that happened so far. Two runs with the same seed and the same
    /// tasks have the same.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.with(|state| state.trace.digest())
    }

    /// Tasks that ended in a panic so far.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.with(|state| state.figures.panics)
    }

    /// Connections that one of the two ends still holds.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.with(|state| state.connections.len())
    }

    /// Attempts to connect that were refused so far.
    #[must_use]
    pub fn connections_refused(&self) -> u64 {
        self.with(|state| state.figures.connections_refused)
    }

    /// Bytes that the server's kernel keeps for connections which the server has closed, because the
    /// peer's did not acknowledge them.
    #[must_use]
    pub fn bytes_of_the_closed(&self) -> usize {
        self.with(|state| state.bytes_of_the_closed())
    }

    /// Chunks that were received and not dropped yet.
    #[must_use]
    pub fn chunks_on_loan(&self) -> u32 {
        self.with(|state| state.loans.chunks)
    }

    pub(crate) fn ready(&self) -> &Arc<Ready> {
        &self.shared.ready
    }

    /// Works on the state, then wakes whom that concerns.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let (result, wakes) = {
            let mut state = self.shared.state.borrow_mut();
            (work(&mut state), take(&mut state.wakes))
        };
        for waker in wakes {
            waker.wake();
        }
        result
    }

    /// Hands a task to the loop. `number` counts the tasks of the driver.
    pub(crate) fn add_task(&self, task: Pin<Box<dyn Future<Output = ()>>>, number: Option<u64>) {
        self.shared.spawned.borrow_mut().push(Spawned { task, number });
        self.shared.ready.wake_loop();
    }

    pub(crate) fn take_spawned(&self) -> Vec<Spawned> {
        self.shared.spawned.take()
    }

    /// Ends when the time is `at`, and up to `late` after that.
    pub(crate) fn sleep_until(&self, at: Duration, late: Duration) -> Sleep {
        Sleep { network: self.clone(), at, late, entry: None }
    }
}

impl Port {
    /// The port's number, for [`Network::connect_to`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }
}

/// A wait in virtual time. It leaves no trace on the agenda when it is dropped.
pub(crate) struct Sleep {
    network: Network,
    at: Duration,
    late: Duration,
    entry: Option<(Duration, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let due = this.at.saturating_add(this.late);
        let (done, _old) = this.network.with(|state| {
            let old = this.entry.take().and_then(|entry| state.cancel(entry));
            if state.now < due && due < FAR {
                this.entry = Some(state.wake_at(due, context.waker().clone()));
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
