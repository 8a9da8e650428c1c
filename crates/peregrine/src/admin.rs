//! The admin listener: metrics, probes, and the current state of the server, for operators.
//!
//! It has its own thread, limits and reserved descriptors, and runs on tokio, so it responds even
//! while all workers are blocked or flooded. It stops after the workers. Applications that want its
//! pages on their own listener use [`app`].
//!
//! `view.rs` holds the data that workers publish, and `pages.rs` renders it.

mod pages;
mod process;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "metrics")]
mod user;
mod view;

pub(crate) use self::view::{Begun, Views};

use crate::entrances::{AdminEntrance, Entrances};
use crate::error::Error;
use crate::listen::Place;
use crate::listener::Source;
use crate::restart::Heir;
use crate::socket_file::FileOwner;
use crate::threads;
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
use std::time::Duration;
use tokio::sync::watch as watched;

/// The default of [`Admin::live_within`].
pub(crate) const LIVE_WITHIN: Duration = Duration::from_secs(30);

/// Connections that idle clients cannot occupy: when only these are left, the oldest connection
/// without a request is closed for a new one. Probes can therefore always connect.
const SPARE_CONNECTIONS: usize = 64;

/// The shutdown timeout of the admin listener.
const END_MAX: Duration = Duration::from_secs(2);

/// Configures the admin listener ([`Server::admin`](crate::Server::admin)). Its pages are:
///
/// - `/metrics`: metrics for Prometheus, in OpenMetrics 1.0 if the client accepts it, otherwise in
///   the classic text format.
/// - `/livez`: 200; 503 if a handler has blocked a worker's thread for longer than
///   [`live_within`](Self::live_within).
/// - `/readyz`: 200 while the server serves; 503 before that, and once it is ordered to shut down.
///   `/readyz?overload=unready` also responds with 503 while all workers refuse requests because
///   memory is short.
/// - `/startupz`: 200 once all workers serve.
/// - `/routes`: the application's routes, in JSON.
/// - `/connections`: the number of connections in each state, by worker, in JSON.
/// - `/config`: all settings in effect, in TOML, if the server was built from a configuration (the
///   feature `config`).
///
/// The pages require no authentication: choose an address that only authorized clients can reach,
/// such as one of the loopback interface, or a Unix domain socket.
///
/// ```no_run
/// use peregrine::{Admin, prelude::*};
/// use std::time::Duration;
///
/// fn main() -> peregrine::Result<()> {
///     let admin = Admin::at("127.0.0.1:9000").live_within(Duration::from_secs(60));
///     Server::bind("0.0.0.0:8080").admin(admin).serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[derive(Debug)]
pub struct Admin {
    /// `None` if the application serves the pages.
    source: Option<Source>,
    owner: FileOwner,
    live_within: Duration,
}

impl Admin {
    /// Listens at `address`, such as `127.0.0.1:9000` or `unix:/run/app/admin.sock`. Port 0 takes
    /// any free port; [`Running::admin_place`](crate::Running::admin_place) returns it.
    pub fn at(address: impl Into<String>) -> Self {
        Self::from_source(Source::Address(address.into()))
    }

    /// Uses a listener that was bound elsewhere, for example by a service manager.
    pub fn on(listener: impl Into<Socket>) -> Self {
        Self::from_source(Source::Bound(listener.into()))
    }

    /// Listens on the sockets called `name` from a service manager; see
    /// [`Server::activated`](crate::Server::activated).
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(name: impl Into<String>) -> Self {
        Self::from_source(Source::Activated(name.into(), None))
    }

    /// Like [`activated`](Self::activated), but listens at `address` if no sockets at all were
    /// passed to this process.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self::from_source(Source::Activated(name.into(), Some(address.into())))
    }

    fn from_source(source: Source) -> Self {
        Self { source: Some(source), owner: FileOwner::default(), live_within: LIVE_WITHIN }
    }

    /// Opens no listener: requests are measured, and the application serves the pages itself
    /// ([`app`]). The pages then do not respond while workers are blocked or at their limits.
    pub fn mounted() -> Self {
        Self { source: None, owner: FileOwner::default(), live_within: LIVE_WITHIN }
    }

    /// Sets how long a handler may block a worker's thread, without suspending at an `await`,
    /// before `/livez` responds with 503. The default is 30 s. If failed liveness probes restart
    /// the server, set it to more than the slowest handler needs.
    #[must_use]
    pub fn live_within(mut self, time: Duration) -> Self {
        self.live_within = time;
        self
    }

    /// Sets the permissions of a Unix domain socket's file; see
    /// [`Listener::unix_mode`](crate::Listener::unix_mode).
    #[must_use]
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.owner.mode = Some(mode);
        self
    }

    /// Sets the owner of a Unix domain socket's file; see
    /// [`Listener::unix_owner`](crate::Listener::unix_owner).
    #[must_use]
    pub fn unix_owner(mut self, user: impl Into<String>) -> Self {
        self.owner.user = Some(user.into());
        self
    }

    /// Sets the group of a Unix domain socket's file; see
    /// [`Listener::unix_group`](crate::Listener::unix_group).
    #[must_use]
    pub fn unix_group(mut self, group: impl Into<String>) -> Self {
        self.owner.group = Some(group.into());
        self
    }

    /// Creates the data that workers publish.
    pub(crate) fn views(&self, workers: usize, orders: watched::Receiver<Order>) -> Arc<Views> {
        #[cfg(feature = "metrics")]
        user::install();
        Arc::new(Views::new(workers, orders, self.live_within))
    }

    /// Opens the listener, or inherits it if `heir` has it.
    pub(crate) fn open(
        self,
        all: &mut Entrances,
        heir: &mut Option<Heir>,
    ) -> Result<Option<AdminEntrance>, Error> {
        self.owner.check(self.source.as_ref().and_then(Source::address))?;
        self.source.map(|source| all.open_admin(source, &self.owner, heir)).transpose()
    }
}

impl AdminEntrance {
    /// Serves the pages on a new thread.
    pub(crate) fn start(self, views: &Arc<Views>) -> Result<Administering, Error> {
        let Self { listens, place, shared, is_inherited } = self;
        // An inherited listener is served by the predecessor until it stops.
        let first = if is_inherited { Order::Wait } else { Order::Serve };
        let orders = watched::Sender::new(first);
        let own = orders.clone();
        let (tell, told) = mpsc::channel();
        let views = Arc::clone(views);
        let body = move || {
            let ready = tell.clone();
            let ended = run(listens, &views, own, shared, move || drop(ready.send(Ok(()))));
            if let Err(error) = ended {
                let _ = tell.send(Err(error));
            }
        };
        threads::start("peregrine-admin", Box::new(body)).map_err(Error::Worker)?;
        let begun = told.recv().unwrap_or_else(|_| Err(io::Error::other("admin thread panicked")));
        begun.map_err(Error::Worker)?;
        Ok(Administering { orders, told, place })
    }
}

impl From<&str> for Admin {
    fn from(address: &str) -> Self {
        Self::at(address)
    }
}

impl From<String> for Admin {
    fn from(address: String) -> Self {
        Self::at(address)
    }
}

/// The pages of the admin listener, for an application that serves them itself, under a prefix or
/// behind authentication middleware. They show the server whose worker builds the application, if
/// it has [`Server::admin`](crate::Server::admin), and an empty state in a test without a server.
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
    pages::app(&view::current())
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
        driver.spawn_boxed(Box::pin(view::watch(driver.clone(), Arc::downgrade(views))));
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
        // Just accepted connections still get a response.
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
pub(crate) struct Administering {
    orders: watched::Sender<Order>,
    /// Disconnected when the thread has ended.
    told: mpsc::Receiver<io::Result<()>>,
    place: Place,
}

impl Administering {
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Starts serving after the predecessor has stopped.
    pub(crate) fn open(&self) {
        self.orders.send_modify(|order| *order = Order::Serve.max(*order));
    }

    /// Shuts the listener down and waits for its thread.
    pub(crate) fn end(self) {
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

#[cfg(test)]
mod tests {
    use crate::{DriverChoice, Limits, Place, Server};
    use peregrine_server::OverloadLimits;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    /// The timeout of a test that hangs.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut peer = TcpStream::connect(address).expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        peer.write_all(request.as_bytes()).expect("connected");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("a complete response");
        answer
    }

    #[test]
    fn a_worker_whom_nobody_asks_refuses_nobody() {
        let queue_delay_target = Some(Duration::from_millis(2));
        let overload = OverloadLimits { queue_delay_target, ..OverloadLimits::default() };
        let server = Server::bind("127.0.0.1:0").driver(DriverChoice::Tokio).admin("127.0.0.1:0");
        let server = server.limits(Limits { overload, ..Limits::default() }).quiet();
        let server = server.workers(NonZeroUsize::MIN);
        let block = || {
            thread::sleep(Duration::from_millis(5));
            "blocked"
        };
        let running = server.start(move || crate::App::new().get("/block", block));
        let running = running.expect("the server starts");
        let public = running.http_address().expect("an HTTP listener");
        let Some(&Place::Tcp(admin)) = running.admin_place() else { panic!("not a TCP address") };
        let until = |is_refusing: bool| {
            let line =
                format!("peregrine_worker_overloaded{{worker=\"0\"}} {}", u8::from(is_refusing));
            let began = Instant::now();
            while !ask(admin, "/metrics").contains(&line) {
                assert!(began.elapsed() < PATIENCE, "timed out waiting for {line}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        ask(public, "/block");
                    }
                });
            }
            until(true);
            is_over.store(true, Ordering::Relaxed);
        });
        until(false);
        running.shut_down().expect("a clean shutdown");
    }
}
