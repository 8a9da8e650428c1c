//! Time: the worker's cached clock, and a wheel of timers with constant cost to set and to clear.
//!
//! Servers set a timer for each request and clear nearly all of them, so clearing must take the
//! entry away at once; a heap that forgets lazily would keep millions of dead ones.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slab::Slab;

use crate::task::Waiter;
use crate::worker::Shared;

/// The monotonic clock and the calendar, read at most once in a turn of the loop.
pub(crate) struct Clock {
    start: Instant,
    in_turn: Cell<bool>,
    now: Cell<Option<Duration>>,
    unix: Cell<Option<Duration>>,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            in_turn: Cell::new(false),
            now: Cell::new(None),
            unix: Cell::new(None),
        }
    }

    /// Forgets what was read. Between turns (`in_turn` false), other code of the thread runs for
    /// an unknown time, so that nothing is cached then.
    pub(crate) fn turn(&self, in_turn: bool) {
        self.in_turn.set(in_turn);
        self.now.set(None);
        self.unix.set(None);
    }

    pub(crate) fn now(&self) -> Duration {
        self.cached(&self.now, || self.start.elapsed())
    }

    pub(crate) fn unix_time(&self) -> Duration {
        // A machine set before 1970 has no date worth telling.
        self.cached(&self.unix, || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    fn cached(&self, cell: &Cell<Option<Duration>>, read: impl FnOnce() -> Duration) -> Duration {
        if !self.in_turn.get() {
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

const LEVELS: usize = 6;
const SLOTS: usize = 64;
/// The list of entries that are due and not yet told so.
const DUE: u16 = (LEVELS * SLOTS) as u16;
/// Not in any list: the sleeper was told.
const TOLD: u16 = DUE + 1;
const NONE: u32 = u32::MAX;
/// Longer sleeps (two years) are cut; sleepers look at the clock and sleep again.
const TICKS_MAX: u64 = (1 << (6 * LEVELS)) - 1;

/// A hierarchical wheel: level `n` has 64 slots of `64^n` ticks of one millisecond each.
pub(crate) struct Wheel {
    /// Ticks that are dealt with.
    elapsed: u64,
    heads: Box<[u32; LEVELS * SLOTS + 1]>,
    occupied: [u64; LEVELS],
    entries: Slab<Entry>,
}

struct Entry {
    tick: u64,
    waiter: Waiter,
    next: u32,
    previous: u32,
    list: u16,
}

/// The tick at which a sleeper until `at` may be told: never early.
fn tick_at(at: Duration) -> u64 {
    u64::try_from(at.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The ticks that are over at `now`.
fn tick_of(now: Duration) -> u64 {
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

impl Wheel {
    pub(crate) fn new() -> Self {
        Self {
            elapsed: 0,
            heads: Box::new([NONE; LEVELS * SLOTS + 1]),
            occupied: [0; LEVELS],
            entries: Slab::new(),
        }
    }

    fn insert(&mut self, at: Duration, waiter: Waiter) -> u32 {
        let tick = tick_at(at).min(self.elapsed.saturating_add(TICKS_MAX));
        let entry = Entry { tick, waiter, next: NONE, previous: NONE, list: TOLD };
        let key = self.entries.insert(entry) as u32;
        self.link(key);
        key
    }

    fn remove(&mut self, key: u32) -> Waiter {
        self.unlink(key);
        self.entries.remove(key as usize).waiter
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When to look again, as a time of the clock; earlier than needed for far timers.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.heads[usize::from(DUE)] != NONE {
            return Some(Duration::ZERO);
        }
        self.next_slot().map(|(_, deadline)| Duration::from_millis(deadline))
    }

    /// The waiter of one sleeper that is due at `now`. Call until there is none.
    pub(crate) fn expire(&mut self, now: Duration) -> Option<Waiter> {
        loop {
            let due = self.heads[usize::from(DUE)];
            if due != NONE {
                self.unlink(due);
                return Some(std::mem::take(&mut self.entries[due as usize].waiter));
            }
            match self.next_slot() {
                Some((list, deadline)) if deadline <= tick_of(now) => {
                    self.elapsed = deadline;
                    self.cascade(list);
                }
                _ => {
                    self.elapsed = self.elapsed.max(tick_of(now));
                    return None;
                }
            }
        }
    }

    /// The first slot with entries, and the tick at which its span begins.
    fn next_slot(&self) -> Option<(u16, u64)> {
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = 6 * level;
            let current = (self.elapsed >> shift) & 63;
            let ahead = self.occupied[level].rotate_right(current as u32).trailing_zeros();
            let slot = (current + u64::from(ahead)) & 63;
            let span = 1u64 << (shift + 6);
            let mut deadline = (self.elapsed & !(span - 1)) + (slot << shift);
            if deadline <= self.elapsed {
                // Only the top level wraps: what lies behind belongs to its next revolution.
                deadline += span;
            }
            return Some(((level * SLOTS) as u16 + slot as u16, deadline));
        }
        None
    }

    /// Moves the entries of a slot that was reached to lower levels, or to those that are due.
    fn cascade(&mut self, list: u16) {
        let mut key = self.heads[usize::from(list)];
        self.heads[usize::from(list)] = NONE;
        self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        while key != NONE {
            let next = self.entries[key as usize].next;
            self.link(key);
            key = next;
        }
    }

    /// Puts an entry that is in no list where its tick belongs.
    fn link(&mut self, key: u32) {
        let tick = self.entries[key as usize].tick;
        let list = if tick <= self.elapsed {
            DUE
        } else {
            let distance = (self.elapsed ^ tick) | 63;
            let level = ((63 - distance.leading_zeros() as usize) / 6).min(LEVELS - 1);
            let slot = ((tick >> (6 * level)) & 63) as usize;
            self.occupied[level] |= 1 << slot;
            (level * SLOTS + slot) as u16
        };
        let head = std::mem::replace(&mut self.heads[usize::from(list)], key);
        if head != NONE {
            self.entries[head as usize].previous = key;
        }
        let entry = &mut self.entries[key as usize];
        (entry.list, entry.next, entry.previous) = (list, head, NONE);
    }

    fn unlink(&mut self, key: u32) {
        let Entry { next, previous, list, .. } = self.entries[key as usize];
        if list == TOLD {
            return;
        }
        self.entries[key as usize].list = TOLD;
        if next != NONE {
            self.entries[next as usize].previous = previous;
        }
        if previous != NONE {
            self.entries[previous as usize].next = next;
            return;
        }
        self.heads[usize::from(list)] = next;
        if next == NONE && list != DUE {
            self.occupied[usize::from(list) / SLOTS] &= !(1 << (usize::from(list) % SLOTS));
        }
    }
}

/// The future of `sleep_until`. It takes an entry of the wheel at its first poll.
pub(crate) struct Sleep {
    shared: Rc<Shared>,
    at: Duration,
    key: Option<u32>,
}

impl Sleep {
    pub(crate) fn new(shared: Rc<Shared>, at: Duration) -> Self {
        Self { shared, at, key: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.shared.clock.now() >= self.at {
            return Poll::Ready(());
        }
        let old;
        {
            let mut wheel = self.shared.wheel.borrow_mut();
            if wheel.is_empty() {
                // Nobody has turned it while it was empty.
                wheel.elapsed = wheel.elapsed.max(tick_of(self.shared.clock.now()));
            }
            if let Some(key) = self.key {
                if wheel.entries[key as usize].list != TOLD {
                    let waiter = &mut wheel.entries[key as usize].waiter;
                    old = waiter.register(context, &self.shared.tasks);
                    drop(wheel);
                    drop(old);
                    return Poll::Pending;
                }
                // Told, and yet it is not time: the sleep was longer than the wheel.
                wheel.remove(key);
            }
            let mut waiter = Waiter::NONE;
            waiter.register(context, &self.shared.tasks);
            let key = wheel.insert(self.at, waiter);
            drop(wheel);
            self.key = Some(key);
        }
        self.shared.tasks.disturb();
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waiter = self.shared.wheel.borrow_mut().remove(key);
            drop(waiter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(wheel: &mut Wheel, at_ms: u64) -> usize {
        let mut count = 0;
        while wheel.expire(Duration::from_millis(at_ms)).is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn the_wheel_agrees_with_a_sorted_list() {
        let mut wheel = Wheel::new();
        let mut expected: Vec<u64> = Vec::new();
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut keys = Vec::new();
        let mut now = 0u64;
        for _ in 0..20_000 {
            match random() % 4 {
                0 | 1 => {
                    let range = [3, 70, 5_000, 400_000, 30_000_000][(random() % 5) as usize];
                    let at = now + random() % range;
                    let key = wheel.insert(Duration::from_millis(at), Waiter::NONE);
                    keys.push((key, at));
                    expected.push(at);
                }
                2 if !keys.is_empty() => {
                    let (key, at) = keys.swap_remove(random() as usize % keys.len());
                    wheel.remove(key);
                    expected.swap_remove(expected.iter().position(|&x| x == at).unwrap());
                }
                _ => {
                    let next = wheel.next_deadline();
                    let first = expected.iter().min().copied();
                    assert_eq!(next.is_some(), first.is_some());
                    if let (Some(next), Some(first)) = (next, first) {
                        assert!(next <= Duration::from_millis(first), "never look too late");
                    }
                    now += random() % [2, 100, 100_000][(random() % 3) as usize];
                    let due = expected.iter().filter(|&&at| at <= now).count();
                    assert_eq!(told(&mut wheel, now), due);
                    expected.retain(|&at| at > now);
                    keys.retain(|&(key, at)| {
                        if at <= now {
                            assert_eq!(wheel.entries[key as usize].list, TOLD);
                            wheel.remove(key);
                        }
                        at > now
                    });
                }
            }
        }
        assert_eq!(wheel.entries.len(), expected.len());
    }

    #[test]
    fn a_fraction_of_a_millisecond_is_never_early() {
        let mut wheel = Wheel::new();
        wheel.insert(Duration::from_micros(1_001), Waiter::NONE);
        assert_eq!(told(&mut wheel, 1), 0);
        assert_eq!(told(&mut wheel, 2), 1);
    }
}
