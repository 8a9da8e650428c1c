//! The threads that run a worker's blocking functions: their count, and how a worker that ends waits
//! for them.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use crate::Driver;

/// How long idle blocking threads may take to end. A thread that is left after that runs a function.
const IDLE_THREADS_END_MAX: Duration = Duration::from_millis(50);

/// The pause between two checks whether to go on waiting for threads.
const GRAIN: Duration = Duration::from_millis(10);

/// Counts the blocking threads of one worker's runtime, which reports their start and end.
///
/// Idle threads count as well. They end at once when the runtime has shut down, so the number left is
/// that of functions still running.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    alive: Mutex<usize>,
    ended: Condvar,
}

impl Threads {
    /// A thread calls this when it starts.
    pub fn started(&self) {
        *self.alive() += 1;
    }

    /// A thread calls this when it ends.
    pub fn stopped(&self) {
        *self.alive() -= 1;
        self.0.ended.notify_all();
    }

    /// Is the count zero?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self.alive() == 0
    }

    /// The number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        *self.alive()
    }

    /// Blocks until no thread is left, or until `is_patient`, which gets their number repeatedly and at
    /// least once, says no and the number no longer falls: threads that are only about to end do not
    /// count as left behind.
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
        // A number stays whole, even if a thread panicked while it held the lock.
        self.0.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's blocking functions, at its end: [`Driver::outlast`] for drivers that host tokio.
#[derive(Default)]
pub struct Functions {
    threads: Threads,
    /// Says whether to wait for this many of them.
    patience: RefCell<Option<Patience>>,
}

type Patience = Box<dyn FnMut(usize) -> bool>;

impl Functions {
    /// The count of the threads, for the runtime to keep.
    #[must_use]
    pub fn threads(&self) -> Threads {
        self.threads.clone()
    }

    /// Makes the end wait for as long as `is_patient` says.
    pub fn outlast(&self, is_patient: impl FnMut(usize) -> bool + 'static) {
        self.patience.replace(Some(Box::new(is_patient)));
    }

    /// Lets spawned functions begin that have not begun yet: tokio drops those when it shuts down.
    /// Functions begin in order, so all of them have begun once a last one has, which `spawn_last`
    /// spawns. The driver must still run.
    pub async fn begin<F: Future>(&self, driver: &impl Driver, spawn_last: impl FnOnce() -> F) {
        // A function that was just spawned may have no thread yet.
        if self.threads.is_empty() && (self.patience.borrow().is_none() || !can_start_thread()) {
            return;
        }
        let _hold = driver.hold();
        // Another worker may have taken the thread meanwhile.
        let Ok(last) = catch_unwind(AssertUnwindSafe(spawn_last)) else { return };
        let mut last = pin!(last);
        loop {
            let mut timer = pin!(driver.sleep_until(driver.now() + IDLE_THREADS_END_MAX));
            let has_begun = poll_fn(|context| match last.as_mut().poll(context) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => timer.as_mut().poll(context).map(|()| false),
            });
            // If as many functions run as there may be threads, nothing new begins.
            if has_begun.await || !self.is_patient() {
                return;
            }
        }
    }

    fn is_patient(&self) -> bool {
        // `is_patient` may call `outlast` again.
        let Some(mut is_patient) = self.patience.take() else { return false };
        let waits = is_patient(self.threads.count());
        self.patience.borrow_mut().get_or_insert(is_patient);
        waits
    }

    /// Calls `end`, which shuts the runtime down and waits for its threads for at most the given time.
    /// Then waits for functions that still run, as long as `is_patient` says. Without an `is_patient`
    /// it waits for none.
    pub fn end(&self, end: impl FnOnce(Duration)) {
        match self.patience.take() {
            None => end(Duration::ZERO),
            Some(mut patience) => {
                end(IDLE_THREADS_END_MAX);
                self.threads.outlast(&mut patience);
            }
        }
    }
}

/// May the process start one more thread? A runtime that has none and cannot start one panics.
fn can_start_thread() -> bool {
    let started = thread::Builder::new().name("peregrine-spare".to_owned()).spawn(|| ());
    started.is_ok_and(|thread| thread.join().is_ok())
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions").field("threads", &self.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            // Functions end while nobody has the patience to wait for them.
            if left > 1 {
                let threads = threads.clone();
                thread::spawn(move || threads.stopped());
            }
            false
        });
        assert_eq!(told, [3, 2, 1]);
    }
}
