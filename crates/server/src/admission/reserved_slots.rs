//! Slots that new connections need, in addition to their connection slots, while memory, connection
//! slots or file descriptors are short.

use crate::timer_wheel::{Timer, TimerWheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The maximum number of connections in reserved slots. An evicted connection does not count.
pub(crate) const RESERVED_SLOTS_MAX: usize = 64;

/// How much time a connection in a reserved slot gets to send a request before another connection
/// may take its slot.
const EVICTION_GRACE: Duration = Duration::from_millis(100);

/// The reserved slots of a worker. If memory, connection slots or file descriptors are short, new
/// connections need reserved slots. New connections are not refused altogether, because they may
/// send requests that must not be rejected. A connection in a reserved slot counts towards
/// `connections_max` like any other.
///
/// If all reserved slots are taken and another connection needs one, the connection that has had
/// its slot for longest is evicted, but not before [`EVICTION_GRACE`] has passed. It closes once it
/// has no request in progress. So a client that sends its request immediately gets its response,
/// and a client that sends nothing occupies a slot only for a short time.
#[derive(Default)]
pub(crate) struct ReservedSlots {
    /// The slots in use by connections that are not evicted, the oldest first.
    occupied: RefCell<VecDeque<SlotEntry>>,
    last_serial: Cell<u64>,
    /// All connections up to this serial number have released their slots or are evicted.
    evicted_through: Cell<u64>,
}

struct SlotEntry {
    serial: u64,
    /// The key of its connection's timer.
    timer_key: u32,
    acquired_at: Duration,
}

/// Occupies a reserved slot for a connection until this is dropped.
pub(crate) struct ReservedSlot {
    slots: Rc<ReservedSlots>,
    serial: u64,
}

impl ReservedSlots {
    /// Returns whether one more connection may be accepted. If all slots are taken and the oldest
    /// connection has had its slot for [`EVICTION_GRACE`], evicts and wakes that connection.
    pub(crate) fn make_room(&self, wheel: &TimerWheel, now: Duration) -> bool {
        let oldest = {
            let mut occupied = self.occupied.borrow_mut();
            if occupied.len() < RESERVED_SLOTS_MAX {
                return true;
            }
            occupied.pop_front_if(|oldest| now >= oldest.acquired_at.saturating_add(EVICTION_GRACE))
        };
        let Some(SlotEntry { serial, timer_key, .. }) = oldest else { return false };
        self.evicted_through.set(serial);
        wheel.wake(timer_key);
        true
    }

    /// Takes a reserved slot for the connection with this timer. Does not check whether one is
    /// free: see [`ReservedSlots::make_room`].
    pub(crate) fn acquire(self: &Rc<Self>, timer: &Timer, now: Duration) -> ReservedSlot {
        let serial = self.last_serial.get() + 1;
        self.last_serial.set(serial);
        let entry = SlotEntry { serial, timer_key: timer.key(), acquired_at: now };
        self.occupied.borrow_mut().push_back(entry);
        ReservedSlot { slots: Rc::clone(self), serial }
    }
}

impl ReservedSlot {
    /// Returns whether this connection must close, once it has no request in progress, because
    /// another connection needs its slot.
    pub(crate) fn is_evicted(&self) -> bool {
        self.serial <= self.slots.evicted_through.get()
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        let mut occupied = self.slots.occupied.borrow_mut();
        if let Ok(index) = occupied.binary_search_by_key(&self.serial, |entry| entry.serial) {
            occupied.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_connection_is_evicted_after_its_grace() {
        let (wheel, slots) = (TimerWheel::new(), Rc::new(ReservedSlots::default()));
        let timers: Vec<_> = (0..RESERVED_SLOTS_MAX + 2).map(|_| wheel.timer()).collect();
        let mut acquired = VecDeque::new();
        for timer in &timers[..RESERVED_SLOTS_MAX] {
            assert!(slots.make_room(&wheel, Duration::ZERO));
            acquired.push_back(slots.acquire(timer, Duration::ZERO));
        }
        assert!(!slots.make_room(&wheel, EVICTION_GRACE / 2), "no grace period has ended");
        assert!(slots.make_room(&wheel, EVICTION_GRACE));
        acquired.push_back(slots.acquire(&timers[RESERVED_SLOTS_MAX], EVICTION_GRACE));
        let evicted: Vec<_> = acquired.iter().map(ReservedSlot::is_evicted).collect();
        assert_eq!(evicted.iter().position(|evicted| *evicted), Some(0));
        assert_eq!(evicted.iter().filter(|evicted| **evicted).count(), 1);
        // A connection that ends by itself frees its slot, whatever its position, and no other
        // connection is evicted.
        drop(acquired.remove(RESERVED_SLOTS_MAX / 2));
        assert!(slots.make_room(&wheel, EVICTION_GRACE));
        acquired.push_back(slots.acquire(&timers[RESERVED_SLOTS_MAX + 1], EVICTION_GRACE));
        assert_eq!(acquired.iter().filter(|slot| slot.is_evicted()).count(), 1);
        drop(acquired);
        assert!(slots.occupied.borrow().is_empty());
    }
}
