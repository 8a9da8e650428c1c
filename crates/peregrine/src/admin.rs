//! The listener for those who run the server: metrics, probes, and what it does at this moment.
//!
//! It has a thread, limits and a few descriptors of its own, on tokio, so that it answers while all workers
//! are blocked or flooded, and it ends after them. [`app`] is for those who want its pages on their own
//! listener.
//!
//! `view.rs` is what workers show, `pages.rs` what is made of that.

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
use crate::socket_file::FileOwner;
use crate::threads;
use peregrine_driver::{Driver, Options, Socket};
use peregrine_driver_tokio::Tokio;
use peregrine_restart::internal::Heir;
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

/// How long a handler may keep a worker's thread before the server counts as dead.
pub(crate) const LIVE_WITHIN: Duration = Duration::from_secs(30);

/// So many of its connections nobody can keep to themselves: a probe finds a place, whoever else is there.
const SPARE_CONNECTIONS: usize = 64;

/// How long the admin listener may take to end.
const END_MAX: Duration = Duration::from_secs(2);

/// Settings of the admin listener ([`Server::admin`](crate::Server::admin)): most of all, where it is.
///
/// | path | answer |
/// |---|---|
/// | `/metrics` | for Prometheus: OpenMetrics 1.0 for those who ask for it, else the classic text |
/// | `/livez` | 200; 503 if a handler has kept a worker's thread for longer than [`live_within`](Self::live_within) |
/// | `/readyz` | 200 while the server serves; 503 before, and as soon as it is ordered to shut down. `/readyz?overload=unready` is 503 as well while all workers refuse requests for want of memory |
/// | `/startupz` | 200 once all workers serve |
/// | `/routes` | the application's routes, in JSON |
/// | `/connections` | how many connections do what, by worker, in JSON |
/// | `/config` | all settings that count, in TOML, of a server that was made of a tree (the feature `config`) |
///
/// There is no authentication: choose an address that only those can reach who may know, such as one of
/// the loopback interface or a Unix domain socket.
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
    /// Nowhere, if the application has the pages.
    source: Option<Source>,
    owner: FileOwner,
    live_within: Duration,
}

impl Admin {
    /// An admin listener at `address`: `127.0.0.1:9000`, `unix:/run/app/admin.sock`. Port 0 takes any
    /// free port, which [`Running::admin_place`](crate::Running::admin_place) tells.
    pub fn at(address: impl Into<String>) -> Self {
        Self::from_source(Source::Address(address.into()))
    }

    /// An admin listener that was bound elsewhere, such as by a service manager.
    pub fn on(listener: impl Into<Socket>) -> Self {
        Self::from_source(Source::Bound(listener.into()))
    }

    /// An admin listener on the sockets called `name` that a service manager made; see
    /// [`Server::activated`](crate::Server::activated).
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(name: impl Into<String>) -> Self {
        Self::from_source(Source::Activated(name.into(), None))
    }

    /// The same, or at `address` where no sockets at all were handed to this process.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self::from_source(Source::Activated(name.into(), Some(address.into())))
    }

    fn from_source(source: Source) -> Self {
        Self { source: Some(source), owner: FileOwner::default(), live_within: LIVE_WITHIN }
    }

    /// No listener: requests are measured, and the application has the pages where it wants ([`app`]). While
    /// workers are blocked or full, nobody is answered then.
    pub fn mounted() -> Self {
        Self { source: None, owner: FileOwner::default(), live_within: LIVE_WITHIN }
    }

    /// How long a handler may keep a worker's thread, without an `await` that waits, before `/livez` says
    /// 503. Default 30 s. Who restarts what is not alive should give it more time than the slowest
    /// handler takes.
    #[must_use]
    pub fn live_within(mut self, time: Duration) -> Self {
        self.live_within = time;
        self
    }

    /// Who may connect to a Unix domain socket; see [`Listener::unix_mode`](crate::Listener::unix_mode).
    #[must_use]
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.owner.mode = Some(mode);
        self
    }

    /// The user whom the file of a Unix domain socket belongs to; see
    /// [`Listener::unix_owner`](crate::Listener::unix_owner).
    #[must_use]
    pub fn unix_owner(mut self, user: impl Into<String>) -> Self {
        self.owner.user = Some(user.into());
        self
    }

    /// The group that it belongs to; see [`Listener::unix_group`](crate::Listener::unix_group).
    #[must_use]
    pub fn unix_group(mut self, group: impl Into<String>) -> Self {
        self.owner.group = Some(group.into());
        self
    }

    /// What workers are to show.
    pub(crate) fn views(&self, workers: usize, orders: watched::Receiver<Order>) -> Arc<Views> {
        #[cfg(feature = "metrics")]
        user::install();
        Arc::new(Views::new(workers, orders, self.live_within))
    }

    /// Opens what it listens on, and inherits that where there is an `heir` to it.
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
    /// Answers there, on a thread of its own.
    pub(crate) fn start(self, views: &Arc<Views>) -> Result<Administering, Error> {
        let Self { listens, place, shared, is_inherited } = self;
        // The process before this one answers until it leaves.
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
        let begun = told.recv().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
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

/// The pages of the admin listener, for an application that wants them among its own: under a prefix, behind
/// middleware that asks who is there. They tell of the server whose worker makes the application, if that
/// has [`Server::admin`](crate::Server::admin); in a test without a server, of none.
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
        driver.spawn_boxed(Box::pin(view::watch(driver.clone(), Arc::downgrade(views))));
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
pub(crate) struct Administering {
    orders: watched::Sender<Order>,
    /// Says no more when the thread has ended.
    told: mpsc::Receiver<io::Result<()>>,
    place: Place,
}

impl Administering {
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The process before this one has left.
    pub(crate) fn open(&self) {
        self.orders.send_modify(|order| *order = Order::Serve.max(*order));
    }

    /// Ends it when nothing is left to tell, and waits for that.
    pub(crate) fn end(self) {
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

    /// Only a hang takes so long.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn ask(address: SocketAddr, path: &str) -> String {
        let mut peer = TcpStream::connect(address).expect("it listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        peer.write_all(request.as_bytes()).expect("connected");
        let mut answer = String::new();
        peer.read_to_string(&mut answer).expect("it is answered");
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
        let running = running.expect("it starts");
        let public = running.http_address().expect("it speaks HTTP");
        let Some(&Place::Tcp(admin)) = running.admin_place() else { panic!("it is at an address") };
        let until = |is_refusing: bool| {
            let line =
                format!("peregrine_worker_overloaded{{worker=\"0\"}} {}", u8::from(is_refusing));
            let began = Instant::now();
            while !ask(admin, "/metrics").contains(&line) {
                assert!(began.elapsed() < PATIENCE, "waited in vain for {line}");
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
        running.shut_down().expect("it ends in order");
    }
}
