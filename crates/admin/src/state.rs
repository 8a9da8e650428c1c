//! The data that workers publish to the admin listener.

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
use tokio::sync::watch as watched;

/// The bounds of the pause between two checks for handlers that block their thread.
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(50);
const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(5);

/// The data of one worker. The worker's thread writes it; any thread may read it.
#[derive(Debug)]
pub struct WorkerView {
    /// The counters of its connections.
    pub metrics: Arc<WorkerMetrics>,
    /// The counters of its driver.
    pub driver_metrics: Arc<DriverMetrics>,
    heartbeat: OnceLock<Weak<Heartbeat>>,
    runtime: OnceLock<RuntimeMetrics>,
    /// The operating system's id of the thread, if available.
    tid: OnceLock<u32>,
    /// Methods and patterns.
    routes: OnceLock<Vec<(String, String)>>,
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
    pub fn set_heartbeat(&self, pulse: &Arc<Heartbeat>) {
        // Cannot fail: a worker starts only once. The same holds below.
        let _ = self.heartbeat.set(Arc::downgrade(pulse));
    }

    /// Publishes the state of the worker's thread when the worker starts serving.
    fn set_serving(&self, application: &BuiltApp) {
        let name = |pattern| display_pattern(pattern).into_owned();
        let routes =
            application.routes().map(|route| (route.methods.to_owned(), name(route.pattern)));
        let _ = self.routes.set(routes.collect());
        if let Ok(handle) = Handle::try_current() {
            let _ = self.runtime.set(handle.metrics());
        }
        if let Some(thread) = current_tid() {
            let _ = self.tid.set(thread);
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

    /// How often a handler was found to block the thread.
    pub(crate) fn blocking_polls(&self) -> u64 {
        self.heartbeat().map_or(0, |pulse| pulse.blocking_polls())
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
fn this_thread() -> Option<u32> {
    None
}

/// The data of all workers, and the server's lifecycle.
#[derive(Debug)]
pub struct AdminState {
    /// The data of each worker.
    pub workers: Vec<WorkerView>,
    lifecycle: watched::Receiver<Lifecycle>,
    liveness_threshold: Duration,
    /// All settings in effect as text, if the server was built from a configuration.
    pub config: OnceLock<Arc<Mutex<String>>>,
    /// The reload metrics of the configuration.
    #[cfg(feature = "config")]
    pub reload_metrics: OnceLock<Arc<peregrine_settings::internal::ReloadMetrics>>,
    /// The poll that each worker was last seen in, and when it was first seen.
    last_polls: Mutex<Vec<Option<LastPoll>>>,
    access_log: OnceLock<Arc<log::AccessLogMetrics>>,
    /// The distinct TLS settings of the listeners.
    #[cfg(feature = "tls")]
    certificates: OnceLock<Vec<peregrine_tls::TlsConfig>>,
}

#[derive(Clone, Debug)]
struct LastPoll {
    poll_count: usize,
    route: String,
    since: Instant,
}

/// A handler that has blocked its thread for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockedWorker {
    pub(crate) worker: usize,
    pub(crate) route: String,
    pub(crate) blocked_for: Duration,
}

impl AdminState {
    /// Starts to measure this number of workers.
    #[must_use]
    pub fn start(
        workers: usize,
        orders: watched::Receiver<Lifecycle>,
        liveness_threshold: Duration,
    ) -> Arc<Self> {
        #[cfg(feature = "metrics")]
        crate::recorder::install_recorder();
        Arc::new(Self::new(workers, orders, liveness_threshold))
    }

    pub(crate) fn new(
        workers: usize,
        orders: watched::Receiver<Lifecycle>,
        liveness_threshold: Duration,
    ) -> Self {
        let workers: Vec<_> = (0..workers).map(|_| WorkerView::new()).collect();
        let seen = Mutex::new(vec![None; workers.len()]);
        Self {
            workers,
            lifecycle: orders,
            liveness_threshold,
            config: OnceLock::new(),
            #[cfg(feature = "config")]
            reload_metrics: OnceLock::new(),
            last_polls: seen,
            access_log: OnceLock::new(),
            #[cfg(feature = "tls")]
            certificates: OnceLock::new(),
        }
    }

    /// Publishes the metrics of the access log.
    pub fn set_access_log(&self, figures: &Arc<log::AccessLogMetrics>) {
        // Cannot fail: a server starts only once.
        let _ = self.access_log.set(Arc::clone(figures));
    }

    pub(crate) fn access_log(&self) -> Option<&log::AccessLogMetrics> {
        self.access_log.get().map(|figures| &**figures)
    }

    /// Publishes the TLS settings of the listeners, without duplicates.
    #[cfg(feature = "tls")]
    pub fn set_certificates<'t>(&self, all: impl Iterator<Item = &'t peregrine_tls::TlsConfig>) {
        let mut each: Vec<peregrine_tls::TlsConfig> = Vec::new();
        for tls in all {
            if !each.iter().any(|known| known.ptr_eq(tls)) {
                each.push(tls.clone());
            }
        }
        // Cannot fail: a server starts only once.
        let _ = self.certificates.set(each);
    }

    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> &[peregrine_tls::TlsConfig] {
        self.certificates.get().map_or(&[], Vec::as_slice)
    }

    /// Whether all workers serve.
    pub(crate) fn all_serving(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_serving.load(Ordering::Acquire))
    }

    /// Whether all workers refuse requests because memory is short.
    pub(crate) fn all_low_on_memory(&self) -> bool {
        let mut workers = self.workers.iter();
        !self.workers.is_empty() && workers.all(|worker| worker.metrics.is_memory_low())
    }

    /// The server's current lifecycle state.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        *self.lifecycle.borrow()
    }

    /// Subscribes to changes of the server's lifecycle.
    pub(crate) fn lifecycle_updates(&self) -> watched::Receiver<Lifecycle> {
        self.lifecycle.clone()
    }

    /// Checks all heartbeats, and returns the handlers that have been in the same poll for too
    /// long.
    pub(crate) fn blocked_workers(&self, now: Instant) -> Vec<BlockedWorker> {
        let mut all = self.last_polls.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stuck = Vec::new();
        for (number, (worker, seen)) in self.workers.iter().zip(&mut *all).enumerate() {
            let present = worker.heartbeat().and_then(|pulse| pulse.current_poll());
            let Some((turn, route)) = present else {
                *seen = None;
                continue;
            };
            match seen {
                Some(seen) if seen.poll_count == turn => {
                    let time = now.saturating_duration_since(seen.since);
                    if time >= self.liveness_threshold {
                        let route = seen.route.clone();
                        stuck.push(BlockedWorker { worker: number, route, blocked_for: time });
                    }
                }
                _ => *seen = Some(LastPoll { poll_count: turn, route, since: now }),
            }
        }
        stuck
    }
}

thread_local! {
    /// The data of all workers of this thread's server.
    static CURRENT: RefCell<Option<Arc<AdminState>>> = const { RefCell::new(None) };
}

/// The data of all workers of this thread's server, or of no workers on other threads.
pub(crate) fn current() -> Arc<AdminState> {
    CURRENT.with_borrow(Clone::clone).unwrap_or_else(|| {
        let (_, orders) = watched::channel(Lifecycle::Serving);
        Arc::new(AdminState::new(0, orders, Duration::MAX))
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
    /// The data of this worker.
    #[must_use]
    pub fn view(&self) -> &WorkerView {
        &self.state.workers[self.worker]
    }

    /// Runs on the worker's thread before the application is built.
    pub fn on_thread_start(&self) {
        CURRENT.set(Some(Arc::clone(&self.state)));
    }

    /// Runs on the worker's thread when the worker starts serving.
    pub fn on_serve(&self, application: &BuiltApp) {
        self.view().set_serving(application);
    }
}

/// Checks the heartbeats periodically, so that a probe finds out immediately how long a handler has
/// been running.
pub(crate) async fn watch_blocking(driver: impl Driver, views: Weak<AdminState>) {
    loop {
        let Some(now) = views.upgrade() else { return };
        let pause = (now.liveness_threshold / 4).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX);
        now.blocked_workers(Instant::now());
        drop(now);
        driver.sleep_until(driver.now().saturating_add(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_workers_at_work_is_never_stuck() {
        let (_, orders) = watched::channel(Lifecycle::Serving);
        let views = AdminState::new(2, orders, Duration::ZERO);
        let pulse = Arc::new(Heartbeat::default());
        views.workers[0].set_heartbeat(&pulse);
        let now = Instant::now();
        for later in [0, 1, 3600] {
            assert_eq!(views.blocked_workers(now + Duration::from_secs(later)), []);
        }
        drop(pulse);
        assert_eq!(views.blocked_workers(now), []);
        assert!(!views.all_serving() && views.lifecycle() == Lifecycle::Serving);
    }
}
