//! Finding handlers that block their thread, at next to no cost to those that do not.
//!
//! A worker notes in its [`Pulse`] which route's handler has the thread: three stores and a load for
//! each poll, plain ones on x86, a load after it, and no look at a clock. Another thread looks at the
//! pulses of all workers now and then ([`Watch`]); one that shows the same poll for too long is
//! blocked, and the route is known while the handler still blocks. When nothing has happened between
//! two looks that thread sleeps, and the next poll wakes it. The routes inside a mount are not known
//! then: after the poll, the worker sees that a warning named the mount, and names the request.

use peregrine_web::application::Application;
use peregrine_web::route::readable;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};
use std::sync::{OnceLock, Weak};
use std::thread::Thread;
use std::time::Duration;

/// No handler has the thread.
const IDLE: usize = 0;
/// Something that belongs to no route has the thread.
const NO_ROUTE: usize = 1;
/// Looks without anything new after which the thread that looks may sleep.
///
/// One look is too few. The thread that looks asks to be woken; just before, a worker may have seen that
/// nobody asks, and that worker's poll may not be visible yet. The second look sees a worker that goes
/// on: stores become visible to other cores in much less than the pause between two looks.
const QUIET_LOOKS: u32 = 2;
/// The time between two warnings for one route.
const TOLD_FOR: Duration = Duration::from_secs(60);

/// Which handler has a worker's thread, as other threads see it.
///
/// Who sees a poll's route sees its turn as well, or a later one: otherwise the route of a new poll
/// could be taken for one that the last look has seen already. Everything else is in no order, and a
/// look that comes too early for a store sees it at the next one.
#[derive(Debug, Default)]
// No two workers write to one line of the cache, or to one that is fetched with it; and what every
// poll uses is in one line.
#[repr(C, align(128))]
pub struct Pulse {
    /// Polls so far.
    turn: AtomicUsize,
    /// The address of the route's pattern, by which its name is found.
    route: AtomicUsize,
    /// The last poll that a warning was for. Its request is to be named when the poll is over.
    told: AtomicUsize,
    /// The next poll is to wake the thread that looks.
    is_unwatched: AtomicBool,
    watcher: OnceLock<Thread>,
    blocked: AtomicUsize,
    names: OnceLock<HashMap<usize, String>>,
}

impl Pulse {
    /// Makes the names of routes known to those who watch.
    pub(crate) fn name_routes(&self, application: &Application) {
        let name = |pattern: &str| (address(Some(pattern)), readable(pattern).into_owned());
        let names = application.routes().map(|route| name(route.pattern)).collect();
        // A pulse belongs to one worker, which does this once.
        let _ = self.names.set(names);
    }

    /// A handler, or a stream that it made, is polled from now on until the result is dropped.
    #[inline]
    pub(crate) fn beat(&self, pattern: Option<&str>) -> Beat<'_> {
        // Only this thread writes, so that no atomic addition is needed.
        let turn = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(turn, Ordering::Relaxed);
        self.route.store(address(pattern), Ordering::Release);
        // The order counts, see `QUIET_LOOKS`.
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

    /// The poll of a handler that has the thread at this moment, if any: its number, by which it is told
    /// from others, and the route's pattern.
    #[must_use]
    pub fn present(&self) -> Option<(usize, String)> {
        let route = self.route.load(Ordering::Acquire);
        (route != IDLE).then(|| (self.turn.load(Ordering::Relaxed), self.name(route)))
    }

    fn name(&self, route: usize) -> String {
        let name = self.names.get().and_then(|names| names.get(&route));
        name.map_or_else(|| "(no route)".to_owned(), Clone::clone)
    }

    /// Times that a handler was found to block its thread.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed) as u64
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        // With the last worker ends the looking.
        self.watcher.get().into_iter().for_each(Thread::unpark);
    }
}

/// The address of a pattern, which tells it from all others as long as the application lives.
fn address(pattern: Option<&str>) -> usize {
    pattern.map_or(NO_ROUTE, |pattern| pattern.as_ptr().addr())
}

/// A poll of a handler.
pub(crate) struct Beat<'p>(&'p Pulse);

impl Beat<'_> {
    /// Has a warning named its route?
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

/// Looks at workers' pulses for handlers that keep their thread.
#[derive(Debug)]
pub struct Watch {
    budget: Duration,
    workers: Vec<Watched>,
    /// Looks, one after the other, that found nothing new.
    quiet: u32,
    /// When the last warning for each route was given.
    told: HashMap<String, Duration>,
}

/// The poll that was seen last, and when first.
#[derive(Debug)]
struct Watched {
    pulse: Weak<Pulse>,
    turn: usize,
    since: Duration,
    is_told: bool,
}

/// A handler that blocks its thread at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    /// The worker's number among those that are watched.
    pub worker: usize,
    /// The route's pattern.
    pub route: String,
    /// How long, at least.
    pub time: Duration,
}

impl Watch {
    /// Watches for polls that take longer than `budget`, on `thread`.
    #[must_use]
    pub fn new(pulses: Vec<Weak<Pulse>>, budget: Duration, thread: Thread) -> Self {
        for pulse in pulses.iter().filter_map(Weak::upgrade) {
            // A worker is watched by one thread for as long as it lives.
            let _ = pulse.watcher.set(thread.clone());
        }
        let watched = |pulse| Watched { pulse, turn: 0, since: Duration::ZERO, is_told: false };
        let workers = pulses.into_iter().map(watched).collect();
        Self { budget, workers, quiet: 0, told: HashMap::new() }
    }

    /// How long the thread is to be parked before the next look; `None` while workers have no handler
    /// to poll, since the first poll, and the end of a worker, unparks it. What blocks for half as long
    /// again as the budget is found, and what blocks for less than the budget is not, where the thread
    /// runs in time.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        (self.quiet < QUIET_LOOKS).then_some(self.budget / 2)
    }

    /// Handlers that have kept their thread for longer than the budget and were not told of. A route
    /// is told of once a minute at the most. `None` when all workers have ended.
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

    /// Asks to be woken when there is nothing to look at, and no more when there is.
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
        assert!(!pulse.beat(Some("/slow/{id}")).is_told(), "that was another poll");
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
            // Without the poll this waits for ever.
            std::thread::park();
            worker.join().expect("it does not panic")
        });
        assert_eq!((look(&mut watch, 99_000), watch.pause()), (vec![], Some(BUDGET / 2)));
        assert_eq!(look(&mut watch, 99_100), [("(no route)".to_owned(), 100)]);
        assert!(watch.pause().is_some(), "a handler that has the thread is looked at");
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
        // It was unparked, so that parking ends at once.
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
