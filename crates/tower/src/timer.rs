//! Timers. They use the clock of the Peregrine server if the thread runs one, otherwise tokio's.

use peregrine_web::timer::{self, Timer, TimerSource};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep};

/// Returns a timer that expires after this time, or `None` if the thread has no clock.
pub(crate) fn new_timer(after: Duration) -> Option<Box<dyn Timer>> {
    let tokio_timer =
        || Handle::try_current().ok().and_then(|_| TokioTimerSource::new().new_timer());
    let mut timer = timer::new_timer().or_else(tokio_timer)?;
    timer.reset(after);
    Some(timer)
}

/// Tokio's clock. It does not know when the server drains.
pub(crate) struct TokioTimerSource(Instant);

impl TokioTimerSource {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }
}

impl TimerSource for TokioTimerSource {
    fn new_timer(&self) -> Option<Box<dyn Timer>> {
        Some(Box::new(TokioTimer { start: self.0, sleep: None }))
    }
}

struct TokioTimer {
    start: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Timer for TokioTimer {
    fn reset(&mut self, after: Duration) {
        self.sleep = Some(Box::pin(sleep(after)));
    }

    fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(sleep) = &mut self.sleep else { return Poll::Pending };
        let polled = sleep.as_mut().poll(cx);
        if polled.is_ready() {
            self.sleep = None;
        }
        polled
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn is_server_draining(&self) -> bool {
        false
    }
}
