//! TLS handshakes in progress, as many as the limit allows.

use crate::deadline::{Alarm, Wheel};
use std::cell::RefCell;
use std::collections::VecDeque;

/// The handshakes of one worker, the oldest first.
///
/// When there is one too many, the oldest ends. An honest peer is done after two round trips; one
/// that never goes on becomes the oldest, so that any number of those keeps nobody else out.
#[derive(Default)]
pub(crate) struct Handshakes(RefCell<VecDeque<u32>>);

/// A handshake in progress, until it is dropped.
pub(crate) struct Handshake<'w> {
    all: &'w Handshakes,
    number: u32,
}

impl Handshakes {
    /// Begins the handshake of the connection that has this alarm. If there are more than `max`
    /// then, the alarm of the oldest rings.
    pub(crate) fn begin(&self, wheel: &Wheel, alarm: &Alarm, max: usize) -> Handshake<'_> {
        let number = alarm.number();
        let oldest = {
            let mut all = self.0.borrow_mut();
            all.push_back(number);
            if all.len() > max { all.pop_front() } else { None }
        };
        if let Some(oldest) = oldest {
            wheel.ring(oldest);
        }
        Handshake { all: self, number }
    }
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.borrow_mut();
        if let Some(place) = all.iter().position(|number| *number == self.number) {
            all.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{Context, Waker};
    use std::time::Duration;

    fn rang(alarm: &Alarm) -> bool {
        alarm.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn one_too_many_ends_the_oldest_that_is_still_in_progress() {
        let wheel = Wheel::new(4);
        let alarms: Vec<_> = (0..4).map(|_| wheel.alarm()).collect();
        alarms.iter().for_each(|alarm| alarm.set(Duration::from_secs(10)));
        let all = Handshakes::default();
        let first = all.begin(&wheel, &alarms[0], 2);
        let _second = all.begin(&wheel, &alarms[1], 2);
        drop(first);
        let _third = all.begin(&wheel, &alarms[2], 2);
        assert!(!alarms.iter().any(rang));
        let _fourth = all.begin(&wheel, &alarms[3], 2);
        assert_eq!(alarms.iter().map(rang).collect::<Vec<_>>(), [false, true, false, false]);
    }
}
