//! The timers of one worker, on a coarse timer wheel. Each connection has one timer.
//!
//! Each request postpones its connection's timer, so nearly all timers are postponed before they
//! fire. Postponing a timer only stores its new deadline. When the old deadline is reached, the
//! wheel moves the timer to the slot of the new one.

use peregrine_slot::Slab;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The wheel's resolution. A timer never fires early, and at most this much late unless the worker
/// was blocked.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// How many ticks one round of the wheel covers. A timer that is due later is checked once per
/// round.
const SLOTS: usize = 1024;

/// If the worker was blocked, timers are delayed by at most this many ticks.
const STALL_GRACE_TICKS_MAX: u32 = 10;

/// A tick that is never reached: it is thirteen years after the start.
const NEVER: u32 = u32::MAX;

/// The timers of one worker.
pub(crate) struct TimerWheel(RefCell<WheelInner>);

struct WheelInner {
    timers: Slab<TimerEntry>,
    /// For each tick of a round, the keys of the timers to check.
    slots: Vec<Vec<u32>>,
    /// The tick up to which all slots were checked.
    current_tick: u32,
    /// How many keys are in all slots together.
    queued: usize,
    /// No timer fires before this tick, because the worker was blocked.
    grace_until: u32,
    /// Whether the timers are delayed for that reason. The first call of [`TimerWheel::advance`]
    /// from `grace_until` on then fires them.
    is_in_grace: bool,
    /// The tick that the wheel's task waits for, and the task's waker.
    sleeping_until: u32,
    task_waker: Option<Waker>,
    is_stopped: bool,
}

struct TimerEntry {
    /// The tick at which the timer fires.
    deadline: u32,
    /// The tick whose slot contains the timer's key; `NEVER` if no slot does.
    slot_tick: u32,
    waker: Option<Waker>,
}

impl TimerWheel {
    /// Creates a wheel without timers.
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

    /// Creates a timer that does not fire until it is set.
    pub(crate) fn timer(self: &Rc<Self>) -> Timer {
        let entry = TimerEntry { deadline: NEVER, slot_tick: NEVER, waker: None };
        let key = self.0.borrow_mut().timers.insert(entry);
        let key = u32::try_from(key).expect("a worker has fewer than 2^32 timers");
        Timer { wheel: Rc::clone(self), key }
    }

    /// Wakes all tasks that wait for a timer, although none has fired, because the worker's
    /// lifecycle has changed.
    pub(crate) fn wake_all(&self) {
        let mut inner = self.0.borrow_mut();
        let wakers: Vec<_> =
            inner.timers.iter_mut().filter_map(|entry| entry.waker.take()).collect();
        drop(inner);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the task that waits for the timer with this key, although the timer has not fired, for
    /// example because the task's connection must close.
    pub(crate) fn wake(&self, key: u32) {
        let mut inner = self.0.borrow_mut();
        let Some(entry) = inner.timers.get_mut(key as usize) else { return };
        let waker = entry.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns when [`TimerWheel::advance`] must be called next; `None` if there are no timers to
    /// check.
    pub(crate) fn next_expiration(&self) -> Option<Duration> {
        let mut inner = self.0.borrow_mut();
        inner.sleeping_until = inner.next_tick();
        (inner.sleeping_until != NEVER).then(|| tick_end(inner.sleeping_until))
    }

    /// Ready when the wheel must be advanced before the time that [`TimerWheel::next_expiration`]
    /// last returned, and when the wheel was stopped.
    pub(crate) fn poll_rescheduled(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.borrow_mut();
        if inner.is_stopped || inner.next_tick() < inner.sleeping_until {
            return Poll::Ready(());
        }
        inner.task_waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the wheel's task, at the end of the worker. No timer fires after that.
    pub(crate) fn stop(&self) {
        let mut inner = self.0.borrow_mut();
        inner.is_stopped = true;
        let waker = inner.task_waker.take();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.0.borrow().is_stopped
    }

    /// Fires the expired timers. No timer is lost if the call is late.
    ///
    /// If the call is more than one tick later than [`TimerWheel::next_expiration`] requested, a
    /// handler blocked the worker, or the machine was suspended. Data that peers sent in the
    /// meantime has not been read, so the wheel delays the timers by as long as the call was late,
    /// up to one second. The first call after the delay fires them, even if it is late as well.
    pub(crate) fn advance(&self, now: Duration) {
        let mut inner = self.0.borrow_mut();
        let now_tick = tick_of(now);
        if now_tick < inner.grace_until {
            return;
        }
        let ticks_late = now_tick.saturating_sub(inner.sleeping_until);
        inner.is_in_grace = ticks_late > 1 && !inner.is_in_grace;
        if inner.is_in_grace {
            inner.grace_until = now_tick + ticks_late.min(STALL_GRACE_TICKS_MAX);
            return;
        }
        let mut expired_wakers = Vec::new();
        // Even if more than a whole round has passed, each slot needs to be checked only once.
        let checked_until = inner.current_tick.max(now_tick.saturating_sub(SLOTS as u32));
        inner.current_tick = inner.current_tick.max(now_tick);
        for tick in checked_until + 1..=now_tick {
            let slot = std::mem::take(&mut inner.slots[tick as usize % SLOTS]);
            inner.queued -= slot.len();
            for key in slot {
                inner.check(key, tick, &mut expired_wakers);
            }
        }
        drop(inner);
        expired_wakers.into_iter().for_each(Waker::wake);
    }
}

impl WheelInner {
    /// The next tick for which there are timers to check; `NEVER` if there are none.
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

    /// Adds a timer to the slot of its deadline. If the deadline is more than one round away, the
    /// timer is checked, and queued again, after one round.
    fn queue(&mut self, key: u32) {
        let entry = &mut self.timers[key as usize];
        let tick = entry.deadline.clamp(self.current_tick + 1, self.current_tick + SLOTS as u32);
        entry.slot_tick = tick;
        self.slots[tick as usize % SLOTS].push(key);
        self.queued += 1;
        if tick < self.sleeping_until
            && let Some(waker) = self.task_waker.take()
        {
            waker.wake();
        }
    }

    /// Checks a timer whose key was in the slot of `tick`: fires it if it has expired, or queues it
    /// again.
    fn check(&mut self, key: u32, tick: u32, expired_wakers: &mut Vec<Waker>) {
        // The timer may have been dropped or moved to another slot, or a new timer may have the
        // same key.
        let Some(entry) = self.timers.get_mut(key as usize) else { return };
        // Slots are compared, not ticks: if the wheel advances late, `tick` may be one of a later
        // round.
        let is_in_slot =
            entry.slot_tick != NEVER && entry.slot_tick as usize % SLOTS == tick as usize % SLOTS;
        if !is_in_slot {
            return;
        }
        entry.slot_tick = NEVER;
        if entry.deadline <= self.current_tick {
            expired_wakers.extend(entry.waker.take());
        } else if entry.deadline != NEVER {
            self.queue(key);
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

/// A timer. It can be set many times.
pub(crate) struct Timer {
    wheel: Rc<TimerWheel>,
    key: u32,
}

impl Timer {
    /// Identifies the timer while it exists.
    pub(crate) fn key(&self) -> u32 {
        self.key
    }

    /// Sets when the timer fires, on the driver's clock. Replaces any earlier setting.
    pub(crate) fn set(&self, deadline: Duration) {
        let tick = u32::try_from(deadline.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(NEVER);
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

    /// Ready if the timer has fired. Otherwise, the task is woken when the timer fires, or before
    /// that by [`TimerWheel::wake`] or [`TimerWheel::wake_all`].
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.wheel.0.borrow_mut();
        let current_tick = inner.current_tick;
        let entry = &mut inner.timers[self.key as usize];
        if entry.deadline <= current_tick {
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
        // The key may still be in a slot. `check` ignores it when that slot is checked.
        self.wheel.0.borrow_mut().timers.remove(self.key as usize);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").field("key", &self.key).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn has_fired(timer: &Timer) -> bool {
        timer.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn timer_fires_at_its_deadline_and_not_before() {
        let wheel = TimerWheel::new();
        let timer = wheel.timer();
        timer.set(SECOND);
        wheel.advance(SECOND - TICK);
        assert!(!has_fired(&timer));
        wheel.advance(SECOND);
        assert!(has_fired(&timer));
    }

    #[test]
    fn moved_timer_fires_only_at_its_new_deadline() {
        let wheel = TimerWheel::new();
        let timer = wheel.timer();
        timer.set(SECOND);
        timer.set(SECOND * 3);
        assert_eq!(wheel.next_expiration(), Some(SECOND));
        wheel.advance(SECOND);
        assert_eq!(wheel.next_expiration(), Some(SECOND * 3));
        wheel.advance(SECOND * 2);
        assert!(!has_fired(&timer));
        timer.set(SECOND * 2 + TICK);
        assert_eq!(wheel.next_expiration(), Some(SECOND * 2 + TICK));
        wheel.advance(SECOND * 2 + TICK);
        assert!(has_fired(&timer));
    }

    #[test]
    fn timer_beyond_one_round_of_the_wheel_fires_on_time() {
        let wheel = TimerWheel::new();
        let timer = wheel.timer();
        let far = TICK * (3 * SLOTS as u32 + 7);
        timer.set(far);
        let mut advances = 0;
        while let Some(next) = wheel.next_expiration() {
            assert!(!has_fired(&timer));
            wheel.advance(next);
            advances += 1;
        }
        assert!(has_fired(&timer));
        assert_eq!(advances, 4);
    }

    #[test]
    fn no_timer_is_lost_when_the_wheel_advances_very_late() {
        let wheel = TimerWheel::new();
        let timers: Vec<_> = (0..50).map(|_| wheel.timer()).collect();
        for (number, timer) in timers.iter().enumerate() {
            timer.set(SECOND * number as u32);
        }
        wheel.advance(TICK * (10 * SLOTS as u32));
        assert!(timers.iter().all(has_fired));
        assert_eq!(wheel.next_expiration(), None);
    }

    #[test]
    fn waiting_task_is_woken_once_per_expiration_and_wake_all() {
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
        let timer = wheel.timer();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let is_pending = || timer.poll(&mut Context::from_waker(&waker)).is_pending();
        let wake_count = || count.0.load(Ordering::Relaxed);
        timer.set(SECOND);
        assert!(is_pending());
        wheel.advance(SECOND - TICK);
        assert_eq!(wake_count(), 0);
        wheel.advance(SECOND);
        wheel.advance(SECOND * 2);
        assert_eq!(wake_count(), 1);
        timer.set(SECOND * 5);
        assert!(is_pending());
        wheel.wake_all();
        wheel.wake_all();
        assert_eq!(wake_count(), 2);
        assert!(is_pending(), "the timer has not expired");
        wheel.wake(timer.key());
        assert_eq!(wake_count(), 3);
    }

    #[test]
    fn timer_set_after_a_long_idle_period_fires_on_time() {
        for idle_ticks in [1, 500, SLOTS as u32 - 1, SLOTS as u32, 2 * SLOTS as u32 + 3, 1 << 20] {
            for delay in [1, 300, SLOTS as u32 - 1, SLOTS as u32, 3 * SLOTS as u32 + 1] {
                let wheel = TimerWheel::new();
                let early = wheel.timer();
                early.set(TICK);
                wheel.advance(TICK);
                // Nothing is queued, so the wheel is not advanced until a timer is set.
                assert_eq!(wheel.next_expiration(), None);
                let now = TICK * idle_ticks;
                let timer = wheel.timer();
                timer.set(now + TICK * delay);
                wheel.advance(now);
                assert!(!has_fired(&timer), "idle for {idle_ticks} ticks, delay {delay}");
                let mut time = now;
                while let Some(next) = wheel.next_expiration() {
                    assert!(!has_fired(&timer), "idle for {idle_ticks} ticks, delay {delay}");
                    time = time.max(next);
                    wheel.advance(time);
                }
                assert!(has_fired(&timer), "idle for {idle_ticks} ticks, delay {delay}");
                assert_eq!(time, now + TICK * delay);
            }
        }
    }

    #[test]
    fn timer_set_after_a_blocked_period_is_not_lost() {
        let wheel = TimerWheel::new();
        let (early, late) = (wheel.timer(), wheel.timer());
        early.set(SECOND);
        // Two minutes pass without an advance; then the connection moves its timer before the wheel
        // advances.
        late.set(SECOND * 150);
        wheel.advance(SECOND * 120);
        assert!(has_fired(&early) && !has_fired(&late));
        wheel.advance(SECOND * 150);
        assert!(has_fired(&late));
    }

    #[test]
    fn after_a_blocked_period_timers_are_delayed_once_and_then_fire() {
        let wheel = TimerWheel::new();
        let timer = wheel.timer();
        timer.set(SECOND);
        assert_eq!(wheel.next_expiration(), Some(SECOND));
        wheel.advance(SECOND * 5);
        assert!(!has_fired(&timer), "data that arrived in the meantime is read first");
        let grace_end = SECOND * 5 + TICK * STALL_GRACE_TICKS_MAX;
        assert_eq!(wheel.next_expiration(), Some(grace_end));
        assert!(wheel.poll_rescheduled(&mut Context::from_waker(Waker::noop())).is_pending());
        wheel.advance(grace_end - TICK);
        assert!(!has_fired(&timer));
        // The worker is blocked again during the delay.
        assert_eq!(wheel.next_expiration(), Some(grace_end));
        wheel.advance(grace_end * 2);
        assert!(has_fired(&timer));
    }

    #[test]
    fn dropped_timer_does_not_affect_the_next_one() {
        let wheel = TimerWheel::new();
        let first = wheel.timer();
        first.set(SECOND);
        drop(first);
        let second = wheel.timer();
        second.set(SECOND * 2);
        wheel.advance(SECOND);
        assert!(!has_fired(&second));
        wheel.advance(SECOND * 2);
        assert!(has_fired(&second));
    }

    #[test]
    fn cleared_timer_does_not_fire_until_it_is_set_again() {
        let wheel = TimerWheel::new();
        let timer = wheel.timer();
        timer.set(SECOND);
        timer.clear();
        wheel.advance(SECOND * 2);
        assert!(!has_fired(&timer));
        timer.set(SECOND * 3);
        wheel.advance(SECOND * 3);
        assert!(has_fired(&timer));
    }
}
