//! [`Admin`]: the address and the settings of the admin listener.

use crate::error::Error;
use crate::listen::bind::ListenAddr;
use crate::listen::listener::ListenSource;
use crate::listen::listeners::{AdminListener, Listeners};
use crate::listen::socket_file::SocketFilePermissions;
use peregrine_admin::internal::{AdminState, RunningAdmin};
use peregrine_driver::Socket;
use peregrine_restart::internal::InheritedListeners;
use peregrine_server::Lifecycle;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The default of [`Admin::liveness_threshold`].
pub const DEFAULT_LIVENESS_THRESHOLD: Duration = Duration::from_secs(30);

/// Configures the admin listener (`Server::admin`). Its pages are:
///
/// - `/metrics`: metrics for Prometheus, in OpenMetrics 1.0 if the client accepts it, otherwise in
///   the classic text format.
/// - `/livez`: 200; 503 if a handler has blocked a worker's thread for longer than
///   [`liveness_threshold`](Self::liveness_threshold).
/// - `/readyz`: 200 while the server serves; 503 before that, and once a shutdown was requested.
///   `/readyz?overload=unready` also responds with 503 while all workers refuse requests because
///   memory is short. After an upgrade in place, the old process responds with 200 while it drains,
///   because the new one serves.
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
///     let admin = Admin::bind("127.0.0.1:9000").liveness_threshold(Duration::from_secs(60));
///     Server::bind("0.0.0.0:8080").admin(admin).serve(|| App::new().get("/", || "hello"))
/// }
/// ```
#[derive(Debug)]
pub struct Admin {
    /// `None` if the application serves the pages.
    source: Option<ListenSource>,
    permissions: SocketFilePermissions,
    liveness_threshold: Duration,
}

impl Admin {
    /// Listens at `address`, such as `127.0.0.1:9000` or `unix:/run/app/admin.sock`. Port 0 selects
    /// any free port, which [`RunningServer::admin_address`](crate::RunningServer::admin_address)
    /// returns.
    #[doc(alias = "new")]
    pub fn bind(address: impl Into<String>) -> Self {
        Self::from_source(ListenSource::Address(address.into()))
    }

    /// Uses a listener that was bound elsewhere, for example by a service manager.
    #[doc(alias = "listener")]
    pub fn from_socket(listener: impl Into<Socket>) -> Self {
        Self::from_source(ListenSource::FromProgram(listener.into()))
    }

    /// Listens on the sockets called `name` from a service manager; see
    /// `Server::listen_activated`.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(name: impl Into<String>) -> Self {
        Self::from_source(ListenSource::Activated(name.into(), None))
    }

    /// Like [`activated`](Self::activated), but binds `address` if no sockets at all were passed to
    /// this process.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(name: impl Into<String>, address: impl Into<String>) -> Self {
        Self::from_source(ListenSource::Activated(name.into(), Some(address.into())))
    }

    fn from_source(source: ListenSource) -> Self {
        Self {
            source: Some(source),
            permissions: SocketFilePermissions::default(),
            liveness_threshold: DEFAULT_LIVENESS_THRESHOLD,
        }
    }

    /// Collects metrics, but opens no listener. The application serves the pages itself, with
    /// [`app`](peregrine_admin::app), so they are not available while workers are blocked or at
    /// their limits.
    pub fn without_listener() -> Self {
        Self {
            source: None,
            permissions: SocketFilePermissions::default(),
            liveness_threshold: DEFAULT_LIVENESS_THRESHOLD,
        }
    }

    /// Sets how long a handler may block a worker's thread, without suspending at an `await`,
    /// before `/livez` responds with 503. The default is 30 s. If an orchestrator restarts the
    /// server when liveness probes fail, the threshold must exceed the longest time that any
    /// handler blocks.
    #[doc(alias = "liveness")]
    #[must_use]
    pub fn liveness_threshold(mut self, threshold: Duration) -> Self {
        self.liveness_threshold = threshold;
        self
    }

    /// Sets the mode of a Unix domain socket's file; see
    /// [`Listener::unix_mode`](crate::Listener::unix_mode).
    #[must_use]
    pub fn unix_mode(mut self, mode: u32) -> Self {
        self.permissions.mode = Some(mode);
        self
    }

    /// Sets the owner of a Unix domain socket's file; see
    /// [`Listener::unix_owner`](crate::Listener::unix_owner).
    #[must_use]
    pub fn unix_owner(mut self, user: impl Into<String>) -> Self {
        self.permissions.user = Some(user.into());
        self
    }

    /// Sets the group of a Unix domain socket's file; see
    /// [`Listener::unix_group`](crate::Listener::unix_group).
    #[must_use]
    pub fn unix_group(mut self, group: impl Into<String>) -> Self {
        self.permissions.group = Some(group.into());
        self
    }

    /// Opens the listener, or inherits it if the previous process passed it on.
    pub(crate) fn bind_listener(
        self,
        listeners: &mut Listeners,
        inherited: &mut Option<InheritedListeners>,
    ) -> Result<Option<AdminListener>, Error> {
        self.permissions.validate(self.source.as_ref().and_then(ListenSource::own_address))?;
        self.source
            .map(|source| listeners.bind_admin(source, &self.permissions, inherited))
            .transpose()
    }
}

/// Creates the state to which the workers publish, and which the pages of `admin` show.
#[must_use]
pub fn new_admin_state(
    admin: &Admin,
    workers: usize,
    lifecycle: watch::Receiver<Lifecycle>,
) -> Arc<AdminState> {
    AdminState::start(workers, lifecycle, admin.liveness_threshold)
}

impl AdminListener {
    /// Starts a thread that serves the pages. If the sockets are inherited, the thread accepts only
    /// after [`RunningAdmin::start_serving`].
    pub(crate) fn start(
        self,
        state: &Arc<AdminState>,
    ) -> Result<(RunningAdmin, ListenAddr), Error> {
        let Self { listeners, address, sharing, is_inherited } = self;
        let admin = RunningAdmin::start(listeners, sharing, is_inherited, state);
        Ok((admin.map_err(Error::Thread)?, address))
    }
}

impl From<&str> for Admin {
    fn from(address: &str) -> Self {
        Self::bind(address)
    }
}

impl From<String> for Admin {
    fn from(address: String) -> Self {
        Self::bind(address)
    }
}

#[cfg(test)]
mod tests {
    use peregrine::{App, DriverChoice, Limits, ListenAddr, Server};
    use peregrine_server::OverloadLimits;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    /// The timeout of a test that hangs.
    const TIMEOUT: Duration = Duration::from_secs(30);

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("connected");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a complete response");
        response
    }

    #[test]
    fn a_worker_stops_shedding_when_it_becomes_idle() {
        let queue_delay_target = Some(Duration::from_millis(2));
        let overload = OverloadLimits { queue_delay_target, ..OverloadLimits::default() };
        let server = Server::bind("127.0.0.1:0").driver(DriverChoice::Tokio).admin("127.0.0.1:0");
        let server = server.limits(Limits { overload, ..Limits::default() }).quiet();
        let server = server.workers(NonZeroUsize::MIN);
        let block = || {
            thread::sleep(Duration::from_millis(5));
            "blocked"
        };
        let running = server.start(move || App::new().get("/block", block));
        let running = running.expect("the server starts");
        let public = running.http_address().expect("an HTTP listener");
        let Some(&ListenAddr::Tcp(admin)) = running.admin_address() else {
            panic!("not a TCP address")
        };
        let wait_until_shedding = |is_shedding: bool| {
            let line =
                format!("peregrine_worker_shedding{{worker=\"0\"}} {}", u8::from(is_shedding));
            let start = Instant::now();
            while !get(admin, "/metrics").contains(&line) {
                assert!(start.elapsed() < TIMEOUT, "timed out waiting for {line}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        let is_stopped = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    while !is_stopped.load(Ordering::Relaxed) {
                        get(public, "/block");
                    }
                });
            }
            wait_until_shedding(true);
            is_stopped.store(true, Ordering::Relaxed);
        });
        wait_until_shedding(false);
        running.graceful_shutdown().expect("a clean shutdown");
    }
}
