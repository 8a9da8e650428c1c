//! What a run tells while it goes on. Who shows it, and how, is the caller's.

use std::time::Duration;

/// Listens to a run. Every method does nothing unless it is written.
pub trait Progress {
    /// Something begins that has so many steps and will take about so long.
    fn begin(&mut self, what: &str, steps: u64, about: Duration) {
        let _ = (what, steps, about);
    }

    /// One step is done.
    fn step(&mut self) {}

    /// It is done, or broken off.
    fn end(&mut self) {}

    /// A sentence that the user should see now.
    fn say(&mut self, sentence: &str) {
        let _ = sentence;
    }
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}
