//! The threads on which a worker's blocking functions run, counted.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often somebody who waits for threads to end is asked whether to go on.
const GRAIN: Duration = Duration::from_millis(10);

/// Counts the blocking threads of one worker's runtime, which tells of their start and end.
///
/// Idle threads count as well. When the runtime has shut down those end at once, and what is left
/// is the number of functions that still run.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    alive: Mutex<usize>,
    ended: Condvar,
}

impl Threads {
    /// To be called by a thread that starts.
    pub fn started(&self) {
        *self.alive() += 1;
    }

    /// To be called by a thread that ends.
    pub fn stopped(&self) {
        *self.alive() -= 1;
        self.0.ended.notify_all();
    }

    /// Is there none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self.alive() == 0
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        *self.alive()
    }

    /// Blocks until no thread is left, or until `is_patient`, which is told their number again and
    /// again, says no and the number does not fall any more: threads that are only about to end are
    /// none of those that were left behind. It is told at least once.
    pub fn outlast(&self, is_patient: &mut dyn FnMut(usize) -> bool) {
        let mut alive = self.alive();
        loop {
            let (is_patient, before) = (is_patient(*alive), *alive);
            if before == 0 {
                return;
            }
            let waited = self.0.ended.wait_timeout(alive, GRAIN);
            alive = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !is_patient && *alive >= before {
                return;
            }
        }
    }

    fn alive(&self) -> MutexGuard<'_, usize> {
        // A number is whole whoever panicked.
        self.0.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn waiting_ends_with_the_last_thread() {
        let threads = Threads::default();
        threads.started();
        threads.started();
        let (first, second) = (threads.clone(), threads.clone());
        let others =
            [thread::spawn(move || first.stopped()), thread::spawn(move || second.stopped())];
        let mut last = None;
        threads.outlast(&mut |left| {
            last = Some(left);
            true
        });
        assert_eq!(last, Some(0));
        assert!(threads.is_empty());
        others.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn waiting_ends_with_patience() {
        let threads = Threads::default();
        threads.started();
        let mut asked = 0;
        threads.outlast(&mut |left| {
            asked += 1;
            assert_eq!(left, 1);
            asked < 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    fn threads_that_are_about_to_end_are_not_left_behind() {
        let threads = Threads::default();
        (0..3).for_each(|_| threads.started());
        let mut told = Vec::new();
        threads.clone().outlast(&mut |left| {
            told.push(left);
            // They end while nobody has the patience to wait for them.
            if left > 1 {
                let threads = threads.clone();
                thread::spawn(move || threads.stopped());
            }
            false
        });
        assert_eq!(told, [3, 2, 1]);
    }
}
