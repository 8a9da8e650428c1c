//! What happened, as a number that two runs can compare.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use crate::random::mix;

/// Events kept in words, for the message of a failure.
const RECENT_MAX: usize = 24;

/// A digest of all events, in order, and the last few of them.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    digest: u64,
    recent: VecDeque<(Duration, &'static str, [u64; 3])>,
}

impl Trace {
    /// Adds an event. The meaning of the figures depends on `what`.
    pub(crate) fn record(&mut self, now: Duration, what: &'static str, figures: [u64; 3]) {
        // Virtual time is far below the 584 years that 64 bits of nanoseconds hold.
        let time = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        for byte in what.bytes() {
            self.digest = mix(self.digest ^ u64::from(byte)).wrapping_add(1);
        }
        for figure in [time].into_iter().chain(figures) {
            self.digest = mix(self.digest ^ figure).wrapping_add(1);
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back((now, what, figures));
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// The last events, a line each.
    pub(crate) fn recent(&self) -> String {
        let mut lines = String::new();
        for (now, what, [a, b, c]) in &self.recent {
            writeln!(lines, "  {now:?} {what} {a} {b} {c}").expect("a string takes every line");
        }
        lines
    }
}
