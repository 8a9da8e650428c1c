//! Connection slots that are reserved for times when memory or connection slots are short.

use crate::timer_wheel::{Alarm, Wheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// The maximum number of connections in reserved slots.
pub(crate) const PLACES: usize = 64;

/// How long a connection in a reserved slot has to send a request before another one may take its
/// slot.
const GRACE: Duration = Duration::from_millis(100);

/// The reserved slots of a worker. If memory is short or few connection slots are left, new
/// connections use reserved slots, because they may send requests that must not be rejected.
///
/// If all reserved slots are used, the oldest connection is closed. A client that sends its request
/// at once gets its response, and then its connection closes. A client that sends nothing occupies
/// a slot only for a short time.
#[derive(Default)]
pub(crate) struct Wicket {
    /// The oldest first.
    all: RefCell<VecDeque<Entry>>,
    last: Cell<u64>,
    /// All connections up to this serial number have closed or must close.
    over: Cell<u64>,
}

struct Entry {
    serial: u64,
    /// The alarm of its connection.
    alarm: u32,
    since: Duration,
}

/// A connection's reserved slot, until this is dropped.
pub(crate) struct ByWicket {
    wicket: Rc<Wicket>,
    serial: u64,
}

impl Wicket {
    /// Returns whether one more connection may be accepted. If all slots are taken and the oldest
    /// connection has had its slot for [`GRACE`], that connection must close.
    pub(crate) fn makes_room(&self, wheel: &Wheel, now: Duration) -> bool {
        let oldest = {
            let mut all = self.all.borrow_mut();
            if all.len() < PLACES {
                return true;
            }
            all.pop_front_if(|oldest| now >= oldest.since.saturating_add(GRACE))
        };
        let Some(Entry { serial, alarm, .. }) = oldest else { return false };
        self.over.set(serial);
        wheel.wake(alarm);
        true
    }

    /// Takes a reserved slot for the connection with this alarm.
    pub(crate) fn enter(self: &Rc<Self>, alarm: &Alarm, now: Duration) -> ByWicket {
        let serial = self.last.get() + 1;
        self.last.set(serial);
        let entry = Entry { serial, alarm: alarm.number(), since: now };
        self.all.borrow_mut().push_back(entry);
        ByWicket { wicket: Rc::clone(self), serial }
    }
}

impl ByWicket {
    /// Returns whether this connection must close because another connection needs its slot.
    pub(crate) fn is_over(&self) -> bool {
        self.serial <= self.wicket.over.get()
    }
}

impl Drop for ByWicket {
    fn drop(&mut self) {
        let mut all = self.wicket.all.borrow_mut();
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
        let (wheel, wicket) = (Wheel::new(), Rc::new(Wicket::default()));
        let alarms: Vec<_> = (0..PLACES + 2).map(|_| wheel.alarm()).collect();
        let mut all = VecDeque::new();
        for alarm in &alarms[..PLACES] {
            assert!(wicket.makes_room(&wheel, Duration::ZERO));
            all.push_back(wicket.enter(alarm, Duration::ZERO));
        }
        assert!(!wicket.makes_room(&wheel, GRACE / 2), "no connection has had its time");
        assert!(wicket.makes_room(&wheel, GRACE));
        all.push_back(wicket.enter(&alarms[PLACES], GRACE));
        let over: Vec<_> = all.iter().map(ByWicket::is_over).collect();
        assert_eq!(over.iter().position(|over| *over), Some(0));
        assert_eq!(over.iter().filter(|over| **over).count(), 1);
        // A connection that ends by itself frees its slot, whatever its position, and no other one
        // has to go.
        drop(all.remove(PLACES / 2));
        assert!(wicket.makes_room(&wheel, GRACE));
        all.push_back(wicket.enter(&alarms[PLACES + 1], GRACE));
        assert_eq!(all.iter().filter(|place| place.is_over()).count(), 1);
        drop(all);
        assert!(wicket.all.borrow().is_empty());
    }
}
