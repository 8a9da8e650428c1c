//! The threads that run a worker's blocking functions: counts them, and waits for them when the
//! worker ends.

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

/// How long idle blocking threads may take to end. A thread that is left after that runs a
/// function.
const IDLE_THREAD_EXIT_TIMEOUT: Duration = Duration::from_millis(50);

/// The interval between two checks whether to keep waiting for threads.
const WAIT_INTERVAL: Duration = Duration::from_millis(10);

/// Counts the blocking threads of one worker's runtime, which reports their start and end.
///
/// Idle threads count as well. They end as soon as the runtime has shut down, so the remaining
/// number is that of functions still running.
#[derive(Clone, Debug, Default)]
pub struct BlockingThreads(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    alive: Mutex<usize>,
    ended: Condvar,
}

impl BlockingThreads {
    /// Called by a thread when it starts.
    pub fn on_start(&self) {
        *self.alive() += 1;
    }

    /// Called by a thread when it ends.
    pub fn on_stop(&self) {
        *self.alive() -= 1;
        self.0.ended.notify_all();
    }

    /// Returns whether the count is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self.alive() == 0
    }

    /// The number of threads.
    #[must_use]
    pub fn count(&self) -> usize {
        *self.alive()
    }

    /// Blocks until no thread is left, or until `should_keep_waiting` returns false and the number
    /// has stopped falling: threads that are about to end do not count as left behind.
    /// `should_keep_waiting` gets their number repeatedly, at least once.
    pub fn wait_while(&self, is_patient: &mut dyn FnMut(usize) -> bool) {
        let mut alive = self.alive();
        loop {
            let (is_patient, before) = (is_patient(*alive), *alive);
            if before == 0 {
                return;
            }
            let waited = self.0.ended.wait_timeout(alive, WAIT_INTERVAL);
            alive = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !is_patient && *alive >= before {
                return;
            }
        }
    }

    fn alive(&self) -> MutexGuard<'_, usize> {
        // The number is consistent even if a thread panicked while it held the lock.
        self.0.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's blocking functions when it ends: [`Driver::wait_for_blocking_tasks_while`] for
/// drivers that host tokio.
#[derive(Default)]
pub struct BlockingTasks {
    threads: BlockingThreads,
    /// Decides whether to wait for this many of them.
    keep_waiting: RefCell<Option<KeepWaiting>>,
}

type KeepWaiting = Box<dyn FnMut(usize) -> bool>;

impl BlockingTasks {
    /// The thread counter, for the runtime to update.
    #[must_use]
    pub fn threads(&self) -> BlockingThreads {
        self.threads.clone()
    }

    /// Makes the end wait while `should_keep_waiting` returns true.
    pub fn wait_while(&self, is_patient: impl FnMut(usize) -> bool + 'static) {
        self.keep_waiting.replace(Some(Box::new(is_patient)));
    }

    /// Waits until spawned functions have started, because tokio drops those that have not when it
    /// shuts down. Functions start in order, so all of them have started once a last one has, which
    /// `spawn_last` spawns. The driver must still be running.
    pub async fn start_queued<F: Future>(
        &self,
        driver: &impl Driver,
        spawn_last: impl FnOnce() -> F,
    ) {
        // A function that was just spawned may have no thread yet.
        if self.threads.is_empty() && (self.keep_waiting.borrow().is_none() || !can_start_thread())
        {
            return;
        }
        let _hold = driver.keep_awake();
        // Another worker may have taken the thread in the meantime.
        let Ok(last) = catch_unwind(AssertUnwindSafe(spawn_last)) else { return };
        let mut last = pin!(last);
        loop {
            let mut timer = pin!(driver.sleep_until(driver.now() + IDLE_THREAD_EXIT_TIMEOUT));
            let has_begun = poll_fn(|cx| match last.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => timer.as_mut().poll(cx).map(|()| false),
            });
            // If the maximum number of functions is running, no new one starts.
            if has_begun.await || !self.should_keep_waiting() {
                return;
            }
        }
    }

    fn should_keep_waiting(&self) -> bool {
        // `should_keep_waiting` may call `wait_while` again.
        let Some(mut is_patient) = self.keep_waiting.take() else { return false };
        let waits = is_patient(self.threads.count());
        self.keep_waiting.borrow_mut().get_or_insert(is_patient);
        waits
    }

    /// Calls `end`, which shuts the runtime down and waits for its threads for at most the given
    /// time. Then waits for functions that are still running while `should_keep_waiting` returns
    /// true. Without a `should_keep_waiting` it waits for none.
    pub fn shut_down(&self, end: impl FnOnce(Duration)) {
        match self.keep_waiting.take() {
            None => end(Duration::ZERO),
            Some(mut patience) => {
                end(IDLE_THREAD_EXIT_TIMEOUT);
                self.threads.wait_while(&mut patience);
            }
        }
    }
}

/// Returns whether the process can start one more thread. A runtime that has none and cannot start
/// one panics.
fn can_start_thread() -> bool {
    let started = thread::Builder::new().name("peregrine-probe".to_owned()).spawn(|| ());
    started.is_ok_and(|thread| thread.join().is_ok())
}

impl fmt::Debug for BlockingTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingTasks").field("threads", &self.threads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_thread() {
        let threads = BlockingThreads::default();
        threads.on_start();
        threads.on_start();
        let (first, second) = (threads.clone(), threads.clone());
        let others =
            [thread::spawn(move || first.on_stop()), thread::spawn(move || second.on_stop())];
        let mut last = None;
        threads.wait_while(&mut |left| {
            last = Some(left);
            true
        });
        assert_eq!(last, Some(0));
        assert!(threads.is_empty());
        others.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn waiting_ends_with_patience() {
        let threads = BlockingThreads::default();
        threads.on_start();
        let mut asked = 0;
        threads.wait_while(&mut |left| {
            asked += 1;
            assert_eq!(left, 1);
            asked < 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    fn threads_that_are_about_to_end_are_not_left_behind() {
        let threads = BlockingThreads::default();
        (0..3).for_each(|_| threads.on_start());
        let mut told = Vec::new();
        threads.clone().wait_while(&mut |left| {
            told.push(left);
            // Functions end while `should_keep_waiting` has already returned false.
            if left > 1 {
                let threads = threads.clone();
                thread::spawn(move || threads.on_stop());
            }
            false
        });
        assert_eq!(told, [3, 2, 1]);
    }
}
