//! The listener for those who run the server: metrics, probes, and what it does at this moment.
//!
//! It has a thread, limits and a few descriptors of its own, on tokio, so that it answers while all workers
//! are blocked or flooded, and it ends after them. [`app`] is for those who want its pages on their own
//! listener.

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

/// So many of its connections nobody can keep to themselves: a probe finds a place, whoever else is there.
const SPARE_CONNECTIONS: usize = 64;

/// How long the admin listener may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// The pages of the admin listener, for an application that wants them among its own: under a prefix, behind
/// middleware that asks who is there. They tell of the server whose worker makes the application, if that
/// has `Server::admin`; in a test without a server, of none.
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

/// Serves the pages on the calling thread, until it is ordered to end.
fn run(
    listens: Vec<Listen<Socket>>,
    views: &Arc<Views>,
    orders: watched::Sender<Order>,
    shared: Shared,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let application =
        pages::app(views).build().expect("the routes of the admin listener are sound");
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

/// So many connections have a descriptor each when the process has none left.
#[cfg(unix)]
const KEPT_DESCRIPTORS: usize = 2;

/// Descriptors that nobody else in the process has: sockets to nowhere, for which no file has to be there.
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

/// Leaves the place to the process that serves in place of this one, if that has it.
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

/// Little is needed to ask for a page, and nobody is to have more.
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
        // Whoever was just accepted is answered.
        drain_idle_timeout: Duration::from_millis(500),
        linger_timeout: Duration::from_millis(100),
        linger_max: Duration::from_millis(500),
        shutdown_timeout: Duration::from_secs(1),
        background_timeout: Duration::ZERO,
        poll_budget: None,
        // It is asked most when there is too much to do.
        overload: OverloadLimits::none(),
        ..Limits::default()
    }
}

/// An admin listener at work. Dropping it cuts its connections.
#[derive(Debug)]
pub struct Administering {
    orders: watched::Sender<Order>,
    /// Says no more when the thread has ended.
    told: mpsc::Receiver<io::Result<()>>,
}

impl Administering {
    /// Answers on `listens`, on a thread of its own.
    ///
    /// # Errors
    /// The process is out of threads or descriptors.
    pub fn start(
        listens: Vec<Listen<Socket>>,
        shared: Shared,
        is_inherited: bool,
        views: &Arc<Views>,
    ) -> io::Result<Self> {
        // The process before this one answers until it leaves.
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
        told.recv().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))?;
        Ok(Self { orders, told })
    }

    /// The process before this one has left.
    pub fn open(&self) {
        self.orders.send_modify(|order| *order = Order::Serve.max(*order));
    }

    /// Ends it when nothing is left to tell, and waits for that.
    pub fn end(self) {
        self.orders.send_modify(|order| *order = Order::Drain.max(*order));
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.told.recv_timeout(END_MAX) {
            contained(
                || tracing::debug!(target: "peregrine", "the admin listener did not end in time"),
            );
        }
    }
}

impl Drop for Administering {
    fn drop(&mut self) {
        self.orders.send_replace(Order::Cut);
    }
}
