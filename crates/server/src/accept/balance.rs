//! Balances connections over workers: decides whether a worker that has accepted a connection hands
//! it to another one.
//!
//! If each worker has its own socket, the kernel chooses the worker that accepts a connection by a
//! hash. If workers share a socket, the first one to call accept gets it. Many connections are
//! spread evenly in this way. A few long-lived ones are not, and one core may do the work of two.
//! So if a worker has clearly more connections than another, it hands over connections that it has
//! just accepted, before it receives anything on them.
//!
//! The other worker takes the connection in its next loop iteration. If it has not done so after
//! [`HANDOFF_TIMEOUT`], the worker that accepted the connection takes it back and serves it. It
//! then hands over nothing to the other worker until that worker takes connections again. A worker
//! that is blocked, full, shutting down or gone therefore delays a connection only briefly, and
//! these cases need not be distinguished.

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

/// How many other workers are checked for each accepted connection. Each check may be a cache miss.
const CANDIDATES_MAX: usize = 8;

/// One worker's part in balancing the connections of a server.
#[derive(Debug)]
pub struct Balancer<P> {
    workers: Arc<[WorkerLoad<P>]>,
    index: usize,
    /// Which of the other workers to check first next time.
    next: Cell<usize>,
    /// When the current window began, and how many connections were handed over in it.
    window: Cell<(Duration, u32)>,
    /// The task that waits at each listener for connections from other workers.
    wakers: Box<[RefCell<Option<Waker>>]>,
}

/// The part of a worker's state that other workers read.
// Aligned so that two workers never write to the same cache line or to adjacent lines, which the
// processor prefetches in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct WorkerLoad<P> {
    /// Open connections. Only the worker itself writes this.
    open_connections: Gauge,
    /// One mailbox for each listener, by its number.
    queues: Box<[Arc<HandoffQueue<P>>]>,
}

/// Connections of one listener that were handed to a worker, which has not taken them yet.
#[derive(Debug)]
struct HandoffQueue<P> {
    /// Whether the worker takes connections that are handed to it.
    is_open: AtomicBool,
    count: AtomicUsize,
    inner: Mutex<QueueInner<P>>,
}

#[derive(Debug)]
struct QueueInner<P> {
    waiting: VecDeque<(u64, P)>,
    last_id: u64,
    waker: Option<Waker>,
}

impl<P> Balancer<P> {
    /// Makes one member for each of the server's `workers`. All workers have the same listeners, in
    /// the same order.
    #[must_use]
    pub fn for_workers(workers: usize, listeners: usize) -> Vec<Self> {
        let boxes = || (0..listeners).map(|_| Arc::default()).collect();
        let seat = |_| WorkerLoad { open_connections: Gauge::new(), queues: boxes() };
        let seats: Arc<[WorkerLoad<P>]> = (0..workers).map(seat).collect();
        let member = |number| Self {
            workers: Arc::clone(&seats),
            index: number,
            next: Cell::new(0),
            window: Cell::default(),
            wakers: (0..listeners).map(|_| RefCell::default()).collect(),
        };
        (0..workers).map(member).collect()
    }

    fn own_load(&self) -> &WorkerLoad<P> {
        &self.workers[self.index]
    }

    /// Sets the number of open connections.
    pub(crate) fn set_open_connections(&self, connections: usize) {
        self.own_load().open_connections.set(i64::try_from(connections).unwrap_or(i64::MAX));
    }

    /// Chooses the worker for a connection that this worker has just accepted at `listener` and
    /// that is not counted as open yet. `None` means this worker.
    pub(crate) fn pick_worker(
        &self,
        listener: usize,
        now: impl FnOnce() -> Duration,
    ) -> Option<HandoffTarget<P>> {
        let open = self.own_load().open_connections.get().max(0).cast_unsigned() + 1;
        let others = self.workers.len() - 1;
        let mut least: Option<(u64, &Arc<HandoffQueue<P>>)> = None;
        for step in 0..others.min(CANDIDATES_MAX) {
            let other = 1 + (self.next.get() + step) % others;
            let seat = &self.workers[(self.index + other) % self.workers.len()];
            let mailbox = &seat.queues[listener];
            let load = seat.load();
            if mailbox.is_open.load(Ordering::Relaxed) && least.is_none_or(|(less, _)| load < less)
            {
                least = Some((load, mailbox));
            }
        }
        self.next.set(self.next.get().wrapping_add(1));
        let (load, mailbox) = least?;
        // A difference of up to one sixteenth is not worth handing over the connection to another
        // thread.
        if open <= load + 1 + load / 16 || !self.is_within_rate(now()) {
            return None;
        }
        Some(HandoffTarget(Arc::clone(mailbox)))
    }

    fn is_within_rate(&self, now: Duration) -> bool {
        let (began, passed) = self.window.get();
        let (began, passed) =
            if now >= began + HANDOFF_WINDOW { (now, 0) } else { (began, passed) };
        let may = passed < HANDOFFS_PER_WINDOW;
        self.window.set((began, passed + u32::from(may)));
        may
    }

    /// Takes a connection that another worker accepted at `listener` and handed to this worker.
    pub(crate) fn poll_handoff(&self, listener: usize, context: &Context<'_>) -> Poll<P> {
        let mailbox = &self.own_load().queues[listener];
        if !mailbox.is_open.load(Ordering::Relaxed) {
            mailbox.is_open.store(true, Ordering::Relaxed);
        }
        let mut waits = self.wakers[listener].borrow_mut();
        let is_known = waits.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        // If another worker adds a connection after this check, it wakes the registered waker.
        if is_known && mailbox.count.load(Ordering::Acquire) == 0 {
            return Poll::Pending;
        }
        let mut inside = mailbox.lock();
        let old = (!is_known).then(|| {
            *waits = Some(context.waker().clone());
            inside.waker.replace(context.waker().clone())
        });
        let taken = inside.waiting.pop_front();
        mailbox.count.store(inside.waiting.len(), Ordering::Release);
        drop(inside);
        // Dropped outside the lock: it may be the last reference to its task.
        drop(old);
        taken.map_or(Poll::Pending, |(_, passed)| Poll::Ready(passed))
    }

    /// Closes this worker's mailbox of `listener` until [`Balancer::poll_handoff`] is called again.
    pub(crate) fn pause(&self, listener: usize) {
        let mailbox = &self.own_load().queues[listener];
        if mailbox.is_open.load(Ordering::Relaxed) {
            drop(mailbox.close());
        }
    }

    /// Closes the mailbox of `listener` and takes a connection that is left in it.
    pub(crate) fn take_remaining(&self, listener: usize) -> Option<P> {
        let mailbox = &self.own_load().queues[listener];
        let mut inside = mailbox.close();
        let taken = inside.waiting.pop_front();
        mailbox.count.store(inside.waiting.len(), Ordering::Release);
        taken.map(|(_, passed)| passed)
    }
}

impl<P> Drop for Balancer<P> {
    fn drop(&mut self) {
        // The workers that put connections into the mailboxes take them back. If such a worker has
        // ended too, its connections close when the last reference to the mailbox is dropped.
        (0..self.wakers.len()).for_each(|listener| self.pause(listener));
    }
}

impl<P> WorkerLoad<P> {
    /// The number of the worker's open connections and of those in its mailboxes.
    fn load(&self) -> u64 {
        let coming = |mailbox: &Arc<HandoffQueue<P>>| mailbox.count.load(Ordering::Relaxed) as u64;
        let open = self.open_connections.get().max(0).cast_unsigned();
        open + self.queues.iter().map(coming).sum::<u64>()
    }
}

impl<P> Default for HandoffQueue<P> {
    fn default() -> Self {
        Self {
            is_open: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            inner: Mutex::new(QueueInner { waiting: VecDeque::new(), last_id: 0, waker: None }),
        }
    }
}

impl<P> HandoffQueue<P> {
    fn lock(&self) -> MutexGuard<'_, QueueInner<P>> {
        // The queue is always consistent, even if a thread panicked while it held the lock.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the mailbox, so that nothing more is added.
    fn close(&self) -> MutexGuard<'_, QueueInner<P>> {
        let inside = self.lock();
        self.is_open.store(false, Ordering::Relaxed);
        inside
    }
}

/// The worker that was chosen for a connection.
#[derive(Debug)]
pub(crate) struct HandoffTarget<P>(Arc<HandoffQueue<P>>);

/// A connection that was handed to a worker.
#[derive(Debug)]
pub(crate) struct PendingHandoff<P> {
    queue: Arc<HandoffQueue<P>>,
    id: u64,
}

impl<P> HandoffTarget<P> {
    /// Hands the connection to that worker.
    ///
    /// # Errors
    /// The worker takes no connections now. The connection is returned.
    pub(crate) fn push(self, passed: P) -> Result<PendingHandoff<P>, P> {
        let Self(mailbox) = self;
        let mut inside = mailbox.lock();
        if !mailbox.is_open.load(Ordering::Relaxed) {
            return Err(passed);
        }
        inside.last_id += 1;
        let number = inside.last_id;
        inside.waiting.push_back((number, passed));
        mailbox.count.store(inside.waiting.len(), Ordering::Release);
        let taker = inside.waker.clone();
        drop(inside);
        taker.into_iter().for_each(Waker::wake);
        Ok(PendingHandoff { queue: mailbox, id: number })
    }
}

impl<P> PendingHandoff<P> {
    /// Takes the connection back if the other worker has not taken it, and closes that worker's
    /// mailbox until the worker takes connections again.
    pub(crate) fn reclaim(self) -> Option<P> {
        let mut inside = self.queue.lock();
        let at = inside.waiting.iter().position(|(number, _)| *number == self.id)?;
        let (_, passed) = inside.waiting.remove(at)?;
        self.queue.count.store(inside.waiting.len(), Ordering::Release);
        self.queue.is_open.store(false, Ordering::Relaxed);
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    const NOW: Duration = Duration::ZERO;

    /// Lets all members take the connections in their mailboxes, and returns the numbers of these
    /// connections.
    fn taken(members: &[Balancer<usize>]) -> Vec<Vec<usize>> {
        let context = &Context::from_waker(Waker::noop());
        let take = |member: &Balancer<usize>| {
            std::iter::from_fn(|| match member.poll_handoff(0, context) {
                Poll::Ready(passed) => Some(passed),
                Poll::Pending => None,
            })
            .collect()
        };
        members.iter().map(take).collect()
    }

    /// Accepts this many connections at the first member. The others take theirs `at_once` or at
    /// the end. Returns how many connections each member has.
    fn spread(workers: usize, connections: usize, at_once: bool) -> Vec<usize> {
        let members = Balancer::for_workers(workers, 1);
        taken(&members);
        let mut open = vec![0; workers];
        for number in 0..connections {
            match members[0].pick_worker(0, || NOW) {
                None => open[0] += 1,
                Some(whom) => drop(whom.push(number).unwrap()),
            }
            if at_once || number + 1 == connections {
                let add = |(open, taken): (&mut usize, Vec<usize>)| *open += taken.len();
                open.iter_mut().zip(taken(&members)).for_each(add);
            }
            members.iter().zip(&open).for_each(|(member, open)| member.set_open_connections(*open));
        }
        open
    }

    #[test]
    fn few_connections_are_spread_evenly_whoever_accepts_them() {
        for at_once in [true, false] {
            assert_eq!(spread(2, 8, at_once), [4, 4]);
            assert_eq!(spread(3, 9, at_once), [3, 3, 3]);
            assert_eq!(spread(4, 6, at_once).into_iter().max(), Some(2));
            assert_eq!(spread(1, 5, at_once), [5]);
        }
    }

    #[test]
    fn among_many_connections_a_small_difference_is_none() {
        let members = Balancer::<usize>::for_workers(2, 1);
        taken(&members);
        for (own, others, is_passed) in
            [(1000, 1000, false), (1060, 1000, false), (1070, 1000, true), (0, 9, false)]
        {
            members[0].set_open_connections(own);
            members[1].set_open_connections(others);
            assert_eq!(
                members[0].pick_worker(0, || NOW).is_some(),
                is_passed,
                "{own} and {others}"
            );
        }
    }

    #[test]
    fn who_does_not_take_what_it_is_passed_gets_nothing_more_until_it_does() {
        let members = Balancer::for_workers(2, 1);
        let [here, there] = &members[..] else { unreachable!() };
        here.set_open_connections(5);
        assert!(here.pick_worker(0, || NOW).is_none(), "the other worker has not started");
        taken(&members);
        let given = here.pick_worker(0, || NOW).unwrap().push(7).unwrap();
        let late = here.pick_worker(0, || NOW).unwrap();
        assert_eq!(given.reclaim(), Some(7));
        assert!(here.pick_worker(0, || NOW).is_none(), "the other worker took nothing");
        assert_eq!(late.push(8).unwrap_err(), 8);
        taken(&members);
        let given = here.pick_worker(0, || NOW).unwrap().push(9).unwrap();
        assert_eq!(taken(&members)[1], [9]);
        assert_eq!(given.reclaim(), None);
        there.pause(0);
        assert!(here.pick_worker(0, || NOW).is_none(), "the other worker is full");
    }

    #[test]
    fn nothing_that_was_passed_is_lost_when_a_member_ends() {
        let mut members = Balancer::for_workers(3, 1);
        taken(&members);
        members[0].set_open_connections(9);
        let first = members[0].pick_worker(0, || NOW).unwrap().push(1).unwrap();
        let second = members[0].pick_worker(0, || NOW).unwrap().push(2).unwrap();
        assert_eq!([1, 2].map(|it: usize| members[it].take_remaining(0)), [Some(1), Some(2)]);
        assert!(members[0].pick_worker(0, || NOW).is_none(), "all other workers are shutting down");
        assert_eq!((first.reclaim(), second.reclaim()), (None, None));
        taken(&members[..2]);
        let given = members[0].pick_worker(0, || NOW).unwrap().push(3).unwrap();
        drop(members.remove(1));
        assert!(members[0].pick_worker(0, || NOW).is_none(), "the other worker is gone");
        assert_eq!(given.reclaim(), Some(3));
    }

    #[test]
    fn a_flood_is_passed_in_part() {
        let members = Balancer::<usize>::for_workers(2, 1);
        taken(&members);
        members[0].set_open_connections(5000);
        let passed =
            |now| (0..1000).filter(|_| members[0].pick_worker(0, || now).is_some()).count();
        assert_eq!([NOW, NOW, HANDOFF_WINDOW].map(passed), [64, 0, 64]);
    }

    #[test]
    fn of_many_workers_the_one_with_the_least_is_found_soon() {
        let members = Balancer::for_workers(40, 1);
        taken(&members);
        members.iter().for_each(|member| member.set_open_connections(10));
        members[29].set_open_connections(0);
        let mut given = 0;
        for _ in 0..39 {
            if let Some(whom) = members[0].pick_worker(0, || NOW) {
                drop(whom.push(1).unwrap());
                given += 1;
            }
        }
        assert!(given >= 1 && taken(&members)[29].len() == given);
    }

    #[test]
    fn who_waits_is_woken_by_what_is_passed_and_by_nothing_else() {
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let members = Balancer::for_workers(2, 2);
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let context = &Context::from_waker(&waker);
        for _ in 0..3 {
            assert!(members[1].poll_handoff(1, context).is_pending());
        }
        members[0].set_open_connections(1);
        assert!(
            members[0].pick_worker(0, || NOW).is_none(),
            "only the other listener takes connections"
        );
        drop(members[0].pick_worker(1, || NOW).unwrap().push(5).unwrap());
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(members[1].poll_handoff(1, context), Poll::Ready(5));
    }
}
