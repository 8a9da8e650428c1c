//! Detects handlers that block their thread, at almost no cost to other handlers.
//!
//! A worker records in its [`Heartbeat`] which route's handler it polls. Each poll costs only a few
//! loads and stores. The worker does not read a clock. A separate watchdog thread checks the
//! heartbeats of all workers from time to time ([`PollWatchdog`]). If a heartbeat shows the same
//! poll for too long, the handler is blocking, and the thread logs a warning with the route while
//! the handler still blocks. If no handler was polled between checks, the thread sleeps until the
//! next poll wakes it.
//!
//! For a handler inside a mounted service, the warning can only name the mount. After such a poll,
//! the worker sees that a warning was logged for it, and logs the request.

use peregrine_web::built::BuiltApp;
use peregrine_web::route::display_pattern;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// No handler is being polled.
const NO_POLL: usize = 0;
/// Code without a route is being polled.
const NO_ROUTE: usize = 1;
/// How many checks in a row must find nothing new before the watchdog thread sleeps.
///
/// One check is not enough. To be woken by the next poll, the watchdog thread sets
/// `should_wake_watchdog`. Just before that, a worker may have read the flag as false in a poll
/// that is not visible to the watchdog thread yet. The second check sees that poll, because stores
/// become visible to other cores in much less time than passes between two checks.
const IDLE_CHECKS: u32 = 2;
/// The minimum time between two warnings for one route.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Shows other threads which handler a worker is polling.
///
/// If a thread reads the route of a poll, it also reads the number (`poll_count`) of that poll or
/// of a later one. Otherwise it could attribute the route of a new poll to the poll that the last
/// check saw. No other order is needed: if a check misses a store, the next check sees it.
#[derive(Debug, Default)]
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs, and so that the fields used by every poll share a line.
#[repr(C, align(128))]
pub struct Heartbeat {
    /// The number of polls so far.
    poll_count: AtomicUsize,
    /// The address of the route's pattern, by which the watchdog thread looks up the route's name.
    route: AtomicUsize,
    /// The number of the last poll for which a warning was logged.
    reported_poll: AtomicUsize,
    /// Whether the next poll must wake the watchdog thread.
    should_wake_watchdog: AtomicBool,
    /// The watchdog thread.
    watchdog: OnceLock<Thread>,
    blocking_polls: AtomicUsize,
    /// The names of the routes, by the address of their pattern.
    routes: OnceLock<HashMap<usize, String>>,
}

impl Heartbeat {
    /// Sets the names of the application's routes for the watchdog thread.
    pub(crate) fn register_routes(&self, application: &BuiltApp) {
        let name = |pattern: &str| (address(Some(pattern)), display_pattern(pattern).into_owned());
        let names = application.routes().map(|route| name(route.pattern)).collect();
        // A heartbeat belongs to one worker, which sets the names once.
        let _ = self.routes.set(names);
    }

    /// Records that a handler, or a stream that it returned, is being polled until the returned
    /// guard is dropped.
    #[inline]
    pub(crate) fn start_poll(&self, pattern: Option<&str>) -> PollGuard<'_> {
        // Only this thread writes `poll_count`, so no atomic addition is needed.
        let poll_number = self.poll_count.load(Ordering::Relaxed).wrapping_add(1);
        self.poll_count.store(poll_number, Ordering::Relaxed);
        self.route.store(address(pattern), Ordering::Release);
        // The flag must be read after the poll is stored, see `IDLE_CHECKS`.
        compiler_fence(Ordering::SeqCst);
        if self.should_wake_watchdog.load(Ordering::Relaxed) {
            self.wake_watchdog();
        }
        PollGuard(self)
    }

    #[cold]
    fn wake_watchdog(&self) {
        self.should_wake_watchdog.store(false, Ordering::Relaxed);
        if let Some(thread) = self.watchdog.get() {
            thread.unpark();
        }
    }

    /// The number of the current poll and the name of its route, if a handler is being polled.
    #[must_use]
    pub fn current_poll(&self) -> Option<(usize, String)> {
        let route = self.route.load(Ordering::Acquire);
        (route != NO_POLL)
            .then(|| (self.poll_count.load(Ordering::Relaxed), self.route_name(route)))
    }

    fn route_name(&self, route: usize) -> String {
        let name = self.routes.get().and_then(|names| names.get(&route));
        name.map_or_else(|| "(no route)".to_owned(), Clone::clone)
    }

    /// How often a handler has blocked its thread.
    #[must_use]
    pub fn blocking_polls(&self) -> u64 {
        self.blocking_polls.load(Ordering::Relaxed) as u64
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // Wake the watchdog thread, which ends after the last worker has ended.
        if let Some(thread) = self.watchdog.get() {
            thread.unpark();
        }
    }
}

/// The address of a pattern. It identifies the pattern while the application exists.
fn address(pattern: Option<&str>) -> usize {
    pattern.map_or(NO_ROUTE, |pattern| pattern.as_ptr().addr())
}

/// A poll of a handler that is in progress.
pub(crate) struct PollGuard<'p>(&'p Heartbeat);

impl PollGuard<'_> {
    /// Returns whether the watchdog has warned that this poll blocks the thread.
    #[inline]
    pub(crate) fn has_warning(&self) -> bool {
        self.0.reported_poll.load(Ordering::Relaxed) == self.0.poll_count.load(Ordering::Relaxed)
    }
}

impl Drop for PollGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.route.store(NO_POLL, Ordering::Relaxed);
    }
}

/// Checks the heartbeats of workers for handlers that block their thread.
#[derive(Debug)]
pub struct PollWatchdog {
    threshold: Duration,
    workers: Vec<WatchedWorker>,
    /// How many consecutive checks found nothing new.
    idle_checks: u32,
    /// When the last warning for each route was logged.
    last_warnings: HashMap<String, Duration>,
}

/// A watched worker, with the poll that the last check saw and the time when that poll was first
/// seen.
#[derive(Debug)]
struct WatchedWorker {
    heartbeat: Weak<Heartbeat>,
    last_poll: usize,
    since: Duration,
    /// Whether `last_poll` has been counted as blocking.
    is_counted: bool,
}

/// A handler that currently blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingHandler {
    /// The worker's index among those that are watched.
    pub worker: usize,
    /// The route's name: its pattern, or `(no route)`.
    pub route: String,
    /// A lower bound of how long it has blocked so far.
    pub time: Duration,
}

impl PollWatchdog {
    /// Creates a watchdog for polls that take longer than `threshold`. `thread` is the thread that
    /// will call [`check`](Self::check).
    #[must_use]
    pub fn new(heartbeats: Vec<Weak<Heartbeat>>, threshold: Duration, thread: Thread) -> Self {
        for heartbeat in heartbeats.iter().filter_map(Weak::upgrade) {
            // One thread watches a worker for the worker's whole life, so this is set once.
            let _ = heartbeat.watchdog.set(thread.clone());
        }
        let new_worker = |heartbeat| WatchedWorker {
            heartbeat,
            last_poll: 0,
            since: Duration::ZERO,
            is_counted: false,
        };
        let workers = heartbeats.into_iter().map(new_worker).collect();
        Self { threshold, workers, idle_checks: 0, last_warnings: HashMap::new() }
    }

    /// How long to park the thread before the next check. `None` while workers poll no handlers:
    /// the next poll, or the end of a worker, unparks the thread. If the thread is scheduled in
    /// time, it detects every poll that takes 1.5 times the threshold or longer. It never reports a
    /// poll that takes less than the threshold.
    #[must_use]
    pub fn next_check_in(&self) -> Option<Duration> {
        (self.idle_checks < IDLE_CHECKS).then_some(self.threshold / 2)
    }

    /// Returns the handlers that have blocked their thread for at least the threshold and have not
    /// been reported yet. Each route is reported at most once a minute. Returns `None` when all
    /// workers have ended.
    ///
    /// `now` is the current time on any monotonic clock, the same for all calls.
    pub fn check(&mut self, now: Duration) -> Option<Vec<BlockingHandler>> {
        let mut blocked = Vec::new();
        let (mut all_ended, mut is_idle) = (true, true);
        for (worker, watched) in self.workers.iter_mut().enumerate() {
            let Some(heartbeat) = watched.heartbeat.upgrade() else { continue };
            all_ended = false;
            let route = heartbeat.route.load(Ordering::Acquire);
            let poll_number = heartbeat.poll_count.load(Ordering::Relaxed);
            is_idle &= route == NO_POLL && poll_number == watched.last_poll;
            if route == NO_POLL || poll_number != watched.last_poll {
                *watched = WatchedWorker {
                    last_poll: poll_number,
                    since: now,
                    is_counted: false,
                    heartbeat: watched.heartbeat.clone(),
                };
                continue;
            }
            let time = now.saturating_sub(watched.since);
            if time < self.threshold || watched.is_counted {
                continue;
            }
            watched.is_counted = true;
            heartbeat.blocking_polls.fetch_add(1, Ordering::Relaxed);
            let route = heartbeat.route_name(route);
            let may_warn = self
                .last_warnings
                .get(&route)
                .is_none_or(|last_warning| now >= *last_warning + WARNING_INTERVAL);
            if may_warn {
                heartbeat.reported_poll.store(poll_number, Ordering::Relaxed);
                self.last_warnings.insert(route.clone(), now);
                blocked.push(BlockingHandler { worker, route, time });
            }
        }
        self.update_idle(is_idle);
        (!all_ended).then_some(blocked)
    }

    /// `is_idle`: this check found nothing new. If so, sets the flag that makes the next poll
    /// wake this thread; otherwise, clears it.
    fn update_idle(&mut self, is_idle: bool) {
        let was_idle = self.idle_checks > 0;
        self.idle_checks = if is_idle { self.idle_checks.saturating_add(1) } else { 0 };
        if is_idle != was_idle {
            for heartbeat in self.workers.iter().filter_map(|watched| watched.heartbeat.upgrade()) {
                heartbeat.should_wake_watchdog.store(is_idle, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const THRESHOLD: Duration = Duration::from_millis(100);

    fn watchdog() -> (Arc<Heartbeat>, PollWatchdog) {
        let heartbeat = Arc::new(Heartbeat::default());
        let watchdog =
            PollWatchdog::new(vec![Arc::downgrade(&heartbeat)], THRESHOLD, std::thread::current());
        (heartbeat, watchdog)
    }

    fn check(watchdog: &mut PollWatchdog, milliseconds: u64) -> Vec<(String, u64)> {
        let blocked =
            watchdog.check(Duration::from_millis(milliseconds)).expect("a worker is alive");
        let route_and_time =
            |blocked: BlockingHandler| (blocked.route, blocked.time.as_millis() as u64);
        blocked.into_iter().map(route_and_time).collect()
    }

    #[test]
    fn long_poll_is_reported_once_with_its_route() {
        let (heartbeat, mut watchdog) = watchdog();
        let pattern = "/slow/{id}".to_owned();
        let names = HashMap::from([(address(Some(&pattern)), pattern.clone())]);
        heartbeat.routes.set(names).unwrap();
        let poll_guard = heartbeat.start_poll(Some(&pattern));
        assert_eq!(check(&mut watchdog, 1000), []);
        assert_eq!(check(&mut watchdog, 1050), []);
        assert_eq!(check(&mut watchdog, 1100), [(pattern, 100)]);
        assert_eq!(check(&mut watchdog, 1150), []);
        assert_eq!(heartbeat.blocking_polls(), 1);
        assert!(poll_guard.has_warning());
        drop(poll_guard);
        assert_eq!(check(&mut watchdog, 1200), []);
        assert!(
            !heartbeat.start_poll(Some("/slow/{id}")).has_warning(),
            "another poll was reported"
        );
    }

    #[test]
    fn mounted_service_is_named_by_its_prefix() {
        let app = peregrine_web::App::new().subtree("/api", || "mounted").build().unwrap();
        let heartbeat = Heartbeat::default();
        heartbeat.register_routes(&app);
        let mut names: Vec<_> = heartbeat.routes.get().unwrap().values().cloned().collect();
        names.sort_unstable();
        assert_eq!(names.last().map(String::as_str), Some("/api/*"), "{names:?}");
    }

    #[test]
    fn many_short_polls_are_not_one_long_poll() {
        let (heartbeat, mut watchdog) = watchdog();
        for time in (0..5000).step_by(50) {
            let _poll_guard = heartbeat.start_poll(Some("/busy"));
            assert_eq!(check(&mut watchdog, time), []);
        }
        assert_eq!(heartbeat.blocking_polls(), 0);
    }

    #[test]
    fn waiting_handler_is_not_reported() {
        let (heartbeat, mut watchdog) = watchdog();
        drop(heartbeat.start_poll(Some("/waits")));
        for time in (0..5000).step_by(50) {
            assert_eq!(check(&mut watchdog, time), []);
        }
    }

    #[test]
    fn blocking_route_is_reported_once_a_minute_and_counted_every_time() {
        let (heartbeat, mut watchdog) = watchdog();
        let mut warnings = 0;
        for round in 0..60 {
            let _poll_guard = heartbeat.start_poll(None);
            for step in 0..40 {
                warnings += check(&mut watchdog, round * 2000 + step * 50).len();
            }
        }
        assert_eq!((warnings, heartbeat.blocking_polls()), (2, 60));
    }

    #[test]
    fn watchdog_sleeps_while_nothing_is_polled_and_the_next_poll_wakes_it() {
        let (heartbeat, mut watchdog) = watchdog();
        drop(heartbeat.start_poll(Some("/once")));
        for (time, pause) in [(0, Some(THRESHOLD / 2)), (50, Some(THRESHOLD / 2)), (100, None)] {
            assert_eq!(
                (check(&mut watchdog, time), watchdog.next_check_in()),
                (vec![], pause),
                "{time} ms"
            );
        }
        let poll_guard = std::thread::scope(|scope| {
            let worker = scope.spawn(|| heartbeat.start_poll(Some("/again")));
            // Without a wake-up by the poll, this would wait forever.
            std::thread::park();
            worker.join().expect("the worker does not panic")
        });
        assert_eq!(
            (check(&mut watchdog, 99_000), watchdog.next_check_in()),
            (vec![], Some(THRESHOLD / 2))
        );
        assert_eq!(check(&mut watchdog, 99_100), [("(no route)".to_owned(), 100)]);
        assert!(watchdog.next_check_in().is_some(), "a running poll is watched");
        drop(poll_guard);
    }

    #[test]
    fn poll_that_starts_before_the_watchdog_sleeps_is_seen() {
        let (heartbeat, mut watchdog) = watchdog();
        for time in [0, 50] {
            assert_eq!(check(&mut watchdog, time), []);
        }
        assert_eq!(watchdog.next_check_in(), None);
        let poll_guard = heartbeat.start_poll(None);
        // The thread was unparked, so parking returns immediately.
        std::thread::park();
        assert_eq!(
            (check(&mut watchdog, 60), watchdog.next_check_in()),
            (vec![], Some(THRESHOLD / 2))
        );
        drop(poll_guard);
        assert_eq!(
            (check(&mut watchdog, 100), watchdog.next_check_in()),
            (vec![], Some(THRESHOLD / 2))
        );
    }

    #[test]
    fn end_of_the_last_worker_wakes_the_watchdog() {
        let (heartbeat, mut watchdog) = watchdog();
        while watchdog.next_check_in().is_some() {
            check(&mut watchdog, 0);
        }
        drop(heartbeat);
        std::thread::park();
        assert_eq!(watchdog.check(THRESHOLD), None);
    }

    #[test]
    fn check_returns_none_after_all_workers_have_ended() {
        let (heartbeat, mut watchdog) = watchdog();
        drop(heartbeat);
        assert_eq!(watchdog.check(THRESHOLD), None);
    }
}
