//! When to ask the kernel whether a peer is there still, of whom nothing is received.

use crate::deadlines::{Deadlines, Wait};
use std::time::Duration;

/// The first pause between two probes, doubled each time up to the last.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Whoever receives learns that the peer broke the connection off. Who does not, because nobody takes what
/// came, asks now and then: these are the pauses between two such looks.
#[derive(Debug)]
pub(crate) struct Probes {
    pause: Duration,
}

impl Default for Probes {
    fn default() -> Self {
        Self { pause: PAUSE_MIN }
    }
}

impl Probes {
    /// Sets the time of the next probe, unless there is one.
    pub(crate) fn begin(&mut self, now: impl FnOnce() -> Duration, deadlines: &mut Deadlines) {
        if deadlines.of(Wait::Probe).is_none() {
            self.set(now(), deadlines);
        }
    }

    /// Sets the time of the next probe.
    pub(crate) fn set(&mut self, now: Duration, deadlines: &mut Deadlines) {
        deadlines.set(Wait::Probe, now.saturating_add(self.pause));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}
