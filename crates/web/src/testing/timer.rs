//! The test client's clock, which uses its timer.

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
    fn reset(&mut self, after: Duration) {
        self.sleeping = Some((self.sleep)(after));
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleeping) = &mut self.sleeping else { return Poll::Pending };
        let is_over = sleeping.as_mut().poll(cx);
        if is_over.is_ready() {
            self.sleeping = None;
        }
        is_over
    }

    fn now(&self) -> Duration {
        static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        BEGIN.elapsed()
    }

    /// No server is involved, so nothing shuts down.
    fn is_draining(&self) -> bool {
        false
    }
}
