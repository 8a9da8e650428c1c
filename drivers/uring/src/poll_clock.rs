//! Records when the completions of the current task were taken from the ring.

use std::cell::Cell;
use std::time::Duration;

/// When the completions that made the current task ready were taken from the ring. An iteration may
/// end before all ready tasks were polled; the next poll of the ring then queues more tasks behind
/// them.
#[derive(Default)]
pub(crate) struct PollClock {
    /// The poll of the ring that the current task came from.
    polled_at: Cell<Duration>,
    /// The number of tasks before those of a later look, and the time of that look.
    next_batch: Cell<Option<(usize, Duration)>>,
}

impl PollClock {
    /// The driver polls the ring now, while `ready` tasks are already queued.
    pub(crate) fn record_poll(&self, now: Duration, ready: usize) {
        if ready == 0 {
            self.polled_at.set(now);
            self.next_batch.set(None);
        } else if self.next_batch.get().is_none() {
            self.next_batch.set(Some((ready, now)));
        }
    }

    /// The next task is about to be polled.
    #[inline]
    pub(crate) fn on_task_poll(&self) {
        match self.next_batch.get() {
            None => {}
            Some((0, at)) => {
                self.polled_at.set(at);
                self.next_batch.set(None);
            }
            Some((ready, at)) => self.next_batch.set(Some((ready - 1, at))),
        }
    }

    /// The poll of the ring that the current task came from.
    pub(crate) fn polled_at(&self) -> Duration {
        self.polled_at.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_a_turn_did_not_reach_come_from_the_look_before() {
        let (look, second) = (PollClock::default(), Duration::from_secs);
        let poll = |times| {
            let polled = (0..times).map(|_| {
                look.on_task_poll();
                look.polled_at().as_secs()
            });
            polled.collect::<Vec<_>>()
        };
        look.record_poll(second(1), 0);
        assert_eq!(poll(3), [1, 1, 1]);
        look.record_poll(second(2), 2);
        assert_eq!(poll(1), [1]);
        // A look in between does not change the time of tasks that come later.
        look.record_poll(second(3), 4);
        assert_eq!(poll(3), [1, 2, 2]);
        look.record_poll(second(4), 1);
        assert_eq!(poll(2), [2, 4]);
        look.record_poll(second(9), 0);
        assert_eq!(poll(1), [9]);
    }
}
