//! The admin listener: metrics, probes, and the current state of the server, for operators.
//!
//! It has its own thread, limits and reserved descriptors, and runs on tokio, so it responds even
//! while all workers are blocked or flooded. It stops after the workers. Applications that want its
//! pages on their own listener use [`app`].

use crate::pages;
use crate::state::{self, AdminState};
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
#[cfg(unix)]
use peregrine_server::FdReserve;
use peregrine_server::{
    BoundListener, Instrumentation, Lifecycle, Limits, OverloadLimits, SocketSharing, WorkerLimits,
};
use peregrine_web::App;
use peregrine_web::panic::catch_log_panic;
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
const RESERVED_CONNECTIONS: usize = 64;

/// The shutdown timeout of the admin listener.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The pages of the admin listener, for an application that serves them itself, under a prefix or
/// behind authentication middleware. They show the state of the server whose worker builds the
/// application, if it has `Server::admin`. Without a server, as in a test, that state is empty.
///
/// ```no_run
/// use peregrine::{Admin, admin, prelude::*};
///
/// fn main() -> peregrine::Result<()> {
///     Server::bind("0.0.0.0:8080").admin(Admin::without_listener()).serve(|| {
///         App::new().get("/", || "hello").scope("/internal", |scope| scope.merge(admin::app()))
///     })
/// }
/// ```
#[must_use]
pub fn app() -> App {
    pages::app(&state::current())
}

/// Serves the pages on the calling thread until a shutdown is requested.
fn run(
    listens: Vec<BoundListener<Socket>>,
    views: &Arc<AdminState>,
    orders: watched::Sender<Lifecycle>,
    shared: SocketSharing,
    ready: impl FnOnce(),
) -> io::Result<()> {
    let application =
        pages::app(views).build().expect("the routes of the admin listener are valid");
    Tokio::run(&Options::default(), |driver| async move {
        ready();
        driver.spawn_boxed(Box::pin(state::watch_blocking(driver.clone(), Arc::downgrade(views))));
        let ordered = orders.subscribe();
        driver.spawn_boxed(Box::pin(follow_handover(views.lifecycle_updates(), orders, shared)));
        let observed = Rc::new(instrumentation());
        let limits = WorkerLimits { reserved_connections: RESERVED_CONNECTIONS, ..limits().into() };
        peregrine_server::run_worker(driver, listens, application, limits, observed, ordered, None)
            .await
    })?
    .map(drop)
}

/// The number of connections that can be accepted when the process has no free descriptors.
#[cfg(unix)]
const RESERVED_FDS: usize = 2;

/// Descriptors reserved for the admin listener: unconnected sockets, since they need no file.
#[cfg(unix)]
struct ReservedFds(RefCell<Vec<UnixDatagram>>);

#[cfg(unix)]
impl FdReserve for ReservedFds {
    fn release_one(&self) -> bool {
        self.0.borrow_mut().pop().is_some()
    }

    fn refill(&self) {
        let mut all = self.0.borrow_mut();
        while all.len() < RESERVED_FDS
            && let Ok(socket) = UnixDatagram::unbound()
        {
            all.push(socket);
        }
    }

    fn is_depleted(&self) -> bool {
        self.0.borrow().len() < RESERVED_FDS
    }
}

#[cfg(unix)]
fn instrumentation() -> Instrumentation {
    let kept = ReservedFds(RefCell::default());
    kept.refill();
    Instrumentation::default().with_fd_reserve(kept)
}

#[cfg(not(unix))]
fn observed() -> Instrumentation {
    Instrumentation::default()
}

/// Stops serving when another process has taken over and inherited the listener.
async fn follow_handover(
    mut server: watched::Receiver<Lifecycle>,
    own: watched::Sender<Lifecycle>,
    shared: SocketSharing,
) {
    let has_left = server.wait_for(|order| *order == Lifecycle::HandingOver).await.is_ok();
    if has_left && shared.is_shared() {
        own.send_modify(|order| *order = Lifecycle::HandingOver.max(*order));
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
        transfer_rate_grace: Duration::from_secs(10),
        exchange_timeout: Some(Duration::from_secs(10)),
        // A connection that has just been accepted has time to send its request.
        drain_idle_timeout: Duration::from_millis(500),
        linger_timeout: Duration::from_millis(100),
        linger_time_max: Duration::from_millis(500),
        shutdown_timeout: Duration::from_secs(1),
        background_task_timeout: Duration::ZERO,
        blocking_poll_threshold: None,
        // The pages are needed most during overload.
        overload: OverloadLimits::unlimited(),
        ..Limits::default()
    }
}

/// A running admin listener. Dropping it closes its connections.
#[derive(Debug)]
pub struct RunningAdmin {
    lifecycle: watched::Sender<Lifecycle>,
    /// Receives `Ok` when the thread starts serving, or its error. Disconnected when it has ended.
    exited: mpsc::Receiver<io::Result<()>>,
}

impl RunningAdmin {
    /// Starts a thread that serves the pages on `listens`.
    ///
    /// # Errors
    /// The process cannot start the thread, or has no free descriptors.
    pub fn start(
        listens: Vec<BoundListener<Socket>>,
        shared: SocketSharing,
        is_inherited: bool,
        views: &Arc<AdminState>,
    ) -> io::Result<Self> {
        // The predecessor serves an inherited listener until the predecessor stops.
        let first = if is_inherited { Lifecycle::Standby } else { Lifecycle::Serving };
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
        Ok(Self { lifecycle: orders, exited: told })
    }

    /// Starts serving after the predecessor has stopped.
    pub fn start_serving(&self) {
        self.lifecycle.send_modify(|order| *order = Lifecycle::Serving.max(*order));
    }

    /// Shuts the listener down and waits for its thread.
    pub fn shutdown(self) {
        self.lifecycle.send_modify(|order| *order = Lifecycle::Draining.max(*order));
        if let Err(mpsc::RecvTimeoutError::Timeout) = self.exited.recv_timeout(SHUTDOWN_TIMEOUT) {
            catch_log_panic(
                || tracing::debug!(target: "peregrine", "the admin listener did not stop in time"),
            );
        }
    }
}

impl Drop for RunningAdmin {
    fn drop(&mut self) {
        self.lifecycle.send_replace(Lifecycle::ForceClosing);
    }
}
