//! The timers ("alarms") of one worker, on a coarse timer wheel: one per connection.
//!
//! Each request moves the alarm of its connection, so nearly all alarms are moved before they fire.
//! Moving an alarm only writes the new time. The wheel looks at it when the old time is reached.

use peregrine_slot::Table;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The wheel's resolution. An alarm never fires early, and at most this much late unless the worker
/// was blocked.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How many ticks the wheel covers. Alarms that are due later are checked once per round.
const SLOTS: usize = 1024;

/// After the worker was blocked, alarms are delayed by at most this many ticks.
const HOLD_MAX: u32 = 10;

/// A tick that is never reached: it is thirteen years after the start.
const NEVER: u32 = u32::MAX;

/// The alarms of one worker.
pub(crate) struct Wheel(RefCell<Inner>);

struct Inner {
    alarms: Table<Entry>,
    /// For each tick, the numbers of the alarms to check.
    slots: Vec<Vec<u32>>,
    /// The tick up to which all slots were checked.
    passed: u32,
    /// How many numbers are in all slots together.
    queued: usize,
    /// No alarm fires before this tick, because the worker was blocked.
    held_to: u32,
    is_held: bool,
    /// The tick that the wheel's task waits for, and the task's waker.
    sleeping_to: u32,
    sleeper: Option<Waker>,
    is_stopped: bool,
}

struct Entry {
    /// The tick at which the alarm fires.
    at: u32,
    /// The tick whose slot contains the alarm's number.
    queued_for: u32,
    waker: Option<Waker>,
}

impl Wheel {
    /// Makes a wheel without alarms.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::new(Inner {
            alarms: Table::new(),
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            passed: 0,
            queued: 0,
            held_to: 0,
            is_held: false,
            sleeping_to: NEVER,
            sleeper: None,
            is_stopped: false,
        })))
    }

    /// Makes an alarm that does not fire until it is set.
    pub(crate) fn alarm(self: &Rc<Self>) -> Alarm {
        let entry = Entry { at: NEVER, queued_for: NEVER, waker: None };
        let number = self.0.borrow_mut().alarms.insert(entry);
        let number = u32::try_from(number).expect("fewer connections than 2^32");
        Alarm { wheel: Rc::clone(self), number }
    }

    /// Wakes all tasks that wait for an alarm, because something else has changed.
    pub(crate) fn wake_all(&self) {
        let mut inner = self.0.borrow_mut();
        let wakers: Vec<_> =
            inner.alarms.iter_mut().filter_map(|entry| entry.waker.take()).collect();
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the alarm with this number, because something else has
    /// changed.
    pub(crate) fn wake(&self, number: u32) {
        let mut inner = self.0.borrow_mut();
        let Some(entry) = inner.alarms.get_mut(number as usize) else { return };
        let waker = entry.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns when [`Wheel::turn`] must be called next.
    pub(crate) fn next(&self) -> Option<Duration> {
        let mut inner = self.0.borrow_mut();
        inner.sleeping_to = inner.next_tick();
        (inner.sleeping_to != NEVER).then(|| time_of(inner.sleeping_to))
    }

    /// Ready when the wheel must be turned before the time that [`Wheel::next`] last returned, or
    /// was stopped.
    pub(crate) fn poll_sooner(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.borrow_mut();
        if inner.is_stopped || inner.next_tick() < inner.sleeping_to {
            return Poll::Ready(());
        }
        inner.sleeper = Some(context.waker().clone());
        Poll::Pending
    }

    /// Lets the wheel's task end. No alarm exists any more at that point.
    pub(crate) fn stop(&self) {
        let mut inner = self.0.borrow_mut();
        inner.is_stopped = true;
        let sleeper = inner.sleeper.take();
        drop(inner);
        sleeper.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.borrow().is_stopped
    }

    /// Fires the alarms that are due. The wheel may be turned late, because there were no alarms or
    /// the worker was blocked. No alarm is lost then.
    ///
    /// If a turn is late although there are alarms, the worker was blocked by a handler, or the
    /// machine was suspended. Data that peers sent in the meantime has not been read, so the wheel
    /// delays alarms by the same time, up to one second. After the delay they fire, even if that
    /// turn is late as well.
    pub(crate) fn turn(&self, now: Duration) {
        let mut inner = self.0.borrow_mut();
        let now = tick_at(now);
        if now < inner.held_to {
            return;
        }
        let late = now.saturating_sub(inner.sleeping_to);
        inner.is_held = late > 1 && !inner.is_held;
        if inner.is_held {
            inner.held_to = now + late.min(HOLD_MAX);
            return;
        }
        let mut due = Vec::new();
        // Even if more than a whole round has passed, each slot needs to be checked only once.
        let from = inner.passed.max(now.saturating_sub(SLOTS as u32));
        inner.passed = inner.passed.max(now);
        for tick in from + 1..=now {
            let slot = std::mem::take(&mut inner.slots[tick as usize % SLOTS]);
            inner.queued -= slot.len();
            for number in slot {
                inner.look_at(number, tick, &mut due);
            }
        }
        drop(inner);
        due.into_iter().for_each(Waker::wake);
    }
}

impl Inner {
    fn next_tick(&self) -> u32 {
        if self.queued == 0 {
            return NEVER;
        }
        let ticks = self.passed + 1..=self.passed + SLOTS as u32;
        ticks
            .into_iter()
            .find(|tick| !self.slots[*tick as usize % SLOTS].is_empty())
            .map_or(NEVER, |tick| tick.max(self.held_to))
    }

    fn queue(&mut self, number: u32) {
        let entry = &mut self.alarms[number as usize];
        let tick = entry.at.clamp(self.passed + 1, self.passed + SLOTS as u32);
        entry.queued_for = tick;
        self.slots[tick as usize % SLOTS].push(number);
        self.queued += 1;
        if tick < self.sleeping_to
            && let Some(waker) = self.sleeper.take()
        {
            waker.wake();
        }
    }

    /// Checks a number that was in the slot of `tick`.
    fn look_at(&mut self, number: u32, tick: u32, due: &mut Vec<Waker>) {
        // The alarm may have been dropped or moved to another slot, or its number may belong to a
        // new alarm.
        let Some(entry) = self.alarms.get_mut(number as usize) else { return };
        let is_here =
            entry.queued_for != NEVER && entry.queued_for as usize % SLOTS == tick as usize % SLOTS;
        if !is_here {
            return;
        }
        entry.queued_for = NEVER;
        if entry.at <= self.passed {
            due.extend(entry.waker.take());
        } else if entry.at != NEVER {
            self.queue(number);
        }
    }
}

/// The end of `tick`. At that time, every alarm of the tick is due.
fn time_of(tick: u32) -> Duration {
    TICK.saturating_mul(tick)
}

/// The last tick that has ended at `time`.
fn tick_at(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / TICK.as_nanos()).unwrap_or(NEVER - 1)
}

/// One connection's alarm.
pub(crate) struct Alarm {
    wheel: Rc<Wheel>,
    number: u32,
}

impl Alarm {
    /// The number that identifies the alarm while it exists.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Makes the alarm fire at `at`, on the driver's clock, instead of any earlier setting.
    pub(crate) fn set(&self, at: Duration) {
        let tick = u32::try_from(at.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(NEVER);
        let mut inner = self.wheel.0.borrow_mut();
        let entry = &mut inner.alarms[self.number as usize];
        entry.at = tick;
        if entry.queued_for > tick {
            inner.queue(self.number);
        }
    }

    /// Stops the alarm from firing.
    pub(crate) fn clear(&self) {
        self.wheel.0.borrow_mut().alarms[self.number as usize].at = NEVER;
    }

    /// Ready when the alarm fires. Otherwise, the task is woken when the alarm fires, by
    /// [`Wheel::wake`] and by [`Wheel::wake_all`].
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.wheel.0.borrow_mut();
        let passed = inner.passed;
        let entry = &mut inner.alarms[self.number as usize];
        if entry.at <= passed {
            return Poll::Ready(());
        }
        match &entry.waker {
            Some(waker) if waker.will_wake(context.waker()) => {}
            _ => entry.waker = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // Its number may still be in a slot. It is ignored when that slot is checked.
        self.wheel.0.borrow_mut().alarms.remove(self.number as usize);
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("number", &self.number).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rang(alarm: &Alarm) -> bool {
        alarm.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_alarm_rings_when_its_time_has_come_and_not_before() {
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        alarm.set(SECOND);
        wheel.turn(SECOND - TICK);
        assert!(!rang(&alarm));
        wheel.turn(SECOND);
        assert!(rang(&alarm));
    }

    #[test]
    fn a_moved_alarm_rings_at_its_new_time_only() {
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        alarm.set(SECOND);
        alarm.set(SECOND * 3);
        assert_eq!(wheel.next(), Some(SECOND));
        wheel.turn(SECOND);
        assert_eq!(wheel.next(), Some(SECOND * 3));
        wheel.turn(SECOND * 2);
        assert!(!rang(&alarm));
        alarm.set(SECOND * 2 + TICK);
        assert_eq!(wheel.next(), Some(SECOND * 2 + TICK));
        wheel.turn(SECOND * 2 + TICK);
        assert!(rang(&alarm));
    }

    #[test]
    fn an_alarm_beyond_the_wheels_reach_rings_at_its_time() {
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        let far = TICK * (3 * SLOTS as u32 + 7);
        alarm.set(far);
        let mut turns = 0;
        while let Some(next) = wheel.next() {
            assert!(!rang(&alarm));
            wheel.turn(next);
            turns += 1;
        }
        assert!(rang(&alarm));
        assert_eq!(turns, 4);
    }

    #[test]
    fn a_long_sleep_of_the_worker_loses_no_alarm() {
        let wheel = Wheel::new();
        let alarms: Vec<_> = (0..50).map(|_| wheel.alarm()).collect();
        for (number, alarm) in alarms.iter().enumerate() {
            alarm.set(SECOND * number as u32);
        }
        wheel.turn(TICK * (10 * SLOTS as u32));
        assert!(alarms.iter().all(rang));
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn who_waits_is_woken_once_by_the_alarm_and_by_a_call_to_all() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let waits = || alarm.poll(&mut Context::from_waker(&waker)).is_pending();
        let woken = || count.0.load(Ordering::Relaxed);
        alarm.set(SECOND);
        assert!(waits());
        wheel.turn(SECOND - TICK);
        assert_eq!(woken(), 0);
        wheel.turn(SECOND);
        wheel.turn(SECOND * 2);
        assert_eq!(woken(), 1);
        alarm.set(SECOND * 5);
        assert!(waits());
        wheel.wake_all();
        wheel.wake_all();
        assert_eq!(woken(), 2);
        assert!(waits(), "the alarm is not due");
        wheel.wake(alarm.number());
        assert_eq!(woken(), 3);
    }

    #[test]
    fn an_alarm_set_after_a_long_quiet_rings_at_its_time() {
        for quiet in [1, 500, SLOTS as u32 - 1, SLOTS as u32, 2 * SLOTS as u32 + 3, 1 << 20] {
            for wait in [1, 300, SLOTS as u32 - 1, SLOTS as u32, 3 * SLOTS as u32 + 1] {
                let wheel = Wheel::new();
                let early = wheel.alarm();
                early.set(TICK);
                wheel.turn(TICK);
                // Nothing is queued, so the wheel is not turned until an alarm is set.
                assert_eq!(wheel.next(), None);
                let now = TICK * quiet;
                let alarm = wheel.alarm();
                alarm.set(now + TICK * wait);
                wheel.turn(now);
                assert!(!rang(&alarm), "quiet {quiet}, wait {wait}");
                let mut time = now;
                while let Some(next) = wheel.next() {
                    assert!(!rang(&alarm), "quiet {quiet}, wait {wait}");
                    time = time.max(next);
                    wheel.turn(time);
                }
                assert!(rang(&alarm), "quiet {quiet}, wait {wait}");
                assert_eq!(time, now + TICK * wait);
            }
        }
    }

    #[test]
    fn a_stop_of_the_worker_loses_no_alarm_that_was_set_after_it() {
        let wheel = Wheel::new();
        let (early, late) = (wheel.alarm(), wheel.alarm());
        early.set(SECOND);
        // Two minutes pass without a turn; then the connection moves its alarm before the wheel
        // turns.
        late.set(SECOND * 150);
        wheel.turn(SECOND * 120);
        assert!(rang(&early) && !rang(&late));
        wheel.turn(SECOND * 150);
        assert!(rang(&late));
    }

    #[test]
    fn after_a_worker_stood_still_alarms_wait_for_a_while_and_then_ring_for_certain() {
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        alarm.set(SECOND);
        assert_eq!(wheel.next(), Some(SECOND));
        wheel.turn(SECOND * 5);
        assert!(!rang(&alarm), "data that arrived in the meantime is read first");
        let held_to = SECOND * 5 + TICK * HOLD_MAX;
        assert_eq!(wheel.next(), Some(held_to));
        assert!(wheel.poll_sooner(&mut Context::from_waker(Waker::noop())).is_pending());
        wheel.turn(held_to - TICK);
        assert!(!rang(&alarm));
        // The worker is blocked again and again.
        assert_eq!(wheel.next(), Some(held_to));
        wheel.turn(held_to * 2);
        assert!(rang(&alarm));
    }

    #[test]
    fn a_dropped_alarm_leaves_nothing_behind_for_its_successor() {
        let wheel = Wheel::new();
        let first = wheel.alarm();
        first.set(SECOND);
        drop(first);
        let second = wheel.alarm();
        second.set(SECOND * 2);
        wheel.turn(SECOND);
        assert!(!rang(&second));
        wheel.turn(SECOND * 2);
        assert!(rang(&second));
    }

    #[test]
    fn clearing_silences_and_setting_again_works() {
        let wheel = Wheel::new();
        let alarm = wheel.alarm();
        alarm.set(SECOND);
        alarm.clear();
        wheel.turn(SECOND * 2);
        assert!(!rang(&alarm));
        alarm.set(SECOND * 3);
        wheel.turn(SECOND * 3);
        assert!(rang(&alarm));
    }
}
