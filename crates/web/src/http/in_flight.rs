//! Counts work that outlives its exchange, or that runs beside it.
//!
//! A worker counts its requests in progress and refuses those above a limit. Work that continues in
//! a task after its client has disconnected, or that a request starts without waiting for it,
//! counts too. Code with such work registers it through [`InFlightHandle`].
//!
//! A worker is normally a thread, but a simulation runs several workers on one thread. Therefore
//! each connection has the number of its worker. Without a worker, as in most tests, nothing is
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

/// Zero means no worker.
static NEXT_WORKER_ID: AtomicU64 = AtomicU64::new(1);

/// Counts the work that a worker has in progress.
pub trait InFlightCounter {
    /// Counts one more unit of work, for the request with this head, until the returned value is
    /// dropped. Returns `None` if the worker's limit is reached, unless `must` is true.
    fn try_acquire(
        self: Rc<Self>,
        head: &RequestHead,
        connection: &ConnectionInfo,
        must: bool,
    ) -> Option<Box<dyn Any>>;
}

/// A registered worker of this thread. Dropping this ends the registration.
#[derive(Debug)]
pub struct WorkerRef(u64);

impl WorkerRef {
    /// Registers `counting` for the connections that have the returned number.
    #[must_use]
    pub fn new(counting: Weak<dyn InFlightCounter>) -> Self {
        let number = NEXT_WORKER_ID.fetch_add(1, Relaxed);
        WORKERS.with_borrow_mut(|workers| workers.push((number, counting)));
        Self(number)
    }

    /// The worker's number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0
    }
}

impl Drop for WorkerRef {
    fn drop(&mut self) {
        // While the thread exits, the list may already be gone.
        let _ = WORKERS.try_with(|workers| {
            workers.borrow_mut().retain(|(number, _)| *number != self.0);
        });
    }
}

/// A request, for code that may have to count work after the exchange has ended.
#[derive(Debug)]
pub struct InFlightHandle {
    head: RequestHead,
    connection: Rc<ConnectionInfo>,
}

/// A counted unit of work. Dropping this ends it.
pub struct InFlightPermit(Option<Box<dyn Any>>);

impl InFlightHandle {
    /// The request with these parts.
    #[must_use]
    pub fn new(parts: &Parts) -> Self {
        Self { head: parts.head.share(), connection: Rc::clone(parts.peek_connection()) }
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

    fn acquire_permit(&self, must: bool) -> Option<InFlightPermit> {
        let is_ours = |(number, _): &&(u64, _)| *number == self.connection.worker_id;
        let find = |workers: &RefCell<Vec<(u64, Weak<dyn InFlightCounter>)>>| {
            workers.borrow().iter().find(is_ours).and_then(|(_, worker)| worker.upgrade())
        };
        // A worker that has ended does not count anything either.
        let Some(worker) = WORKERS.try_with(find).ok().flatten() else {
            return Some(InFlightPermit(None));
        };
        worker
            .try_acquire(&self.head, &self.connection, must)
            .map(|place| InFlightPermit(Some(place)))
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

    struct Taken(Rc<Cell<usize>>);

    impl Drop for Taken {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    impl InFlightCounter for Worker {
        fn try_acquire(
            self: Rc<Self>,
            _: &RequestHead,
            _: &ConnectionInfo,
            must: bool,
        ) -> Option<Box<dyn Any>> {
            (must || self.0.get() < self.1).then(|| {
                self.0.set(self.0.get() + 1);
                Box::new(Taken(Rc::clone(&self.0))) as _
            })
        }
    }

    fn counted(worker: u64) -> InFlightHandle {
        let connection = Rc::new(ConnectionInfo { worker_id: worker, ..ConnectionInfo::default() });
        InFlightHandle { head: RequestHead::from_pool(), connection }
    }

    #[test]
    fn each_worker_of_a_thread_counts_its_own_and_none_that_has_ended() {
        let workers = [2, 1].map(|most| Rc::new(Worker(Rc::default(), most)));
        let weak =
            |worker: &Rc<Worker>| Rc::downgrade(&(Rc::clone(worker) as Rc<dyn InFlightCounter>));
        let [first, second] = [&workers[0], &workers[1]].map(|worker| WorkerRef::new(weak(worker)));
        let counts = || [workers[0].0.get(), workers[1].0.get()];
        let (one, two) = (counted(first.id()), counted(second.id()));
        let places = [one.acquire(), two.acquire(), two.acquire()];
        assert_eq!(counts(), [1, 2]);
        assert!(two.try_acquire().is_none());
        let beside = one.try_acquire().expect("below the limit");
        assert_eq!(counts(), [2, 2]);
        assert!(counted(0).try_acquire().is_some(), "without a worker");
        drop(second);
        assert!(two.try_acquire().is_some(), "the worker has ended");
        drop((places, beside));
        assert_eq!(counts(), [0, 0]);
    }
}
