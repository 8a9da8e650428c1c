//! The settings of the admin listener, and where it listens.

use crate::error::Error;
use crate::listen::bind::Place;
use crate::listen::listener::Source;
use crate::listen::listeners::{AdminEntrance, Entrances};
use crate::listen::socket_file::FileOwner;
use peregrine_admin::internal::{Administering, Views};
use peregrine_driver::Socket;
use peregrine_restart::internal::Heir;
use peregrine_server::Order;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch as watched;

/// How long a handler may keep a worker's thread before the server counts as dead.
pub(crate) const LIVE_WITHIN: Duration = Duration::from_secs(30);

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

    /// No listener: requests are measured, and the application has the pages where it wants ([`app`](crate::admin::app)). While
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
        Views::begin(workers, orders, self.live_within)
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
    pub(crate) fn start(self, views: &Arc<Views>) -> Result<(Administering, Place), Error> {
        let Self { listens, place, shared, is_inherited } = self;
        let admin = Administering::start(listens, shared, is_inherited, views);
        Ok((admin.map_err(Error::Worker)?, place))
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
