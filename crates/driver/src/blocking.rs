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

/// The time allowed for idle blocking threads to end. A thread that is still alive after that is
/// running a function.
const IDLE_THREAD_EXIT_TIMEOUT: Duration = Duration::from_millis(50);

/// The interval between two checks whether to keep waiting for threads.
const WAIT_INTERVAL: Duration = Duration::from_millis(10);

/// Counts the blocking threads of one worker's runtime. The runtime reports their start and end.
///
/// Idle threads count as well. They end as soon as the runtime has shut down, so each thread that
/// remains is still running a function.
#[derive(Clone, Debug, Default)]
pub struct BlockingThreads(Arc<ThreadCount>);

#[derive(Debug, Default)]
struct ThreadCount {
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

    /// Blocks until no thread is left, or until `keep_waiting` returns false and the number has
    /// stopped falling, so that threads that are about to end are still waited for. Calls
    /// `keep_waiting` with the number of threads repeatedly, at least once.
    pub fn wait_while(&self, keep_waiting: &mut dyn FnMut(usize) -> bool) {
        let mut alive = self.alive();
        loop {
            let (should_wait, before) = (keep_waiting(*alive), *alive);
            if before == 0 {
                return;
            }
            let waited = self.0.ended.wait_timeout(alive, WAIT_INTERVAL);
            alive = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !should_wait && *alive >= before {
                return;
            }
        }
    }

    fn alive(&self) -> MutexGuard<'_, usize> {
        // The number is consistent even if a thread panicked while it held the lock.
        self.0.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a worker's blocking functions when the worker ends: implements
/// [`Driver::keep_waiting_for_blocking_tasks_while`] for drivers that host tokio.
#[derive(Default)]
pub struct BlockingTasks {
    threads: BlockingThreads,
    /// Decides whether to keep waiting for the given number of functions.
    keep_waiting: RefCell<Option<KeepWaiting>>,
}

type KeepWaiting = Box<dyn FnMut(usize) -> bool>;

impl BlockingTasks {
    /// The thread counter, for the runtime to update.
    #[must_use]
    pub fn threads(&self) -> BlockingThreads {
        self.threads.clone()
    }

    /// Makes [`shut_down`](Self::shut_down) wait while `keep_waiting` returns true.
    pub fn set_keep_waiting(&self, keep_waiting: impl FnMut(usize) -> bool + 'static) {
        self.keep_waiting.replace(Some(Box::new(keep_waiting)));
    }

    /// Waits until all spawned functions have started, because tokio drops functions that have not
    /// started when it shuts down. Functions start in order, so `spawn_last` spawns one more: when
    /// that one has run, all others have started. The driver must still be running.
    pub async fn wait_for_queued<F: Future>(
        &self,
        driver: &impl Driver,
        spawn_last: impl FnOnce() -> F,
    ) {
        // Without a thread, a function may still be queued: its thread is only now being started.
        if self.threads.is_empty() && (self.keep_waiting.borrow().is_none() || !can_start_thread())
        {
            return;
        }
        let _hold = driver.keep_awake();
        // Spawning panics if no thread can be started. Another worker may have reached the limit of
        // threads since the check.
        let Ok(last) = catch_unwind(AssertUnwindSafe(spawn_last)) else { return };
        let mut last = pin!(last);
        loop {
            let mut timer = pin!(driver.sleep_until(driver.now() + IDLE_THREAD_EXIT_TIMEOUT));
            let has_started = poll_fn(|cx| match last.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(true),
                Poll::Pending => timer.as_mut().poll(cx).map(|()| false),
            });
            // While the maximum number of functions is running, no new one starts, so the caller
            // decides whether to wait for that.
            if has_started.await || !self.should_keep_waiting() {
                return;
            }
        }
    }

    fn should_keep_waiting(&self) -> bool {
        // Taken out during the call, because `keep_waiting` may itself call `set_keep_waiting`.
        let Some(mut keep_waiting) = self.keep_waiting.take() else { return false };
        let should_wait = keep_waiting(self.threads.count());
        self.keep_waiting.borrow_mut().get_or_insert(keep_waiting);
        should_wait
    }

    /// Calls `shut_down_runtime`, which shuts the runtime down and waits for its threads for at
    /// most the given time. Then waits for functions that are still running, for as long as the
    /// `keep_waiting` passed to [`set_keep_waiting`](Self::set_keep_waiting) returns true. Without
    /// one, it does not wait for any function.
    pub fn shut_down(&self, shut_down_runtime: impl FnOnce(Duration)) {
        match self.keep_waiting.take() {
            None => shut_down_runtime(Duration::ZERO),
            Some(mut keep_waiting) => {
                shut_down_runtime(IDLE_THREAD_EXIT_TIMEOUT);
                self.threads.wait_while(&mut keep_waiting);
            }
        }
    }
}

/// Returns whether the process can start one more thread. A runtime without a blocking thread
/// panics if it cannot start one.
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
    fn waiting_ends_when_the_last_thread_has_ended() {
        let threads = BlockingThreads::default();
        threads.on_start();
        threads.on_start();
        let (first, second) = (threads.clone(), threads.clone());
        let handles =
            [thread::spawn(move || first.on_stop()), thread::spawn(move || second.on_stop())];
        let mut last = None;
        threads.wait_while(&mut |remaining| {
            last = Some(remaining);
            true
        });
        assert_eq!(last, Some(0));
        assert!(threads.is_empty());
        handles.into_iter().for_each(|thread| thread.join().unwrap());
    }

    #[test]
    fn waiting_ends_when_keep_waiting_returns_false() {
        let threads = BlockingThreads::default();
        threads.on_start();
        let mut calls = 0;
        threads.wait_while(&mut |remaining| {
            calls += 1;
            assert_eq!(remaining, 1);
            calls < 3
        });
        assert_eq!(calls, 3);
    }

    #[test]
    fn threads_that_are_about_to_end_are_waited_for() {
        let threads = BlockingThreads::default();
        (0..3).for_each(|_| threads.on_start());
        let mut counts = Vec::new();
        threads.clone().wait_while(&mut |remaining| {
            counts.push(remaining);
            // Functions end while `keep_waiting` has already returned false.
            if remaining > 1 {
                let threads = threads.clone();
                thread::spawn(move || threads.on_stop());
            }
            false
        });
        assert_eq!(counts, [3, 2, 1]);
    }
}
