//! Which look at the ring the task at work came from.

use std::cell::Cell;
use std::time::Duration;

/// Which look at the ring the task at work came from. A turn may end before all that was ready is polled,
/// and the next look then puts more behind that.
#[derive(Default)]
pub(crate) struct Look {
    /// The look of the task at work.
    began: Cell<Duration>,
    /// How many tasks are before those of a later look, and when that was.
    behind: Cell<Option<(usize, Duration)>>,
}

impl Look {
    /// The driver looks now, while so many tasks are ready already.
    pub(crate) fn at(&self, now: Duration, ready: usize) {
        if ready == 0 {
            self.began.set(now);
            self.behind.set(None);
        } else if self.behind.get().is_none() {
            self.behind.set(Some((ready, now)));
        }
    }

    /// The next task is polled.
    #[inline]
    pub(crate) fn polling(&self) {
        match self.behind.get() {
            None => {}
            Some((0, at)) => {
                self.began.set(at);
                self.behind.set(None);
            }
            Some((ready, at)) => self.behind.set(Some((ready - 1, at))),
        }
    }

    /// The look of the task at work.
    pub(crate) fn began(&self) -> Duration {
        self.began.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_a_turn_did_not_reach_come_from_the_look_before() {
        let (look, second) = (Look::default(), Duration::from_secs);
        let poll = |times| {
            let polled = (0..times).map(|_| {
                look.polling();
                look.began().as_secs()
            });
            polled.collect::<Vec<_>>()
        };
        look.at(second(1), 0);
        assert_eq!(poll(3), [1, 1, 1]);
        look.at(second(2), 2);
        assert_eq!(poll(1), [1]);
        // A look in between does not make those behind it younger.
        look.at(second(3), 4);
        assert_eq!(poll(3), [1, 2, 2]);
        look.at(second(4), 1);
        assert_eq!(poll(2), [2, 4]);
        look.at(second(9), 0);
        assert_eq!(poll(1), [9]);
    }
}
