//! Detects handlers that block their thread, at almost no cost to other handlers.
//!
//! A worker records in its [`Heartbeat`] which route's handler it polls. Each poll costs three
//! stores and a load (plain ones on x86), plus a load after the poll. The worker does not read a
//! clock. A separate thread checks the heartbeats of all workers from time to time
//! ([`PollWatchdog`]). If a heartbeat shows the same poll for too long, the handler blocks, and the
//! thread logs a warning with its route while it still blocks. If nothing has happened between
//! checks, the thread sleeps until the next poll wakes it.
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
/// How many checks in a row must find nothing new before the watching thread may sleep.
///
/// One check is not enough. To be woken by the next poll, the watching thread sets
/// `should_wake_watchdog`. Just before that, a worker may have read the flag as false, although its
/// poll is not visible to the watching thread yet. The second check sees that poll, because stores
/// become visible to other cores in much less time than the pause between two checks.
const IDLE_CHECKS: u32 = 2;
/// The time between two warnings for one route.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Shows other threads which handler a worker is polling.
///
/// If a thread reads the route of a poll, it also reads the number (`turn`) of that poll or of a
/// later one. Otherwise it could attribute the route of a new poll to the poll that the last check
/// saw. No other order is needed: if a check misses a store, the next check sees it.
#[derive(Debug, Default)]
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs, and so that the fields used by every poll share a line.
#[repr(C, align(128))]
pub struct Heartbeat {
    /// The number of polls so far.
    poll_count: AtomicUsize,
    /// The address of the route's pattern. The watching thread finds the route's name by it.
    route: AtomicUsize,
    /// The number of the last poll for which a warning was logged.
    reported_poll: AtomicUsize,
    /// Whether the next poll must wake the watching thread.
    should_wake_watchdog: AtomicBool,
    watchdog: OnceLock<Thread>,
    blocking_polls: AtomicUsize,
    routes: OnceLock<HashMap<usize, String>>,
}

impl Heartbeat {
    /// Sets the names of the application's routes for the watching thread.
    pub(crate) fn register_routes(&self, application: &BuiltApp) {
        let name = |pattern: &str| (address(Some(pattern)), display_pattern(pattern).into_owned());
        let names = application.routes().map(|route| name(route.pattern)).collect();
        // A heartbeat belongs to one worker, which sets the names once.
        let _ = self.routes.set(names);
    }

    /// Records that a handler, or a stream that it returned, is being polled, until the result is
    /// dropped.
    #[inline]
    pub(crate) fn start_poll(&self, pattern: Option<&str>) -> PollGuard<'_> {
        // Only this thread writes `turn`, so no atomic addition is needed.
        let turn = self.poll_count.load(Ordering::Relaxed).wrapping_add(1);
        self.poll_count.store(turn, Ordering::Relaxed);
        self.route.store(address(pattern), Ordering::Release);
        // The order of the accesses matters, see `IDLE_CHECKS`.
        compiler_fence(Ordering::SeqCst);
        if self.should_wake_watchdog.load(Ordering::Relaxed) {
            self.wake_watchdog();
        }
        PollGuard(self)
    }

    #[cold]
    fn wake_watchdog(&self) {
        self.should_wake_watchdog.store(false, Ordering::Relaxed);
        self.watchdog.get().into_iter().for_each(Thread::unpark);
    }

    /// If a handler is being polled: the number of this poll, and the route's pattern.
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

    /// How often a handler blocked its thread.
    #[must_use]
    pub fn blocking_polls(&self) -> u64 {
        self.blocking_polls.load(Ordering::Relaxed) as u64
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // Wake the watching thread, which ends when no worker is left.
        self.watchdog.get().into_iter().for_each(Thread::unpark);
    }
}

/// The address of a pattern. It identifies the pattern while the application exists.
fn address(pattern: Option<&str>) -> usize {
    pattern.map_or(NO_ROUTE, |pattern| pattern.as_ptr().addr())
}

/// A poll of a handler that is in progress.
pub(crate) struct PollGuard<'p>(&'p Heartbeat);

impl PollGuard<'_> {
    /// Returns whether a warning was logged for this poll.
    #[inline]
    pub(crate) fn is_reported(&self) -> bool {
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

/// The poll that the last check saw, and when it was first seen.
#[derive(Debug)]
struct WatchedWorker {
    heartbeat: Weak<Heartbeat>,
    last_poll: usize,
    since: Duration,
    is_reported: bool,
}

/// A handler that currently blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockingHandler {
    /// The worker's index among those that are watched.
    pub worker: usize,
    /// The route's pattern.
    pub route: String,
    /// How long it has blocked so far, at least.
    pub time: Duration,
}

impl PollWatchdog {
    /// Watches for polls that take longer than `budget`, on `thread`.
    #[must_use]
    pub fn new(pulses: Vec<Weak<Heartbeat>>, budget: Duration, thread: Thread) -> Self {
        for pulse in pulses.iter().filter_map(Weak::upgrade) {
            // One thread watches a worker for the worker's whole life, so this is set once.
            let _ = pulse.watchdog.set(thread.clone());
        }
        let watched = |pulse| WatchedWorker {
            heartbeat: pulse,
            last_poll: 0,
            since: Duration::ZERO,
            is_reported: false,
        };
        let workers = pulses.into_iter().map(watched).collect();
        Self { threshold: budget, workers, idle_checks: 0, last_warnings: HashMap::new() }
    }

    /// How long to park the thread before the next check. `None` while workers poll no handlers:
    /// the next poll, or the end of a worker, unparks the thread. If the thread runs in time, it
    /// detects every poll that takes 1.5 times the budget or longer, and never reports a poll that
    /// takes less than the budget.
    #[must_use]
    pub fn next_check_in(&self) -> Option<Duration> {
        (self.idle_checks < IDLE_CHECKS).then_some(self.threshold / 2)
    }

    /// Returns the handlers that have blocked their thread for longer than the budget and have not
    /// been reported yet. Each route is reported at most once a minute. Returns `None` when all
    /// workers have ended.
    ///
    /// `now` is the time since the watching began.
    pub fn check(&mut self, now: Duration) -> Option<Vec<BlockingHandler>> {
        let mut blocked = Vec::new();
        let (mut is_over, mut is_quiet) = (true, true);
        for (worker, watched) in self.workers.iter_mut().enumerate() {
            let Some(pulse) = watched.heartbeat.upgrade() else { continue };
            is_over = false;
            let route = pulse.route.load(Ordering::Acquire);
            let turn = pulse.poll_count.load(Ordering::Relaxed);
            is_quiet &= route == NO_POLL && turn == watched.last_poll;
            if route == NO_POLL || turn != watched.last_poll {
                *watched = WatchedWorker {
                    last_poll: turn,
                    since: now,
                    is_reported: false,
                    heartbeat: watched.heartbeat.clone(),
                };
                continue;
            }
            let time = now.saturating_sub(watched.since);
            if time < self.threshold || watched.is_reported {
                continue;
            }
            watched.is_reported = true;
            pulse.blocking_polls.fetch_add(1, Ordering::Relaxed);
            let route = pulse.route_name(route);
            let is_new =
                self.last_warnings.get(&route).is_none_or(|told| now >= *told + WARNING_INTERVAL);
            if is_new {
                pulse.reported_poll.store(turn, Ordering::Relaxed);
                self.last_warnings.insert(route.clone(), now);
                blocked.push(BlockingHandler { worker, route, time });
            }
        }
        self.update_idle(is_quiet);
        (!is_over).then_some(blocked)
    }

    /// If there is nothing to check, sets the flag that makes the next poll wake this thread.
    /// Otherwise, clears it.
    fn update_idle(&mut self, is_quiet: bool) {
        let was_quiet = self.idle_checks > 0;
        self.idle_checks = if is_quiet { self.idle_checks.saturating_add(1) } else { 0 };
        if is_quiet != was_quiet {
            for pulse in self.workers.iter().filter_map(|watched| watched.heartbeat.upgrade()) {
                pulse.should_wake_watchdog.store(is_quiet, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const BUDGET: Duration = Duration::from_millis(100);

    fn watch() -> (Arc<Heartbeat>, PollWatchdog) {
        let pulse = Arc::new(Heartbeat::default());
        let watch = PollWatchdog::new(vec![Arc::downgrade(&pulse)], BUDGET, std::thread::current());
        (pulse, watch)
    }

    fn look(watch: &mut PollWatchdog, milliseconds: u64) -> Vec<(String, u64)> {
        let blocked = watch.check(Duration::from_millis(milliseconds)).expect("a worker is alive");
        let told = |blocked: BlockingHandler| (blocked.route, blocked.time.as_millis() as u64);
        blocked.into_iter().map(told).collect()
    }

    #[test]
    fn a_poll_that_lasts_is_told_once_with_its_route() {
        let (pulse, mut watch) = watch();
        let pattern = "/slow/{id}".to_owned();
        let names = HashMap::from([(address(Some(&pattern)), pattern.clone())]);
        pulse.routes.set(names).unwrap();
        let beat = pulse.start_poll(Some(&pattern));
        assert_eq!(look(&mut watch, 1000), []);
        assert_eq!(look(&mut watch, 1050), []);
        assert_eq!(look(&mut watch, 1100), [(pattern, 100)]);
        assert_eq!(look(&mut watch, 1150), []);
        assert_eq!(pulse.blocking_polls(), 1);
        assert!(beat.is_reported());
        drop(beat);
        assert_eq!(look(&mut watch, 1200), []);
        assert!(!pulse.start_poll(Some("/slow/{id}")).is_reported(), "another poll was reported");
    }

    #[test]
    fn what_is_below_a_mount_is_named_by_its_prefix() {
        let app = peregrine_web::App::new().subtree("/api", || "mounted").build().unwrap();
        let pulse = Heartbeat::default();
        pulse.register_routes(&app);
        let mut names: Vec<_> = pulse.routes.get().unwrap().values().cloned().collect();
        names.sort_unstable();
        assert_eq!(names.last().map(String::as_str), Some("/api/*"), "{names:?}");
    }

    #[test]
    fn many_short_polls_of_one_route_are_no_long_one() {
        let (pulse, mut watch) = watch();
        for time in (0..5000).step_by(50) {
            let _beat = pulse.start_poll(Some("/busy"));
            assert_eq!(look(&mut watch, time), []);
        }
        assert_eq!(pulse.blocking_polls(), 0);
    }

    #[test]
    fn a_handler_that_waits_has_not_got_the_thread() {
        let (pulse, mut watch) = watch();
        drop(pulse.start_poll(Some("/waits")));
        for time in (0..5000).step_by(50) {
            assert_eq!(look(&mut watch, time), []);
        }
    }

    #[test]
    fn a_route_that_blocks_again_and_again_is_told_of_once_a_minute_and_counted_each_time() {
        let (pulse, mut watch) = watch();
        let mut told = 0;
        for round in 0..60 {
            let _beat = pulse.start_poll(None);
            for step in 0..40 {
                told += look(&mut watch, round * 2000 + step * 50).len();
            }
        }
        assert_eq!((told, pulse.blocking_polls()), (2, 60));
    }

    #[test]
    fn whoever_looks_may_sleep_while_nothing_is_polled_and_is_woken_by_the_next_poll() {
        let (pulse, mut watch) = watch();
        drop(pulse.start_poll(Some("/once")));
        for (time, pause) in [(0, Some(BUDGET / 2)), (50, Some(BUDGET / 2)), (100, None)] {
            assert_eq!(
                (look(&mut watch, time), watch.next_check_in()),
                (vec![], pause),
                "{time} ms"
            );
        }
        let beat = std::thread::scope(|scope| {
            let worker = scope.spawn(|| pulse.start_poll(Some("/again")));
            // Without a wake-up by the poll, this would wait forever.
            std::thread::park();
            worker.join().expect("the worker does not panic")
        });
        assert_eq!((look(&mut watch, 99_000), watch.next_check_in()), (vec![], Some(BUDGET / 2)));
        assert_eq!(look(&mut watch, 99_100), [("(no route)".to_owned(), 100)]);
        assert!(watch.next_check_in().is_some(), "a running poll is watched");
        drop(beat);
    }

    #[test]
    fn a_poll_that_comes_before_whoever_looks_has_fallen_asleep_is_seen() {
        let (pulse, mut watch) = watch();
        for time in [0, 50] {
            assert_eq!(look(&mut watch, time), []);
        }
        assert_eq!(watch.next_check_in(), None);
        let beat = pulse.start_poll(None);
        // The thread was unparked, so parking returns at once.
        std::thread::park();
        assert_eq!((look(&mut watch, 60), watch.next_check_in()), (vec![], Some(BUDGET / 2)));
        drop(beat);
        assert_eq!((look(&mut watch, 100), watch.next_check_in()), (vec![], Some(BUDGET / 2)));
    }

    #[test]
    fn the_end_of_the_last_worker_wakes_whoever_looks() {
        let (pulse, mut watch) = watch();
        while watch.next_check_in().is_some() {
            look(&mut watch, 0);
        }
        drop(pulse);
        std::thread::park();
        assert_eq!(watch.check(BUDGET), None);
    }

    #[test]
    fn watching_ends_with_the_workers() {
        let (pulse, mut watch) = watch();
        drop(pulse);
        assert_eq!(watch.check(BUDGET), None);
    }
}
