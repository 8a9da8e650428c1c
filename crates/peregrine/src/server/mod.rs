//! The server's configuration in code, and the functions that run it.

#[cfg(feature = "config")]
mod from_config;
pub(crate) mod make_app;
pub(crate) mod serve_until;
mod simulated;
mod start;
#[cfg(all(feature = "config", feature = "tls"))]
mod tls_config;

#[cfg(feature = "config")]
use crate::reload::ConfigReloader;
use crate::server::make_app::{MakeApp, box_make_app};
use peregrine_admin::AccessLogOptions;
#[cfg(all(feature = "otlp", feature = "config"))]
use peregrine_admin::Otlp;
use peregrine_driver::{Options, Socket, SocketOptions};
use peregrine_runtime::internal::{
    ControlChannel, HandledSignals, UpgradeOptions, report_shutdown, wait_handling_signals,
};
use peregrine_runtime::{Admin, DriverChoice, Error, Listener, RunningServer};
use peregrine_server::{Limits, TraceConfig};
#[cfg(feature = "tls")]
use peregrine_tls::TlsConfig;
use peregrine_web::TrustedProxies;
use std::num::NonZeroUsize;
use std::path::Path;

pub use simulated::SimulatedServer;

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
/// Every setting has a default. There is one worker per core that this process may use, taking CPU
/// affinity and the cgroup's CPU quota into account. Each worker has a tokio runtime; for I/O on
/// sockets, it uses io_uring where the kernel allows it, and tokio elsewhere. All of [`Limits`] are
/// enforced.
#[derive(Debug)]
#[must_use = "a server does nothing until `serve` or `start`"]
pub struct Server {
    listeners: Vec<Listener>,
    trusted_proxies: Option<TrustedProxies>,
    limits: Limits,
    workers: Option<NonZeroUsize>,
    driver: DriverChoice,
    driver_options: Options,
    pin_workers: bool,
    quiet: bool,
    admin: Option<Admin>,
    access_log: Option<AccessLogOptions>,
    traces: Option<TraceConfig>,
    #[cfg(all(feature = "otlp", feature = "config"))]
    otlp: Option<Otlp>,
    #[cfg(feature = "tls-watch")]
    watches_certificates: bool,
    upgrade_options: UpgradeOptions,
    notifies_service_manager: bool,
    #[cfg(feature = "config")]
    config_reloader: Option<ConfigReloader>,
}

impl Server {
    /// Creates a server that listens for HTTP connections on an address: `127.0.0.1:8080`,
    /// `[::]:80`, `localhost:3000`, or `unix:/run/app.sock`. Port 0 selects any free port. For
    /// listeners with other settings, pass a [`Listener`].
    pub fn bind(listener: impl Into<Listener>) -> Self {
        Self::new().listen(listener)
    }

    /// Creates a server without listeners.
    #[expect(clippy::new_without_default, reason = "a server without listeners cannot start")]
    pub fn new() -> Self {
        Self {
            listeners: Vec::new(),
            trusted_proxies: None,
            limits: Limits::default(),
            workers: None,
            driver: DriverChoice::default(),
            driver_options: Options::default(),
            pin_workers: false,
            quiet: false,
            admin: None,
            access_log: None,
            traces: None,
            #[cfg(all(feature = "otlp", feature = "config"))]
            otlp: None,
            #[cfg(feature = "tls-watch")]
            watches_certificates: false,
            upgrade_options: UpgradeOptions::new(),
            notifies_service_manager: false,
            #[cfg(feature = "config")]
            config_reloader: None,
        }
    }

    /// Adds a listener: an address, a socket bound elsewhere, or a [`Listener`] with its own
    /// settings.
    pub fn listen(mut self, listener: impl Into<Listener>) -> Self {
        self.listeners.push(listener.into());
        self
    }

    /// Sets the proxies that are trusted to report client addresses. A list contains IP addresses,
    /// networks, and `unix:`, which stands for all clients of Unix domain sockets. See
    /// [`TrustedProxies`] for the header fields, and [`ClientInfo`](crate::web::ClientInfo) for the
    /// result. By default no proxy is trusted.
    ///
    /// ```
    /// use peregrine::Server;
    ///
    /// let server = Server::bind("127.0.0.1:8080").trusted_proxies(["127.0.0.1", "10.0.0.0/8"]);
    /// # let _ = server;
    /// ```
    pub fn trusted_proxies(mut self, proxies: impl Into<TrustedProxies>) -> Self {
        self.trusted_proxies = Some(proxies.into());
        self.mark_set_in_code("trusted_proxies");
        self
    }

    /// Adds an HTTPS listener. Requires the feature `tls`, which is on by default.
    #[doc(alias = "bind_rustls")]
    #[doc(alias = "listen_rustls")]
    #[cfg(feature = "tls")]
    pub fn listen_tls(self, listener: impl Into<Listener>, tls: TlsConfig) -> Self {
        self.listen(listener.into().tls(tls))
    }

    /// Adds an HTTP listener on a Unix domain socket at `path`. The file is removed on shutdown.
    #[doc(alias = "bind_uds")]
    pub fn listen_unix(self, path: impl AsRef<Path>) -> Self {
        let address = format!("unix:{}", path.as_ref().display());
        self.listen(address)
    }

    /// Adds an HTTP listener on a socket bound elsewhere, for example by a service manager: a
    /// [`TcpListener`](std::net::TcpListener) or a `UnixListener` of the standard library. All
    /// workers share it. The file of a Unix domain socket is not removed.
    ///
    /// ```no_run
    /// use peregrine::prelude::*;
    /// use std::os::unix::net::UnixListener;
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     let listener = UnixListener::bind("/run/app.sock")?;
    ///     Ok(Server::new().listen_socket(listener).serve(|| App::new().get("/", || "hello"))?)
    /// }
    /// ```
    #[doc(alias = "listen")]
    #[doc(alias = "from_tcp")]
    #[doc(alias = "from_std")]
    pub fn listen_socket(self, listener: impl Into<Socket>) -> Self {
        self.listen(listener.into())
    }

    /// Adds an HTTPS listener on a socket bound elsewhere. Requires the feature `tls`.
    #[doc(alias = "listen_rustls")]
    #[doc(alias = "from_tcp_rustls")]
    #[cfg(feature = "tls")]
    pub fn listen_tls_socket(self, listener: impl Into<Socket>, tls: TlsConfig) -> Self {
        self.listen_tls(listener.into(), tls)
    }

    /// Adds a separate listener for operators, which serves Prometheus metrics, health probes, and
    /// lists of routes and connections; see [`Admin`]. By default there is no such listener, and
    /// requests are not measured.
    ///
    /// The listener runs until the server has stopped. The other listeners do not serve its pages.
    pub fn admin(mut self, admin: impl Into<Admin>) -> Self {
        self.admin = Some(admin.into());
        self
    }

    /// Writes an access log with one line per request. See [`AccessLogOptions`] for its targets. To
    /// emit `tracing` events instead, use [`middleware::AccessLog`](crate::middleware::AccessLog).
    /// By default there is no access log.
    pub fn access_log(mut self, log: AccessLogOptions) -> Self {
        self.access_log = Some(log);
        self.mark_set_in_code("access_log");
        self
    }

    /// Traces requests: sampled requests get `tracing` spans with OpenTelemetry's attributes, and
    /// the trace context is read from and written to `traceparent` and `tracestate`. By default
    /// no request is traced: each only gets a plain span with its method and route, for logs, and
    /// only where a subscriber enables that span.
    pub fn traces(mut self, traces: TraceConfig) -> Self {
        self.traces = Some(traces);
        self.mark_set_in_code("traces");
        self
    }

    /// Reloads certificates and their related files when the files change.
    /// [`TlsConfig::reload`](crate::tls::TlsConfig::reload) documents which files are read, and how
    /// invalid ones are handled. Files can be written in place, replaced, or swapped with symbolic
    /// links as Kubernetes and certbot do; changes in quick succession cause one reload. Where the
    /// system does not report changes, as on some network file systems, they are detected within a
    /// minute. Requires the feature `tls-watch`.
    #[cfg(feature = "tls-watch")]
    pub fn watch_certificates(mut self) -> Self {
        self.watches_certificates = true;
        self
    }

    /// Adds an HTTP listener on the sockets called `name` that a service manager passed to this
    /// process (socket activation), such as those of a systemd socket unit with
    /// `FileDescriptorName=name`. The service manager keeps the sockets open when this process
    /// ends, so that no client is refused while the next process starts. It also determines how
    /// many there are, and whether they are TCP or Unix sockets. Available on Linux only.
    ///
    /// Not all sockets have a name of their own: the tools watchexec and systemfd pass no names,
    /// and systemd by default passes the name of the unit, such as `app.socket`. So if exactly one
    /// socket was passed, without a name or with that of a unit, the first listener for passed
    /// sockets uses it, whatever `name` is. If several sockets were passed, `name` must be one of
    /// their names; a unit's name then counts like any other.
    ///
    /// The server fails to start if there are no such sockets. To bind an address in that case, use
    /// [`listen_activated_or`](Self::listen_activated_or).
    #[doc(alias = "systemd")]
    #[doc(alias = "listenfd")]
    #[doc(alias = "socket_activation")]
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn listen_activated(mut self, name: impl Into<String>) -> Self {
        self.listeners.push(Listener::activated(name));
        self
    }

    /// Like [`listen_activated`](Self::listen_activated), but binds `address` if no sockets at all
    /// were passed to this process. The same program can then be started by a service manager and
    /// by hand. If sockets were passed, but none with this name, the server fails to start.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn listen_activated_or(
        mut self,
        name: impl Into<String>,
        address: impl Into<String>,
    ) -> Self {
        self.listeners.push(Listener::activated_or(name, address));
        self
    }

    /// Adds an HTTPS listener on sockets from a service manager. Requires the feature `tls`.
    #[cfg(all(target_os = "linux", feature = "restart", feature = "tls"))]
    pub fn listen_tls_activated(mut self, name: impl Into<String>, tls: TlsConfig) -> Self {
        self.listeners.push(Listener::activated(name).tls(tls));
        self
    }

    /// Like [`listen_tls_activated`](Self::listen_tls_activated), but binds `address` if no sockets
    /// at all were passed to this process.
    #[cfg(all(target_os = "linux", feature = "restart", feature = "tls"))]
    pub fn listen_tls_activated_or(
        mut self,
        name: impl Into<String>,
        address: impl Into<String>,
        tls: TlsConfig,
    ) -> Self {
        self.listeners.push(Listener::activated_or(name, address).tls(tls));
        self
    }

    /// Sets the program that an upgrade in place starts, and whether a signal triggers the upgrade.
    /// By default, SIGUSR2 starts this program again if [`serve`](Self::serve) is used. See
    /// [`restart`](crate::restart).
    #[doc(alias = "binary_upgrade")]
    #[doc(alias = "USR2")]
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn upgrade_options(mut self, options: UpgradeOptions) -> Self {
        self.upgrade_options = options;
        self
    }

    /// Notifies the service manager (at `NOTIFY_SOCKET`, which systemd sets for `Type=notify`) when
    /// the server is ready, upgrades and stops. Also notifies the manager's watchdog for as long as
    /// every worker responds. [`serve`](Self::serve) always does this, because the program is ready
    /// when the server is. With [`start`](Self::start) it must be enabled, because the program may
    /// have more to prepare. Available on Linux only.
    #[doc(alias = "sd_notify")]
    #[doc(alias = "systemd")]
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn notify_service_manager(mut self) -> Self {
        self.notifies_service_manager = true;
        self
    }

    /// Replaces all limits and timeouts. A [`Listener`] can have its own.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self.mark_set_in_code("limits");
        self
    }

    /// Sets the number of workers, each with its own thread. The default is one per core that this
    /// process may use.
    pub fn workers(mut self, workers: NonZeroUsize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets the driver. The environment variable `PEREGRINE_DRIVER` (`uring`, `tokio`, `auto`)
    /// takes precedence.
    pub fn driver(mut self, choice: DriverChoice) -> Self {
        self.driver = choice;
        self
    }

    /// Sets the driver's options, such as receive buffers and busy polling; see [`Options`].
    pub fn driver_options(mut self, options: Options) -> Self {
        self.driver_options = options;
        self
    }

    /// Sets the options of listening sockets and their connections; see [`SocketOptions`].
    #[doc(alias = "backlog")]
    #[doc(alias = "tcp_nodelay")]
    pub fn socket_options(mut self, options: SocketOptions) -> Self {
        self.driver_options.socket_options = options;
        self
    }

    /// Pins each worker's thread to its own core. Only cores in the process's affinity mask are
    /// used, as set by `taskset` or a container's cpuset. Cores are assigned one NUMA node after
    /// another, so that workers share a node while it has free cores. If there are more workers
    /// than cores, the assignment starts again from the first core. By default the kernel schedules
    /// the threads.
    pub fn pin_workers(mut self, is_enabled: bool) -> Self {
        self.pin_workers = is_enabled;
        self
    }

    /// Suppresses the startup line and the final report on standard error. If a `tracing`
    /// subscriber enables the target `peregrine` at level `INFO`, both are logged instead of
    /// printed, and this setting has no effect.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Serves until SIGTERM or Ctrl-C, then shuts down gracefully: stops accepting connections,
    /// closes idle ones after `Limits::drain_idle_timeout`, closes the others after their response,
    /// waits for tasks and blocking functions that outlive them, and aborts the rest when
    /// [`Limits::shutdown_timeout`] has passed. A second signal aborts immediately. A signal during
    /// startup aborts the startup without waiting for workers that are not ready.
    ///
    /// When the server has stopped, signals have their previous effect again. The server's handlers
    /// stay installed: if the previous effect was to end the process, they do so, even if the
    /// program continues and adds its own handlers only then. Such a program should use
    /// [`Server::start`] and a [`ServerHandle`](crate::ServerHandle) instead, which install no
    /// handlers.
    ///
    /// On SIGHUP, a server built from a configuration (the feature `config`) reads it again, and
    /// TLS listeners reload their certificates. The server logs what has changed, or why the
    /// previous values are still in effect.
    ///
    /// `make` is called once on each worker's thread, inside its tokio runtime, so that it can
    /// create clients that connect on first use (such as sqlx's `connect_lazy`) and spawn the
    /// worker's own tasks. It can be `async`, for clients that connect immediately. The server is
    /// ready when all workers have their application. Create values that workers share before
    /// calling this function, and clone them in `make`.
    ///
    /// On Linux, SIGUSR2 upgrades in place ([`restart`](crate::restart)), and a service manager is
    /// notified of the server's state.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn serve<Via, M: MakeApp<Via>>(self, make: M) -> Result<(), Error> {
        let quiet = self.quiet;
        let control = ControlChannel::default();
        // Install the handlers before starting, so that a signal can abort a slow startup. A
        // supervisor may also send a signal as soon as the startup line is printed.
        let signals = control.handle_signals(self.handled_signals())?;
        control.enable_notifications();
        let running = self.start_with(&mut box_make_app(make), control)?;
        report_shutdown(&wait_handling_signals(running, &signals)?, quiet)
    }

    /// Marks a section as set in code, so that reloads do not change it.
    fn mark_set_in_code(&mut self, section: &'static str) {
        #[cfg(feature = "config")]
        if let Some(reloader) = &mut self.config_reloader {
            reloader.mark_set_in_code(section);
        }
        #[cfg(not(feature = "config"))]
        let _ = section;
    }

    /// Exports spans with `otlp` once the server starts, unless the program has installed an
    /// exporter.
    #[cfg(all(feature = "otlp", feature = "config"))]
    pub(crate) fn with_otlp(mut self, otlp: Otlp) -> Self {
        self.otlp = Some(otlp);
        self
    }

    #[cfg(feature = "config")]
    pub(crate) fn with_config_reloader(mut self, reloader: ConfigReloader) -> Self {
        self.config_reloader = Some(reloader);
        self
    }

    #[cfg(feature = "config")]
    pub(crate) fn config_reloader_mut(&mut self) -> Option<&mut ConfigReloader> {
        self.config_reloader.as_mut()
    }

    /// Returns the optional signals that the server handles.
    pub(crate) fn handled_signals(&self) -> HandledSignals {
        let reload = self.listeners.iter().any(Listener::is_tls);
        #[cfg(feature = "config")]
        let reload =
            reload || self.config_reloader.as_ref().is_some_and(ConfigReloader::can_reload);
        let reopen = self.access_log.as_ref().is_some_and(AccessLogOptions::may_be_file);
        // A reload can change the log's target to a file.
        #[cfg(feature = "config")]
        let reopen = reopen
            || self.access_log.is_some()
                && self.config_reloader.as_ref().is_some_and(ConfigReloader::can_reload);
        HandledSignals { reload, upgrade: self.upgrade_options.upgrades_on_sigusr2(), reopen }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Starts serving, and blocks until all sockets are bound and all workers are ready. Unlike
    /// [`serve`](Self::serve), installs no signal handlers, and notifies the service manager only
    /// after a call of `notify_service_manager`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start<Via, M: MakeApp<Via>>(self, make: M) -> Result<RunningServer, Error> {
        self.start_with(&mut box_make_app(make), ControlChannel::default())
    }
}

/// Serves an application until SIGTERM or Ctrl-C. Shorthand for [`Server::bind`] and
/// [`Server::serve`].
///
/// # Errors
/// See [`Error`].
pub fn serve<Via, M: MakeApp<Via>>(listener: impl Into<Listener>, make: M) -> Result<(), Error> {
    Server::bind(listener).serve(make)
}
