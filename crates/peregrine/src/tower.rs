//! Serves tower services, including axum routers, instead of an application or as part of one.
//!
//! In an axum program, only one line changes:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//!
//! #[tokio::main]
//! async fn main() {
//!     let app = Router::new().route("/", get(async || "Hello, World!"));
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await.unwrap();
//!     peregrine::tower::serve(listener, app).await.unwrap(); // was: axum::serve(listener, app)
//! }
//! ```
//!
//! [`Mount::mount`] mounts a service under a prefix of an application, and [`layer()`] wraps routes
//! in a tower layer. In the other direction, [`into_tower`] and [`spawn_tower`] convert an
//! application into a tower service for hyper or axum.

use crate::server::Server;
use crate::server::make_app::{IntoBuiltApp, box_make_app};
use crate::server::serve_until;
use peregrine_driver::Socket;
use peregrine_runtime::{Error, RunningServer};
#[cfg(feature = "tls")]
use peregrine_tls::TlsConfig;
pub use peregrine_tower::*;
use peregrine_web::built::BuiltApp;
use peregrine_web::{App, BuildError};
use std::fmt;
use std::future::pending;
use std::net::TcpListener;
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::pin::Pin;

impl<D: Dispatch> IntoBuiltApp for TowerHandler<D> {
    fn into_built_app(self) -> Result<BuiltApp, BuildError> {
        // Ambiguous paths are only dangerous if they bypass the middleware of another route. This
        // application has no other route.
        App::new().allow_ambiguous_paths().mount("/", self).build()
    }
}

impl Server {
    /// Serves a tower service, such as an axum `Router`, as [`Server::serve`] serves an
    /// application. Each worker has a clone of the service.
    ///
    /// ```no_run
    /// use axum::{Router, routing::get};
    /// use peregrine::Server;
    ///
    /// fn main() -> peregrine::Result<()> {
    ///     let app = Router::new().route("/", get(async || "Hello, World!"));
    ///     Server::bind("127.0.0.1:3000").serve_tower(app)
    /// }
    /// ```
    ///
    /// Clones of an axum router share their routes and state, and reference counting across cores
    /// has a small cost. To avoid it, `.serve(move || tower(make_router()))` builds a separate
    /// router for each worker.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn serve_tower<Via, T>(self, service: T) -> Result<(), Error>
    where
        T: IntoTowerHandler<Via>,
        T::Dispatch: Send,
    {
        let handler = service.into_tower_handler();
        self.serve(move || handler.clone())
    }

    /// Starts serving a tower service and returns, like [`Server::start`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start_tower<Via, T>(self, service: T) -> Result<RunningServer, Error>
    where
        T: IntoTowerHandler<Via>,
        T::Dispatch: Send,
    {
        let handler = service.into_tower_handler();
        self.start(move || handler.clone())
    }
}

/// The address or listener that [`serve`] uses: an address as for [`Server::bind`], or a listener
/// of the standard library or of tokio, for TCP or Unix domain sockets.
///
/// For an address, each worker gets its own socket where the system supports that. A listener is
/// shared by all workers.
#[doc(alias = "TcpListener")]
#[derive(Debug)]
pub enum ServeListener {
    /// An address.
    Address(String),
    /// A bound listener.
    Listener(Socket),
    /// A tokio listener that could not be converted, with the reason.
    Invalid(std::io::Error),
}

impl From<&str> for ServeListener {
    fn from(address: &str) -> Self {
        Self::Address(address.to_owned())
    }
}

impl From<String> for ServeListener {
    fn from(address: String) -> Self {
        Self::Address(address)
    }
}

impl From<TcpListener> for ServeListener {
    fn from(listener: TcpListener) -> Self {
        Self::Listener(listener.into())
    }
}

impl From<tokio::net::TcpListener> for ServeListener {
    fn from(listener: tokio::net::TcpListener) -> Self {
        // tokio's listeners are non-blocking. This restores the standard library's default; the
        // server later sets the mode that its drivers need.
        let listener = listener
            .into_std()
            .and_then(|listener| listener.set_nonblocking(false).map(|()| listener));
        listener.map_or_else(Self::Invalid, Self::from)
    }
}

#[cfg(unix)]
impl From<UnixListener> for ServeListener {
    fn from(listener: UnixListener) -> Self {
        Self::Listener(listener.into())
    }
}

#[cfg(unix)]
impl From<tokio::net::UnixListener> for ServeListener {
    fn from(listener: tokio::net::UnixListener) -> Self {
        let listener = listener
            .into_std()
            .and_then(|listener| listener.set_nonblocking(false).map(|()| listener));
        listener.map_or_else(Self::Invalid, Self::from)
    }
}

/// Serves a tower service from within a tokio program, as a replacement for `axum::serve`.
///
/// The workers have their own threads; the caller's runtime only waits. As with `axum::serve`, no
/// signal handlers are installed: unless the program has its own, SIGTERM and Ctrl-C end the
/// process immediately. [`Serve::with_graceful_shutdown`] shuts down gracefully when a future
/// completes, and [`Serve::shut_down_on_signals`] handles these signals like [`Server::serve`].
/// Dropping the future cuts all connections.
///
/// ```no_run
/// # async fn run() -> peregrine::Result<()> {
/// use axum::{Router, extract::ConnectInfo, routing::get};
/// use std::net::SocketAddr;
///
/// async fn who(ConnectInfo(peer): ConnectInfo<SocketAddr>) -> String {
///     peer.to_string()
/// }
/// let app = Router::new().route("/", get(who));
/// peregrine::tower::serve("0.0.0.0:3000", app.into_make_service_with_connect_info::<SocketAddr>())
///     .with_graceful_shutdown(async { tokio::signal::ctrl_c().await.unwrap() })
///     .await
/// # }
/// ```
#[doc(alias = "axum")]
pub fn serve<Via, T>(listener: impl Into<ServeListener>, service: T) -> Serve<T::Dispatch>
where
    T: IntoTowerHandler<Via>,
    T::Dispatch: Send,
{
    let server = match listener.into() {
        ServeListener::Address(address) => Ok(Server::bind(address)),
        ServeListener::Listener(listener) => Ok(Server::new().listen_socket(listener)),
        ServeListener::Invalid(cause) => Err(invalid_listener(cause)),
    };
    Serve { server, handler: service.into_tower_handler(), shutdown: ShutdownTrigger::Never }
}

/// Like [`serve`], but over TLS only.
///
/// ```no_run
/// # async fn run() -> peregrine::Result<()> {
/// use axum::{Router, routing::get};
/// use peregrine::tls::TlsConfig;
///
/// let app = Router::new().route("/", get(async || "Hello, World!"));
/// let tls = TlsConfig::from_pem_files("certificate.pem", "key.pem").unwrap();
/// peregrine::tower::serve_tls("0.0.0.0:443", tls, app).await
/// # }
/// ```
#[cfg(feature = "tls")]
pub fn serve_tls<Via, T>(
    listener: impl Into<ServeListener>,
    tls: TlsConfig,
    service: T,
) -> Serve<T::Dispatch>
where
    T: IntoTowerHandler<Via>,
    T::Dispatch: Send,
{
    let server = match listener.into() {
        ServeListener::Address(address) => Ok(Server::new().listen_tls(address, tls)),
        ServeListener::Listener(listener) => Ok(Server::new().listen_tls_socket(listener, tls)),
        ServeListener::Invalid(cause) => Err(invalid_listener(cause)),
    };
    Serve { server, handler: service.into_tower_handler(), shutdown: ShutdownTrigger::Never }
}

fn invalid_listener(cause: std::io::Error) -> Error {
    Error::Bind { address: "(a tokio listener)".to_owned(), cause }
}

type ShutdownFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server that starts when it is awaited. Returned by [`serve`] and `serve_tls`.
#[doc(alias = "axum")]
#[must_use = "a server does nothing until it is awaited"]
pub struct Serve<D> {
    server: Result<Server, Error>,
    handler: TowerHandler<D>,
    shutdown: ShutdownTrigger,
}

/// The event that shuts a server down gracefully.
enum ShutdownTrigger {
    /// None: the server runs until its future is dropped.
    Never,
    /// SIGTERM or Ctrl-C.
    Signals,
    /// The completion of a future.
    Future(ShutdownFuture),
}

impl<D> Serve<D> {
    /// Shuts down gracefully when `signal` completes: stops accepting connections, closes idle ones
    /// after `Limits::drain_idle_timeout`, and cuts busy ones after
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout).
    ///
    /// No signal handlers are installed: an operating system signal has an effect only if it
    /// completes `signal`, and a second one has none. To cut busy connections before the timeout,
    /// drop the future that serves.
    pub fn with_graceful_shutdown<F>(mut self, signal: F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.shutdown = ShutdownTrigger::Future(Box::pin(signal));
        self
    }

    /// Handles signals like [`Server::serve`]: shuts down gracefully on SIGTERM or Ctrl-C, cuts all
    /// connections on a second one, reloads on SIGHUP, and notifies the service manager. The
    /// signals have their previous effect again when the future that serves has completed.
    ///
    /// This is for programs whose `main` returns when the server has ended: Ctrl-C ends the server,
    /// not the process.
    ///
    /// ```no_run
    /// # async fn run(app: axum::Router) -> peregrine::Result<()> {
    /// peregrine::tower::serve("127.0.0.1:3000", app).shut_down_on_signals().await
    /// # }
    /// ```
    pub fn shut_down_on_signals(mut self) -> Self {
        self.shutdown = ShutdownTrigger::Signals;
        self
    }

    /// Configures the server: limits, the number of workers, the driver, more listeners, TLS.
    ///
    /// ```no_run
    /// # async fn run(app: axum::Router) -> peregrine::Result<()> {
    /// peregrine::tower::serve("127.0.0.1:3000", app).configure(|server| server.quiet()).await
    /// # }
    /// ```
    pub fn configure(mut self, configure: impl FnOnce(Server) -> Server) -> Self {
        self.server = self.server.map(configure);
        self
    }
}

impl<D: Dispatch + Send> Serve<D> {
    async fn run(self) -> Result<(), Error> {
        let Self { server, handler, shutdown } = self;
        let shutdown = match shutdown {
            ShutdownTrigger::Never => Some(Box::pin(pending()) as ShutdownFuture),
            ShutdownTrigger::Signals => None,
            ShutdownTrigger::Future(signal) => Some(signal),
        };
        serve_until::serve(server?, box_make_app(move || handler.clone()), shutdown).await
    }
}

impl<D: Dispatch + Send> IntoFuture for Serve<D> {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<D> fmt::Debug for Serve<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve").field("server", &self.server).finish_non_exhaustive()
    }
}
