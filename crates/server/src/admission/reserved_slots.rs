//! The way in for few connections at a time, where there is no room for more that stay.

use crate::timer_wheel::{Alarm, Wheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Connections that have come by the wicket and are there.
pub(crate) const PLACES: usize = 64;

/// Who comes by it has so long to ask for something, before another one may take the place.
const GRACE: Duration = Duration::from_millis(100);

/// A worker's wicket: for those who come while memory is short, or while few places are left, since they may ask for
/// what is never refused.
///
/// As with handshakes, the oldest gives way when there is one too many: who asks at once is answered at once and gone,
/// and those who do not ask keep nobody else out for long.
#[derive(Default)]
pub(crate) struct Wicket {
    /// The oldest first.
    all: RefCell<VecDeque<Entry>>,
    last: Cell<u64>,
    /// All up to this serial number are gone, or are to go.
    over: Cell<u64>,
}

struct Entry {
    serial: u64,
    /// Its connection's alarm.
    alarm: u32,
    since: Duration,
}

/// A connection's place at the wicket, until it is dropped.
pub(crate) struct ByWicket {
    wicket: Rc<Wicket>,
    serial: u64,
}

impl Wicket {
    /// May one more come? Where all places are taken and the oldest has had its time, that one is to go.
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

    /// The connection that has this alarm comes by the wicket.
    pub(crate) fn enter(self: &Rc<Self>, alarm: &Alarm, now: Duration) -> ByWicket {
        let serial = self.last.get() + 1;
        self.last.set(serial);
        let entry = Entry { serial, alarm: alarm.number(), since: now };
        self.all.borrow_mut().push_back(entry);
        ByWicket { wicket: Rc::clone(self), serial }
    }
}

impl ByWicket {
    /// Is this connection to go, because others wait for its place?
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
        assert!(!wicket.makes_room(&wheel, GRACE / 2), "none has had its time");
        assert!(wicket.makes_room(&wheel, GRACE));
        all.push_back(wicket.enter(&alarms[PLACES], GRACE));
        let over: Vec<_> = all.iter().map(ByWicket::is_over).collect();
        assert_eq!(over.iter().position(|over| *over), Some(0));
        assert_eq!(over.iter().filter(|over| **over).count(), 1);
        // One that leaves makes room by itself, wherever it is, and nobody else has to go.
        drop(all.remove(PLACES / 2));
        assert!(wicket.makes_room(&wheel, GRACE));
        all.push_back(wicket.enter(&alarms[PLACES + 1], GRACE));
        assert_eq!(all.iter().filter(|place| place.is_over()).count(), 1);
        drop(all);
        assert!(wicket.all.borrow().is_empty());
    }
}
