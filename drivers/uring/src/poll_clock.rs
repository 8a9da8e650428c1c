//! Records when the completions that made the current task ready were taken from the ring.

use std::cell::Cell;
use std::time::Duration;

/// Knows when the completions that made the current task ready were taken from the ring. An
/// iteration may end before all ready tasks were polled; the next poll of the ring then queues more
/// tasks behind them.
#[derive(Default)]
pub(crate) struct PollClock {
    /// The time of the poll of the ring that made the current task ready.
    polled_at: Cell<Duration>,
    /// The number of ready tasks that are queued before those of a later poll of the ring, and the
    /// time of that poll.
    next_batch: Cell<Option<(usize, Duration)>>,
}

impl PollClock {
    /// Called when the driver polls the ring while `ready` tasks are already queued.
    pub(crate) fn record_poll(&self, now: Duration, ready: usize) {
        if ready == 0 {
            self.polled_at.set(now);
            self.next_batch.set(None);
        } else if self.next_batch.get().is_none() {
            self.next_batch.set(Some((ready, now)));
        }
    }

    /// Called when the next task is about to be polled.
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

    /// The time of the poll of the ring that made the current task ready.
    pub(crate) fn polled_at(&self) -> Duration {
        self.polled_at.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_not_reached_in_an_iteration_keep_the_time_of_their_poll() {
        let (clock, seconds) = (PollClock::default(), Duration::from_secs);
        let poll = |times| {
            let polled = (0..times).map(|_| {
                clock.on_task_poll();
                clock.polled_at().as_secs()
            });
            polled.collect::<Vec<_>>()
        };
        clock.record_poll(seconds(1), 0);
        assert_eq!(poll(3), [1, 1, 1]);
        clock.record_poll(seconds(2), 2);
        assert_eq!(poll(1), [1]);
        // A poll of the ring in between does not change the time of tasks that come later.
        clock.record_poll(seconds(3), 4);
        assert_eq!(poll(3), [1, 2, 2]);
        clock.record_poll(seconds(4), 1);
        assert_eq!(poll(2), [2, 4]);
        clock.record_poll(seconds(9), 0);
        assert_eq!(poll(1), [9]);
    }
}
