//! Records when the completions of the current task were taken from the ring.

use std::cell::Cell;
use std::time::Duration;

/// When the completions that made the current task ready were taken from the ring. A turn may end
/// before all ready tasks were polled; the next look at the ring then queues more tasks behind
/// them.
#[derive(Default)]
pub(crate) struct Look {
    /// The look that the current task came from.
    began: Cell<Duration>,
    /// The number of tasks before those of a later look, and the time of that look.
    behind: Cell<Option<(usize, Duration)>>,
}

impl Look {
    /// The driver looks at the ring now, while `ready` tasks are already queued.
    pub(crate) fn at(&self, now: Duration, ready: usize) {
        if ready == 0 {
            self.began.set(now);
            self.behind.set(None);
        } else if self.behind.get().is_none() {
            self.behind.set(Some((ready, now)));
        }
    }

    /// The next task is about to be polled.
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

    /// The look that the current task came from.
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
        // A look in between does not change the time of tasks that come later.
        look.at(second(3), 4);
        assert_eq!(poll(3), [1, 2, 2]);
        look.at(second(4), 1);
        assert_eq!(poll(2), [2, 4]);
        look.at(second(9), 0);
        assert_eq!(poll(1), [9]);
    }
}
