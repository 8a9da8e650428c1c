//! [`RunningServer`], a server that has started: starts its workers, lists its addresses, and waits
//! for it to end.

use crate::error::Error;
use crate::listen::bind::{ListenAddr, UnixSocketFiles};
use crate::runtime::blocking;
use crate::runtime::console::{report, url};
use crate::runtime::deadline::ShutdownDeadline;
use crate::runtime::handle::{ControlChannel, ReloadFn, ServerEvent, ServerHandle, WorkerExit};
use crate::runtime::make_app::BoxedMakeApp;
use crate::runtime::report::ShutdownReport;
use crate::runtime::signals::HandledSignals;
use crate::runtime::threads;
use crate::runtime::worker::Worker;
#[cfg(feature = "acme")]
use peregrine_acme::AcmeClientThread;
use peregrine_admin::internal::{AccessLogFlush, RunningAdmin};
use peregrine_restart::internal::InheritedListeners;
use peregrine_server::{Heartbeat, Lifecycle, Limits, WorkerStats};
use peregrine_web::panic::catch_log_panic;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Settings of the server as a whole.
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
    /// Workers that have not ended yet.
    running_workers: BTreeSet<usize>,
    report: ShutdownReport,
    /// The first error of a worker, which shut the server down.
    first_error: Option<Error>,
    addresses: Vec<(ListenAddr, bool)>,
    shutdown_timeout: Duration,
    quiet: bool,
    admin: Option<(RunningAdmin, ListenAddr)>,
    access_log: Option<AccessLogFlush>,
    _files: UnixSocketFiles,
    /// Reloads certificates and settings. Kept until the server has ended.
    _reload: Option<Arc<ReloadFn>>,
    /// Obtains certificates. Kept until the server has ended.
    #[cfg(feature = "acme")]
    acme_threads: Vec<AcmeClientThread>,
}

impl RunningServer {
    pub(crate) fn start(
        workers: Vec<Worker>,
        makes: &mut dyn FnMut() -> BoxedMakeApp,
        places: Vec<(ListenAddr, bool)>,
        files: UnixSocketFiles,
        settings: &RunSettings,
        orders: ControlChannel,
    ) -> Result<Self, Error> {
        let ControlChannel { handle, events: news } = orders;
        let count = workers.len();
        // If anything below fails, dropping it stops the workers that have started.
        let mut running = Self {
            handle,
            events: news,
            running_workers: BTreeSet::new(),
            report: ShutdownReport { workers: vec![None; count], ..ShutdownReport::default() },
            first_error: None,
            addresses: places,
            shutdown_timeout: settings.limits.shutdown_timeout,
            quiet: settings.quiet,
            admin: None,
            access_log: None,
            _files: files,
            _reload: None,
            #[cfg(feature = "acme")]
            acme_threads: Vec::new(),
        };
        let mut pulses = Vec::with_capacity(count);
        let mut watchdog = running.handle.restart().watchdog();
        for worker in workers {
            let pulse = Arc::new(Heartbeat::default());
            pulses.push(Arc::downgrade(&pulse));
            if let Some(shown) = &worker.reporter {
                shown.view().set_heartbeat(&pulse);
            }
            let name = format!("peregrine-{}", worker.id);
            let answering = watchdog.as_mut().map(|watchdog| watchdog.responder());
            let body = worker.into_thread_body(makes(), &running.handle, pulse, answering);
            threads::spawn_thread(name, Box::new(body)).map_err(Error::Worker)?;
        }
        running.wait_until_ready(count)?;
        if let Some(budget) = settings.limits.blocking_poll_threshold {
            blocking::start_blocking_watchdog(pulses, budget).map_err(Error::Worker)?;
        }
        if let Some(watchdog) = watchdog {
            watchdog.start(running.handle()).map_err(Error::Worker)?;
        }
        Ok(running)
    }

    /// Waits until all workers are ready, or until a shutdown is requested. In that case it does
    /// not wait for workers that are still starting, because building an application may take
    /// arbitrarily long.
    fn wait_until_ready(&mut self, count: usize) -> Result<(), Error> {
        let mut ready = 0;
        while ready < count {
            let news = self.events.recv().expect("`self.handle` holds a sender");
            match news {
                ServerEvent::LifecycleChanged => break,
                ServerEvent::WorkerReady(number) => {
                    ready += 1;
                    self.running_workers.insert(number);
                }
                ServerEvent::WorkerExited(WorkerExit { result: Err(error), .. }) => {
                    return Err(error);
                }
                ServerEvent::WorkerExited(ended) => self.record_exit(ended),
            }
        }
        for (number, worker) in self.report.workers.iter_mut().enumerate() {
            if !self.running_workers.contains(&number) && worker.is_none() {
                *worker = Some(WorkerStats::default());
            }
        }
        Ok(())
    }

    /// Attaches an admin listener, which is stopped when the server has ended.
    pub(crate) fn set_admin(&mut self, admin: Option<(RunningAdmin, ListenAddr)>) {
        self.admin = admin;
    }

    /// Starts accepting on the admin listener after the previous process has stopped using it.
    pub(crate) fn start_admin(&self) {
        self.admin.iter().for_each(|(admin, _)| admin.start_serving());
    }

    /// Attaches the access log, which is flushed and closed when the server has ended.
    pub(crate) fn set_access_log(&mut self, log: Option<AccessLogFlush>) {
        self.access_log = log;
    }

    /// The address of the admin listener, if there is one. Contains the actual port if port 0 was
    /// requested.
    #[doc(alias = "admin_addr")]
    #[must_use]
    pub fn admin_address(&self) -> Option<&ListenAddr> {
        self.admin.as_ref().map(|(_, place)| place)
    }

    /// Lets this reload certificates and settings, until the server has ended.
    pub(crate) fn set_reload_fn(&mut self, reload: Option<Arc<ReloadFn>>) {
        if let Some(reload) = &reload {
            self.handle.set_reload_fn(reload);
        }
        self._reload = reload;
    }

    /// Starts to obtain certificates through ACME, until a shutdown is requested.
    #[cfg(feature = "acme")]
    pub(crate) fn start_acme(&mut self, supplying: Vec<AcmeClientThread>) {
        self.acme_threads = supplying;
    }

    /// Takes over from the previous process: serves as soon as that process stops accepting.
    pub(crate) fn take_over(&mut self, heir: &mut InheritedListeners) -> Result<(), Error> {
        let handle = self.handle();
        heir.take_over(&handle, || {
            while let Ok(news) = self.events.try_recv() {
                if let ServerEvent::WorkerExited(ended) = news {
                    self.record_exit(ended);
                }
            }
            self.first_error.take().map_or(Ok(()), Err)
        })
    }

    /// Whether no shutdown was requested before all workers were ready.
    pub(crate) fn is_serving(&self) -> bool {
        self.handle.lifecycle() == Lifecycle::Serving
    }

    /// The addresses that the server listens on, with the actual ports where port 0 was requested.
    #[doc(alias = "addrs")]
    #[doc(alias = "local_addr")]
    pub fn addresses(&self) -> impl Iterator<Item = &ListenAddr> {
        self.addresses.iter().map(|(place, _)| place)
    }

    /// The addresses as URLs.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        self.addresses.iter().map(|(place, is_tls)| url(place, *is_tls))
    }

    /// The first TCP address that speaks HTTP.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.address(false)
    }

    /// The first TCP address that speaks HTTPS.
    #[must_use]
    pub fn https_address(&self) -> Option<SocketAddr> {
        self.address(true)
    }

    fn address(&self, tls: bool) -> Option<SocketAddr> {
        self.addresses.iter().find_map(|(place, is_tls)| match place {
            ListenAddr::Tcp(address) if *is_tls == tls => Some(*address),
            _ => None,
        })
    }

    /// Returns a handle, with which any thread can shut the server down.
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

    /// Waits until the server has ended, because of a [`ServerHandle`] or an error.
    ///
    /// # Errors
    /// A worker failed or panicked; the other workers are then shut down.
    pub fn wait(self) -> Result<ShutdownReport, Error> {
        self.wait_with("")
    }

    /// Waits until the server has ended. If that takes long, prints a message that ends with
    /// `way_out`.
    fn wait_with(mut self, way_out: &str) -> Result<ShutdownReport, Error> {
        let mut deadline = ShutdownDeadline::default();
        while !self.running_workers.is_empty() && self.next_event(&mut deadline, way_out).is_some()
        {
        }
        self.handle.restart().finish();
        self.report.is_force_close_requested = deadline.is_force_close_requested;
        if let Some(log) = self.access_log.take() {
            log.wait();
        }
        #[cfg(feature = "otlp")]
        peregrine_admin::internal::flush();
        if let Some((admin, _)) = self.admin.take() {
            admin.shutdown();
        }
        let failed = self.first_error.take();
        failed.map_or_else(|| Ok(std::mem::take(&mut self.report)), Err)
    }

    /// Waits for and handles the next event. Returns `None` if none arrives before the deadline of
    /// a shutdown.
    fn next_event(&mut self, deadline: &mut ShutdownDeadline, way_out: &str) -> Option<()> {
        let now = Instant::now();
        deadline.update(self.handle.lifecycle(), self.shutdown_timeout, now);
        if deadline.take_report_due(now) {
            let patience = self.shutdown_timeout;
            let text = format!(
                "peregrine: shutting down; waiting up to {patience:?} for requests and tasks in \
                 progress{way_out}"
            );
            report(&text, self.quiet);
        }
        let news = match deadline.next_wait(now)? {
            None => self.events.recv().ok()?,
            Some(patience) => match self.events.recv_timeout(patience) {
                Ok(news) => news,
                Err(mpsc::RecvTimeoutError::Timeout) => return Some(()),
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
            },
        };
        if let ServerEvent::WorkerExited(ended) = news {
            // A forced close may have been requested just before this event, which may be the last
            // one.
            deadline.update(self.handle.lifecycle(), self.shutdown_timeout, now);
            self.record_exit(ended);
        }
        Some(())
    }

    /// Records that a worker has ended. If it failed, the other workers are shut down too.
    fn record_exit(&mut self, WorkerExit { worker: number, result }: WorkerExit) {
        self.running_workers.remove(&number);
        match result {
            Ok(report) => {
                self.report.workers[number] = Some(report.stats);
                self.report.force_closed.extend(report.force_closed);
            }
            Err(error) => {
                catch_log_panic(|| {
                    tracing::error!(target: "peregrine", worker = number, %error,
                    "a worker failed; the server shuts down")
                });
                self.handle.graceful_shutdown();
                self.first_error.get_or_insert(error);
            }
        }
    }

    /// Waits for SIGTERM or Ctrl-C, shuts down, and waits until the server has ended. A second
    /// signal cuts all connections. SIGHUP reloads certificates, and the configuration if it came
    /// from a file. On Linux, SIGUSR2 upgrades in place.
    ///
    /// # Errors
    /// A worker failed or panicked, or the signal handlers cannot be installed.
    pub fn wait_for_signal(self) -> Result<ShutdownReport, Error> {
        let upgrade = self.handle.restart().upgrades_on_sigusr2();
        let (reload, reopen) = (self.handle.can_reload(), self.handle.can_reopen());
        let hears = HandledSignals { reload, upgrade, reopen };
        let _signals = self.handle.handle_signals(hears)?;
        self.wait_handling_signals()
    }

    /// Waits until the server has ended, while the caller has signal handlers installed.
    pub(crate) fn wait_handling_signals(self) -> Result<ShutdownReport, Error> {
        self.wait_with(" (a second signal ends them at once)")
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.handle.force_close();
        self.handle.restart().finish();
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("places", &self.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::deadline::FORCE_CLOSE_GRACE;
    use peregrine_server::{ForceClosed, WorkerReport};
    use std::thread;

    #[test]
    fn what_did_not_end_is_in_the_last_line() {
        let worker = |tasks_cut, functions_left| {
            Some(WorkerStats {
                aborted_tasks: tasks_cut,
                abandoned_blocking_tasks: functions_left,
                ..WorkerStats::default()
            })
        };
        let mut stopped =
            ShutdownReport { workers: vec![worker(0, 0)], ..ShutdownReport::default() };
        let text = stopped.to_string();
        assert!(!text.contains("did not end") && text.contains("none was cut"), "{text}");
        stopped.workers = vec![worker(2, 1), None, worker(1, 0)];
        let text = stopped.to_string();
        assert!(!text.contains("none was cut"), "unknown for worker 1: {text}");
        assert!(text.contains("3 tasks and 1 blocking functions did not end in time"), "{text}");
        assert!(text.contains("worker 1 did not end"), "{text}");
    }

    #[test]
    fn a_worker_that_dies_in_the_middle_ends_the_others_in_order_and_the_wait_with_its_error() {
        let ControlChannel { handle, events: news } = ControlChannel::new();
        let running = RunningServer {
            admin: None,
            access_log: None,
            handle: handle.clone(),
            events: news,
            running_workers: BTreeSet::from([0, 1]),
            report: ShutdownReport { workers: vec![None; 2], ..ShutdownReport::default() },
            first_error: None,
            addresses: Vec::new(),
            shutdown_timeout: Duration::from_secs(3600),
            quiet: true,
            _files: Vec::new(),
            _reload: None,
            #[cfg(feature = "acme")]
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
            let order = handle.lifecycle();
            handle.send_event(ServerEvent::WorkerExited(WorkerExit {
                worker: 1,
                result: Ok(WorkerReport::default()),
            }));
            order
        });
        let error = running.wait().expect_err("a worker panicked").to_string();
        assert!(error.starts_with("worker 0 panicked: on purpose"), "{error}");
        assert_eq!(other.join().expect("no panic"), Lifecycle::Draining);
    }

    #[test]
    fn the_report_says_whether_connections_were_cut_by_the_clock_or_by_an_order() {
        let (now, hour) = (Instant::now(), Duration::from_secs(3600));
        for (drained, cut, expected) in [
            (Some(now), None, "1 cut at the deadline"),
            (Some(now), Some(now), "1 cut before the deadline, as ordered"),
            (None, Some(now), "1 cut before the deadline, as ordered"),
            (Some(now), Some(now + hour), "1 cut at the deadline"),
        ] {
            let mut deadline = ShutdownDeadline::default();
            for (order, at) in [(Lifecycle::Draining, drained), (Lifecycle::ForceClosing, cut)] {
                at.into_iter().for_each(|at| deadline.update(order, hour, at));
            }
            let unfinished = peregrine_server::InFlightStage::Head;
            let peer = "a".to_owned();
            let peer = ForceClosed {
                peer,
                request: None,
                stage: unfinished,
                in_flight_for: None,
                connection_age: hour,
            };
            let is_cut_ordered = deadline.is_force_close_requested;
            let stopped = ShutdownReport {
                force_closed: vec![peer],
                is_force_close_requested: is_cut_ordered,
                ..ShutdownReport::default()
            };
            assert!(stopped.to_string().contains(expected), "{stopped}");
        }
    }
}
