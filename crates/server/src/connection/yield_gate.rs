//! Makes a connection yield on drivers that may poll a woken task again before they poll the
//! kernel.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Closed from the moment a task yields until the driver has polled the kernel. While the gate is
/// closed, the connection ignores all other wake-ups, most of which it causes itself.
#[derive(Default)]
pub(super) struct YieldGate {
    is_closed: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl YieldGate {
    /// Closes the gate and returns the waker that opens it. Opening it wakes the task.
    pub(super) fn close(self: &Arc<Self>, cx: &Context<'_>) -> Waker {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *task {
            Some(waker) => waker.clone_from(cx.waker()),
            empty => *empty = Some(cx.waker().clone()),
        }
        drop(task);
        self.is_closed.store(true, Ordering::Release);
        Waker::from(Arc::clone(self))
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl Wake for YieldGate {
    fn wake(self: Arc<Self>) {
        self.is_closed.store(false, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        task.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn gate_stays_closed_until_its_waker_opens_it_and_wakes_the_task() {
        let wakes = Arc::new(Wakes::default());
        let task = Waker::from(Arc::clone(&wakes));
        let gate = Arc::new(YieldGate::default());
        assert!(!gate.is_closed());
        for round in 1..3 {
            let opener = gate.close(&Context::from_waker(&task));
            assert!(gate.is_closed());
            opener.wake();
            assert_eq!((gate.is_closed(), wakes.0.load(Ordering::Relaxed)), (false, round));
        }
    }
}
