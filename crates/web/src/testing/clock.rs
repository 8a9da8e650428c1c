//! The test client's clock, which uses its timer.

use super::Sleep;
use crate::http::timer::{Alarm, Clock};
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

pub(super) struct TestClock(pub(super) Sleep);

impl Clock for TestClock {
    fn alarm(&self) -> Option<Box<dyn Alarm>> {
        Some(Box::new(TestAlarm { sleep: self.0.clone(), sleeping: None }))
    }
}

struct TestAlarm {
    sleep: Sleep,
    sleeping: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Alarm for TestAlarm {
    fn set(&mut self, after: Duration) {
        self.sleeping = Some((self.sleep)(after));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(sleeping) = &mut self.sleeping else { return Poll::Pending };
        let is_over = sleeping.as_mut().poll(context);
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
