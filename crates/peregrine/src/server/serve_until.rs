//! Serving from within an `async` program, which has its own runtime and may handle signals itself.

use crate::error::Error;
use crate::runtime::console::report_shutdown;
use crate::runtime::handle::{ControlChannel, ServerHandle};
use crate::runtime::make_app::{BoxedMakeApp, MakeApp, box_make_app};
use crate::runtime::report::ShutdownReport;
use crate::runtime::running::RunningServer;
use crate::server::Server;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::thread;
use tokio::sync::oneshot;

impl Server {
    /// Serves from within an `async` program until `end` completes, then shuts down gracefully. The
    /// server installs no signal handlers: a signal has an effect only if it completes `end`.
    ///
    /// The workers have their own threads, each with its own runtime. The caller's runtime, of
    /// whatever kind, only waits and is never blocked. Dropping the future cuts all connections.
    ///
    /// ```no_run
    /// use peregrine::prelude::*;
    ///
    /// #[tokio::main]
    /// async fn main() -> peregrine::Result<()> {
    ///     let app = || App::new().get("/", || "hello");
    ///     let stop = async { tokio::signal::ctrl_c().await.unwrap() };
    ///     Server::bind("127.0.0.1:8080").serve_until(app, stop).await
    /// }
    /// ```
    ///
    /// # Errors
    /// See [`Error`].
    #[doc(alias = "with_graceful_shutdown")]
    pub async fn serve_until<Via, M, F>(self, make: M, end: F) -> Result<(), Error>
    where
        Via: 'static,
        M: MakeApp<Via>,
        F: Future<Output = ()>,
    {
        serve(self, box_make_app(make), Some(end)).await
    }
}

impl RunningServer {
    /// [`wait`](Self::wait), without blocking the caller's thread. Dropping the future cuts all
    /// connections.
    ///
    /// # Errors
    /// A worker failed or panicked; the other workers are then shut down.
    #[doc(alias = "closed")]
    pub async fn stopped(self) -> Result<ShutdownReport, Error> {
        let _cut = ForceCloseOnDrop(self.handle());
        run_on_thread(move || self.wait())?.await.expect(SENT)
    }
}

/// Why the receiver that [`run_on_thread`] returns never fails.
const SENT: &str = "the thread sends before it ends";

/// Serves until `end` completes or, if `end` is `None`, until a signal.
pub(crate) async fn serve(
    server: Server,
    mut makes: impl FnMut() -> BoxedMakeApp + Send + 'static,
    end: Option<impl Future<Output = ()>>,
) -> Result<(), Error> {
    let quiet = server.is_quiet();
    let orders = ControlChannel::new();
    let handle = orders.handle.clone();
    let signals = match end {
        None => {
            handle.restart().enable_notifications();
            Some(handle.handle_signals(server.handled_signals())?)
        }
        Some(_) => None,
    };
    let _cut = ForceCloseOnDrop(handle.clone());
    let mut ended = run_on_thread(move || {
        // On the other thread too, because building the application may take long and may depend on
        // the caller's runtime.
        let running = server.start_with(&mut makes, orders)?;
        match signals {
            Some(_) => running.wait_handling_signals(),
            None => running.wait(),
        }
    })?;
    if let Some(end) = end {
        let mut end = pin!(end);
        let early = poll_fn(|cx| {
            if let Poll::Ready(stopped) = Pin::new(&mut ended).poll(cx) {
                return Poll::Ready(Some(stopped));
            }
            end.as_mut().poll(cx).map(|()| None)
        });
        if let Some(stopped) = early.await {
            return report_shutdown(&stopped.expect(SENT)?, quiet);
        }
        handle.graceful_shutdown();
    }
    report_shutdown(&ended.await.expect(SENT)?, quiet)
}

/// Runs blocking `work` on its own thread and sends its result.
fn run_on_thread(
    work: impl FnOnce() -> Result<ShutdownReport, Error> + Send + 'static,
) -> Result<oneshot::Receiver<Result<ShutdownReport, Error>>, Error> {
    let (sender, ended) = oneshot::channel();
    let wait = move || {
        // Fails if the receiving future was dropped.
        let _ = sender.send(work());
    };
    let name = "peregrine-wait".to_owned();
    thread::Builder::new().name(name).spawn(wait).map_err(Error::Worker)?;
    Ok(ended)
}

/// Cuts a server's connections when its future is dropped.
struct ForceCloseOnDrop(ServerHandle);

impl Drop for ForceCloseOnDrop {
    fn drop(&mut self) {
        self.0.force_close();
    }
}
