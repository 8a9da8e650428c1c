//! Sleeps in real time, for tests without a runtime.

use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Completes after `duration`. A separate thread sleeps, and ends early if the future is dropped.
pub(super) async fn sleep(duration: Duration) {
    let handle = SleepHandle(Arc::default());
    let shared = Arc::clone(&handle.0);
    std::thread::spawn(move || shared.wait(duration));
    poll_fn(|cx| {
        let mut state = handle.0.state();
        if state.is_over {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// The future's half; dropping it ends the thread.
struct SleepHandle(Arc<Sleep>);

impl Drop for SleepHandle {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.ended.notify_one();
    }
}

// A channel would also work, but every program that uses this crate would compile more slowly.
#[derive(Default)]
struct Sleep {
    state: Mutex<SleepState>,
    /// Wakes the thread when the future is dropped.
    ended: Condvar,
}

#[derive(Default)]
struct SleepState {
    /// The time has elapsed, or the future was dropped.
    is_over: bool,
    waker: Option<Waker>,
}

impl Sleep {
    fn state(&self) -> MutexGuard<'_, SleepState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps on the thread.
    fn wait(&self, duration: Duration) {
        let is_waiting = |state: &mut SleepState| !state.is_over;
        let result = self.ended.wait_timeout_while(self.state(), duration, is_waiting);
        let (mut state, result) = result.unwrap_or_else(PoisonError::into_inner);
        if !result.timed_out() {
            // The future was dropped.
            return;
        }
        state.is_over = true;
        // Waking may poll the future, which takes the lock, so the lock is released first.
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
