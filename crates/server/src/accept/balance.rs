//! Balances connections over workers: decides whether a worker that has accepted a connection hands
//! it to another one.
//!
//! If each worker has its own socket, the kernel chooses the worker that accepts a connection by a
//! hash. If workers share a socket, the first one to call `accept` gets it. Both spread many
//! connections evenly, but not a few long-lived ones, and one core may do the work of two. So if a
//! worker has clearly more connections than another, it hands over connections that it has just
//! accepted, before it receives anything on them.
//!
//! The other worker takes the connection in its next loop iteration. If it has not done so after
//! [`HANDOFF_TIMEOUT`], the worker that accepted the connection takes it back and serves it. The
//! other worker then gets no more connections until it polls its queue again. So if the other
//! worker is blocked, full, shutting down or ended, the connection is delayed only briefly, and the
//! code need not distinguish these cases.

use peregrine_metrics::Gauge;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long a worker has to take a connection that was handed to it. Loop iterations are much
/// shorter, but on an overloaded machine a thread may have to wait this long for a CPU.
pub(crate) const HANDOFF_TIMEOUT: Duration = Duration::from_millis(50);

/// The maximum number of connections that a worker hands over per [`HANDOFF_WINDOW`]. This is
/// enough to balance connections that live for seconds. If thousands of connections open and close
/// each second, the kernel spreads them evenly, and the limit keeps the cost of handing over
/// negligible.
const HANDOFFS_PER_WINDOW: u32 = 64;
const HANDOFF_WINDOW: Duration = Duration::from_millis(100);

/// At most this many other workers are checked for each accepted connection. Each check may cause a
/// cache miss.
const CANDIDATES_MAX: usize = 8;

/// One worker's part in balancing the connections of a server.
#[derive(Debug)]
pub struct Balancer<H> {
    workers: Arc<[WorkerLoad<H>]>,
    index: usize,
    /// Which of the other workers to check first for the next connection.
    first_candidate: Cell<usize>,
    /// When the current window began, and how many connections were handed over in it.
    window: Cell<(Duration, u32)>,
    /// For each listener, a copy of the waker that this worker last stored in its own queue.
    /// Comparing wakers with the copy needs no lock.
    wakers: Box<[RefCell<Option<Waker>>]>,
}

/// The part of a worker's state that other workers access.
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerLoad<H> {
    /// Open connections. Only the worker itself writes this.
    open_connections: Gauge,
    /// One queue for each listener, by the listener's index.
    queues: Box<[Arc<HandoffQueue<H>>]>,
}

/// Connections of one listener that were handed to a worker, which has not taken them yet.
#[derive(Debug)]
struct HandoffQueue<H> {
    /// Whether the worker takes connections that are handed to it.
    is_open: AtomicBool,
    /// The length of `waiting`, readable without the lock.
    count: AtomicUsize,
    inner: Mutex<QueueInner<H>>,
}

#[derive(Debug)]
struct QueueInner<H> {
    /// Each connection with its ID, the oldest first.
    waiting: VecDeque<(u64, H)>,
    last_id: u64,
    /// Wakes the worker's task that takes the connections.
    waker: Option<Waker>,
}

impl<H> Balancer<H> {
    /// Creates one balancer for each of the server's `workers`. All workers have the same
    /// listeners, in the same order.
    #[must_use]
    pub fn for_workers(workers: usize, listeners: usize) -> Vec<Self> {
        let new_queues = || (0..listeners).map(|_| Arc::default()).collect();
        let new_load = |_| WorkerLoad { open_connections: Gauge::new(), queues: new_queues() };
        let loads: Arc<[WorkerLoad<H>]> = (0..workers).map(new_load).collect();
        let new_balancer = |index| Self {
            workers: Arc::clone(&loads),
            index,
            first_candidate: Cell::new(0),
            window: Cell::default(),
            wakers: (0..listeners).map(|_| RefCell::default()).collect(),
        };
        (0..workers).map(new_balancer).collect()
    }

    fn own_load(&self) -> &WorkerLoad<H> {
        &self.workers[self.index]
    }

    /// Sets the number of this worker's open connections.
    pub(crate) fn set_open_connections(&self, connections: usize) {
        self.own_load().open_connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    /// Chooses the worker for a connection that this worker has just accepted at `listener` and
    /// that is not counted as open yet. `None` means this worker. `now` reads the clock, and is
    /// called only if another worker has clearly fewer connections.
    pub(crate) fn pick_worker(
        &self,
        listener: usize,
        now: impl FnOnce() -> Duration,
    ) -> Option<HandoffTarget<H>> {
        let open = self.own_load().open_connections.get().max(0).cast_unsigned() + 1;
        let other_workers = self.workers.len() - 1;
        let mut least: Option<(u64, &Arc<HandoffQueue<H>>)> = None;
        for step in 0..other_workers.min(CANDIDATES_MAX) {
            let offset = 1 + (self.first_candidate.get() + step) % other_workers;
            let worker = &self.workers[(self.index + offset) % self.workers.len()];
            let queue = &worker.queues[listener];
            let load = worker.load();
            if queue.is_open.load(Ordering::Relaxed)
                && least.is_none_or(|(least_load, _)| load < least_load)
            {
                least = Some((load, queue));
            }
        }
        self.first_candidate.set(self.first_candidate.get().wrapping_add(1));
        let (load, queue) = least?;
        // `open` and `load + 1` are the counts if this worker, or the other one, gets the
        // connection. A difference of up to one sixteenth is not worth handing over the connection
        // to another thread.
        if open <= load + 1 + load / 16 || !self.try_count_handoff(now()) {
            return None;
        }
        Some(HandoffTarget(Arc::clone(queue)))
    }

    /// Counts one more hand-off. Returns false if the current window allows no more.
    fn try_count_handoff(&self, now: Duration) -> bool {
        let (window_start, count) = self.window.get();
        let (window_start, count) =
            if now >= window_start + HANDOFF_WINDOW { (now, 0) } else { (window_start, count) };
        let is_allowed = count < HANDOFFS_PER_WINDOW;
        self.window.set((window_start, count + u32::from(is_allowed)));
        is_allowed
    }

    /// Takes a connection that another worker accepted at `listener` and handed to this worker.
    /// Also opens this worker's queue, so that other workers may hand over more.
    pub(crate) fn poll_handoff(&self, listener: usize, cx: &Context<'_>) -> Poll<H> {
        let queue = &self.own_load().queues[listener];
        if !queue.is_open.load(Ordering::Relaxed) {
            queue.is_open.store(true, Ordering::Relaxed);
        }
        let mut registered = self.wakers[listener].borrow_mut();
        let is_registered = registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        // If another worker adds a connection after this check, it wakes the registered waker.
        if is_registered && queue.count.load(Ordering::Acquire) == 0 {
            return Poll::Pending;
        }
        let mut inner = queue.lock();
        let old_waker = (!is_registered).then(|| {
            *registered = Some(cx.waker().clone());
            inner.waker.replace(cx.waker().clone())
        });
        let next = inner.waiting.pop_front();
        queue.count.store(inner.waiting.len(), Ordering::Release);
        drop(inner);
        // Dropped outside the lock: it may be the last reference to its task.
        drop(old_waker);
        next.map_or(Poll::Pending, |(_, handoff)| Poll::Ready(handoff))
    }

    /// Closes this worker's queue for `listener` until [`Balancer::poll_handoff`] is called again.
    pub(crate) fn close_queue(&self, listener: usize) {
        let queue = &self.own_load().queues[listener];
        if queue.is_open.load(Ordering::Relaxed) {
            drop(queue.close());
        }
    }

    /// Closes this worker's queue for `listener` and takes a connection that is left in it.
    pub(crate) fn take_remaining(&self, listener: usize) -> Option<H> {
        let queue = &self.own_load().queues[listener];
        let mut inner = queue.close();
        let next = inner.waiting.pop_front();
        queue.count.store(inner.waiting.len(), Ordering::Release);
        next.map(|(_, handoff)| handoff)
    }
}

impl<H> Drop for Balancer<H> {
    fn drop(&mut self) {
        // The workers that put connections into the queues take them back. If such a worker has
        // ended as well, its connections are closed when the last reference to the queue is
        // dropped.
        (0..self.wakers.len()).for_each(|listener| self.close_queue(listener));
    }
}

impl<H> WorkerLoad<H> {
    /// The number of the worker's open connections, plus those in its queues.
    fn load(&self) -> u64 {
        let queued = |queue: &Arc<HandoffQueue<H>>| queue.count.load(Ordering::Relaxed) as u64;
        let open = self.open_connections.get().max(0).cast_unsigned();
        open + self.queues.iter().map(queued).sum::<u64>()
    }
}

impl<H> Default for HandoffQueue<H> {
    fn default() -> Self {
        Self {
            is_open: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            inner: Mutex::new(QueueInner { waiting: VecDeque::new(), last_id: 0, waker: None }),
        }
    }
}

impl<H> HandoffQueue<H> {
    fn lock(&self) -> MutexGuard<'_, QueueInner<H>> {
        // The queue is always consistent, even if a thread panicked while it held the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the queue, so that nothing more is added. Returns the locked queue.
    fn close(&self) -> MutexGuard<'_, QueueInner<H>> {
        let inner = self.lock();
        self.is_open.store(false, Ordering::Relaxed);
        inner
    }
}

/// The worker that was chosen for a connection.
#[derive(Debug)]
pub(crate) struct HandoffTarget<H>(Arc<HandoffQueue<H>>);

/// A connection that was handed to a worker, and that the worker may not have taken yet.
#[derive(Debug)]
pub(crate) struct PendingHandoff<H> {
    queue: Arc<HandoffQueue<H>>,
    id: u64,
}

impl<H> HandoffTarget<H> {
    /// Hands the connection to that worker.
    ///
    /// # Errors
    /// The worker currently accepts no hand-offs. The connection is returned.
    pub(crate) fn push(self, handoff: H) -> Result<PendingHandoff<H>, H> {
        let Self(queue) = self;
        let mut inner = queue.lock();
        if !queue.is_open.load(Ordering::Relaxed) {
            return Err(handoff);
        }
        inner.last_id += 1;
        let id = inner.last_id;
        inner.waiting.push_back((id, handoff));
        queue.count.store(inner.waiting.len(), Ordering::Release);
        let waker = inner.waker.clone();
        drop(inner);
        waker.into_iter().for_each(Waker::wake);
        Ok(PendingHandoff { queue, id })
    }
}

impl<H> PendingHandoff<H> {
    /// Takes the connection back and closes the other worker's queue until that worker takes
    /// connections again. Returns `None`, without an effect, if the worker has taken the
    /// connection.
    pub(crate) fn reclaim(self) -> Option<H> {
        let mut inner = self.queue.lock();
        let index = inner.waiting.iter().position(|(id, _)| *id == self.id)?;
        let (_, handoff) = inner.waiting.remove(index)?;
        self.queue.count.store(inner.waiting.len(), Ordering::Release);
        self.queue.is_open.store(false, Ordering::Relaxed);
        Some(handoff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    const NOW: Duration = Duration::ZERO;

    /// Opens all queues, takes all connections out of them, and returns their IDs for each worker.
    fn take_all(balancers: &[Balancer<usize>]) -> Vec<Vec<usize>> {
        let cx = &Context::from_waker(Waker::noop());
        let take = |balancer: &Balancer<usize>| {
            std::iter::from_fn(|| match balancer.poll_handoff(0, cx) {
                Poll::Ready(handoff) => Some(handoff),
                Poll::Pending => None,
            })
            .collect()
        };
        balancers.iter().map(take).collect()
    }

    /// Accepts this many connections on the first worker. The other workers take connections from
    /// their queues after each accepted connection if `immediately` is true, otherwise at the end.
    /// Returns how many connections each worker has.
    fn distribute(workers: usize, connections: usize, immediately: bool) -> Vec<usize> {
        let balancers = Balancer::for_workers(workers, 1);
        take_all(&balancers);
        let mut open = vec![0; workers];
        for id in 0..connections {
            match balancers[0].pick_worker(0, || NOW) {
                None => open[0] += 1,
                Some(target) => drop(target.push(id).unwrap()),
            }
            if immediately || id + 1 == connections {
                let add = |(open, taken): (&mut usize, Vec<usize>)| *open += taken.len();
                open.iter_mut().zip(take_all(&balancers)).for_each(add);
            }
            balancers
                .iter()
                .zip(&open)
                .for_each(|(balancer, open)| balancer.set_open_connections(*open));
        }
        open
    }

    #[test]
    fn few_connections_are_spread_evenly_over_workers() {
        for immediately in [true, false] {
            assert_eq!(distribute(2, 8, immediately), [4, 4]);
            assert_eq!(distribute(3, 9, immediately), [3, 3, 3]);
            assert_eq!(distribute(4, 6, immediately).into_iter().max(), Some(2));
            assert_eq!(distribute(1, 5, immediately), [5]);
        }
    }

    #[test]
    fn small_differences_in_load_are_ignored() {
        let balancers = Balancer::<usize>::for_workers(2, 1);
        take_all(&balancers);
        for (own_load, other_load, is_handed_off) in
            [(1000, 1000, false), (1060, 1000, false), (1070, 1000, true), (0, 9, false)]
        {
            balancers[0].set_open_connections(own_load);
            balancers[1].set_open_connections(other_load);
            assert_eq!(
                balancers[0].pick_worker(0, || NOW).is_some(),
                is_handed_off,
                "{own_load} and {other_load}"
            );
        }
    }

    #[test]
    fn worker_that_does_not_take_a_handoff_gets_no_more_until_it_polls_again() {
        let balancers = Balancer::for_workers(2, 1);
        let [local, other] = &balancers[..] else { unreachable!() };
        local.set_open_connections(5);
        assert!(local.pick_worker(0, || NOW).is_none(), "the other worker has not started");
        take_all(&balancers);
        let pending = local.pick_worker(0, || NOW).unwrap().push(7).unwrap();
        let stale_target = local.pick_worker(0, || NOW).unwrap();
        assert_eq!(pending.reclaim(), Some(7));
        assert!(local.pick_worker(0, || NOW).is_none(), "the other worker took nothing");
        assert_eq!(stale_target.push(8).unwrap_err(), 8);
        take_all(&balancers);
        let pending = local.pick_worker(0, || NOW).unwrap().push(9).unwrap();
        assert_eq!(take_all(&balancers)[1], [9]);
        assert_eq!(pending.reclaim(), None);
        other.close_queue(0);
        assert!(local.pick_worker(0, || NOW).is_none(), "the other worker is full");
    }

    #[test]
    fn no_handoff_is_lost_when_a_worker_ends() {
        let mut balancers = Balancer::for_workers(3, 1);
        take_all(&balancers);
        balancers[0].set_open_connections(9);
        let first = balancers[0].pick_worker(0, || NOW).unwrap().push(1).unwrap();
        let second = balancers[0].pick_worker(0, || NOW).unwrap().push(2).unwrap();
        assert_eq!(
            [1, 2].map(|index: usize| balancers[index].take_remaining(0)),
            [Some(1), Some(2)]
        );
        assert!(
            balancers[0].pick_worker(0, || NOW).is_none(),
            "all other workers are shutting down"
        );
        assert_eq!((first.reclaim(), second.reclaim()), (None, None));
        take_all(&balancers[..2]);
        let pending = balancers[0].pick_worker(0, || NOW).unwrap().push(3).unwrap();
        drop(balancers.remove(1));
        assert!(balancers[0].pick_worker(0, || NOW).is_none(), "the other worker is gone");
        assert_eq!(pending.reclaim(), Some(3));
    }

    #[test]
    fn handoffs_are_rate_limited() {
        let balancers = Balancer::<usize>::for_workers(2, 1);
        take_all(&balancers);
        balancers[0].set_open_connections(5000);
        let count_handoffs =
            |now| (0..1000).filter(|_| balancers[0].pick_worker(0, || now).is_some()).count();
        assert_eq!([NOW, NOW, HANDOFF_WINDOW].map(count_handoffs), [64, 0, 64]);
    }

    #[test]
    fn least_loaded_of_many_workers_is_found_within_a_few_connections() {
        let balancers = Balancer::for_workers(40, 1);
        take_all(&balancers);
        balancers.iter().for_each(|balancer| balancer.set_open_connections(10));
        balancers[29].set_open_connections(0);
        let mut handoffs = 0;
        for _ in 0..39 {
            if let Some(target) = balancers[0].pick_worker(0, || NOW) {
                drop(target.push(1).unwrap());
                handoffs += 1;
            }
        }
        assert!(handoffs >= 1 && take_all(&balancers)[29].len() == handoffs);
    }

    #[test]
    fn waiting_worker_is_woken_only_by_a_handoff() {
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let balancers = Balancer::for_workers(2, 2);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let cx = &Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(balancers[1].poll_handoff(1, cx).is_pending());
        }
        balancers[0].set_open_connections(1);
        assert!(
            balancers[0].pick_worker(0, || NOW).is_none(),
            "only the other listener takes connections"
        );
        drop(balancers[0].pick_worker(1, || NOW).unwrap().push(5).unwrap());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(balancers[1].poll_handoff(1, cx), Poll::Ready(5));
    }
}
