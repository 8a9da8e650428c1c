//! The timers of the test client, which use the client's sleep function.

use super::SleepFn;
use crate::http::timer::{Timer, TimerSource};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub(super) struct TestClock(pub(super) SleepFn);

impl TimerSource for TestClock {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        Some(Box::new(TestTimer { sleep: self.0.clone(), sleeping: None }))
    }
}

struct TestTimer {
    sleep: SleepFn,
    sleeping: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Timer for TestTimer {
    fn reset(&mut self, duration: Duration) {
        self.sleeping = Some((self.sleep)(duration));
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleeping) = &mut self.sleeping else { return Poll::Pending };
        let poll = sleeping.as_mut().poll(cx);
        if poll.is_ready() {
            self.sleeping = None;
        }
        poll
    }

    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }

    /// No server is involved, so nothing shuts down.
    fn is_draining(&self) -> bool {
        false
    }
}
