//! The data that workers publish to the admin listener.

use crate::access_log as log;
use peregrine_driver::{Driver, Figures};
use peregrine_server::{Counts, Order, Pulse};
use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, RuntimeMetrics};
use tokio::sync::watch as watched;

/// The bounds of the pause between two checks for handlers that block their thread.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The data of one worker. The worker's thread writes it; any thread may read it.
#[derive(Debug)]
pub struct View {
    /// The counters of its connections.
    pub counts: Arc<Counts>,
    /// The counters of its driver.
    pub figures: Arc<Figures>,
    pulse: OnceLock<Weak<Pulse>>,
    runtime: OnceLock<RuntimeMetrics>,
    /// The operating system's id of the thread, if available.
    thread: OnceLock<u32>,
    /// Methods and patterns.
    routes: OnceLock<Vec<(String, String)>>,
    is_serving: AtomicBool,
}

impl View {
    fn new() -> Self {
        Self {
            counts: Arc::new(Counts::measuring()),
            figures: Arc::default(),
            pulse: OnceLock::new(),
            runtime: OnceLock::new(),
            thread: OnceLock::new(),
            routes: OnceLock::new(),
            is_serving: AtomicBool::new(false),
        }
    }

    /// Publishes the worker's pulse.
    pub fn show_pulse(&self, pulse: &Arc<Pulse>) {
        // Cannot fail: a worker starts only once. The same holds below.
        let _ = self.pulse.set(Arc::downgrade(pulse));
    }

    /// Publishes the state of the worker's thread when the worker starts serving.
    fn begin(&self, application: &Application) {
        let name = |pattern| readable(pattern).into_owned();
        let routes =
            application.routes().map(|route| (route.methods.to_owned(), name(route.pattern)));
        let _ = self.routes.set(routes.collect());
        if let Ok(handle) = Handle::try_current() {
            let _ = self.runtime.set(handle.metrics());
        }
        if let Some(thread) = this_thread() {
            let _ = self.thread.set(thread);
        }
        self.is_serving.store(true, Ordering::Release);
    }

    pub(crate) fn routes(&self) -> Option<&[(String, String)]> {
        self.routes.get().map(Vec::as_slice)
    }

    pub(crate) fn runtime(&self) -> Option<&RuntimeMetrics> {
        self.runtime.get()
    }

    pub(crate) fn thread(&self) -> Option<u32> {
        self.thread.get().copied()
    }

    /// How often a handler was found to block the thread.
    pub(crate) fn blocked(&self) -> u64 {
        self.pulse().map_or(0, |pulse| pulse.blocked())
    }

    fn pulse(&self) -> Option<Arc<Pulse>> {
        self.pulse.get()?.upgrade()
    }
}

#[cfg(target_os = "linux")]
fn this_thread() -> Option<u32> {
    let link = std::fs::read_link("/proc/thread-self").ok()?;
    link.file_name()?.to_str()?.parse().ok()
}

#[cfg(not(target_os = "linux"))]
fn this_thread() -> Option<u32> {
    None
}

/// The data of all workers, and the server's orders.
#[derive(Debug)]
pub struct Views {
    /// The data of each worker.
    pub workers: Vec<View>,
    orders: watched::Receiver<Order>,
    live_within: Duration,
    /// All settings in effect as text, if the server was built from a configuration.
    pub config: OnceLock<Arc<Mutex<String>>>,
    /// The reload metrics of the configuration.
    #[cfg(feature = "config")]
    pub reloads: OnceLock<Arc<peregrine_settings::internal::Figures>>,
    /// The poll that each worker was last seen in, and when it was first seen.
    seen: Mutex<Vec<Option<Seen>>>,
    log: OnceLock<Arc<log::Figures>>,
    /// The distinct TLS settings of the listeners.
    #[cfg(feature = "tls")]
    certificates: OnceLock<Vec<peregrine_tls::Tls>>,
}

#[derive(Clone, Debug)]
struct Seen {
    turn: usize,
    route: String,
    since: Instant,
}

/// A handler that has blocked its thread for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stuck {
    pub(crate) worker: usize,
    pub(crate) route: String,
    pub(crate) time: Duration,
}

impl Views {
    /// Starts to measure this number of workers.
    #[must_use]
    pub fn begin(
        workers: usize,
        orders: watched::Receiver<Order>,
        live_within: Duration,
    ) -> Arc<Self> {
        #[cfg(feature = "metrics")]
        crate::recorder::install();
        Arc::new(Self::new(workers, orders, live_within))
    }

    pub(crate) fn new(
        workers: usize,
        orders: watched::Receiver<Order>,
        live_within: Duration,
    ) -> Self {
        let workers: Vec<_> = (0..workers).map(|_| View::new()).collect();
        let seen = Mutex::new(vec![None; workers.len()]);
        Self {
            workers,
            orders,
            live_within,
            config: OnceLock::new(),
            #[cfg(feature = "config")]
            reloads: OnceLock::new(),
            seen,
            log: OnceLock::new(),
            #[cfg(feature = "tls")]
            certificates: OnceLock::new(),
        }
    }

    /// Publishes the metrics of the access log.
    pub fn show_log(&self, figures: &Arc<log::Figures>) {
        // Cannot fail: a server starts only once.
        let _ = self.log.set(Arc::clone(figures));
    }

    pub(crate) fn log(&self) -> Option<&log::Figures> {
        self.log.get().map(|figures| &**figures)
    }

    /// Publishes the TLS settings of the listeners, without duplicates.
    #[cfg(feature = "tls")]
    pub fn show_certificates<'t>(&self, all: impl Iterator<Item = &'t peregrine_tls::Tls>) {
        let mut each: Vec<peregrine_tls::Tls> = Vec::new();
        for tls in all {
            if !each.iter().any(|known| known.is_same(tls)) {
                each.push(tls.clone());
            }
        }
        // Cannot fail: a server starts only once.
        let _ = self.certificates.set(each);
    }

    #[cfg(feature = "tls")]
    pub(crate) fn certificates(&self) -> &[peregrine_tls::Tls] {
        self.certificates.get().map_or(&[], Vec::as_slice)
    }

    /// Whether all workers serve.
    pub(crate) fn are_serving(&self) -> bool {
        self.workers.iter().all(|worker| worker.is_serving.load(Ordering::Acquire))
    }

    /// Whether all workers refuse requests because memory is short.
    pub(crate) fn are_short_of_memory(&self) -> bool {
        let mut workers = self.workers.iter();
        !self.workers.is_empty() && workers.all(|worker| worker.counts.is_short_of_memory())
    }

    /// The current order to the server.
    pub(crate) fn order(&self) -> Order {
        *self.orders.borrow()
    }

    /// Subscribes to the orders to the server.
    pub(crate) fn orders(&self) -> watched::Receiver<Order> {
        self.orders.clone()
    }

    /// Checks all pulses, and returns the handlers that have been in the same poll for too long.
    pub(crate) fn stuck(&self, now: Instant) -> Vec<Stuck> {
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stuck = Vec::new();
        for (number, (worker, seen)) in self.workers.iter().zip(&mut *all).enumerate() {
            let present = worker.pulse().and_then(|pulse| pulse.present());
            let Some((turn, route)) = present else {
                *seen = None;
                continue;
            };
            match seen {
                Some(seen) if seen.turn == turn => {
                    let time = now.saturating_duration_since(seen.since);
                    if time >= self.live_within {
                        let route = seen.route.clone();
                        stuck.push(Stuck { worker: number, route, time });
                    }
                }
                _ => *seen = Some(Seen { turn, route, since: now }),
            }
        }
        stuck
    }
}

thread_local! {
    /// The data of all workers of this thread's server.
    static CURRENT: RefCell<Option<Arc<Views>>> = const { RefCell::new(None) };
}

/// The data of all workers of this thread's server, or of no workers on other threads.
pub(crate) fn current() -> Arc<Views> {
    CURRENT.with_borrow(Clone::clone).unwrap_or_else(|| {
        let (_, orders) = watched::channel(Order::Serve);
        Arc::new(Views::new(0, orders, Duration::MAX))
    })
}

/// A worker's access to its published data.
pub struct Begun {
    /// The data of all workers.
    pub views: Arc<Views>,
    /// The worker's number.
    pub number: usize,
}

impl Begun {
    /// The data of this worker.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.views.workers[self.number]
    }

    /// Runs on the worker's thread before the application is built.
    pub fn before(&self) {
        CURRENT.set(Some(Arc::clone(&self.views)));
    }

    /// Runs on the worker's thread when the worker starts serving.
    pub fn serve(&self, application: &Application) {
        self.view().begin(application);
    }
}

/// Checks the pulses periodically, so that a probe finds out immediately how long a handler has
/// been running.
pub(crate) async fn watch(driver: impl Driver, views: Weak<Views>) {
    loop {
        let Some(now) = views.upgrade() else { return };
        let pause = (now.live_within / 4).clamp(PAUSE_MIN, PAUSE_MAX);
        now.stuck(Instant::now());
        drop(now);
        driver.sleep_until(driver.now().saturating_add(pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_workers_at_work_is_never_stuck() {
        let (_, orders) = watched::channel(Order::Serve);
        let views = Views::new(2, orders, Duration::ZERO);
        let pulse = Arc::new(Pulse::default());
        views.workers[0].show_pulse(&pulse);
        let now = Instant::now();
        for later in [0, 1, 3600] {
            assert_eq!(views.stuck(now + Duration::from_secs(later)), []);
        }
        drop(pulse);
        assert_eq!(views.stuck(now), []);
        assert!(!views.are_serving() && views.order() == Order::Serve);
    }
}
