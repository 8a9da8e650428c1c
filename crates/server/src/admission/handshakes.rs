//! Limits TLS handshakes in progress.

use crate::timer_wheel::{Timer, TimerWheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// The handshakes of one worker, the oldest first.
///
/// If there are too many handshakes, the oldest one is aborted. An honest peer completes its
/// handshake within two round trips. The handshake of a peer that stalls becomes the oldest, so any
/// number of stalled handshakes cannot prevent new ones.
#[derive(Default)]
pub(crate) struct HandshakeLimiter {
    /// The serial number of each handshake, and the timer of its connection.
    all: RefCell<VecDeque<(u64, u32)>>,
    last_serial: Cell<u64>,
    /// All handshakes up to this serial number have ended or must end.
    evicted_through: Cell<u64>,
}

/// A handshake in progress, until this is dropped.
pub(crate) struct HandshakePermit {
    all: Rc<HandshakeLimiter>,
    serial: u64,
}

impl HandshakeLimiter {
    /// Begins the handshake of the connection with this timer. If there are then more than `max`,
    /// the oldest must end, and this method wakes its connection.
    pub(crate) fn acquire(
        self: &Rc<Self>,
        wheel: &TimerWheel,
        alarm: &Timer,
        max: usize,
    ) -> HandshakePermit {
        let serial = self.last_serial.get() + 1;
        self.last_serial.set(serial);
        let oldest = {
            let mut all = self.all.borrow_mut();
            all.push_back((serial, alarm.key()));
            if all.len() > max { all.pop_front() } else { None }
        };
        if let Some((oldest, alarm)) = oldest {
            self.evicted_through.set(oldest);
            wheel.wake(alarm);
        }
        HandshakePermit { all: Rc::clone(self), serial }
    }
}

impl HandshakePermit {
    /// Returns whether this handshake must end because there are too many.
    pub(crate) fn is_evicted(&self) -> bool {
        self.serial <= self.all.evicted_through.get()
    }
}

impl Drop for HandshakePermit {
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
        let wheel = TimerWheel::new();
        let alarms: Vec<_> = (0..4).map(|_| wheel.timer()).collect();
        let all = Rc::new(HandshakeLimiter::default());
        let first = all.acquire(&wheel, &alarms[0], 2);
        let second = all.acquire(&wheel, &alarms[1], 2);
        drop(first);
        let third = all.acquire(&wheel, &alarms[2], 2);
        assert!(![&second, &third].iter().any(|handshake| handshake.is_evicted()));
        let fourth = all.acquire(&wheel, &alarms[3], 2);
        let over = [&second, &third, &fourth].map(HandshakePermit::is_evicted);
        assert_eq!(over, [true, false, false]);
    }
}
