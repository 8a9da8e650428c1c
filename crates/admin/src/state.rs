//! The data that workers publish for the admin listener.

use crate::access_log as log;
use peregrine_driver::{Driver, DriverMetrics};
use peregrine_server::{Heartbeat, Lifecycle, WorkerMetrics};
use peregrine_web::built::BuiltApp;
use peregrine_web::route::display_pattern;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::watch;

/// The bounds of the interval between two checks for handlers that block their thread.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(50);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The data of one worker. The worker's thread writes it, and any thread can read it.
#[derive(Debug)]
pub struct WorkerView {
    /// The counters of the worker's connections and requests.
    pub metrics: Arc<WorkerMetrics>,
    /// The counters of the worker's driver.
    pub driver_metrics: Arc<DriverMetrics>,
    heartbeat: OnceLock<Weak<Heartbeat>>,
    runtime: OnceLock<RuntimeMetrics>,
    /// The operating system's id of the thread, if available.
    tid: OnceLock<u32>,
    /// The methods and the pattern of each route.
    routes: OnceLock<Vec<(String, String)>>,
    /// Whether the worker has started to serve. Remains true when it ends.
    is_serving: AtomicBool,
}

impl WorkerView {
    fn new() -> Self {
        Self {
            metrics: Arc::new(WorkerMetrics::with_request_histograms()),
            driver_metrics: Arc::default(),
            heartbeat: OnceLock::new(),
            runtime: OnceLock::new(),
            tid: OnceLock::new(),
            routes: OnceLock::new(),
            is_serving: AtomicBool::new(false),
        }
    }

    /// Publishes the worker's heartbeat.
    pub fn set_heartbeat(&self, heartbeat: &Arc<Heartbeat>) {
        // Cannot fail, because a worker starts only once. The same applies to `set_serving`.
        let _ = self.heartbeat.set(Arc::downgrade(heartbeat));
    }

    /// Publishes the state of the worker's thread when the worker starts serving.
    fn set_serving(&self, application: &BuiltApp) {
        let to_name = |pattern| display_pattern(pattern).into_owned();
        let routes =
            application.routes().map(|route| (route.methods.to_owned(), to_name(route.pattern)));
        let _ = self.routes.set(routes.collect());
        if let Ok(handle) = Handle::try_current() {
            let _ = self.runtime.set(handle.metrics());
        }
        if let Some(tid) = current_tid() {
            let _ = self.tid.set(tid);
        }
        self.is_serving.store(true, Ordering::Release);
    }

    pub(crate) fn routes(&self) -> Option<&[(String, String)]> {
        self.routes.get().map(Vec::as_slice)
    }

    pub(crate) fn runtime(&self) -> Option<&RuntimeMetrics> {
        self.runtime.get()
    }

    pub(crate) fn tid(&self) -> Option<u32> {
        self.tid.get().copied()
    }

    /// Returns how often a handler was found to block the thread.
    pub(crate) fn blocking_polls(&self) -> u64 {
        self.heartbeat().map_or(0, |heartbeat| heartbeat.blocking_polls())
    }

    fn heartbeat(&self) -> Option<Arc<Heartbeat>> {
        self.heartbeat.get()?.upgrade()
    }
}

#[cfg(target_os = "linux")]
fn current_tid() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
fn current_tid() -> Option<u32> {
    None
}

/// The data of all workers, and the server's lifecycle.
#[derive(Debug)]
pub struct AdminState {
    /// The data of each worker.
    pub workers: Vec<WorkerView>,
    lifecycle: watch::Receiver<Lifecycle>,
    liveness_threshold: Duration,
    /// All settings in effect as text, if the server was built from a configuration.
    pub config: OnceLock<Arc<Mutex<String>>>,
    /// The reload metrics of the configuration.
    #[cfg(feature = "config")]
    pub reload_metrics: OnceLock<Arc<peregrine_settings::internal::ReloadMetrics>>,
    /// The handler poll in which [`AdminState::blocked_workers`] last found each worker; `None` if
    /// no handler was running.
    last_polls: Mutex<Vec<Option<LastPoll>>>,
    access_log: OnceLock<Arc<log::AccessLogMetrics>>,
    /// The distinct TLS settings of the listeners.
    #[cfg(feature = "tls")]
    certificates: OnceLock<Vec<peregrine_tls::TlsConfig>>,
}

/// A poll of a handler, as seen by [`AdminState::blocked_workers`].
#[derive(Clone, Debug)]
struct LastPoll {
    /// The number of the poll, which identifies it.
    poll_number: usize,
    route: String,
    /// When the poll was first seen.
    since: Instant,
}

/// A worker whose handler has blocked its thread for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockedWorker {
    pub(crate) worker: usize,
    pub(crate) route: String,
    pub(crate) blocked_for: Duration,
}

impl AdminState {
    /// Creates the state for this number of workers, and installs the recorder for the
    /// application's metrics.
    #[must_use]
    pub fn start(
        workers: usize,
        lifecycle: watch::Receiver<Lifecycle>,
        liveness_threshold: Duration,
    ) -> Arc<Self> {
        #[cfg(feature = "metrics")]
        crate::recorder::install_recorder();
        Arc::new(Self::new(workers, lifecycle, liveness_threshold))
    }

    pub(crate) fn new(
        workers: usize,
        lifecycle: watch::Receiver<Lifecycle>,
        liveness_threshold: Duration,
    ) -> Self {
        let workers: Vec<_> = (0..workers).map(|_| WorkerView::new()).collect();
        let last_polls = Mutex::new(vec![None; workers.len()]);
        Self {
            workers,
            lifecycle,
            liveness_threshold,
            config: OnceLock::new(),
            #[cfg(feature = "config")]
            reload_metrics: OnceLock::new(),
            last_polls,
            access_log: OnceLock::new(),
            #[cfg(feature = "tls")]
            certificates: OnceLock::new(),
        }
    }

    /// Publishes the metrics of the access log.
    pub fn set_access_log(&self, metrics: &Arc<log::AccessLogMetrics>) {
        // Cannot fail, because a server starts only once.
        let _ = self.access_log.set(Arc::clone(metrics));
    }

    pub(crate) fn access_log(&self) -> Option<&log::AccessLogMetrics> {
        self.access_log.get().map(|metrics| &**metrics)
    }

    /// Publishes the TLS settings of the listeners, without duplicates.
    #[cfg(feature = "tls")]
    pub fn set_certificates<'t>(
        &self,
        tls_configs: impl Iterator<Item = &'t peregrine_tls::TlsConfig>,
    ) {
        let mut distinct: Vec<peregrine_tls::TlsConfig> = Vec::new();
        for tls in tls_configs {
            if !distinct.iter().any(|known| known.ptr_eq(tls)) {
                distinct.push(tls.clone());
            }
        }
        // Cannot fail, because a server starts only once.
        let _ = self.certificates.set(distinct);
    }

    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> &[peregrine_tls::TlsConfig] {
        self.certificates.get().map_or(&[], Vec::as_slice)
    }

    /// Returns whether all workers have started to serve.
    pub(crate) fn all_serving(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_serving.load(Ordering::Acquire))
    }

    /// Returns whether there are workers, and all of them reject requests because memory is short.
    pub(crate) fn all_low_on_memory(&self) -> bool {
        let mut workers = self.workers.iter();
        !self.workers.is_empty() && workers.all(|worker| worker.metrics.is_memory_low())
    }

    /// Returns the server's current lifecycle state.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        *self.lifecycle.borrow()
    }

    /// Subscribes to changes of the server's lifecycle.
    pub(crate) fn lifecycle_updates(&self) -> watch::Receiver<Lifecycle> {
        self.lifecycle.clone()
    }

    /// Checks all heartbeats, and returns the workers that have been in the same handler poll for
    /// at least the liveness threshold.
    pub(crate) fn blocked_workers(&self, now: Instant) -> Vec<BlockedWorker> {
        let mut last_polls = self.last_polls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut blocked = Vec::new();
        for (worker_id, (worker, last_poll)) in
            self.workers.iter().zip(&mut *last_polls).enumerate()
        {
            let current_poll = worker.heartbeat().and_then(|heartbeat| heartbeat.current_poll());
            let Some((poll_number, route)) = current_poll else {
                *last_poll = None;
                continue;
            };
            match last_poll {
                Some(last_poll) if last_poll.poll_number == poll_number => {
                    let blocked_for = now.saturating_duration_since(last_poll.since);
                    if blocked_for >= self.liveness_threshold {
                        let route = last_poll.route.clone();
                        blocked.push(BlockedWorker { worker: worker_id, route, blocked_for });
                    }
                }
                _ => *last_poll = Some(LastPoll { poll_number, route, since: now }),
            }
        }
        blocked
    }
}

thread_local! {
    /// The data of all workers of this thread's server.
    static CURRENT: RefCell<Option<Arc<AdminState>>> = const { RefCell::new(None) };
}

/// Returns the data of all workers of this thread's server. On a thread without a server, returns
/// the data of a server without workers.
pub(crate) fn current() -> Arc<AdminState> {
    CURRENT.with_borrow(Clone::clone).unwrap_or_else(|| {
        let (_, lifecycle) = watch::channel(Lifecycle::Serving);
        Arc::new(AdminState::new(0, lifecycle, Duration::MAX))
    })
}

/// A worker's access to its published data.
pub struct WorkerReporter {
    /// The data of all workers.
    pub state: Arc<AdminState>,
    /// The worker's number.
    pub worker: usize,
}

impl WorkerReporter {
    /// Returns the data of this worker.
    #[must_use]
    pub fn view(&self) -> &WorkerView {
        &self.state.workers[self.worker]
    }

    /// Makes `admin::app` show this state on this thread. Must be called on the worker's thread
    /// before the application is built.
    pub fn on_thread_start(&self) {
        CURRENT.set(Some(Arc::clone(&self.state)));
    }

    /// Publishes the routes and the thread's state. Must be called on the worker's thread when the
    /// worker starts serving.
    pub fn on_serve(&self, application: &BuiltApp) {
        self.view().set_serving(application);
    }
}

/// Checks the heartbeats periodically, and ignores the results. A single check only finds which
/// poll a worker is in. These checks record when each poll was first seen, so that a later probe
/// can report how long the handler has been running.
pub(crate) async fn watch_blocking(driver: impl Driver, state: Weak<AdminState>) {
    loop {
        let Some(state) = state.upgrade() else { return };
        let interval = (state.liveness_threshold / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
        state.blocked_workers(Instant::now());
        drop(state);
        driver.sleep_until(driver.now().saturating_add(interval)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_workers_are_never_reported_as_blocked() {
        let (_, lifecycle) = watch::channel(Lifecycle::Serving);
        let state = AdminState::new(2, lifecycle, Duration::ZERO);
        let heartbeat = Arc::new(Heartbeat::default());
        state.workers[0].set_heartbeat(&heartbeat);
        let now = Instant::now();
        for later in [0, 1, 3600] {
            assert_eq!(state.blocked_workers(now + Duration::from_secs(later)), []);
        }
        drop(heartbeat);
        assert_eq!(state.blocked_workers(now), []);
        assert!(!state.all_serving() && state.lifecycle() == Lifecycle::Serving);
    }
}
