//! A server to test, and a runtime for its clients.

use peregrine::{DriverChoice, Error, IntoBuiltApp, Limits, RunningServer, Server, ShutdownReport};
use std::num::NonZeroUsize;
use std::time::Duration;

/// A case that runs longer hangs. This is far more than the slowest machine needs.
const CASE_MAX: Duration = Duration::from_secs(100);

/// A server on a free port of the loopback interface; `None` if the kernel refuses the driver,
/// which is reported in the output.
///
/// # Panics
/// If the server fails to start for another reason.
pub fn start<A, M>(choice: DriverChoice, workers: usize, make: M) -> Option<RunningServer>
where
    A: IntoBuiltApp + 'static,
    M: Fn() -> A + Clone + Send + 'static,
{
    let workers = NonZeroUsize::new(workers).expect("a server has workers");
    // Clients and pools are shared by several servers here, so their tasks outlive the first
    // server.
    let limits = Limits { background_task_timeout: Duration::ZERO, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(workers).limits(limits).quiet();
    match server.start(make) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

/// `http://127.0.0.1:PORT`
///
/// # Panics
/// If the server has no HTTP listener.
#[must_use]
pub fn base_url(running: &RunningServer) -> String {
    format!("http://{}", running.http_address().expect("the server speaks HTTP"))
}

/// Shuts down a server with no work in progress.
///
/// # Panics
/// If a worker did not shut down cleanly, or a connection had to be cut.
pub fn end(running: RunningServer) -> ShutdownReport {
    let stopped = running.graceful_shutdown().expect("the workers shut down cleanly");
    assert!(stopped.force_closed.is_empty(), "{stopped}");
    stopped
}

/// Runs the clients of a case on several threads, like `#[tokio::main]`.
///
/// # Panics
/// If it takes longer than any machine should need.
pub fn in_runtime<F: Future>(case: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        tokio::time::timeout(CASE_MAX, case).await.expect("the case finishes in time")
    })
}

/// Waits briefly before a retry.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}
