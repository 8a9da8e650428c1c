//! The server as an application's `main` sees it: where to listen, with what settings, and until when.

use crate::choice::{Chosen, DriverChoice};
use crate::entrances::Entrances;
use crate::error::Error;
use crate::listen::{Place, SocketFile};
use crate::make::{Make, MakeApplication, makes};
use crate::orders::Orders;
use crate::restart::{Heir, Successor};
use crate::running::{Running, Settings, Stopped, Worker};
use peregrine_driver::{Options, Socket};
use peregrine_server::Limits;
use peregrine_tls::Tls;
use peregrine_web::application::Application;
use peregrine_web::{App, BuildError};
use std::num::NonZeroUsize;
use std::path::Path;

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
    listeners: Vec<(Source, Option<Tls>)>,
    limits: Limits,
    workers: Option<NonZeroUsize>,
    choice: DriverChoice,
    options: Options,
    pin: bool,
    quiet: bool,
    successor: Successor,
    tells_manager: bool,
}

/// Where to listen.
#[derive(Debug)]
pub(crate) enum Source {
    Address(String),
    /// What somebody else bound.
    Listener(Socket),
    /// Sockets of the service manager, by name, and where to listen if it made none.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    Activated(String, Option<String>),
}

/// What [`Server::serve`] can serve: an [`App`], or an application that is already built.
pub trait IntoApplication {
    /// Checks and builds the application.
    ///
    /// # Errors
    /// The application contradicts itself.
    fn into_application(self) -> Result<Application, BuildError>;
}

impl IntoApplication for App {
    fn into_application(self) -> Result<Application, BuildError> {
        self.build()
    }
}

impl IntoApplication for Application {
    fn into_application(self) -> Result<Application, BuildError> {
        Ok(self)
    }
}

impl<A: IntoApplication> IntoApplication for Result<A, BuildError> {
    fn into_application(self) -> Result<Application, BuildError> {
        self?.into_application()
    }
}

impl Server {
    /// A server that speaks HTTP at `address`: `127.0.0.1:8080`, `[::]:80`, `localhost:3000`, or
    /// `unix:/run/app.sock`. Port 0 takes any free port.
    pub fn bind(address: impl Into<String>) -> Self {
        Self::new().listen(address)
    }

    /// A server that listens nowhere yet.
    #[expect(clippy::new_without_default, reason = "a server that listens nowhere is no default")]
    pub fn new() -> Self {
        Self {
            listeners: Vec::new(),
            limits: Limits::default(),
            workers: None,
            choice: DriverChoice::default(),
            options: Options::default(),
            pin: false,
            quiet: false,
            successor: Successor::new(),
            tells_manager: false,
        }
    }

    /// Also speaks HTTP at `address`.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listeners.push((Source::Address(address.into()), None));
        self
    }

    /// Also speaks HTTPS at `address`. With the feature `tls`, which is on by default.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, address: impl Into<String>, tls: Tls) -> Self {
        self.listeners.push((Source::Address(address.into()), Some(tls)));
        self
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
    pub fn listener(mut self, listener: impl Into<Socket>) -> Self {
        self.listeners.push((Source::Listener(listener.into()), None));
        self
    }

    /// Speaks HTTPS on a listener bound elsewhere. With the feature `tls`.
    #[cfg(feature = "tls")]
    pub fn tls_listener(mut self, listener: impl Into<Socket>, tls: Tls) -> Self {
        self.listeners.push((Source::Listener(listener.into()), Some(tls)));
        self
    }

    /// Speaks HTTP on the sockets called `name` that a service manager made: systemd, by a socket unit with
    /// `FileDescriptorName=name`. They stay open when this process ends, so that nobody is refused while
    /// the next one starts. Their number and kind, TCP or Unix, are the manager's business. On Linux.
    ///
    /// It is an error if there are none. [`activated_or`](Self::activated_or) listens elsewhere then.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated(mut self, name: impl Into<String>) -> Self {
        self.listeners.push((Source::Activated(name.into(), None), None));
        self
    }

    /// The same, or at `address` where no sockets at all were handed to this process: under a service
    /// manager or by hand, with one program. If there are sockets, but none of that name, it is an error.
    #[cfg(all(target_os = "linux", feature = "restart"))]
    pub fn activated_or(mut self, name: impl Into<String>, address: impl Into<String>) -> Self {
        self.listeners.push((Source::Activated(name.into(), Some(address.into())), None));
        self
    }

    /// Speaks HTTPS on sockets that a service manager made. With the feature `tls`.
    #[cfg(all(target_os = "linux", feature = "restart", feature = "tls"))]
    pub fn tls_activated(mut self, name: impl Into<String>, tls: Tls) -> Self {
        self.listeners.push((Source::Activated(name.into(), None), Some(tls)));
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
        self.listeners.push((Source::Activated(name.into(), Some(address.into())), Some(tls)));
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

    /// Replaces all limits and timeouts.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
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

    /// Keeps each worker's thread on its own core. Default: the kernel decides.
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
        let _signals = orders.handle.obey_signals(self.may_upgrade())?;
        orders.handle.restart().tell_manager();
        let stopped = self.start_under(&mut makes(make), orders)?.wait_obeying()?;
        report(&stopped, quiet)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Does SIGUSR2 upgrade, where signals are obeyed?
    pub(crate) fn may_upgrade(&self) -> bool {
        self.successor.is_by_signal()
    }

    /// Starts serving and returns once all sockets are bound and all workers are ready. It blocks until
    /// then. Signals and the service manager are the caller's.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start<Via, M: MakeApplication<Via>>(self, make: M) -> Result<Running, Error> {
        self.start_under(&mut makes(make), Orders::new())
    }

    /// The same for a server that has orders already. If one of them says to end, the start ends early.
    pub(crate) fn start_under(
        self,
        makes: &mut dyn FnMut() -> Make,
        orders: Orders,
    ) -> Result<Running, Error> {
        let mut heir = Heir::find()?;
        let running = self.start_from(&mut heir, makes, orders);
        if let (Err(error), Some(heir)) = (&running, &heir) {
            heir.fail(error);
        }
        if let Some(unused) = heir.filter(|heir| !heir.is_used()) {
            unused.put_back();
        }
        running
    }

    fn start_from(
        self,
        heir: &mut Option<Heir>,
        makes: &mut dyn FnMut() -> Make,
        orders: Orders,
    ) -> Result<Running, Error> {
        if self.listeners.is_empty() {
            let cause = "the server listens nowhere: call `Server::bind(address)`";
            return Err(Error::Config(cause.to_owned()));
        }
        let workers = self.workers.map_or_else(cores, NonZeroUsize::get);
        let cpu = |number| if self.pin { Some(number) } else { self.options.cpu };
        let options =
            (0..workers).map(|number| Options { cpu: cpu(number), ..self.options.clone() });
        let options: Vec<_> = options.collect();
        let Chosen { seats, reason } = self.choice.choose(&options)?;
        let Entrances { plans, places, files, holdings } =
            Entrances::open(self.listeners, workers, heir)?;
        let given = plans.into_iter().zip(options).zip(seats).enumerate();
        let starts = given.map(|(number, ((listeners, options), seat))| Worker {
            number,
            listeners,
            limits: self.limits.clone(),
            options,
            seat,
        });
        let heir = heir.as_mut().filter(|heir| heir.is_used());
        if heir.is_some() {
            orders.handle.hold_back();
        }
        if self.tells_manager {
            orders.handle.restart().tell_manager();
        }
        let settings = Settings { limits: self.limits.clone(), quiet: self.quiet };
        let mut running =
            Running::start(starts.collect(), makes, places, files, &settings, orders)?;
        if let Some(heir) = heir {
            running.succeed(heir)?;
        }
        if running.is_whole() {
            let line = first_line(&running, &reason, workers);
            // Who reads the line may upgrade at once.
            let handle = running.handle();
            handle.restart().serves(&handle, holdings, self.successor, self.quiet, &line);
            tell(&line, self.quiet);
        } else {
            tell("peregrine: ordered to end before all workers had begun", self.quiet);
        }
        Ok(running)
    }
}

/// Tells people something, once: through the `tracing` subscriber that listens, else on the terminal
/// unless the server is quiet.
pub(crate) fn tell(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::INFO) {
        tracing::info!(target: "peregrine", "{text}");
    } else if !quiet {
        eprintln!("{text}");
    }
}

/// Tells people of a failure that ends nothing.
#[cfg(all(target_os = "linux", feature = "restart"))]
pub(crate) fn complain(text: &str, quiet: bool) {
    if tracing::enabled!(target: "peregrine", tracing::Level::ERROR) {
        tracing::error!(target: "peregrine", "{text}");
    } else if !quiet {
        eprintln!("{text}");
    }
}

/// Reports what a server did. Workers that did not end are an error.
pub(crate) fn report(stopped: &Stopped, quiet: bool) -> Result<(), Error> {
    tell(&stopped.to_string(), quiet);
    let numbered = stopped.workers.iter().enumerate();
    let blocked: Vec<_> = numbered.filter(|(_, worker)| worker.is_none()).collect();
    if blocked.is_empty() {
        return Ok(());
    }
    Err(Error::Blocked(blocked.into_iter().map(|(number, _)| number).collect()))
}

/// The number of cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// One line that says what runs.
fn first_line(running: &Running, reason: &str, workers: usize) -> String {
    let urls: Vec<_> = running.urls().collect();
    let plural = if workers == 1 { "" } else { "s" };
    let tls =
        if running.urls().any(|url| url.starts_with("https")) { "; TLS 1.3 and 1.2" } else { "" };
    format!(
        "peregrine {}: {}; {workers} worker{plural}; driver {reason}{tls}",
        env!("CARGO_PKG_VERSION"),
        urls.join(", "),
    )
}

/// The files of Unix sockets, for as long as the server runs.
pub(crate) type SocketFiles = Vec<SocketFile>;

/// A place as a URL; `is_tls` says whether TLS is spoken there.
pub(crate) fn url(place: &Place, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    match place {
        Place::Tcp(address) => format!("{scheme}://{address}"),
        Place::Unix(path) => format!("{scheme}+unix:{}", path.display()),
    }
}

/// Serves an application until SIGTERM or Ctrl-C: the short form of [`Server::bind`] and
/// [`Server::serve`].
///
/// # Errors
/// See [`Error`].
pub fn serve<Via, M: MakeApplication<Via>>(
    address: impl Into<String>,
    make: M,
) -> Result<(), Error> {
    Server::bind(address).serve(make)
}
