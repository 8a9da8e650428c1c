//! The admin listener: serves metrics, probes, and the current state of the server to operators.
//!
//! It has its own thread, limits and reserved descriptors, and runs on tokio, so it responds even
//! while all workers are blocked or overloaded. It stops after the workers. To serve its pages from
//! the application instead, use [`app`].

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
use peregrine_web::panic::catch_subscriber_panic;
#[cfg(unix)]
use std::cell::RefCell;
use std::io;
#[cfg(unix)]
use std::os::unix::net::UnixDatagram;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// How long [`RunningAdmin::shutdown`] waits for the thread.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the pages of the admin listener as an application, to be served by the main application
/// under a prefix or behind authentication middleware. The pages show the state of the server whose
/// worker calls this function, if `Server::admin` was called. Without a server, as in a test, that
/// state is empty.
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

/// Serves the pages on the calling thread until a shutdown is requested through `own_lifecycle`,
/// the lifecycle of the admin listener. The server's lifecycle is in `state`.
fn run(
    listeners: Vec<BoundListener<Socket>>,
    state: &Arc<AdminState>,
    own_lifecycle: watch::Sender<Lifecycle>,
    sharing: SocketSharing,
    on_ready: impl FnOnce(),
) -> io::Result<()> {
    let application =
        pages::app(state).build().expect("the routes of the admin listener are valid");
    Tokio::run(&Options::default(), |driver| async move {
        on_ready();
        driver.spawn_boxed(Box::pin(state::watch_blocking(driver.clone(), Arc::downgrade(state))));
        let lifecycle_updates = own_lifecycle.subscribe();
        driver.spawn_boxed(Box::pin(follow_handover(
            state.lifecycle_updates(),
            own_lifecycle,
            sharing,
        )));
        let instrumentation = Rc::new(instrumentation());
        // Probes can then always connect, even if idle clients hold all other slots.
        let limits = WorkerLimits { reserves_connections: true, ..limits().into() };
        peregrine_server::run_worker(
            driver,
            listeners,
            application,
            limits,
            instrumentation,
            lifecycle_updates,
            None,
        )
        .await
    })?
    .map(drop)
}

/// The number of descriptors that are reserved, so that this many connections can be accepted when
/// the process has no free descriptors.
#[cfg(unix)]
const RESERVED_FDS: usize = 2;

/// Descriptors reserved for the admin listener. They are unconnected sockets, which need no file.
#[cfg(unix)]
struct ReservedFds(RefCell<Vec<UnixDatagram>>);

#[cfg(unix)]
impl FdReserve for ReservedFds {
    fn release_one(&self) -> bool {
        self.0.borrow_mut().pop().is_some()
    }

    fn refill(&self) {
        let mut sockets = self.0.borrow_mut();
        while sockets.len() < RESERVED_FDS
            && let Ok(socket) = UnixDatagram::unbound()
        {
            sockets.push(socket);
        }
    }

    fn is_incomplete(&self) -> bool {
        self.0.borrow().len() < RESERVED_FDS
    }
}

#[cfg(unix)]
fn instrumentation() -> Instrumentation {
    let reserve = ReservedFds(RefCell::default());
    reserve.refill();
    Instrumentation::default().with_fd_reserve(reserve)
}

#[cfg(not(unix))]
fn instrumentation() -> Instrumentation {
    Instrumentation::default()
}

/// Stops accepting when the server hands over to another process, if that process has inherited the
/// listener.
async fn follow_handover(
    mut server_lifecycle: watch::Receiver<Lifecycle>,
    own_lifecycle: watch::Sender<Lifecycle>,
    sharing: SocketSharing,
) {
    let is_handing_over =
        server_lifecycle.wait_for(|state| *state == Lifecycle::HandingOver).await.is_ok();
    if is_handing_over && sharing.is_shared() {
        own_lifecycle.send_modify(|state| *state = Lifecycle::HandingOver.max(*state));
    }
}

/// Returns strict limits, because the pages need few resources.
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
        // During the shutdown, a connection that has just been accepted has time to send its
        // request.
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
    /// The lifecycle of the admin listener, which ends after that of the server.
    lifecycle: watch::Sender<Lifecycle>,
    /// Receives `Ok` when the thread starts serving, or the thread's error. Disconnected when the
    /// thread has ended.
    thread_events: mpsc::Receiver<io::Result<()>>,
}

impl RunningAdmin {
    /// Starts a thread that serves the pages on `listeners`. If `is_inherited`, it accepts no
    /// connections until [`start_serving`](Self::start_serving) is called.
    ///
    /// # Errors
    /// The process cannot start the thread, or has no free descriptors.
    pub fn start(
        listeners: Vec<BoundListener<Socket>>,
        sharing: SocketSharing,
        is_inherited: bool,
        state: &Arc<AdminState>,
    ) -> io::Result<Self> {
        // The previous process serves an inherited listener until it hands over.
        let initial = if is_inherited { Lifecycle::Standby } else { Lifecycle::Serving };
        let lifecycle = watch::Sender::new(initial);
        let thread_lifecycle = lifecycle.clone();
        let (sender, thread_events) = mpsc::channel();
        let state = Arc::clone(state);
        let run_thread: Box<dyn FnOnce() + Send> = Box::new(move || {
            let ready_sender = sender.clone();
            let result = run(listeners, &state, thread_lifecycle, sharing, move || {
                drop(ready_sender.send(Ok(())))
            });
            if let Err(error) = result {
                let _ = sender.send(Err(error));
            }
        });
        thread::Builder::new().name("peregrine-admin".to_owned()).spawn(run_thread)?;
        thread_events.recv().unwrap_or_else(|_| Err(io::Error::other("admin thread panicked")))?;
        Ok(Self { lifecycle, thread_events })
    }

    /// Starts serving an inherited listener after the previous process has handed over.
    pub fn start_serving(&self) {
        self.lifecycle.send_modify(|state| *state = Lifecycle::Serving.max(*state));
    }

    /// Shuts the listener down and waits for its thread.
    pub fn shutdown(self) {
        self.lifecycle.send_modify(|state| *state = Lifecycle::Draining.max(*state));
        // The end of the thread disconnects the channel.
        if let Err(mpsc::RecvTimeoutError::Timeout) =
            self.thread_events.recv_timeout(SHUTDOWN_TIMEOUT)
        {
            catch_subscriber_panic(
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
