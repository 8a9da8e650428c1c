//! Tasks, and the list of ready ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// A spawned task that the loop has not picked up yet.
pub(crate) struct Spawned {
    pub(crate) task: Pin<Box<dyn Future<Output = ()>>>,
    /// The task's position among those spawned on the driver; `None` for a client's task.
    pub(crate) number: Option<u64>,
}

/// A task of the loop.
pub(crate) struct Task {
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    pub(crate) waker: Arc<TaskWaker>,
    /// The number of polls after which the task is dropped, if [`crate::Network::drop_task_at`] was
    /// called for it.
    pub(crate) polls_left: Option<u64>,
}

/// The tasks that were woken, and the loop's own waker. Wakers may be used from any thread, hence
/// the lock; the simulation itself has only one.
#[derive(Default)]
pub(crate) struct RunQueue {
    inner: Mutex<RunQueueInner>,
}

#[derive(Default)]
struct RunQueueInner {
    woken: Vec<u64>,
    loop_waker: Option<Waker>,
}

impl RunQueue {
    fn lock(&self) -> MutexGuard<'_, RunQueueInner> {
        // No code that can panic runs under the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the loop's waker.
    pub(crate) fn set_loop_waker(&self, waker: &Waker) {
        self.lock().loop_waker = Some(waker.clone());
    }

    pub(crate) fn wake_loop(&self) {
        let waker = self.lock().loop_waker.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The number of ready tasks.
    pub(crate) fn count(&self) -> usize {
        self.lock().woken.len()
    }

    /// Removes and returns the ready task at `index`, in the order of wake-ups.
    pub(crate) fn take_in_wake_order(&self, index: usize) -> u64 {
        self.lock().woken.remove(index)
    }

    /// Removes and returns the ready task at `index`, in the order of ids. Unlike that order, the
    /// order of wake-ups does not always follow from the seed: it does not for receivers of tokio's
    /// `watch`, for example.
    pub(crate) fn take_in_id_order(&self, index: usize) -> u64 {
        let mut inner = self.lock();
        inner.woken.sort_unstable();
        inner.woken.remove(index)
    }

    /// Discards the state of an earlier run.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.woken.clear();
        inner.loop_waker = None;
    }
}

/// Marks one task as ready.
pub(crate) struct TaskWaker {
    id: u64,
    /// Whether the task is already in the run queue.
    woken: AtomicBool,
    ready: Arc<RunQueue>,
}

impl TaskWaker {
    pub(crate) fn new(id: u64, ready: &Arc<RunQueue>) -> Arc<Self> {
        let waker = Arc::new(Self { id, woken: AtomicBool::new(false), ready: Arc::clone(ready) });
        waker.wake_by_ref();
        waker
    }

    /// Makes wake-ups queue the task again. Called when it was taken from the run queue and is
    /// about to run.
    pub(crate) fn reset(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.ready.lock().woken.push(self.id);
            self.ready.wake_loop();
        }
    }
}
