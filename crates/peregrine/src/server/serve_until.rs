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
    /// Serves from within an `async` program until `shutdown` completes, then shuts down
    /// gracefully. The server installs no signal handlers: a signal has an effect only if it
    /// completes `shutdown`.
    ///
    /// The workers have their own threads, each with its own runtime. The caller's runtime, which
    /// may be of any kind, only waits for them and is never blocked. Dropping the future cuts all
    /// connections.
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
    pub async fn serve_until<Via, M, F>(self, make: M, shutdown: F) -> Result<(), Error>
    where
        Via: 'static,
        M: MakeApp<Via>,
        F: Future<Output = ()>,
    {
        serve(self, box_make_app(make), Some(shutdown)).await
    }
}

impl RunningServer {
    /// Like [`wait`](Self::wait), but does not block the caller's thread. Dropping the future cuts
    /// all connections.
    ///
    /// # Errors
    /// A worker failed or panicked; the other workers are then shut down.
    #[doc(alias = "closed")]
    pub async fn stopped(self) -> Result<ShutdownReport, Error> {
        let _guard = ForceCloseOnDrop(self.handle());
        run_on_thread(move || self.wait())?.await.expect(SENDS_BEFORE_EXIT)
    }
}

/// Why the receiver that [`run_on_thread`] returns never fails.
const SENDS_BEFORE_EXIT: &str = "the thread sends before it ends";

/// Serves until `shutdown` completes or, if it is `None`, until a signal.
pub(crate) async fn serve(
    server: Server,
    mut make_app: impl FnMut() -> BoxedMakeApp + Send + 'static,
    shutdown: Option<impl Future<Output = ()>>,
) -> Result<(), Error> {
    let quiet = server.is_quiet();
    let control = ControlChannel::new();
    let handle = control.handle.clone();
    let signals = match shutdown {
        None => {
            handle.restart_state().enable_notifications();
            Some(handle.handle_signals(server.handled_signals())?)
        }
        Some(_) => None,
    };
    let _guard = ForceCloseOnDrop(handle.clone());
    let mut receiver = run_on_thread(move || {
        // Starting blocks until each worker has built its application. That may need the caller's
        // runtime, so it must not block the caller's thread.
        let running = server.start_with(&mut make_app, control)?;
        match signals {
            Some(_) => running.wait_handling_signals(),
            None => running.wait(),
        }
    })?;
    if let Some(shutdown) = shutdown {
        let mut shutdown = pin!(shutdown);
        let finished_early = poll_fn(|cx| {
            if let Poll::Ready(result) = Pin::new(&mut receiver).poll(cx) {
                return Poll::Ready(Some(result));
            }
            shutdown.as_mut().poll(cx).map(|()| None)
        });
        if let Some(result) = finished_early.await {
            return report_shutdown(&result.expect(SENDS_BEFORE_EXIT)?, quiet);
        }
        handle.graceful_shutdown();
    }
    report_shutdown(&receiver.await.expect(SENDS_BEFORE_EXIT)?, quiet)
}

/// Runs blocking `work` on its own thread, and returns the receiver of its result.
fn run_on_thread(
    work: impl FnOnce() -> Result<ShutdownReport, Error> + Send + 'static,
) -> Result<oneshot::Receiver<Result<ShutdownReport, Error>>, Error> {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Fails if the receiving future was dropped.
        let _ = sender.send(work());
    };
    let name = "peregrine-wait".to_owned();
    thread::Builder::new().name(name).spawn(run).map_err(Error::Worker)?;
    Ok(receiver)
}

/// Cuts a server's connections when its future is dropped.
struct ForceCloseOnDrop(ServerHandle);

impl Drop for ForceCloseOnDrop {
    fn drop(&mut self) {
        self.0.force_close();
    }
}
