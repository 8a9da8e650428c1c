//! Limits TLS handshakes in progress.

use crate::timer_wheel::{Alarm, Wheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The handshakes of one worker, the oldest first.
///
/// If there are too many handshakes, the oldest one is aborted. An honest peer completes its
/// handshake within two round trips. The handshake of a peer that stalls becomes the oldest, so any
/// number of stalled handshakes cannot prevent new ones.
#[derive(Default)]
pub(crate) struct Handshakes {
    /// The serial number of each handshake, and the alarm of its connection.
    all: RefCell<VecDeque<(u64, u32)>>,
    last: Cell<u64>,
    /// All handshakes up to this serial number have ended or must end.
    over: Cell<u64>,
}

/// A handshake in progress, until this is dropped.
pub(crate) struct Handshake {
    all: Rc<Handshakes>,
    serial: u64,
}

impl Handshakes {
    /// Begins the handshake of the connection with this alarm. If there are then more than `max`,
    /// the oldest must end, and this method wakes its connection.
    pub(crate) fn begin(self: &Rc<Self>, wheel: &Wheel, alarm: &Alarm, max: usize) -> Handshake {
        let serial = self.last.get() + 1;
        self.last.set(serial);
        let oldest = {
            let mut all = self.all.borrow_mut();
            all.push_back((serial, alarm.number()));
            if all.len() > max { all.pop_front() } else { None }
        };
        if let Some((oldest, alarm)) = oldest {
            self.over.set(oldest);
            wheel.wake(alarm);
        }
        Handshake { all: Rc::clone(self), serial }
    }
}

impl Handshake {
    /// Returns whether this handshake must end because there are too many.
    pub(crate) fn is_over(&self) -> bool {
        self.serial <= self.all.over.get()
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut all = self.all.all.borrow_mut();
        if let Ok(place) = all.binary_search_by_key(&self.serial, |(serial, _)| *serial) {
            all.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_too_many_ends_the_oldest_that_is_still_in_progress() {
        let wheel = Wheel::new();
        let alarms: Vec<_> = (0..4).map(|_| wheel.alarm()).collect();
        let all = Rc::new(Handshakes::default());
        let first = all.begin(&wheel, &alarms[0], 2);
        let second = all.begin(&wheel, &alarms[1], 2);
        drop(first);
        let third = all.begin(&wheel, &alarms[2], 2);
        assert!(![&second, &third].iter().any(|handshake| handshake.is_over()));
        let fourth = all.begin(&wheel, &alarms[3], 2);
        let over = [&second, &third, &fourth].map(Handshake::is_over);
        assert_eq!(over, [true, false, false]);
    }
}
