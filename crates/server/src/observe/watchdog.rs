//! Detects handlers that block their thread, at almost no cost to other handlers.
//!
//! A worker records in its [`Pulse`] which route's handler it polls. Each poll costs three stores
//! and a load (plain ones on x86), plus a load after the poll. The worker does not read a clock. A
//! separate thread checks the pulses of all workers from time to time ([`Watch`]). If a pulse shows
//! the same poll for too long, the handler blocks, and the thread logs a warning with its route
//! while it still blocks. If nothing has happened between checks, the thread sleeps until the next
//! poll wakes it.
//!
//! For a handler inside a mounted service, the warning can only name the mount. After such a poll,
//! the worker sees that a warning was logged for it, and logs the request.

use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// No handler is being polled.
const IDLE: usize = 0;
/// Code without a route is being polled.
const NO_ROUTE: usize = 1;
/// How many checks in a row must find nothing new before the watching thread may sleep.
///
/// One check is not enough. To be woken by the next poll, the watching thread sets `is_unwatched`.
/// Just before that, a worker may have read the flag as false, although its poll is not visible to
/// the watching thread yet. The second check sees that poll, because stores become visible to other
/// cores in much less time than the pause between two checks.
const QUIET_LOOKS: u32 = 2;
/// The time between two warnings for one route.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// Shows other threads which handler a worker is polling.
///
/// If a thread reads the route of a poll, it also reads the number (`turn`) of that poll or of a
/// later one. Otherwise it could attribute the route of a new poll to the poll that the last check
/// saw. No other order is needed: if a check misses a store, the next check sees it.
#[derive(Debug, Default)]
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs, and so that the fields used by every poll share a line.
#[repr(C, align(128))]
pub struct Pulse {
    /// The number of polls so far.
    turn: AtomicUsize,
    /// The address of the route's pattern. The watching thread finds the route's name by it.
    route: AtomicUsize,
    /// The number of the last poll for which a warning was logged.
    told: AtomicUsize,
    /// Whether the next poll must wake the watching thread.
    is_unwatched: AtomicBool,
    watcher: OnceLock<Thread>,
    blocked: AtomicUsize,
    names: OnceLock<HashMap<usize, String>>,
}

impl Pulse {
    /// Sets the names of the application's routes for the watching thread.
    pub(crate) fn name_routes(&self, application: &Application) {
        let name = |pattern: &str| (address(Some(pattern)), readable(pattern).into_owned());
        let names = application.routes().map(|route| name(route.pattern)).collect();
        // A pulse belongs to one worker, which sets the names once.
        let _ = self.names.set(names);
    }

    /// Records that a handler, or a stream that it returned, is being polled, until the result is
    /// dropped.
    #[inline]
    pub(crate) fn beat(&self, pattern: Option<&str>) -> Beat<'_> {
        // Only this thread writes `turn`, so no atomic addition is needed.
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(turn, Ordering::Relaxed);
        self.route.store(address(pattern), Ordering::Release);
        // The order of the accesses matters, see `QUIET_LOOKS`.
        compiler_fence(Ordering::SeqCst);
        if self.is_unwatched.load(Ordering::Relaxed) {
            self.wake();
        }
        Beat(self)
    }

    #[cold]
    fn wake(&self) {
        self.is_unwatched.store(false, Ordering::Relaxed);
        self.watcher.get().into_iter().for_each(Thread::unpark);
    }

    /// If a handler is being polled: the number of this poll, and the route's pattern.
    #[must_use]
    pub fn present(&self) -> Option<(usize, String)> {
        let route = self.route.load(Ordering::Acquire);
        (route != IDLE).then(|| (self.turn.load(Ordering::Relaxed), self.name(route)))
    }

    fn name(&self, route: usize) -> String {
        let name = self.names.get().and_then(|names| names.get(&route));
        name.map_or_else(|| "(no route)".to_owned(), Clone::clone)
    }

    /// How often a handler blocked its thread.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed) as u64
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // Wake the watching thread, which ends when no worker is left.
        self.watcher.get().into_iter().for_each(Thread::unpark);
    }
}

/// The address of a pattern. It identifies the pattern while the application exists.
fn address(pattern: Option<&str>) -> usize {
    pattern.map_or(NO_ROUTE, |pattern| pattern.as_ptr().addr())
}

/// A poll of a handler that is in progress.
pub(crate) struct Beat<'p>(&'p Pulse);

impl Beat<'_> {
    /// Returns whether a warning was logged for this poll.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        self.0.told.load(Ordering::Relaxed) == self.0.turn.load(Ordering::Relaxed)
    }
}

impl Drop for Beat<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.route.store(IDLE, Ordering::Relaxed);
    }
}

/// Checks the pulses of workers for handlers that block their thread.
#[derive(Debug)]
pub struct Watch {
    budget: Duration,
    workers: Vec<Watched>,
    /// How many consecutive checks found nothing new.
    quiet: u32,
    /// When the last warning for each route was logged.
    told: HashMap<String, Duration>,
}

/// The poll that the last check saw, and when it was first seen.
#[derive(Debug)]
struct Watched {
    pulse: Weak<Pulse>,
    turn: usize,
    since: Duration,
    is_told: bool,
}

/// A handler that currently blocks its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The worker's index among those that are watched.
    pub worker: usize,
    /// The route's pattern.
    pub route: String,
    /// How long it has blocked so far, at least.
    pub time: Duration,
}

impl Watch {
    /// Watches for polls that take longer than `budget`, on `thread`.
    #[must_use]
    pub fn new(pulses: Vec<Weak<Pulse>>, budget: Duration, thread: Thread) -> Self {
        for pulse in pulses.iter().filter_map(Weak::upgrade) {
            // One thread watches a worker for the worker's whole life, so this is set once.
            let _ = pulse.watcher.set(thread.clone());
        }
        let watched = |pulse| Watched { pulse, turn: 0, since: Duration::ZERO, is_told: false };
        let workers = pulses.into_iter().map(watched).collect();
        Self { budget, workers, quiet: 0, told: HashMap::new() }
    }

    /// How long to park the thread before the next check. `None` while workers poll no handlers:
    /// the next poll, or the end of a worker, unparks the thread. If the thread runs in time, it
    /// detects every poll that takes 1.5 times the budget or longer, and never reports a poll that
    /// takes less than the budget.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        (self.quiet < QUIET_LOOKS).then_some(self.budget / 2)
    }

    /// Returns the handlers that have blocked their thread for longer than the budget and have not
    /// been reported yet. Each route is reported at most once a minute. Returns `None` when all
    /// workers have ended.
    ///
    /// `now` is the time since the watching began.
    pub fn look(&mut self, now: Duration) -> Option<Vec<Blocked>> {
        let mut blocked = Vec::new();
        let (mut is_over, mut is_quiet) = (true, true);
        for (worker, watched) in self.workers.iter_mut().enumerate() {
            let Some(pulse) = watched.pulse.upgrade() else { continue };
            is_over = false;
            let route = pulse.route.load(Ordering::Acquire);
            let turn = pulse.turn.load(Ordering::Relaxed);
            is_quiet &= route == IDLE && turn == watched.turn;
            if route == IDLE || turn != watched.turn {
                *watched =
                    Watched { turn, since: now, is_told: false, pulse: watched.pulse.clone() };
                continue;
            }
            let time = now.saturating_sub(watched.since);
            if time < self.budget || watched.is_told {
                continue;
            }
            watched.is_told = true;
            pulse.blocked.fetch_add(1, Ordering::Relaxed);
            let route = pulse.name(route);
            let is_new = self.told.get(&route).is_none_or(|told| now >= *told + TOLD_FOR);
            if is_new {
                pulse.told.store(turn, Ordering::Relaxed);
                self.told.insert(route.clone(), now);
                blocked.push(Blocked { worker, route, time });
            }
        }
        self.rest(is_quiet);
        (!is_over).then_some(blocked)
    }

    /// If there is nothing to check, sets the flag that makes the next poll wake this thread.
    /// Otherwise, clears it.
    fn rest(&mut self, is_quiet: bool) {
        let was_quiet = self.quiet > 0;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        if is_quiet != was_quiet {
            for pulse in self.workers.iter().filter_map(|watched| watched.pulse.upgrade()) {
                pulse.is_unwatched.store(is_quiet, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const BUDGET: Duration = Duration::from_millis(100);

    fn watch() -> (Arc<Pulse>, Watch) {
        let pulse = Arc::new(Pulse::default());
        let watch = Watch::new(vec![Arc::downgrade(&pulse)], BUDGET, std::thread::current());
        (pulse, watch)
    }

    fn look(watch: &mut Watch, milliseconds: u64) -> Vec<(String, u64)> {
        let blocked = watch.look(Duration::from_millis(milliseconds)).expect("a worker is alive");
        let told = |blocked: Blocked| (blocked.route, blocked.time.as_millis() as u64);
        blocked.into_iter().map(told).collect()
    }

    #[test]
    fn a_poll_that_lasts_is_told_once_with_its_route() {
        let (pulse, mut watch) = watch();
        let pattern = "/slow/{id}".to_owned();
        let names = HashMap::from([(address(Some(&pattern)), pattern.clone())]);
        pulse.names.set(names).unwrap();
        let beat = pulse.beat(Some(&pattern));
        assert_eq!(look(&mut watch, 1000), []);
        assert_eq!(look(&mut watch, 1050), []);
        assert_eq!(look(&mut watch, 1100), [(pattern, 100)]);
        assert_eq!(look(&mut watch, 1150), []);
        assert_eq!(pulse.blocked(), 1);
        assert!(beat.is_told());
        drop(beat);
        assert_eq!(look(&mut watch, 1200), []);
        assert!(!pulse.beat(Some("/slow/{id}")).is_told(), "another poll was reported");
    }

    #[test]
    fn what_is_below_a_mount_is_named_by_its_prefix() {
        let app = peregrine_web::App::new().subtree("/api", || "mounted").build().unwrap();
        let pulse = Pulse::default();
        pulse.name_routes(&app);
        let mut names: Vec<_> = pulse.names.get().unwrap().values().cloned().collect();
        names.sort_unstable();
        assert_eq!(names.last().map(String::as_str), Some("/api/*"), "{names:?}");
    }

    #[test]
    fn many_short_polls_of_one_route_are_no_long_one() {
        let (pulse, mut watch) = watch();
        for time in (0..5000).step_by(50) {
            let _beat = pulse.beat(Some("/busy"));
            assert_eq!(look(&mut watch, time), []);
        }
        assert_eq!(pulse.blocked(), 0);
    }

    #[test]
    fn a_handler_that_waits_has_not_got_the_thread() {
        let (pulse, mut watch) = watch();
        drop(pulse.beat(Some("/waits")));
        for time in (0..5000).step_by(50) {
            assert_eq!(look(&mut watch, time), []);
        }
    }

    #[test]
    fn a_route_that_blocks_again_and_again_is_told_of_once_a_minute_and_counted_each_time() {
        let (pulse, mut watch) = watch();
        let mut told = 0;
        for round in 0..60 {
            let _beat = pulse.beat(None);
            for step in 0..40 {
                told += look(&mut watch, round * 2000 + step * 50).len();
            }
        }
        assert_eq!((told, pulse.blocked()), (2, 60));
    }

    #[test]
    fn whoever_looks_may_sleep_while_nothing_is_polled_and_is_woken_by_the_next_poll() {
        let (pulse, mut watch) = watch();
        drop(pulse.beat(Some("/once")));
        for (time, pause) in [(0, Some(BUDGET / 2)), (50, Some(BUDGET / 2)), (100, None)] {
            assert_eq!((look(&mut watch, time), watch.pause()), (vec![], pause), "{time} ms");
        }
        let beat = std::thread::scope(|scope| {
            let worker = scope.spawn(|| pulse.beat(Some("/again")));
            // Without a wake-up by the poll, this would wait forever.
            std::thread::park();
            worker.join().expect("the worker does not panic")
        });
        assert_eq!((look(&mut watch, 99_000), watch.pause()), (vec![], Some(BUDGET / 2)));
        assert_eq!(look(&mut watch, 99_100), [("(no route)".to_owned(), 100)]);
        assert!(watch.pause().is_some(), "a running poll is watched");
        drop(beat);
    }

    #[test]
    fn a_poll_that_comes_before_whoever_looks_has_fallen_asleep_is_seen() {
        let (pulse, mut watch) = watch();
        for time in [0, 50] {
            assert_eq!(look(&mut watch, time), []);
        }
        assert_eq!(watch.pause(), None);
        let beat = pulse.beat(None);
        // The thread was unparked, so parking returns at once.
        std::thread::park();
        assert_eq!((look(&mut watch, 60), watch.pause()), (vec![], Some(BUDGET / 2)));
        drop(beat);
        assert_eq!((look(&mut watch, 100), watch.pause()), (vec![], Some(BUDGET / 2)));
    }

    #[test]
    fn the_end_of_the_last_worker_wakes_whoever_looks() {
        let (pulse, mut watch) = watch();
        while watch.pause().is_some() {
            look(&mut watch, 0);
        }
        drop(pulse);
        std::thread::park();
        assert_eq!(watch.look(BUDGET), None);
    }

    #[test]
    fn watching_ends_with_the_workers() {
        let (pulse, mut watch) = watch();
        drop(pulse);
        assert_eq!(watch.look(BUDGET), None);
    }
}
