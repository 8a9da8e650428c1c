//! Counts the work of a request that its exchange (request and response) does not wait for, or that
//! continues after the exchange has ended.
//!
//! A worker counts its requests in progress and refuses those above a limit. Work that continues in
//! a task after its client has disconnected, or that a request starts without waiting for it,
//! counts too. Code with such work registers it through [`InFlightHandle`].
//!
//! A worker is normally a thread, but a simulation runs several workers on one thread. Therefore
//! each connection stores the ID of its worker. Without a worker, as in most tests, nothing is
//! counted or refused.

use crate::http::connection::ConnectionInfo;
use crate::http::head::RequestHead;
use crate::http::request::Parts;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

thread_local! {
    static WORKERS: RefCell<Vec<(u64, Weak<dyn InFlightCounter>)>> = const { RefCell::new(Vec::new()) };
}

/// Starts at 1, because the ID 0 means that there is no worker.
static NEXT_WORKER_ID: AtomicU64 = AtomicU64::new(1);

/// Counts the work that a worker has in progress.
pub trait InFlightCounter {
    /// Counts one more unit of work, for the request with this head, until the returned value is
    /// dropped. Returns `None` if the worker's limit is reached, unless `ignores_limit` is true.
    fn try_acquire(
        self: Rc<Self>,
        head: &RequestHead,
        connection: &ConnectionInfo,
        ignores_limit: bool,
    ) -> Option<Box<dyn Any>>;
}

/// The registration of a worker of this thread, which ends when this value is dropped.
#[derive(Debug)]
pub struct WorkerRegistration(u64);

impl WorkerRegistration {
    /// Registers `counter` for the connections whose `worker_id` is [`WorkerRegistration::id`].
    #[must_use]
    pub fn new(counter: Weak<dyn InFlightCounter>) -> Self {
        let id = NEXT_WORKER_ID.fetch_add(1, Relaxed);
        WORKERS.with_borrow_mut(|workers| workers.push((id, counter)));
        Self(id)
    }

    /// The worker's ID.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0
    }
}

impl Drop for WorkerRegistration {
    fn drop(&mut self) {
        // While the thread exits, the list may already be gone.
        let _ = WORKERS.try_with(|workers| {
            workers.borrow_mut().retain(|(id, _)| *id != self.0);
        });
    }
}

/// A handle with which code counts work for a request, even after the exchange has ended.
#[derive(Debug)]
pub struct InFlightHandle {
    head: RequestHead,
    connection: Rc<ConnectionInfo>,
}

/// Counts one unit of work until it is dropped. `None` if there is no worker to count it.
pub struct InFlightPermit(Option<Box<dyn Any>>);

impl InFlightHandle {
    /// A handle for the request with these parts.
    #[must_use]
    pub fn new(parts: &Parts) -> Self {
        Self { head: parts.head.share(), connection: Rc::clone(parts.connection_untracked()) }
    }

    /// Counts the request as still in progress, regardless of the limit.
    #[must_use]
    pub fn acquire(&self) -> InFlightPermit {
        self.acquire_permit(true).unwrap_or(InFlightPermit(None))
    }

    /// Counts work that the request itself does not wait for. Returns `None` if the worker's limit
    /// is reached.
    #[must_use]
    pub fn try_acquire(&self) -> Option<InFlightPermit> {
        self.acquire_permit(false)
    }

    fn acquire_permit(&self, ignores_limit: bool) -> Option<InFlightPermit> {
        let is_own_worker = |(id, _): &&(u64, _)| *id == self.connection.worker_id;
        let find = |workers: &RefCell<Vec<(u64, Weak<dyn InFlightCounter>)>>| {
            workers.borrow().iter().find(is_own_worker).and_then(|(_, worker)| worker.upgrade())
        };
        // A worker that has ended does not count anything either.
        let Some(worker) = WORKERS.try_with(find).ok().flatten() else {
            return Some(InFlightPermit(None));
        };
        worker
            .try_acquire(&self.head, &self.connection, ignores_limit)
            .map(|permit| InFlightPermit(Some(permit)))
    }
}

impl fmt::Debug for InFlightPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightPermit").field("is_counted", &self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A worker with its count and its limit.
    struct Worker(Rc<Cell<usize>>, usize);

    struct CountGuard(Rc<Cell<usize>>);

    impl Drop for CountGuard {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    impl InFlightCounter for Worker {
        fn try_acquire(
            self: Rc<Self>,
            _: &RequestHead,
            _: &ConnectionInfo,
            ignores_limit: bool,
        ) -> Option<Box<dyn Any>> {
            (ignores_limit || self.0.get() < self.1).then(|| {
                self.0.set(self.0.get() + 1);
                Box::new(CountGuard(Rc::clone(&self.0))) as _
            })
        }
    }

    fn handle_on(worker: u64) -> InFlightHandle {
        let connection = Rc::new(ConnectionInfo { worker_id: worker, ..ConnectionInfo::default() });
        InFlightHandle { head: RequestHead::from_pool(), connection }
    }

    #[test]
    fn each_worker_counts_only_its_own_work_and_a_stopped_worker_counts_none() {
        let workers = [2, 1].map(|limit| Rc::new(Worker(Rc::default(), limit)));
        let weak =
            |worker: &Rc<Worker>| Rc::downgrade(&(Rc::clone(worker) as Rc<dyn InFlightCounter>));
        let [first, second] =
            [&workers[0], &workers[1]].map(|worker| WorkerRegistration::new(weak(worker)));
        let counts = || [workers[0].0.get(), workers[1].0.get()];
        let (first_handle, second_handle) = (handle_on(first.id()), handle_on(second.id()));
        let permits = [first_handle.acquire(), second_handle.acquire(), second_handle.acquire()];
        assert_eq!(counts(), [1, 2]);
        assert!(second_handle.try_acquire().is_none());
        let extra_permit = first_handle.try_acquire().expect("below the limit");
        assert_eq!(counts(), [2, 2]);
        assert!(handle_on(0).try_acquire().is_some(), "without a worker");
        drop(second);
        assert!(second_handle.try_acquire().is_some(), "the worker has ended");
        drop((permits, extra_permit));
        assert_eq!(counts(), [0, 0]);
    }
}
