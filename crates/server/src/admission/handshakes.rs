//! Limits the number of TLS handshakes and PROXY headers in progress.

use crate::timer_wheel::{Timer, TimerWheel};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// One worker's handshakes, for all listeners that share this limiter. The time in which a
/// connection receives its PROXY header counts as a handshake.
///
/// If there are too many handshakes, the oldest one is aborted. An honest peer completes its
/// handshake within two round trips. The handshake of a peer that stalls becomes the oldest, so
/// stalled handshakes, however many there are, cannot prevent new ones.
#[derive(Default)]
pub(crate) struct HandshakeLimiter {
    /// The handshakes in progress that are not evicted, the oldest first: the serial number of
    /// each, and the key of its connection's timer.
    in_progress: RefCell<VecDeque<(u64, u32)>>,
    last_serial: Cell<u64>,
    /// All handshakes up to this serial number have ended or must end.
    evicted_through: Cell<u64>,
}

/// Counts a handshake as in progress until this is dropped.
pub(crate) struct HandshakePermit {
    limiter: Rc<HandshakeLimiter>,
    serial: u64,
}

impl HandshakeLimiter {
    /// Counts a handshake of the connection with this timer. If there are then more than `max`, the
    /// oldest must end, and this method wakes its connection.
    pub(crate) fn acquire(
        self: &Rc<Self>,
        wheel: &TimerWheel,
        timer: &Timer,
        max: usize,
    ) -> HandshakePermit {
        let serial = self.last_serial.get() + 1;
        self.last_serial.set(serial);
        let evicted = {
            let mut in_progress = self.in_progress.borrow_mut();
            in_progress.push_back((serial, timer.key()));
            if in_progress.len() > max { in_progress.pop_front() } else { None }
        };
        if let Some((evicted_serial, timer_key)) = evicted {
            self.evicted_through.set(evicted_serial);
            wheel.wake(timer_key);
        }
        HandshakePermit { limiter: Rc::clone(self), serial }
    }
}

impl HandshakePermit {
    /// Returns whether this handshake must end because there are too many.
    pub(crate) fn is_evicted(&self) -> bool {
        self.serial <= self.limiter.evicted_through.get()
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut in_progress = self.limiter.in_progress.borrow_mut();
        if let Ok(index) = in_progress.binary_search_by_key(&self.serial, |(serial, _)| *serial) {
            in_progress.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_handshake_evicts_the_oldest_in_progress() {
        let wheel = TimerWheel::new();
        let timers: Vec<_> = (0..4).map(|_| wheel.timer()).collect();
        let limiter = Rc::new(HandshakeLimiter::default());
        let first = limiter.acquire(&wheel, &timers[0], 2);
        let second = limiter.acquire(&wheel, &timers[1], 2);
        drop(first);
        let third = limiter.acquire(&wheel, &timers[2], 2);
        assert!(![&second, &third].iter().any(|permit| permit.is_evicted()));
        let fourth = limiter.acquire(&wheel, &timers[3], 2);
        let evicted = [&second, &third, &fourth].map(HandshakePermit::is_evicted);
        assert_eq!(evicted, [true, false, false]);
    }
}
