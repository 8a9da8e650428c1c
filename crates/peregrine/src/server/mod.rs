//! The server as an application's `main` sees it: where to listen, with what settings, and until when.

#[cfg(feature = "config")]
mod from_config;
pub(crate) mod serve_until;
mod simulated;
mod start;
#[cfg(all(feature = "config", feature = "tls"))]
mod tls_config;

use crate::error::Error;
use crate::listen::admin::Admin;
use crate::listen::listener::Listener;
#[cfg(feature = "config")]
use crate::reload::Configured;
use crate::runtime::console::report;
use crate::runtime::driver_choice::DriverChoice;
use crate::runtime::handle::Orders;
use crate::runtime::make_app::{MakeApplication, makes};
use crate::runtime::running::Running;
use crate::runtime::signals::Hears;
use peregrine_admin::Log;
#[cfg(all(feature = "otlp", feature = "config"))]
use peregrine_admin::Otlp;
use peregrine_driver::{Options, Socket, SocketOptions};
#[cfg(all(target_os = "linux", feature = "restart"))]
use peregrine_restart::Successor;
#[cfg(not(all(target_os = "linux", feature = "restart")))]
use peregrine_restart::internal::Successor;
use peregrine_server::{Limits, Traces};
#[cfg(feature = "tls")]
use peregrine_tls::Tls;
use peregrine_web::TrustedProxies;
use std::num::NonZeroUsize;
use std::path::Path;

pub use simulated::Simulated;

/// Configures a server, then runs it.
///
/// ```no_run
/// use peregrine::prelude::*;
///
/// fn main() -> peregrine::Result<()> {
///     Server::bind("127.0.0.1:8080").serve(|| App::new().get("/", || async { "Hello, World!" }))
/// }
/// ```
///
/// Everything has a default: one worker per core that this process may use (CPU affinity and the
/// cgroup's quota count), io_uring where the kernel allows it and tokio elsewhere, and all of
/// [`Limits`].
#[derive(Debug)]
#[must_use = "a server does nothing until `serve` or `start`"]
pub struct Server {
    listeners: Vec<Listener>,
    proxies: Option<TrustedProxies>,
    limits: Limits,
    workers: Option<NonZeroUsize>,
    choice: DriverChoice,
    options: Options,
    pin: bool,
    quiet: bool,
    admin: Option<Admin>,
    log: Option<Log>,
    traces: Option<Traces>,
    #[cfg(all(feature = "otlp", feature = "config"))]
    otlp: Option<Otlp>,
    #[cfg(feature = "tls-watch")]
    watches_certificates: bool,
    successor: Successor,
    tells_manager: bool,
    #[cfg(feature = "config")]
    configured: Option<Configured>,
}

impl Server {
    /// A server that speaks HTTP at an address: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or
    /// `unix:/run/app.sock`; port 0 takes any free port. Or at a [`Listener`], which says more.
    pub fn bind(place: impl Into<Listener>) -> Self {
        Self::new().listen(place)
    }

    /// A server that listens nowhere yet.
    #[expect(clippy::new_without_default, reason = "a server that listens nowhere is no default")]
    pub fn new() -> Self {
        Self {
            listeners: Vec::new(),
            proxies: None,
            limits: Limits::default(),
            workers: None,
            choice: DriverChoice::default(),
            options: Options::default(),
            pin: false,
            quiet: false,
            admin: None,
            log: None,
            traces: None,
            #[cfg(all(feature = "otlp", feature = "config"))]
            otlp: None,
            #[cfg(feature = "tls-watch")]
            watches_certificates: false,
            successor: Successor::new(),
            tells_manager: false,
            #[cfg(feature = "config")]
            configured: None,
        }
    }

    /// Also listens at `place`: an address, a listener bound elsewhere, or a [`Listener`] with settings of its own.
    pub fn listen(mut self, place: impl Into<Listener>) -> Self {
        self.listeners.push(place.into());
        self
    }

    /// Sets the proxies whose word counts about who sent a request: their addresses, networks, and `unix:` for
    /// whoever connects to a Unix domain socket. See [`TrustedProxies`] for what they say, and
    /// [`Client`](crate::web::Client) for what comes of it. Default: nobody's word counts.
    ///
    /// ```
    /// use peregrine::Server;
    ///
    /// let server = Server::bind("127.0.0.1:8080").trusted_proxies(["127.0.0.1", "10.0.0.0/8"]);
    /// # let _ = server;
    /// ```
    pub fn trusted_proxies(mut self, proxies: impl Into<TrustedProxies>) -> Self {
        self.proxies = Some(proxies.into());
        self.sets("trusted_proxies");
        self
    }

    /// Also speaks HTTPS at `address`. With the feature `tls`, which is on by default.
    #[cfg(feature = "tls")]
    pub fn tls(self, place: impl Into<Listener>, tls: Tls) -> Self {
        self.listen(place.into().tls(tls))
    }

    /// Also speaks HTTP on a Unix domain socket at `path`. Its file is removed at the end.
    pub fn unix(self, path: impl AsRef<Path>) -> Self {
        let address = format!("unix:{}", path.as_ref().display());
        self.listen(address)
    }

    /// Speaks HTTP on a listener bound elsewhere, such as by a service manager: a
    /// [`TcpListener`](std::net::TcpListener) or a `UnixListener` of the standard library. All workers
    /// share it. The file of a Unix domain socket is left in place, for its owner.
    ///
    /// ```no_run
    /// use peregrine::prelude::*;
    /// use std::os::unix::net::UnixListener;
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let listener = UnixListener::bind("/run/app.sock")?;
    ///     Ok(Server::new().listener(listener).serve(|| App::new().get("/", || "hello"))?)
    /// }
    /// ```
    pub fn listener(self, listener: impl Into<Socket>) -> Self {
        self.listen(listener.into())
    }

    /// Speaks HTTPS on a listener bound elsewhere. With the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn tls_listener(self, listener: impl Into<Socket>, tls: Tls) -> Self {
        self.tls(listener.into(), tls)
    }

    /// Also answers those who run the server, at an address of its own: metrics for Prometheus, probes,
    /// routes and connections; see [`Admin`]. Default none, and then requests are not measured.
    ///
    /// It stays until the server has ended. Nothing of it is on the other addresses.
    pub fn admin(mut self, admin: impl Into<Admin>) -> Self {
        self.admin = Some(admin.into());
        self
    }

    /// Writes an access log: a line for each request. See [`Log`] for where it goes, and
    /// [`middleware::AccessLog`](crate::middleware::AccessLog) for events of `tracing` instead. Default none.
    pub fn access_log(mut self, log: Log) -> Self {
        self.log = Some(log);
        self.sets("access_log");
        self
    }

    /// Traces requests: spans of `tracing` with OpenTelemetry's attributes for those that are sampled, and
    /// `traceparent` and `tracestate` in and out. Default none: requests have a span with method and route, for logs,
    /// where a subscriber asks for it.
    pub fn traces(mut self, traces: Traces) -> Self {
        self.traces = Some(traces);
        self.sets("traces");
        self
    }

    /// Reloads certificates, and what belongs to them, when their files change: see
    /// [`Tls::reload`](crate::tls::Tls::reload) for what is read, and for what happens when it is broken.
    /// Files may be written in place, replaced, or swapped by symbolic links as Kubernetes and certbot do;
    /// what follows within a moment is taken together. Where the system tells of no changes, as on some
    /// network file systems, they are noticed within a minute. With the feature `tls-watch`.
    #[cfg(feature = "tls-watch")]
    pub fn watch_certificates(mut self) -> Self {
        self.watches_certificates = true;
        self
    }

    /// Speaks HTTP on the sockets called `name` that a service manager made: systemd, by a socket unit with
    /// `FileDescriptorName=name`. They stay open when this process ends, so that nobody is refused while
    /// the next one starts. Their number and kind, TCP or Unix, are the manager's business. On Linux.
    ///
    /// One socket alone that has no name is for whoever asks first: watchexec and systemfd give none, and systemd gives that of the
    /// unit. Several need names.
    ///
    /// It is an error if there are none. [`activated_or`](Self::activated_or) listens elsewhere then.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(mut self, name: impl Into<String>) -> Self {
        self.listeners.push(Listener::activated(name));
        self
    }

    /// The same, or at `address` where no sockets at all were handed to this process: under a service
    /// manager or by hand, with one program. If there are sockets, but none of that name, it is an error.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(mut self, name: impl Into<String>, address: impl Into<String>) -> Self {
        self.listeners.push(Listener::activated_or(name, address));
        self
    }

    /// Speaks HTTPS on sockets that a service manager made. With the feature `tls`.
    #[cfg(all(target_os = "linux", feature = "restart", feature = "tls"))]
    pub fn tls_activated(mut self, name: impl Into<String>, tls: Tls) -> Self {
        self.listeners.push(Listener::activated(name).tls(tls));
        self
    }

    /// The same, or at `address` where no sockets at all were handed to this process.
    #[cfg(all(target_os = "linux", feature = "restart", feature = "tls"))]
    pub fn tls_activated_or(
        mut self,
        name: impl Into<String>,
        address: impl Into<String>,
        tls: Tls,
    ) -> Self {
        self.listeners.push(Listener::activated_or(name, address).tls(tls));
        self
    }

    /// What an upgrade in place starts, and at which signal. Default: this program again, at SIGUSR2
    /// where [`serve`](Self::serve) is called. See [`restart`](crate::restart).
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn successor(mut self, successor: Successor) -> Self {
        self.successor = successor;
        self
    }

    /// Tells the service manager (`NOTIFY_SOCKET`, as systemd sets it for `Type=notify`) when the server
    /// serves, upgrades and ends, and for its watchdog while every worker goes on. [`serve`](Self::serve)
    /// does so by itself, as the server is all that its program waits for; a program that
    /// [starts](Self::start) one may have more to be ready for. On Linux.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn tell_service_manager(mut self) -> Self {
        self.tells_manager = true;
        self
    }

    /// Replaces all limits and timeouts. A [`Listener`] may have its own.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self.sets("limits");
        self
    }

    /// The number of workers, each with its own thread. Default: as many as the cores that this process
    /// may use.
    pub fn workers(mut self, workers: NonZeroUsize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// The driver. The environment variable `PEREGRINE_DRIVER` (`uring`, `tokio`, `auto`) takes
    /// precedence.
    pub fn driver(mut self, choice: DriverChoice) -> Self {
        self.choice = choice;
        self
    }

    /// Receive buffers, spinning, and the like; see [`Options`].
    pub fn driver_options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Options of the sockets that the server listens on, and of their connections; see [`SocketOptions`].
    pub fn sockets(mut self, sockets: SocketOptions) -> Self {
        self.options.sockets = sockets;
        self
    }

    /// Keeps each worker's thread on its own core, of those that the process may use (its affinity mask: `taskset`,
    /// cpusets of containers). Cores are dealt out node by node of the machine's memory, so that workers share a node
    /// as long as there are cores left on it. Where there are more workers than cores, it begins again with the first:
    /// some cores then have more workers than others. Default: the kernel decides.
    pub fn pin_workers(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Suppresses the line at the start and the report at the end. If a `tracing` subscriber listens to
    /// target `peregrine` at level `INFO`, both go there in any case, and are not printed.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Serves until SIGTERM or Ctrl-C, then shuts down in order: accepts no new connections, closes
    /// idle ones after `Limits::drain_idle_timeout`, closes the rest after their response, waits for
    /// tasks and blocking functions that outlive them, and cuts what is left when
    /// [`Limits::shutdown_timeout`] is over. A second signal cuts at once. A signal during the start
    /// ends the start, and workers that are not ready yet are not waited for. When the server has
    /// ended, signals do what they did before; a program that goes on and begins only then to listen
    /// for them uses [`Server::start`] and a [`Handle`](crate::Handle) instead.
    ///
    /// Where a server is made of a tree of settings that was read (the feature `config`), SIGHUP reads that again.
    /// Where a listener speaks TLS, SIGHUP reads its certificates again; the log says what is new, or why
    /// the old ones stay.
    ///
    /// `make` is called once on each worker's thread, inside its tokio runtime: clients that connect on
    /// first use (`connect_lazy` of sqlx, say) and the worker's own tasks may begin there. It may be
    /// `async`, for those that connect at once; the server is ready when all workers have their
    /// application. Make values that workers share before, and clone them inside.
    ///
    /// On Linux, SIGUSR2 upgrades in place ([`restart`](crate::restart)), and a service manager is told
    /// how the server is.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn serve<Via, M: MakeApplication<Via>>(self, make: M) -> Result<(), Error> {
        let quiet = self.quiet;
        let orders = Orders::new();
        // A start may take long, and a signal may follow as soon as its line is read.
        let _signals = orders.handle.obey_signals(self.hears())?;
        orders.handle.restart().tell_manager();
        let stopped = self.start_under(&mut makes(make), orders)?.wait_obeying()?;
        report(&stopped, quiet)
    }

    /// The program says this itself: where there is a tree of settings, that has no say in it any more.
    fn sets(&mut self, section: &'static str) {
        #[cfg(feature = "config")]
        if let Some(configured) = &mut self.configured {
            configured.set_by_program(section);
        }
        #[cfg(not(feature = "config"))]
        let _ = section;
    }

    /// Sends spans there from its start on, unless the program does.
    #[cfg(all(feature = "otlp", feature = "config"))]
    pub(crate) fn sending(mut self, otlp: Otlp) -> Self {
        self.otlp = Some(otlp);
        self
    }

    #[cfg(feature = "config")]
    pub(crate) fn configured(mut self, configured: Configured) -> Self {
        self.configured = Some(configured);
        self
    }

    #[cfg(feature = "config")]
    pub(crate) fn configured_mut(&mut self) -> Option<&mut Configured> {
        self.configured.as_mut()
    }

    /// Which signals mean something where signals are obeyed.
    pub(crate) fn hears(&self) -> Hears {
        let reload = self.listeners.iter().any(Listener::is_tls);
        #[cfg(feature = "config")]
        let reload = reload || self.configured.as_ref().is_some_and(Configured::is_read);
        let reopen = self.log.as_ref().is_some_and(Log::may_be_file);
        // A reload may make a file of it.
        #[cfg(feature = "config")]
        let reopen = reopen
            || self.log.is_some() && self.configured.as_ref().is_some_and(Configured::is_read);
        Hears { reload, upgrade: self.successor.is_by_signal(), reopen }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Starts serving and returns once all sockets are bound and all workers are ready. It blocks until
    /// then. Signals and the service manager are the caller's.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start<Via, M: MakeApplication<Via>>(self, make: M) -> Result<Running, Error> {
        self.start_under(&mut makes(make), Orders::new())
    }
}

/// Serves an application until SIGTERM or Ctrl-C: the short form of [`Server::bind`] and
/// [`Server::serve`].
///
/// # Errors
/// See [`Error`].
pub fn serve<Via, M: MakeApplication<Via>>(
    place: impl Into<Listener>,
    make: M,
) -> Result<(), Error> {
    Server::bind(place).serve(make)
}
