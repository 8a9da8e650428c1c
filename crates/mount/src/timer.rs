//! Timers. They use the clock of the Peregrine server if the thread runs one, otherwise tokio's.

use peregrine_web::clock::{self, Alarm, Clock};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

/// Returns an alarm that fires after this time, or `None` if the thread has no clock.
pub(crate) fn timer(after: Duration) -> Option<Box<dyn Alarm>> {
    let tokio = || Handle::try_current().ok().and_then(|_| TokioClock::new().alarm());
    let mut alarm = clock::alarm().or_else(tokio)?;
    alarm.set(after);
    Some(alarm)
}

/// Tokio's clock. It does not know when the server drains.
pub(crate) struct TokioClock(Instant);

impl TokioClock {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for TokioClock {
    fn alarm(&self) -> Option<Box<dyn Alarm>> {
        Some(Box::new(TokioAlarm { began: self.0, sleeping: None }))
    }
}

struct TokioAlarm {
    began: Instant,
    sleeping: Option<Pin<Box<Sleep>>>,
}

impl Alarm for TokioAlarm {
    fn set(&mut self, after: Duration) {
        self.sleeping = Some(Box::pin(sleep(after)));
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
        self.began.elapsed()
    }

    fn is_draining(&self) -> bool {
        false
    }
}
