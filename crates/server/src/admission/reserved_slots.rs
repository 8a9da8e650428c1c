//! Connection slots that are reserved for times when memory or connection slots are short.

use crate::timer_wheel::{Timer, TimerWheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The maximum number of connections in reserved slots.
pub(crate) const RESERVED_SLOTS_MAX: usize = 64;

/// How long a connection in a reserved slot has to send a request before another one may take its
/// slot.
const EVICTION_GRACE: Duration = Duration::from_millis(100);

/// The reserved slots of a worker. If memory is short or few connection slots are left, new
/// connections use reserved slots, because they may send requests that must not be rejected.
///
/// If all reserved slots are used, the oldest connection is closed. A client that sends its request
/// at once gets its response, and then its connection closes. A client that sends nothing occupies
/// a slot only for a short time.
#[derive(Default)]
pub(crate) struct ReservedSlots {
    /// The oldest first.
    all: RefCell<VecDeque<SlotEntry>>,
    last_serial: Cell<u64>,
    /// All connections up to this serial number have closed or must close.
    evicted_through: Cell<u64>,
}

struct SlotEntry {
    serial: u64,
    /// The timer of its connection.
    timer_key: u32,
    acquired_at: Duration,
}

/// A connection's reserved slot, until this is dropped.
pub(crate) struct ReservedSlot {
    slots: Rc<ReservedSlots>,
    serial: u64,
}

impl ReservedSlots {
    /// Returns whether one more connection may be accepted. If all slots are taken and the oldest
    /// connection has had its slot for [`EVICTION_GRACE`], that connection must close.
    pub(crate) fn make_room(&self, wheel: &TimerWheel, now: Duration) -> bool {
        let oldest = {
            let mut all = self.all.borrow_mut();
            if all.len() < RESERVED_SLOTS_MAX {
                return true;
            }
            all.pop_front_if(|oldest| now >= oldest.acquired_at.saturating_add(EVICTION_GRACE))
        };
        let Some(SlotEntry { serial, timer_key: alarm, .. }) = oldest else { return false };
        self.evicted_through.set(serial);
        wheel.wake(alarm);
        true
    }

    /// Takes a reserved slot for the connection with this timer.
    pub(crate) fn acquire(self: &Rc<Self>, alarm: &Timer, now: Duration) -> ReservedSlot {
        let serial = self.last_serial.get() + 1;
        self.last_serial.set(serial);
        let entry = SlotEntry { serial, timer_key: alarm.key(), acquired_at: now };
        self.all.borrow_mut().push_back(entry);
        ReservedSlot { slots: Rc::clone(self), serial }
    }
}

impl ReservedSlot {
    /// Returns whether this connection must close because another connection needs its slot.
    pub(crate) fn is_evicted(&self) -> bool {
        self.serial <= self.slots.evicted_through.get()
    }
}

impl Drop for ReservedSlot {
    fn drop(&mut self) {
        let mut all = self.slots.all.borrow_mut();
        if let Ok(at) = all.binary_search_by_key(&self.serial, |entry| entry.serial) {
            all.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_gives_way_when_it_had_its_time() {
        let (wheel, wicket) = (TimerWheel::new(), Rc::new(ReservedSlots::default()));
        let alarms: Vec<_> = (0..RESERVED_SLOTS_MAX + 2).map(|_| wheel.timer()).collect();
        let mut all = VecDeque::new();
        for alarm in &alarms[..RESERVED_SLOTS_MAX] {
            assert!(wicket.make_room(&wheel, Duration::ZERO));
            all.push_back(wicket.acquire(alarm, Duration::ZERO));
        }
        assert!(!wicket.make_room(&wheel, EVICTION_GRACE / 2), "no connection has had its time");
        assert!(wicket.make_room(&wheel, EVICTION_GRACE));
        all.push_back(wicket.acquire(&alarms[RESERVED_SLOTS_MAX], EVICTION_GRACE));
        let over: Vec<_> = all.iter().map(ReservedSlot::is_evicted).collect();
        assert_eq!(over.iter().position(|over| *over), Some(0));
        assert_eq!(over.iter().filter(|over| **over).count(), 1);
        // A connection that ends by itself frees its slot, whatever its position, and no other one
        // has to go.
        drop(all.remove(RESERVED_SLOTS_MAX / 2));
        assert!(wicket.make_room(&wheel, EVICTION_GRACE));
        all.push_back(wicket.acquire(&alarms[RESERVED_SLOTS_MAX + 1], EVICTION_GRACE));
        assert_eq!(all.iter().filter(|place| place.is_evicted()).count(), 1);
        drop(all);
        assert!(wicket.all.borrow().is_empty());
    }
}
