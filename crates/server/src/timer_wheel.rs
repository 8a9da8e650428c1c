//! The timers of one worker, on a coarse timer wheel: one per connection.
//!
//! Each request moves the timer of its connection, so nearly all timers are moved before they fire.
//! Moving a timer only writes the new time. The wheel checks it when the old time is reached.

use peregrine_slot::Slab;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The wheel's resolution. A timer never fires early, and at most this much late unless the worker
/// was blocked.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How many ticks the wheel covers. Timers that are due later are checked once per round.
const SLOTS: usize = 1024;

/// After the worker was blocked, timers are delayed by at most this many ticks.
const STALL_GRACE_TICKS_MAX: u32 = 10;

/// A tick that is never reached: it is thirteen years after the start.
const NEVER: u32 = u32::MAX;

/// The timers of one worker.
pub(crate) struct TimerWheel(RefCell<WheelInner>);

struct WheelInner {
    timers: Slab<TimerEntry>,
    /// For each tick, the numbers of the timers to check.
    slots: Vec<Vec<u32>>,
    /// The tick up to which all slots were checked.
    current_tick: u32,
    /// How many numbers are in all slots together.
    queued: usize,
    /// No timer fires before this tick, because the worker was blocked.
    grace_until: u32,
    is_in_grace: bool,
    /// The tick that the wheel's task waits for, and the task's waker.
    sleeping_until: u32,
    task_waker: Option<Waker>,
    is_stopped: bool,
}

struct TimerEntry {
    /// The tick at which the timer fires.
    deadline: u32,
    /// The tick whose slot contains the timer's number.
    slot_tick: u32,
    waker: Option<Waker>,
}

impl TimerWheel {
    /// Makes a wheel without timers.
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self(RefCell::new(WheelInner {
            timers: Slab::new(),
            slots: (0..SLOTS).map(|_| Vec::new()).collect(),
            current_tick: 0,
            queued: 0,
            grace_until: 0,
            is_in_grace: false,
            sleeping_until: NEVER,
            task_waker: None,
            is_stopped: false,
        })))
    }

    /// Makes a timer that does not fire until it is set.
    pub(crate) fn timer(self: &Rc<Self>) -> Timer {
        let entry = TimerEntry { deadline: NEVER, slot_tick: NEVER, waker: None };
        let number = self.0.borrow_mut().timers.insert(entry);
        let number = u32::try_from(number).expect("fewer connections than 2^32");
        Timer { wheel: Rc::clone(self), key: number }
    }

    /// Wakes all tasks that wait for a timer, because something else has changed.
    pub(crate) fn wake_all(&self) {
        let mut inner = self.0.borrow_mut();
        let wakers: Vec<_> =
            inner.timers.iter_mut().filter_map(|entry| entry.waker.take()).collect();
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the timer with this number, because something else has
    /// changed.
    pub(crate) fn wake(&self, number: u32) {
        let mut inner = self.0.borrow_mut();
        let Some(entry) = inner.timers.get_mut(number as usize) else { return };
        let waker = entry.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns when [`TimerWheel::advance`] must be called next.
    pub(crate) fn next_expiration(&self) -> Option<Duration> {
        let mut inner = self.0.borrow_mut();
        inner.sleeping_until = inner.next_tick();
        (inner.sleeping_until != NEVER).then(|| tick_end(inner.sleeping_until))
    }

    /// Ready when the wheel must be turned before the time that [`TimerWheel::next_expiration`]
    /// last returned, or was stopped.
    pub(crate) fn poll_earlier(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.borrow_mut();
        if inner.is_stopped || inner.next_tick() < inner.sleeping_until {
            return Poll::Ready(());
        }
        inner.task_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Lets the wheel's task end. No timer exists any more at that point.
    pub(crate) fn stop(&self) {
        let mut inner = self.0.borrow_mut();
        inner.is_stopped = true;
        let sleeper = inner.task_waker.take();
        drop(inner);
        sleeper.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.borrow().is_stopped
    }

    /// Fires the timers that are due. The wheel may be advanced late, because there were no timers
    /// or the worker was blocked. No timer is lost then.
    ///
    /// If this is late although there are timers, the worker was blocked by a handler, or the
    /// machine was suspended. Data that peers sent in the meantime has not been read, so the wheel
    /// delays timers by the same time, up to one second. After the delay they fire, even if that
    /// advance is late as well.
    pub(crate) fn advance(&self, now: Duration) {
        let mut inner = self.0.borrow_mut();
        let now = tick_of(now);
        if now < inner.grace_until {
            return;
        }
        let late = now.saturating_sub(inner.sleeping_until);
        inner.is_in_grace = late > 1 && !inner.is_in_grace;
        if inner.is_in_grace {
            inner.grace_until = now + late.min(STALL_GRACE_TICKS_MAX);
            return;
        }
        let mut due = Vec::new();
        // Even if more than a whole round has passed, each slot needs to be checked only once.
        let from = inner.current_tick.max(now.saturating_sub(SLOTS as u32));
        inner.current_tick = inner.current_tick.max(now);
        for tick in from + 1..=now {
            let slot = std::mem::take(&mut inner.slots[tick as usize % SLOTS]);
            inner.queued -= slot.len();
            for number in slot {
                inner.expire(number, tick, &mut due);
            }
        }
        drop(inner);
        due.into_iter().for_each(Waker::wake);
    }
}

impl WheelInner {
    fn next_tick(&self) -> u32 {
        if self.queued == 0 {
            return NEVER;
        }
        let ticks = self.current_tick + 1..=self.current_tick + SLOTS as u32;
        ticks
            .into_iter()
            .find(|tick| !self.slots[*tick as usize % SLOTS].is_empty())
            .map_or(NEVER, |tick| tick.max(self.grace_until))
    }

    fn queue(&mut self, number: u32) {
        let entry = &mut self.timers[number as usize];
        let tick = entry.deadline.clamp(self.current_tick + 1, self.current_tick + SLOTS as u32);
        entry.slot_tick = tick;
        self.slots[tick as usize % SLOTS].push(number);
        self.queued += 1;
        if tick < self.sleeping_until
            && let Some(waker) = self.task_waker.take()
        {
            waker.wake();
        }
    }

    /// Checks a number that was in the slot of `tick`.
    fn expire(&mut self, number: u32, tick: u32, due: &mut Vec<Waker>) {
        // The timer may have been dropped or moved to another slot, or its number may belong to a
        // new timer.
        let Some(entry) = self.timers.get_mut(number as usize) else { return };
        let is_here =
            entry.slot_tick != NEVER && entry.slot_tick as usize % SLOTS == tick as usize % SLOTS;
        if !is_here {
            return;
        }
        entry.slot_tick = NEVER;
        if entry.deadline <= self.current_tick {
            due.extend(entry.waker.take());
        } else if entry.deadline != NEVER {
            self.queue(number);
        }
    }
}

/// The end of `tick`. At that time, every timer of the tick is due.
fn tick_end(tick: u32) -> Duration {
    TICK.saturating_mul(tick)
}

/// The last tick that has ended at `time`.
fn tick_of(time: Duration) -> u32 {
    u32::try_from(time.as_nanos() / TICK.as_nanos()).unwrap_or(NEVER - 1)
}

/// One connection's timer.
pub(crate) struct Timer {
    wheel: Rc<TimerWheel>,
    key: u32,
}

impl Timer {
    /// The number that identifies the timer while it exists.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Makes the timer fire at `at`, on the driver's clock, instead of any earlier setting.
    pub(crate) fn set(&self, at: Duration) {
        let tick = u32::try_from(at.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(NEVER);
        let mut inner = self.wheel.0.borrow_mut();
        let entry = &mut inner.timers[self.key as usize];
        entry.deadline = tick;
        if entry.slot_tick > tick {
            inner.queue(self.key);
        }
    }

    /// Stops the timer from firing.
    pub(crate) fn clear(&self) {
        self.wheel.0.borrow_mut().timers[self.key as usize].deadline = NEVER;
    }

    /// Ready when the timer fires. Otherwise, the task is woken when the timer fires, by
    /// [`TimerWheel::wake`] and by [`TimerWheel::wake_all`].
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.wheel.0.borrow_mut();
        let passed = inner.current_tick;
        let entry = &mut inner.timers[self.key as usize];
        if entry.deadline <= passed {
            return Poll::Ready(());
        }
        match &entry.waker {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => entry.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // Its number may still be in a slot. It is ignored when that slot is checked.
        self.wheel.0.borrow_mut().timers.remove(self.key as usize);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("number", &self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rang(alarm: &Timer) -> bool {
        alarm.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn an_alarm_rings_when_its_time_has_come_and_not_before() {
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        alarm.set(SECOND);
        wheel.advance(SECOND - TICK);
        assert!(!rang(&alarm));
        wheel.advance(SECOND);
        assert!(rang(&alarm));
    }

    #[test]
    fn a_moved_alarm_rings_at_its_new_time_only() {
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        alarm.set(SECOND);
        alarm.set(SECOND * 3);
        assert_eq!(wheel.next_expiration(), Some(SECOND));
        wheel.advance(SECOND);
        assert_eq!(wheel.next_expiration(), Some(SECOND * 3));
        wheel.advance(SECOND * 2);
        assert!(!rang(&alarm));
        alarm.set(SECOND * 2 + TICK);
        assert_eq!(wheel.next_expiration(), Some(SECOND * 2 + TICK));
        wheel.advance(SECOND * 2 + TICK);
        assert!(rang(&alarm));
    }

    #[test]
    fn an_alarm_beyond_the_wheels_reach_rings_at_its_time() {
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        let far = TICK * (3 * SLOTS as u32 + 7);
        alarm.set(far);
        let mut turns = 0;
        while let Some(next) = wheel.next_expiration() {
            assert!(!rang(&alarm));
            wheel.advance(next);
            turns += 1;
        }
        assert!(rang(&alarm));
        assert_eq!(turns, 4);
    }

    #[test]
    fn a_long_sleep_of_the_worker_loses_no_alarm() {
        let wheel = TimerWheel::new();
        let alarms: Vec<_> = (0..50).map(|_| wheel.timer()).collect();
        for (number, alarm) in alarms.iter().enumerate() {
            alarm.set(SECOND * number as u32);
        }
        wheel.advance(TICK * (10 * SLOTS as u32));
        assert!(alarms.iter().all(rang));
        assert_eq!(wheel.next_expiration(), None);
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
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let waits = || alarm.poll(&mut Context::from_waker(&waker)).is_pending();
        let woken = || count.0.load(Ordering::Relaxed);
        alarm.set(SECOND);
        assert!(waits());
        wheel.advance(SECOND - TICK);
        assert_eq!(woken(), 0);
        wheel.advance(SECOND);
        wheel.advance(SECOND * 2);
        assert_eq!(woken(), 1);
        alarm.set(SECOND * 5);
        assert!(waits());
        wheel.wake_all();
        wheel.wake_all();
        assert_eq!(woken(), 2);
        assert!(waits(), "the alarm is not due");
        wheel.wake(alarm.key());
        assert_eq!(woken(), 3);
    }

    #[test]
    fn an_alarm_set_after_a_long_quiet_rings_at_its_time() {
        for quiet in [1, 500, SLOTS as u32 - 1, SLOTS as u32, 2 * SLOTS as u32 + 3, 1 << 20] {
            for wait in [1, 300, SLOTS as u32 - 1, SLOTS as u32, 3 * SLOTS as u32 + 1] {
                let wheel = TimerWheel::new();
                let early = wheel.timer();
                early.set(TICK);
                wheel.advance(TICK);
                // Nothing is queued, so the wheel is not advanced until a timer is set.
                assert_eq!(wheel.next_expiration(), None);
                let now = TICK * quiet;
                let alarm = wheel.timer();
                alarm.set(now + TICK * wait);
                wheel.advance(now);
                assert!(!rang(&alarm), "quiet {quiet}, wait {wait}");
                let mut time = now;
                while let Some(next) = wheel.next_expiration() {
                    assert!(!rang(&alarm), "quiet {quiet}, wait {wait}");
                    time = time.max(next);
                    wheel.advance(time);
                }
                assert!(rang(&alarm), "quiet {quiet}, wait {wait}");
                assert_eq!(time, now + TICK * wait);
            }
        }
    }

    #[test]
    fn a_stop_of_the_worker_loses_no_alarm_that_was_set_after_it() {
        let wheel = TimerWheel::new();
        let (early, late) = (wheel.timer(), wheel.timer());
        early.set(SECOND);
        // Two minutes pass without an advance; then the connection moves its timer before the wheel
        // advances.
        late.set(SECOND * 150);
        wheel.advance(SECOND * 120);
        assert!(rang(&early) && !rang(&late));
        wheel.advance(SECOND * 150);
        assert!(rang(&late));
    }

    #[test]
    fn after_a_worker_stood_still_alarms_wait_for_a_while_and_then_ring_for_certain() {
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        alarm.set(SECOND);
        assert_eq!(wheel.next_expiration(), Some(SECOND));
        wheel.advance(SECOND * 5);
        assert!(!rang(&alarm), "data that arrived in the meantime is read first");
        let held_to = SECOND * 5 + TICK * STALL_GRACE_TICKS_MAX;
        assert_eq!(wheel.next_expiration(), Some(held_to));
        assert!(wheel.poll_earlier(&mut Context::from_waker(Waker::noop())).is_pending());
        wheel.advance(held_to - TICK);
        assert!(!rang(&alarm));
        // The worker is blocked again and again.
        assert_eq!(wheel.next_expiration(), Some(held_to));
        wheel.advance(held_to * 2);
        assert!(rang(&alarm));
    }

    #[test]
    fn a_dropped_alarm_leaves_nothing_behind_for_its_successor() {
        let wheel = TimerWheel::new();
        let first = wheel.timer();
        first.set(SECOND);
        drop(first);
        let second = wheel.timer();
        second.set(SECOND * 2);
        wheel.advance(SECOND);
        assert!(!rang(&second));
        wheel.advance(SECOND * 2);
        assert!(rang(&second));
    }

    #[test]
    fn clearing_silences_and_setting_again_works() {
        let wheel = TimerWheel::new();
        let alarm = wheel.timer();
        alarm.set(SECOND);
        alarm.clear();
        wheel.advance(SECOND * 2);
        assert!(!rang(&alarm));
        alarm.set(SECOND * 3);
        wheel.advance(SECOND * 3);
        assert!(rang(&alarm));
    }
}
