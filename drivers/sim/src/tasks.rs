//! Tasks, and who of them can run.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// A task on its way to the loop.
pub(crate) struct Spawned {
    pub(crate) task: Pin<Box<dyn Future<Output = ()>>>,
    /// Its number among the driver's tasks, if it is one.
    pub(crate) number: Option<u64>,
}

/// A task of the loop.
pub(crate) struct Task {
    pub(crate) future: Pin<Box<dyn Future<Output = ()>>>,
    pub(crate) flag: Arc<Flag>,
    /// Polls until the task is dropped, if it is doomed.
    pub(crate) polls_left: Option<u64>,
}

/// The tasks that were woken, and the loop's own waker. Wakers may be used from any thread, hence
/// the lock; the simulation itself has only one.
#[derive(Default)]
pub(crate) struct Ready {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    woken: Vec<u64>,
    outer: Option<Waker>,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code that can panic runs under the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how to wake the loop.
    pub(crate) fn set_loop(&self, waker: &Waker) {
        self.lock().outer = Some(waker.clone());
    }

    pub(crate) fn wake_loop(&self) {
        let outer = self.lock().outer.clone();
        if let Some(outer) = outer {
            outer.wake();
        }
    }

    /// Number of tasks that can run.
    pub(crate) fn count(&self) -> usize {
        self.lock().woken.len()
    }

    /// Takes the task at `index` of those that can run, which stay in the order in which they were woken.
    pub(crate) fn take_in_order(&self, index: usize) -> u64 {
        self.lock().woken.remove(index)
    }

    /// Takes the task at `index` of those that can run, by their numbers. In which order they were woken does not count:
    /// that of the receivers of tokio's `watch`, say, does not follow from the seed.
    pub(crate) fn take(&self, index: usize) -> u64 {
        let mut inner = self.lock();
        inner.woken.sort_unstable();
        inner.woken.remove(index)
    }

    /// Forgets all that is left of an earlier run.
    pub(crate) fn clear(&self) {
        let mut inner = self.lock();
        inner.woken.clear();
        inner.outer = None;
    }
}

/// Says of one task that it can run.
pub(crate) struct Flag {
    id: u64,
    /// It stands in the list already.
    woken: AtomicBool,
    ready: Arc<Ready>,
}

impl Flag {
    pub(crate) fn new(id: u64, ready: &Arc<Ready>) -> Arc<Self> {
        let flag = Arc::new(Self { id, woken: AtomicBool::new(false), ready: Arc::clone(ready) });
        flag.wake_by_ref();
        flag
    }

    /// Takes the task off the list: it is about to run.
    pub(crate) fn lower(&self) {
        self.woken.store(false, Ordering::Relaxed);
    }
}

impl Wake for Flag {
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
