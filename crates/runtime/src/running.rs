//! [`RunningServer`]: starts the workers, lists the server's addresses, and waits for it to end.

use crate::blocking;
use crate::console::{report, url};
use crate::deadline::ShutdownDeadline;
use crate::error::Error;
use crate::handle::{ControlChannel, ReloadFn, ServerEvent, ServerHandle, WorkerExit};
use crate::listen::bind::{ListenAddr, UnixSocketFiles};
use crate::report::ShutdownReport;
use crate::signals::{HandledSignals, Signals};
use crate::threads;
use crate::worker::{BoxedMakeApp, Worker};
use peregrine_admin::internal::{AccessLogFlush, RunningAdmin};
use peregrine_restart::internal::InheritedListeners;
use peregrine_server::{Heartbeat, Lifecycle, Limits, WorkerStats};
use peregrine_web::panic::catch_subscriber_panic;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The settings of the server as a whole.
pub(crate) struct RunSettings {
    pub(crate) limits: Limits,
    pub(crate) quiet: bool,
}

/// A running server. Dropping it cuts every connection.
#[doc(alias = "shutdown")]
#[doc(alias = "graceful")]
pub struct RunningServer {
    handle: ServerHandle,
    events: mpsc::Receiver<ServerEvent>,
    /// The workers that were ready and have not ended yet.
    running_workers: BTreeSet<usize>,
    /// The final report, completed as the workers end.
    report: ShutdownReport,
    /// The first error of a worker, which shut the server down.
    first_error: Option<Error>,
    /// The listen addresses, each with whether it uses TLS.
    addresses: Vec<(ListenAddr, bool)>,
    shutdown_timeout: Duration,
    quiet: bool,
    admin: Option<(RunningAdmin, ListenAddr)>,
    access_log: Option<AccessLogFlush>,
    /// Removes the files when dropped.
    _socket_files: UnixSocketFiles,
    /// Reloads certificates and settings. Dropping it ends the reload threads.
    _reload_fn: Option<Arc<ReloadFn>>,
    /// The threads that obtain certificates. Dropping this ends them.
    acme_threads: AcmeThreads,
}

/// The threads that obtain certificates through ACME.
#[cfg(feature = "acme")]
pub type AcmeThreads = Vec<peregrine_acme::AcmeClientThread>;

/// Always empty without the feature `acme`.
#[cfg(not(feature = "acme"))]
pub type AcmeThreads = Vec<std::convert::Infallible>;

impl RunningServer {
    /// Starts the workers, and waits until they are ready or a shutdown is requested.
    pub(crate) fn start(
        workers: Vec<Worker>,
        make_app: &mut dyn FnMut() -> BoxedMakeApp,
        addresses: Vec<(ListenAddr, bool)>,
        socket_files: UnixSocketFiles,
        settings: &RunSettings,
        control: ControlChannel,
    ) -> Result<Self, Error> {
        let ControlChannel { handle, events } = control;
        let count = workers.len();
        // If a step below fails, `running` is dropped, which stops the workers that have started.
        let mut running = Self {
            handle,
            events,
            running_workers: BTreeSet::new(),
            report: ShutdownReport { workers: vec![None; count], ..ShutdownReport::default() },
            first_error: None,
            addresses,
            shutdown_timeout: settings.limits.shutdown_timeout,
            quiet: settings.quiet,
            admin: None,
            access_log: None,
            _socket_files: socket_files,
            _reload_fn: None,
            acme_threads: Vec::new(),
        };
        let mut heartbeats = Vec::with_capacity(count);
        // The service manager's watchdog, which is notified for as long as every worker responds.
        let mut manager_watchdog = running.handle.restart_state().watchdog();
        for worker in workers {
            let heartbeat = Arc::new(Heartbeat::default());
            heartbeats.push(Arc::downgrade(&heartbeat));
            if let Some(reporter) = &worker.reporter {
                reporter.view().set_heartbeat(&heartbeat);
            }
            let name = format!("peregrine-{}", worker.id);
            let responder = manager_watchdog.as_mut().map(|watchdog| watchdog.responder());
            let run = worker.into_thread_body(make_app(), &running.handle, heartbeat, responder);
            threads::spawn_thread(name, Box::new(run)).map_err(Error::Thread)?;
        }
        running.wait_until_ready(count)?;
        if let Some(threshold) = settings.limits.blocking_poll_threshold {
            blocking::start_blocking_watchdog(heartbeats, threshold).map_err(Error::Thread)?;
        }
        if let Some(watchdog) = manager_watchdog {
            watchdog.start(running.handle()).map_err(Error::Thread)?;
        }
        Ok(running)
    }

    /// Waits until all workers are ready or a shutdown is requested. After a request, does not wait
    /// for workers that are still starting, because building an application can take arbitrarily
    /// long.
    fn wait_until_ready(&mut self, count: usize) -> Result<(), Error> {
        let mut ready_count = 0;
        while ready_count < count {
            let event = self.events.recv().expect("`self.handle` holds a sender");
            match event {
                ServerEvent::LifecycleChanged => break,
                ServerEvent::WorkerReady(worker) => {
                    ready_count += 1;
                    self.running_workers.insert(worker);
                }
                ServerEvent::WorkerExited(WorkerExit { result: Err(error), .. }) => {
                    return Err(error);
                }
                ServerEvent::WorkerExited(exit) => self.record_exit(exit),
            }
        }
        // Workers that are not ready have handled no requests. They get empty counters, because the
        // report treats a worker without counters as blocked.
        for (worker, stats) in self.report.workers.iter_mut().enumerate() {
            if !self.running_workers.contains(&worker) && stats.is_none() {
                *stats = Some(WorkerStats::default());
            }
        }
        Ok(())
    }

    /// Stores the admin listener, which is stopped when the server has ended.
    pub(crate) fn set_admin(&mut self, admin: Option<(RunningAdmin, ListenAddr)>) {
        self.admin = admin;
    }

    /// Lets an inherited admin listener accept, after the previous process has stopped using it.
    pub(crate) fn let_admin_accept(&self) {
        self.admin.iter().for_each(|(admin, _)| admin.start_serving());
    }

    /// Stores the access log, which is flushed and closed when the server has ended.
    pub(crate) fn set_access_log(&mut self, log: Option<AccessLogFlush>) {
        self.access_log = log;
    }

    /// Returns the address of the admin listener, if there is one. It contains the actual port even
    /// if port 0 was requested.
    #[doc(alias = "admin_addr")]
    #[must_use]
    pub fn admin_address(&self) -> Option<&ListenAddr> {
        self.admin.as_ref().map(|(_, address)| address)
    }

    /// Stores the function to which the handle has a weak reference, so that certificates and
    /// settings can be reloaded until the server has ended.
    pub(crate) fn set_reload_fn(&mut self, reload_fn: Option<Arc<ReloadFn>>) {
        self._reload_fn = reload_fn;
    }

    /// Stores the threads that obtain certificates through ACME.
    pub(crate) fn set_acme_threads(&mut self, threads: AcmeThreads) {
        self.acme_threads = threads;
    }

    /// Takes over from the previous process: serves as soon as that process stops accepting. Fails
    /// if a worker fails first.
    pub(crate) fn take_over(&mut self, inherited: &mut InheritedListeners) -> Result<(), Error> {
        let handle = self.handle();
        inherited.take_over(&handle, || {
            while let Ok(event) = self.events.try_recv() {
                if let ServerEvent::WorkerExited(exit) = event {
                    self.record_exit(exit);
                }
            }
            self.first_error.take().map_or(Ok(()), Err)
        })
    }

    /// Whether the server is serving. False once a shutdown was requested, even if that was before
    /// all workers were ready.
    pub(crate) fn is_serving(&self) -> bool {
        self.handle.lifecycle() == Lifecycle::Serving
    }

    /// Returns the addresses that the server listens on, with the actual ports where port 0 was
    /// requested.
    #[doc(alias = "addrs")]
    #[doc(alias = "local_addr")]
    pub fn addresses(&self) -> impl Iterator<Item = &ListenAddr> {
        self.addresses.iter().map(|(address, _)| address)
    }

    /// Returns the addresses as URLs.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.addresses.iter().map(|(address, is_tls)| url(address, *is_tls))
    }

    /// Returns the first TCP address that serves HTTP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.first_tcp_address(false)
    }

    /// Returns the first TCP address that serves HTTPS.
    #[must_use]
    pub fn https_address(&self) -> Option<SocketAddr> {
        self.first_tcp_address(true)
    }

    fn first_tcp_address(&self, requires_tls: bool) -> Option<SocketAddr> {
        self.addresses.iter().find_map(|(listen_addr, is_tls)| match listen_addr {
            ListenAddr::Tcp(address) if *is_tls == requires_tls => Some(*address),
            _ => None,
        })
    }

    /// Returns a handle that can shut the server down from any thread.
    #[must_use]
    pub fn handle(&self) -> ServerHandle {
        self.handle.clone()
    }

    /// Shuts the server down and waits until it has ended.
    ///
    /// # Errors
    /// A worker failed or panicked.
    #[doc(alias = "stop")]
    #[doc(alias = "shutdown")]
    pub fn graceful_shutdown(self) -> Result<ShutdownReport, Error> {
        self.handle.graceful_shutdown();
        self.wait()
    }

    /// Waits until the server has ended, because a [`ServerHandle`] stopped it or a worker failed.
    ///
    /// # Errors
    /// A worker failed or panicked; the other workers are then shut down.
    pub fn wait(self) -> Result<ShutdownReport, Error> {
        self.wait_with("")
    }

    /// Waits until the server has ended. If the shutdown takes long, reports what it is waiting
    /// for, with `hint` appended.
    fn wait_with(mut self, hint: &str) -> Result<ShutdownReport, Error> {
        let mut deadline = ShutdownDeadline::default();
        while !self.running_workers.is_empty() && self.next_event(&mut deadline, hint).is_some() {}
        // Waits until an upgrade in progress has been abandoned.
        self.handle.restart_state().finish();
        self.report.is_force_close_requested = deadline.is_force_close_requested;
        if let Some(log) = self.access_log.take() {
            log.wait();
        }
        #[cfg(feature = "otlp")]
        peregrine_admin::internal::flush();
        if let Some((admin, _)) = self.admin.take() {
            admin.shutdown();
        }
        let first_error = self.first_error.take();
        first_error.map_or_else(|| Ok(std::mem::take(&mut self.report)), Err)
    }

    /// Waits for the next event and handles it. Returns `None` once the deadline of a shutdown has
    /// passed.
    fn next_event(&mut self, deadline: &mut ShutdownDeadline, hint: &str) -> Option<()> {
        let now = Instant::now();
        deadline.update(self.handle.lifecycle(), self.shutdown_timeout, now);
        if deadline.take_report_due(now) {
            let timeout = self.shutdown_timeout;
            let text = format!(
                "peregrine: shutting down; waiting up to {timeout:?} for requests and tasks in \
                 progress{hint}"
            );
            report(&text, self.quiet);
        }
        let event = match deadline.next_wait(now)? {
            None => self.events.recv().ok()?,
            Some(timeout) => match self.events.recv_timeout(timeout) {
                Ok(event) => event,
                Err(mpsc::RecvTimeoutError::Timeout) => return Some(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            },
        };
        if let ServerEvent::WorkerExited(exit) = event {
            // This may be the last event. A forced close that was requested just before it must be
            // in the report.
            deadline.update(self.handle.lifecycle(), self.shutdown_timeout, now);
            self.record_exit(exit);
        }
        Some(())
    }

    /// Records that a worker has ended. If it failed, shuts the other workers down.
    fn record_exit(&mut self, WorkerExit { worker, result }: WorkerExit) {
        self.running_workers.remove(&worker);
        match result {
            Ok(report) => {
                self.report.workers[worker] = Some(report.stats);
                self.report.force_closed.extend(report.force_closed);
            }
            Err(error) => {
                catch_subscriber_panic(|| {
                    tracing::error!(target: "peregrine", worker, %error,
                    "a worker failed; the server shuts down")
                });
                self.handle.graceful_shutdown();
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Waits for SIGTERM or Ctrl-C, shuts down, and waits until the server has ended. A second
    /// signal cuts all connections. SIGHUP reloads certificates, and the configuration if it came
    /// from a file. SIGUSR1 reopens the access log's file. On Linux, SIGUSR2 upgrades in place.
    ///
    /// # Errors
    /// A worker failed or panicked, or the signal handlers cannot be installed.
    pub fn wait_for_signal(self) -> Result<ShutdownReport, Error> {
        let upgrade = self.handle.restart_state().upgrades_on_sigusr2();
        let (reload, reopen) = (self.handle.can_reload(), self.handle.can_reopen());
        let handled = HandledSignals { reload, upgrade, reopen };
        let signals = self.handle.handle_signals(handled)?;
        wait_handling_signals(self, &signals)
    }

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

/// Waits until the server has ended, for a caller whose `_signals` shut the server down.
///
/// # Errors
/// A worker failed or panicked; the other workers are then shut down.
pub fn wait_handling_signals(
    running: RunningServer,
    _signals: &Signals,
) -> Result<ShutdownReport, Error> {
    running.wait_with(" (a second signal ends them immediately)")
}

/// Why the receiver that [`run_on_thread`] returns never fails.
pub const SENDS_BEFORE_EXIT: &str = "the thread sends before it ends";

/// Runs blocking `work` on its own thread, and returns the receiver of its result.
///
/// # Errors
/// The system cannot start another thread.
pub fn run_on_thread(
    work: impl FnOnce() -> Result<ShutdownReport, Error> + Send + 'static,
) -> Result<oneshot::Receiver<Result<ShutdownReport, Error>>, Error> {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Fails if the receiving future was dropped.
        let _ = sender.send(work());
    };
    let name = "peregrine-wait".to_owned();
    thread::Builder::new().name(name).spawn(run).map_err(Error::Thread)?;
    Ok(receiver)
}

/// Cuts a server's connections when its future is dropped.
pub struct ForceCloseOnDrop(pub ServerHandle);

impl Drop for ForceCloseOnDrop {
    fn drop(&mut self) {
        self.0.force_close();
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.handle.force_close();
        self.handle.restart_state().finish();
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::FORCE_CLOSE_GRACE;
    use peregrine_server::{ForceClosed, WorkerReport};

    #[test]
    fn the_shutdown_report_lists_workers_and_tasks_that_did_not_end() {
        let worker = |aborted_tasks, abandoned_blocking_tasks| {
            Some(WorkerStats { aborted_tasks, abandoned_blocking_tasks, ..WorkerStats::default() })
        };
        let mut report =
            ShutdownReport { workers: vec![worker(0, 0)], ..ShutdownReport::default() };
        let text = report.to_string();
        assert!(!text.contains("did not end") && text.contains("none was cut"), "{text}");
        report.workers = vec![worker(2, 1), None, worker(1, 0)];
        let text = report.to_string();
        assert!(!text.contains("none was cut"), "unknown for worker 1: {text}");
        assert!(text.contains("3 tasks and 1 blocking functions did not end in time"), "{text}");
        assert!(text.contains("worker 1 did not end"), "{text}");
    }

    #[test]
    fn a_worker_panic_shuts_the_others_down_gracefully_and_is_returned_by_wait() {
        let ControlChannel { handle, events } = ControlChannel::default();
        let running = RunningServer {
            admin: None,
            access_log: None,
            handle: handle.clone(),
            events,
            running_workers: BTreeSet::from([0, 1]),
            report: ShutdownReport { workers: vec![None; 2], ..ShutdownReport::default() },
            first_error: None,
            addresses: Vec::new(),
            shutdown_timeout: Duration::from_secs(3600),
            quiet: true,
            _socket_files: Vec::new(),
            _reload_fn: None,
            acme_threads: Vec::new(),
        };
        let other = thread::spawn(move || {
            let panicked = Error::WorkerPanicked { worker: 0, cause: "on purpose".to_owned() };
            handle.send_event(ServerEvent::WorkerExited(WorkerExit {
                worker: 0,
                result: Err(panicked),
            }));
            let started = Instant::now();
            while handle.lifecycle() == Lifecycle::Serving && started.elapsed() < FORCE_CLOSE_GRACE
            {
                thread::yield_now();
            }
            let lifecycle = handle.lifecycle();
            handle.send_event(ServerEvent::WorkerExited(WorkerExit {
                worker: 1,
                result: Ok(WorkerReport::default()),
            }));
            lifecycle
        });
        let error = running.wait().expect_err("a worker panicked").to_string();
        assert!(error.starts_with("worker 0 panicked: on purpose"), "{error}");
        assert_eq!(other.join().expect("no panic"), Lifecycle::Draining);
    }

    #[test]
    fn the_report_distinguishes_a_requested_force_close_from_the_deadline() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        for (drain_at, force_close_at, expected) in [
            (Some(now), None, "1 cut at the deadline"),
            (Some(now), Some(now), "1 cut before the deadline, as requested"),
            (None, Some(now), "1 cut before the deadline, as requested"),
            (Some(now), Some(now + hour), "1 cut at the deadline"),
        ] {
            let mut deadline = ShutdownDeadline::default();
            for (lifecycle, at) in
                [(Lifecycle::Draining, drain_at), (Lifecycle::ForceClosing, force_close_at)]
            {
                at.into_iter().for_each(|at| deadline.update(lifecycle, hour, at));
            }
            let stage = peregrine_server::InFlightStage::Head;
            let force_closed = ForceClosed {
                peer: "a".to_owned(),
                request: None,
                stage,
                in_flight_for: None,
                connection_age: hour,
            };
            let report = ShutdownReport {
                force_closed: vec![force_closed],
                is_force_close_requested: deadline.is_force_close_requested,
                ..ShutdownReport::default()
            };
            assert!(report.to_string().contains(expected), "{report}");
        }
    }
}
