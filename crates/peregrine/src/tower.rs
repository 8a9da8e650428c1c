//! Serves tower services, including axum routers, instead of an application or as part of one.
//!
//! An axum program only changes the line that serves:
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
//! in a tower layer. In the other direction, [`into_tower`] and [`spawn_tower`] turn an application
//! into a tower service for hyper or axum.

use crate::error::Error;
use crate::runtime::make_app::{IntoApplication, makes};
use crate::runtime::running::Running;
use crate::server::Server;
use crate::server::serve_until;
use peregrine_driver::Socket;
pub use peregrine_mount::*;
#[cfg(feature = "tls")]
use peregrine_tls::Tls;
use peregrine_web::application::Application;
use peregrine_web::{App, BuildError};
use std::fmt;
use std::future::pending;
use std::net::TcpListener;
#[cfg(unix)]
use std::os::unix::net::UnixListener;
use std::pin::Pin;

impl<R: Reach> IntoApplication for Tower<R> {
    fn into_application(self) -> Result<Application, BuildError> {
        // Ambiguous paths are dangerous if they bypass the middleware of another route; there is
        // none.
        App::new().allow_ambiguous_paths().mount("/", self).build()
    }
}

impl Server {
    /// Serves a tower service, such as an axum `Router`, like [`Server::serve`] serves an
    /// application. Each worker has a clone of it.
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
    /// Clones of an axum router share their routes and state. Reference counting across cores costs
    /// a little; `.serve(move || tower(make_router()))` builds a separate router for each worker
    /// instead.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn serve_tower<Via, T>(self, service: T) -> Result<(), Error>
    where
        T: IntoTower<Via>,
        T::Reach: Send,
    {
        let tower = service.into_tower();
        self.serve(move || tower.clone())
    }

    /// Starts serving a tower service and returns, like [`Server::start`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start_tower<Via, T>(self, service: T) -> Result<Running, Error>
    where
        T: IntoTower<Via>,
        T::Reach: Send,
    {
        let tower = service.into_tower();
        self.start(move || tower.clone())
    }
}

/// The address or listener that [`serve`] uses: an address as for [`Server::bind`], or a listener
/// of the standard library or of tokio, for TCP or Unix domain sockets.
///
/// For an address, each worker has its own socket; a listener is shared by all workers.
#[derive(Debug)]
pub enum Entrance {
    /// An address.
    Address(String),
    /// A bound listener.
    Listener(Socket),
    /// A tokio listener that could not be converted, with the reason.
    Lost(std::io::Error),
}

impl From<&str> for Entrance {
    fn from(address: &str) -> Self {
        Self::Address(address.to_owned())
    }
}

impl From<String> for Entrance {
    fn from(address: String) -> Self {
        Self::Address(address)
    }
}

impl From<TcpListener> for Entrance {
    fn from(listener: TcpListener) -> Self {
        Self::Listener(listener.into())
    }
}

impl From<tokio::net::TcpListener> for Entrance {
    fn from(listener: tokio::net::TcpListener) -> Self {
        // The driver of the workers chooses between blocking and non-blocking mode.
        let listener = listener
            .into_std()
            .and_then(|listener| listener.set_nonblocking(false).map(|()| listener));
        listener.map_or_else(Self::Lost, Self::from)
    }
}

#[cfg(unix)]
impl From<UnixListener> for Entrance {
    fn from(listener: UnixListener) -> Self {
        Self::Listener(listener.into())
    }
}

#[cfg(unix)]
impl From<tokio::net::UnixListener> for Entrance {
    fn from(listener: tokio::net::UnixListener) -> Self {
        let listener = listener
            .into_std()
            .and_then(|listener| listener.set_nonblocking(false).map(|()| listener));
        listener.map_or_else(Self::Lost, Self::from)
    }
}

/// Serves a tower service from within a tokio program, as a replacement for `axum::serve`.
///
/// The workers have their own threads; the caller's runtime only waits. As with `axum::serve`, no
/// signal handlers are installed: unless the program has its own, SIGTERM and Ctrl-C end the
/// process immediately. [`Serving::with_graceful_shutdown`] shuts down gracefully when a future
/// completes, and [`Serving::shut_down_on_signals`] handles these signals like [`Server::serve`].
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
pub fn serve<Via, T>(entrance: impl Into<Entrance>, service: T) -> Serving<T::Reach>
where
    T: IntoTower<Via>,
    T::Reach: Send,
{
    let server = match entrance.into() {
        Entrance::Address(address) => Ok(Server::bind(address)),
        Entrance::Listener(listener) => Ok(Server::new().listener(listener)),
        Entrance::Lost(cause) => Err(lost(cause)),
    };
    Serving { server, tower: service.into_tower(), end: End::Dropped }
}

/// Like [`serve`], but over TLS only.
///
/// ```no_run
/// # async fn run() -> peregrine::Result<()> {
/// use axum::{Router, routing::get};
/// use peregrine::tls::Tls;
///
/// let app = Router::new().route("/", get(async || "Hello, World!"));
/// let tls = Tls::from_pem_files("certificate.pem", "key.pem").unwrap();
/// peregrine::tower::serve_tls("0.0.0.0:443", tls, app).await
/// # }
/// ```
#[cfg(feature = "tls")]
pub fn serve_tls<Via, T>(entrance: impl Into<Entrance>, tls: Tls, service: T) -> Serving<T::Reach>
where
    T: IntoTower<Via>,
    T::Reach: Send,
{
    let server = match entrance.into() {
        Entrance::Address(address) => Ok(Server::new().tls(address, tls)),
        Entrance::Listener(listener) => Ok(Server::new().tls_listener(listener, tls)),
        Entrance::Lost(cause) => Err(lost(cause)),
    };
    Serving { server, tower: service.into_tower(), end: End::Dropped }
}

fn lost(cause: std::io::Error) -> Error {
    Error::Bind { address: "(a tokio listener)".to_owned(), cause }
}

type Signal = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A server that starts when it is awaited. Returned by [`serve`] and `serve_tls`.
#[must_use = "a server does nothing until it is awaited"]
pub struct Serving<R> {
    server: Result<Server, Error>,
    tower: Tower<R>,
    end: End,
}

/// The event that shuts a server down gracefully.
enum End {
    /// Nothing: it serves until its future is dropped.
    Dropped,
    /// SIGTERM or Ctrl-C.
    Signals,
    /// The completion of a future.
    Future(Signal),
}

impl<R> Serving<R> {
    /// Shuts down gracefully when `signal` completes: accepts no new connections, closes idle ones
    /// after `Limits::drain_idle_timeout`, and cuts busy ones after
    /// [`Limits::shutdown_timeout`](crate::Limits::shutdown_timeout).
    ///
    /// No signal handlers are installed: a signal, even a second one, has an effect only if it
    /// completes `signal`. To cut busy connections before the timeout, drop the future that serves.
    pub fn with_graceful_shutdown<F>(mut self, signal: F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.end = End::Future(Box::pin(signal));
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
        self.end = End::Signals;
        self
    }

    /// Configures the server: limits, the number of workers, the driver, more listeners, TLS.
    ///
    /// ```no_run
    /// # async fn run(app: axum::Router) -> peregrine::Result<()> {
    /// peregrine::tower::serve("127.0.0.1:3000", app).configure(|server| server.quiet()).await
    /// # }
    /// ```
    pub fn configure(mut self, change: impl FnOnce(Server) -> Server) -> Self {
        self.server = self.server.map(change);
        self
    }
}

impl<R: Reach + Send> Serving<R> {
    async fn run(self) -> Result<(), Error> {
        let Self { server, tower, end } = self;
        let end = match end {
            End::Dropped => Some(Box::pin(pending()) as Signal),
            End::Signals => None,
            End::Future(signal) => Some(signal),
        };
        serve_until::serve(server?, makes(move || tower.clone()), end).await
    }
}

impl<R: Reach + Send> IntoFuture for Serving<R> {
    type Output = Result<(), Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<R> fmt::Debug for Serving<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving").field("server", &self.server).finish_non_exhaustive()
    }
}
