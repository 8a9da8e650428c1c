//! [`Sim`]: a test's interface to its simulation.

use super::faults::Faults;
use super::server::{SimServer, SimServerState};
use peregrine::internal::box_make_app;
use peregrine::{MakeApp, Server};
use peregrine_driver_sim::{Network, Sim as Driver};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, oneshot};

/// The simulated Unix time at the start of a run.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// One run of a test: its network, its clock, and its source of randomness. This is a handle:
/// clones refer to the same run.
#[derive(Clone)]
pub struct Sim(Rc<SimState>);

pub(super) struct SimState {
    pub(super) network: Network,
    driver: OnceCell<Driver>,
    allows_panics: bool,
    /// The first failure.
    failure: RefCell<Option<String>>,
    failed: Notify,
    pub(super) servers: RefCell<Vec<Rc<SimServerState>>>,
    /// Requests that still wait for their responses, and when they started.
    pending: RefCell<BTreeMap<u64, (String, Duration)>>,
    last_request_id: Cell<u64>,
    last_client_id: Cell<u64>,
}

impl Sim {
    pub(super) fn new(network: Network, allows_panics: bool) -> Self {
        Self(Rc::new(SimState {
            network,
            driver: OnceCell::new(),
            allows_panics,
            failure: RefCell::default(),
            failed: Notify::new(),
            servers: RefCell::default(),
            pending: RefCell::default(),
            last_request_id: Cell::new(0),
            last_client_id: Cell::new(0),
        }))
    }

    /// Serves an application like [`Server::serve`], with two workers and default limits, until the
    /// test ends. `make` is called once for each worker, and can be `async`. Clients can connect
    /// immediately.
    ///
    /// A test can start several servers, one after the other or at the same time.
    pub fn serve<Via, M: MakeApp<Via>>(&self, make: M) -> SimServer {
        self.serve_with(|server| server, make)
    }

    /// Like [`serve`](Self::serve), with a server that `configure` changes first. Use the same
    /// function as in production if possible. Limits, workers, trusted proxies, traces and the
    /// settings of each listener take effect. Addresses are not bound, and settings of features
    /// that are [not simulated](crate#what-is-not-simulated) are ignored.
    ///
    /// # Panics
    /// If a setting is invalid.
    pub fn serve_with<Via, M: MakeApp<Via>>(
        &self,
        configure: impl FnOnce(Server) -> Server,
        make: M,
    ) -> SimServer {
        match configure(Server::new()).into_simulated() {
            Ok(settings) => SimServer::start(self, settings, &mut box_make_app(make)),
            Err(error) => panic!("the server cannot be simulated: {error}"),
        }
    }

    /// Starts a task that runs concurrently with the test, such as a client. If it panics, the run
    /// fails. Dropping the returned [`JoinHandle`] does not stop the task; the end of the run does.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let sim = self.clone();
        self.0.network.spawn(async move {
            match catch_panic(future).await {
                Ok(output) => drop(sender.send(output)),
                Err(text) => sim.fail(format!("a task of the test panicked: {text}")),
            }
        });
        JoinHandle(receiver)
    }

    /// Waits until `time` has passed on the virtual clock.
    pub async fn sleep(&self, time: Duration) {
        self.0.network.sleep(time).await;
    }

    /// Awaits `future` for up to `time`. Returns `None`, and drops `future`, if it takes longer.
    pub async fn timeout<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        let (mut future, mut sleep) = (pin!(future), pin!(self.sleep(time)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Returns the virtual time since the start of the run.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.0.network.now()
    }

    /// Returns the time of the virtual wall clock, which the `Date` field of responses shows. It
    /// starts on 14 November 2023.
    #[must_use]
    pub fn unix_time(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + EPOCH + self.now()
    }

    /// Returns a random number below `limit`, determined by the seed, or 0 if `limit` is 0.
    #[must_use]
    pub fn random_below(&self, limit: u64) -> u64 {
        self.0.network.random_below(limit)
    }

    /// Returns a random element of `items`, determined by the seed.
    ///
    /// # Panics
    /// If `items` is empty.
    #[must_use]
    pub fn choose<'a, T>(&self, items: &'a [T]) -> &'a T {
        assert!(!items.is_empty(), "cannot choose from an empty list");
        let count = u64::try_from(items.len()).expect("a length has at most 64 bits");
        &items[usize::try_from(self.random_below(count)).expect("less than the length")]
    }

    /// Returns the seed of this run.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.network.seed()
    }

    /// Changes the faults from now on, for example to let the network recover. Existing connections
    /// keep their buffer sizes.
    pub fn set_faults(&self, faults: &Faults) {
        self.0.network.set_faults(faults.to_network());
    }

    /// Adds a line to the events that a failure report lists.
    pub fn log(&self, text: impl Into<String>) {
        self.0.network.log(text);
    }

    /// Fails the run with this cause, unless it has already failed.
    pub(super) fn fail(&self, cause: String) {
        self.0.network.stop_recording();
        self.0.failure.borrow_mut().get_or_insert(cause);
        self.0.failed.notify_one();
    }

    /// Logs a panic of the application. Fails the run, unless the test allows such panics.
    pub(super) fn on_app_panic(&self, message: &str) {
        self.log(format!("the application panics: {message}"));
        if !self.0.allows_panics {
            // tokio's message about a socket does not explain why there is none.
            let hint = if message.contains("IO is disabled") {
                "\nThere are no sockets in a simulation: see \"What is not simulated\" in \
                 peregrine_simulate."
            } else {
                ""
            };
            self.fail(format!("the application panicked: {message}{hint}"));
        }
    }

    pub(super) fn set_driver(&self, driver: Driver) {
        // It was never set before: a run starts only once.
        let _ = self.0.driver.set(driver);
    }

    pub(super) fn driver(&self) -> &Driver {
        self.0.driver.get().expect("the driver is set before the test starts")
    }

    pub(super) fn shared(&self) -> &SimState {
        &self.0
    }

    /// Completes when the run has failed.
    pub(super) async fn wait_for_failure(&self) {
        while self.0.failure.borrow().is_none() {
            self.0.failed.notified().await;
        }
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.0.failure.borrow().clone()
    }

    pub(super) fn next_client_id(&self) -> u64 {
        self.0.last_client_id.set(self.0.last_client_id.get() + 1);
        self.0.last_client_id.get()
    }

    /// Records that a request waits for its response, until the returned value is dropped.
    pub(super) fn track_request(&self, request: String) -> PendingRequest {
        let id = self.0.last_request_id.get() + 1;
        self.0.last_request_id.set(id);
        self.0.pending.borrow_mut().insert(id, (request, self.now()));
        PendingRequest { sim: self.clone(), id }
    }

    /// Returns the requests without a response, with the time at which they started.
    pub(super) fn pending_requests(&self) -> Vec<(String, Duration)> {
        self.0.pending.borrow().values().cloned().collect()
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, now) = (self.seed(), self.now());
        f.debug_struct("Sim").field("seed", &seed).field("now", &now).finish_non_exhaustive()
    }
}

/// A request that waits for its response.
pub(super) struct PendingRequest {
    sim: Sim,
    id: u64,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        // After a failure, the entry stays for the report.
        if !self.sim.0.network.is_recording_stopped() {
            self.sim.0.pending.borrow_mut().remove(&self.id);
        }
    }
}

/// A task that [`Sim::spawn`] has started. Awaiting it returns its result.
#[derive(Debug)]
pub struct JoinHandle<T>(oneshot::Receiver<T>);

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match Pin::new(&mut self.0).poll(cx) {
            Poll::Ready(Ok(output)) => Poll::Ready(output),
            // An error means that the task panicked, and the run is about to fail because of that.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

/// Awaits `future`, and turns its panic into an error with the panic's message.
pub(super) async fn catch_panic<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    let polled = poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic_message(&*panic))),
    });
    polled.await
}

/// Returns the message of a panic.
pub(super) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("(no message)").to_owned()
}
