//! The worker's cached clock, and its sleeping tasks.
//!
//! A sorted map is fast enough, because it stays small: code with a deadline per connection, such
//! as the server, stores the deadlines in its own structure and sleeps until the first one.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::executor::Waiter;
use crate::worker::UringWorker;

/// The monotonic and the calendar clock, whose readings are cached for an iteration of the loop.
pub(crate) struct LoopClock {
    start: Instant,
    in_iteration: Cell<bool>,
    now: Cell<Option<Duration>>,
    unix: Cell<Option<Duration>>,
    /// The last reading by `precise_now` in this iteration.
    last_reading: Cell<Option<Reading>>,
}

/// `coarse_now` reuses a reading for this many polls while polls are quick.
const READING_REUSE_POLLS: usize = 8;

/// A poll is quick if it takes at most this long.
const QUICK_POLL_MAX: Duration = Duration::from_micros(20);

/// A reading of the clock.
#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Duration,
    /// The number of polls in the iteration at that time.
    polls: usize,
    /// For how many more polls the reading can be reused.
    reusable_polls: usize,
}

impl Reading {
    /// A new reading. Compares it with the last one to find out whether polls are quick.
    fn new(last: Option<Self>, time: Duration, polls: usize) -> Self {
        let is_quick = last.is_some_and(|last| {
            let passed = polls.saturating_sub(last.polls).try_into().unwrap_or(u32::MAX);
            passed > 0 && time.saturating_sub(last.time) <= QUICK_POLL_MAX.saturating_mul(passed)
        });
        Self { time, polls, reusable_polls: if is_quick { READING_REUSE_POLLS } else { 1 } }
    }
}

impl LoopClock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            in_iteration: Cell::new(false),
            now: Cell::new(None),
            unix: Cell::new(None),
            last_reading: Cell::new(None),
        }
    }

    /// Discards the cached readings. Between iterations (`in_iteration` false), other code of the
    /// thread runs for an unknown time, so nothing is cached.
    pub(crate) fn invalidate(&self, in_iteration: bool) {
        self.in_iteration.set(in_iteration);
        self.now.set(None);
        self.unix.set(None);
        self.last_reading.set(None);
    }

    pub(crate) fn now(&self) -> Duration {
        self.cached(&self.now, || self.start.elapsed())
    }

    /// The current time, after `polls` polls of the iteration.
    pub(crate) fn precise_now(&self, polls: usize) -> Duration {
        let time = self.start.elapsed();
        let reading = Reading::new(self.last_reading.get(), time, polls);
        self.last_reading.set(self.in_iteration.get().then_some(reading));
        time
    }

    /// The current time, or the last reading if it is recent enough: from this poll or the previous
    /// one or, if the polls before it were quick, from one of the last few.
    pub(crate) fn coarse_now(&self, polls: usize) -> Duration {
        match self.last_reading.get() {
            Some(last) if polls <= last.polls + last.reusable_polls => last.time,
            _ => self.precise_now(polls),
        }
    }

    pub(crate) fn unix_time(&self) -> Duration {
        // If the clock is set to a time before 1970, dates are wrong in any case.
        self.cached(&self.unix, || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn cached(&self, cell: &Cell<Option<Duration>>, read: impl FnOnce() -> Duration) -> Duration {
        if !self.in_iteration.get() {
            return read();
        }
        if let Some(time) = cell.get() {
            return time;
        }
        let time = read();
        cell.set(Some(time));
        time
    }
}

/// An iteration is long if it takes at least this much time.
const LONG_ITERATION_MIN: Duration = Duration::from_millis(10);

/// Iterations of at least this length are recorded. Shorter ones do not matter for the deadlines
/// that peers must meet.
const RECORDED_ITERATION_MIN: Duration = Duration::from_millis(100);

/// The maximum number of recorded iterations.
const RECORDED_ITERATIONS_MAX: usize = 64;

/// The most recent iterations that took long, because handlers blocked or many tasks were ready.
/// Data sent during an iteration is submitted at its end.
#[derive(Default)]
pub(crate) struct LongIterations {
    /// When each iteration began and ended.
    iterations: VecDeque<(Duration, Duration)>,
    is_last_long: bool,
}

impl LongIterations {
    /// Called when an iteration has ended.
    #[inline]
    pub(crate) fn record(&mut self, began: Duration, ended: Duration) {
        let took = ended.saturating_sub(began);
        self.is_last_long = took >= LONG_ITERATION_MIN;
        if took >= RECORDED_ITERATION_MIN {
            self.push(began, ended);
        }
    }

    #[cold]
    fn push(&mut self, began: Duration, ended: Duration) {
        if self.iterations.len() == RECORDED_ITERATIONS_MAX {
            self.iterations.pop_front();
        }
        self.iterations.push_back((began, ended));
    }

    /// Returns whether the last iteration was long.
    pub(crate) fn is_last_long(&self) -> bool {
        self.is_last_long
    }

    /// When data sent at `time` was submitted, with a precision of milliseconds.
    pub(crate) fn submitted_at(&self, time: Duration) -> Duration {
        let is_in = |(began, ended): &&(Duration, Duration)| {
            began.as_millis() <= time.as_millis() && time < *ended
        };
        self.iterations.iter().rev().find(is_in).map_or(time, |(_, ended)| *ended)
    }
}

/// The sleeping tasks, ordered by deadline.
#[derive(Default)]
pub(crate) struct Timers {
    entries: BTreeMap<TimerKey, Waiter>,
    /// Distinguishes timers with the same deadline.
    next_id: u64,
}

/// The deadline of a timer, and its id.
type TimerKey = (Duration, u64);

impl Timers {
    fn new_key(&mut self, at: Duration) -> TimerKey {
        self.next_id += 1;
        (at, self.next_id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The next deadline, as a time of the clock.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.entries.first_key_value().map(|(key, _)| key.0)
    }

    /// Removes a timer that is due at `now` and returns its waiter. Call this until it returns
    /// `None`.
    pub(crate) fn expire(&mut self, now: Duration) -> Option<Waiter> {
        let first = self.entries.first_entry().filter(|first| first.key().0 <= now);
        first.map(|entry| entry.remove())
    }
}

/// The future of `sleep_until`. It adds its timer at the first poll.
pub(crate) struct Sleep {
    worker: Rc<UringWorker>,
    at: Duration,
    key: Option<TimerKey>,
}

impl Sleep {
    pub(crate) fn new(worker: Rc<UringWorker>, at: Duration) -> Self {
        Self { worker, at, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.worker.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let (key, old);
        {
            let mut timers = self.worker.timers.borrow_mut();
            key = self.key.unwrap_or_else(|| timers.new_key(self.at));
            let waiter = timers.entries.entry(key).or_default();
            old = waiter.register(cx, &self.worker.executor);
        }
        drop(old);
        if self.key.replace(key).is_none() {
            self.worker.executor.wake_loop();
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waiter = self.worker.timers.borrow_mut().entries.remove(&key);
            drop(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_now_reads_the_clock_again_after_two_polls() {
        let clock = LoopClock::start();
        // Distinguish two readings by the nanoseconds between them.
        let pause = || std::thread::sleep(Duration::from_micros(50));
        clock.invalidate(true);
        let first = clock.coarse_now(0);
        pause();
        assert_eq!(clock.coarse_now(0), first);
        assert_eq!(clock.coarse_now(1), first);
        let third = clock.coarse_now(2);
        assert!(third > first);
        pause();
        let read = clock.precise_now(2);
        assert!(read > third && clock.coarse_now(3) == read);
        clock.invalidate(true);
        let next = clock.coarse_now(0);
        assert!(next > read);
        clock.invalidate(false);
        pause();
        let between = clock.coarse_now(0);
        pause();
        assert!(between > next && clock.coarse_now(0) > between);
    }

    #[test]
    fn a_reading_is_reused_longer_while_polls_are_quick() {
        let at = |micros, polls| (Duration::from_micros(micros), polls);
        let mut last = None;
        for ((time, polls), reusable_polls) in [
            (at(0, 0), 1),
            (at(40, 2), READING_REUSE_POLLS),
            (at(220, 11), READING_REUSE_POLLS),
            // One of nine polls was slow.
            (at(401, 20), 1),
            (at(402, 20), 1),
            (at(403, 22), READING_REUSE_POLLS),
        ] {
            let reading = Reading::new(last, time, polls);
            assert_eq!(reading.reusable_polls, reusable_polls, "{reading:?}");
            last = Some(reading);
        }
    }

    #[test]
    fn timers_expire_in_order_and_never_early() {
        let mut timers = Timers::default();
        for micros in [30, 10, 20, 10] {
            let key = timers.new_key(Duration::from_micros(micros));
            timers.entries.insert(key, Waiter::NONE);
        }
        let mut expire = |now| {
            let mut count = 0;
            while timers.expire(Duration::from_micros(now)).is_some() {
                count += 1;
            }
            (count, timers.next_deadline().map(|next| next.as_micros()))
        };
        assert_eq!(expire(9), (0, Some(10)));
        assert_eq!(expire(10), (2, Some(20)));
        assert_eq!(expire(29), (1, Some(30)));
        assert_eq!(expire(1_000), (1, None));
    }

    #[test]
    fn data_sent_in_a_long_iteration_is_submitted_at_its_end() {
        let ms = Duration::from_millis;
        let mut iterations = LongIterations::default();
        iterations.record(ms(10), ms(2_000));
        assert!(iterations.is_last_long());
        iterations.record(ms(2_000), ms(2_001));
        assert!(!iterations.is_last_long());
        let start = Duration::from_micros(5_000_900);
        iterations.record(start, ms(6_000));
        for (time, submitted) in
            [(5, 5), (10, 2_000), (1_999, 2_000), (2_000, 2_000), (5_000, 6_000), (6_000, 6_000)]
        {
            assert_eq!(iterations.submitted_at(ms(time)), ms(submitted), "{time}");
        }
        for number in 0..2 * RECORDED_ITERATIONS_MAX as u64 {
            iterations.record(ms(10_000 + 100 * number), ms(10_100 + 100 * number));
        }
        assert_eq!(
            (iterations.iterations.len(), iterations.submitted_at(ms(10))),
            (RECORDED_ITERATIONS_MAX, ms(10))
        );
    }
}
