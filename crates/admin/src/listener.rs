//! The admin listener: metrics, probes, and the current state of the server, for operators.
//!
//! It has its own thread, limits and reserved descriptors, and runs on tokio, so it responds even
//! while all workers are blocked or flooded. It stops after the workers. Applications that want its
//! pages on their own listener use [`app`].

use crate::pages;
use crate::state::{self, Views};
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
#[cfg(unix)]
use peregrine_server::Reserve;
use peregrine_server::{Limits, Listen, Observed, Order, OverloadLimits, Shared, WorkerLimits};
use peregrine_web::App;
use peregrine_web::panics::contained;
#[cfg(unix)]
use std::cell::RefCell;
use std::io;
#[cfg(unix)]
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::watch as watched;

/// Reserved connection slots, for new connections when all other slots are in use. If no reserved
/// slot is free either, the server closes the oldest connection in one of them that has not sent a
/// request. Probes can therefore always connect, even if idle clients hold all other slots.
const SPARE_CONNECTIONS: usize = 64;

/// The shutdown timeout of the admin listener.
const END_MAX: Duration = Duration::from_secs(2);

/// The pages of the admin listener, for an application that serves them itself, under a prefix or
/// behind authentication middleware. They show the state of the server whose worker builds the
/// application, if it has `Server::admin`. Without a server, as in a test, that state is empty.
///
/// ```no_run
/// use peregrine::{Admin, admin, prelude::*};
///
/// fn main() -> peregrine::Result<()> {
///     Server::bind("0.0.0.0:8080").admin(Admin::mounted()).serve(|| {
///         App::new().get("/", || "hello").scope("/internal", |scope| scope.merge(admin::app()))
///     })
/// }
/// ```
#[must_use]
pub fn app() -> App {
    pages::app(&state::current())
}

/// Serves the pages on the calling thread until it is ordered to stop.
fn run(
    listens: Vec<Listen<Socket>>,
    views: &Arc<Views>,
    orders: watched::Sender<Order>,
    shared: Shared,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let application =
        pages::app(views).build().expect("the routes of the admin listener are valid");
    Tokio::run(&Options::default(), |driver| async move {
        ready();
        driver.spawn_boxed(Box::pin(state::watch(driver.clone(), Arc::downgrade(views))));
        let ordered = orders.subscribe();
        driver.spawn_boxed(Box::pin(leave_with(views.orders(), orders, shared)));
        let observed = Rc::new(observed());
        let limits = WorkerLimits { spare_connections: SPARE_CONNECTIONS, ..limits().into() };
        peregrine_server::run(driver, listens, application, limits, observed, ordered, None).await
    })?
    .map(drop)
}

/// The number of connections that can be accepted when the process has no free descriptors.
#[cfg(unix)]
const KEPT_DESCRIPTORS: usize = 2;

/// Descriptors reserved for the admin listener: unconnected sockets, since they need no file.
#[cfg(unix)]
struct Kept(RefCell<Vec<UnixDatagram>>);

#[cfg(unix)]
impl Reserve for Kept {
    fn spend(&self) -> bool {
        self.0.borrow_mut().pop().is_some()
    }

    fn refill(&self) {
        let mut all = self.0.borrow_mut();
        while all.len() < KEPT_DESCRIPTORS
            && let Ok(socket) = UnixDatagram::unbound()
        {
            all.push(socket);
        }
    }

    fn is_short(&self) -> bool {
        self.0.borrow().len() < KEPT_DESCRIPTORS
    }
}

#[cfg(unix)]
fn observed() -> Observed {
    let kept = Kept(RefCell::default());
    kept.refill();
    Observed::default().reserving(kept)
}

#[cfg(not(unix))]
fn observed() -> Observed {
    Observed::default()
}

/// Stops serving when another process has taken over and inherited the listener.
async fn leave_with(
    mut server: watched::Receiver<Order>,
    own: watched::Sender<Order>,
    shared: Shared,
) {
    let has_left = server.wait_for(|order| *order == Order::Leave).await.is_ok();
    if has_left && shared.is_so() {
        own.send_modify(|order| *order = Order::Leave.max(*order));
    }
}

/// Strict limits: the pages need few resources.
fn limits() -> Limits {
    Limits {
        head_bytes_max: 8 * 1024,
        body_bytes_max: 0,
        connections_max: 256,
        first_byte_timeout: Duration::from_secs(5),
        head_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(30),
        rate_slack: Duration::from_secs(10),
        exchange_timeout: Some(Duration::from_secs(10)),
        // A connection that has just been accepted has time to send its request.
        drain_idle_timeout: Duration::from_millis(500),
        linger_timeout: Duration::from_millis(100),
        linger_max: Duration::from_millis(500),
        shutdown_timeout: Duration::from_secs(1),
        background_timeout: Duration::ZERO,
        poll_budget: None,
        // The pages are needed most during overload.
        overload: OverloadLimits::none(),
        ..Limits::default()
    }
}

/// A running admin listener. Dropping it closes its connections.
#[derive(Debug)]
pub struct Administering {
    orders: watched::Sender<Order>,
    /// Receives `Ok` when the thread starts serving, or its error. Disconnected when it has ended.
    told: mpsc::Receiver<io::Result<()>>,
}

impl Administering {
    /// Starts a thread that serves the pages on `listens`.
    ///
    /// # Errors
    /// The process cannot start the thread, or has no free descriptors.
    pub fn start(
        listens: Vec<Listen<Socket>>,
        shared: Shared,
        is_inherited: bool,
        views: &Arc<Views>,
    ) -> io::Result<Self> {
        // The predecessor serves an inherited listener until the predecessor stops.
        let first = if is_inherited { Order::Wait } else { Order::Serve };
        let orders = watched::Sender::new(first);
        let own = orders.clone();
        let (tell, told) = mpsc::channel();
        let views = Arc::clone(views);
        let body: Box<dyn FnOnce() + Send> = Box::new(move || {
            let ready = tell.clone();
            let ended = run(listens, &views, own, shared, move || drop(ready.send(Ok(()))));
            if let Err(error) = ended {
                let _ = tell.send(Err(error));
            }
        });
        thread::Builder::new().name("peregrine-admin".to_owned()).spawn(body)?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("admin thread panicked")))?;
        Ok(Self { orders, told })
    }

    /// Starts serving after the predecessor has stopped.
    pub fn open(&self) {
        self.orders.send_modify(|order| *order = Order::Serve.max(*order));
    }

    /// Shuts the listener down and waits for its thread.
    pub fn end(self) {
        self.orders.send_modify(|order| *order = Order::Drain.max(*order));
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.told.recv_timeout(END_MAX) {
            contained(
                || tracing::debug!(target: "peregrine", "the admin listener did not stop in time"),
            );
        }
    }
}

impl Drop for Administering {
    fn drop(&mut self) {
        self.orders.send_replace(Order::Cut);
    }
}
