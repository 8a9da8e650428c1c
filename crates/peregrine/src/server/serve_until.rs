//! Serving from within an `async` program, which has its own runtime and may handle signals itself.

use crate::server::Server;
use crate::server::make_app::{MakeApp, box_make_app};
use peregrine_runtime::Error;
use peregrine_runtime::internal::{
    BoxedMakeApp, ControlChannel, ForceCloseOnDrop, SENDS_BEFORE_EXIT, report_shutdown,
    run_on_thread, wait_handling_signals,
};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

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

/// Serves until `shutdown` completes or, if it is `None`, until a signal.
pub(crate) async fn serve(
    server: Server,
    mut make_app: impl FnMut() -> BoxedMakeApp + Send + 'static,
    shutdown: Option<impl Future<Output = ()>>,
) -> Result<(), Error> {
    let quiet = server.is_quiet();
    let control = ControlChannel::default();
    let handle = control.handle.clone();
    let signals = match shutdown {
        None => {
            control.enable_notifications();
            Some(control.handle_signals(server.handled_signals())?)
        }
        Some(_) => None,
    };
    let _guard = ForceCloseOnDrop(handle.clone());
    let mut receiver = run_on_thread(move || {
        // Starting blocks until each worker has built its application. That may need the caller's
        // runtime, so it must not block the caller's thread.
        let running = server.start_with(&mut make_app, control)?;
        // `make_app` may own what the application owns, such as a connection pool whose tasks end
        // only when all of its owners have been dropped. The shutdown would wait for those tasks.
        drop(make_app);
        match signals {
            Some(signals) => wait_handling_signals(running, &signals),
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
