//! The timers of the test client, which use the client's sleep function.

use super::SleepFn;
use crate::http::timer::{Timer, TimerSource};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Creates timers that wait with this function.
pub(super) struct TestClock(pub(super) SleepFn);

impl TimerSource for TestClock {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        Some(Box::new(TestTimer { start_sleep: self.0.clone(), current_sleep: None }))
    }
}

struct TestTimer {
    start_sleep: SleepFn,
    /// `None` if the timer is not set.
    current_sleep: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Timer for TestTimer {
    fn reset(&mut self, duration: Duration) {
        self.current_sleep = Some((self.start_sleep)(duration));
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleep) = &mut self.current_sleep else { return Poll::Pending };
        let poll = sleep.as_mut().poll(cx);
        if poll.is_ready() {
            self.current_sleep = None;
        }
        poll
    }

    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    /// No server is involved, so nothing shuts down.
    fn is_server_draining(&self) -> bool {
        false
    }
}
