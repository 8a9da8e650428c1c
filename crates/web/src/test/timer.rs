//! Real time for tests without a runtime.

use std::future::poll_fn;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Ready when `duration` has passed. A thread of its own sleeps for it, and ends early if the future is
/// dropped.
pub(super) async fn sleep(duration: Duration) {
    let state = Arc::new(Mutex::new(State::default()));
    let (_is_wanted, is_dropped) = channel();
    let shared = Arc::clone(&state);
    std::thread::spawn(move || wait(duration, &is_dropped, &shared));
    poll_fn(|context| {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_over {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await;
}

#[derive(Default)]
struct State {
    is_over: bool,
    waker: Option<Waker>,
}

fn wait(duration: Duration, is_dropped: &Receiver<()>, state: &Mutex<State>) {
    if is_dropped.recv_timeout(duration) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.is_over = true;
    if let Some(waker) = state.waker.take() {
        waker.wake();
    }
}
