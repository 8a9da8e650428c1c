//! Limits how many connections are open at a time, and counts them.
//!
//! Listeners that share a limit share one [`ConnectionLimiter`]. A [`ConnectionPermit`] occupies a
//! slot for one connection until the permit is dropped. When the connection is opened, its permit
//! becomes a [`ConnectionGuard`], which reports the connection's state and its end to
//! [`Instrumentation`].

use crate::observe::Instrumentation;
use crate::observe::close_reason::CloseReason;
use crate::observe::metrics::ConnectionState;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The connection slots of listeners that share a limit.
pub(crate) struct ConnectionLimiter {
    instrumentation: Rc<Instrumentation>,
    /// How many slots are taken, including those whose connection is not open yet.
    in_use: Cell<usize>,
    /// Wakers of accept loops that accept nothing until a slot is free.
    available_wakers: RefCell<Vec<Waker>>,
    /// Wakers of accept loops that wait for a connection while a slot is free. When the last slot
    /// is taken, the loops are woken so that they stop accepting.
    exhausted_wakers: RefCell<Vec<Waker>>,
}

impl ConnectionLimiter {
    pub(crate) fn new(instrumentation: &Rc<Instrumentation>) -> Rc<Self> {
        Rc::new(Self {
            instrumentation: Rc::clone(instrumentation),
            in_use: Cell::new(0),
            available_wakers: RefCell::default(),
            exhausted_wakers: RefCell::default(),
        })
    }

    /// Waits until fewer than `max` slots are taken, and takes one.
    pub(crate) async fn acquire(self: &Rc<Self>, max: usize) -> ConnectionPermit {
        self.wait_available(max).await;
        self.try_acquire(max).expect("`wait_available` found a free slot")
    }

    /// Waits until fewer than `max` slots are taken.
    pub(crate) async fn wait_available(&self, max: usize) {
        let mut is_recorded = false;
        poll_fn(|cx| {
            if self.has_available(max) {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_recorded, true) {
                self.instrumentation.record_limit("connections_max");
            }
            self.available_wakers.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ready when all `max` slots are taken.
    pub(crate) fn poll_exhausted(&self, max: usize, cx: &Context<'_>) -> Poll<()> {
        if !self.has_available(max) {
            return Poll::Ready(());
        }
        let mut wakers = self.exhausted_wakers.borrow_mut();
        // The search is short: there are about as many entries as listeners.
        if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Returns whether fewer than `max` slots are taken.
    pub(crate) fn has_available(&self, max: usize) -> bool {
        self.in_use.get() < max
    }

    /// Returns whether fewer than `reserved_slots` of the `max` slots are free, or some of the
    /// reserved file descriptors are in use.
    pub(crate) fn is_nearly_exhausted(&self, max: usize, reserved_slots: usize) -> bool {
        max.saturating_sub(self.in_use.get()) < reserved_slots
            || self.instrumentation.is_fd_reserve_short()
    }

    /// Takes a slot for a connection that already exists, even if none is free.
    pub(crate) fn acquire_over_limit(self: &Rc<Self>) -> ConnectionPermit {
        self.in_use.set(self.in_use.get() + 1);
        ConnectionPermit(Rc::clone(self))
    }

    /// Takes a slot if fewer than `max` are taken.
    pub(crate) fn try_acquire(self: &Rc<Self>, max: usize) -> Option<ConnectionPermit> {
        let in_use = self.in_use.get();
        if in_use >= max {
            return None;
        }
        self.in_use.set(in_use + 1);
        if in_use + 1 == max {
            self.exhausted_wakers.take().into_iter().for_each(Waker::wake);
        }
        Some(ConnectionPermit(Rc::clone(self)))
    }
}

/// Occupies a connection slot until this is dropped.
pub(crate) struct ConnectionPermit(Rc<ConnectionLimiter>);

/// Counts a connection as open until this is dropped.
pub(crate) struct ConnectionGuard {
    permit: ConnectionPermit,
    state: ConnectionState,
    /// Whether the reason for closing was recorded.
    is_recorded: bool,
}

impl ConnectionPermit {
    /// Counts the connection as open.
    pub(crate) fn into_guard(self) -> ConnectionGuard {
        let instrumentation = &self.0.instrumentation;
        instrumentation.set_open_connections(instrumentation.connections() + 1);
        instrumentation.metrics().accepted.add(1);
        let state = ConnectionState::Opening;
        instrumentation.metrics().connection_states[state as usize].add(1);
        ConnectionGuard { permit: self, state, is_recorded: false }
    }
}

impl ConnectionGuard {
    /// Records the connection's new state.
    #[inline]
    pub(crate) fn set_state(&mut self, state: ConnectionState) {
        let old_state = std::mem::replace(&mut self.state, state);
        if old_state != state {
            let states = &self.permit.0.instrumentation.metrics().connection_states;
            states[old_state as usize].add(-1);
            states[state as usize].add(1);
        }
    }

    /// Records why the connection was closed.
    pub(crate) fn record_close(&mut self, reason: &CloseReason) {
        self.is_recorded = true;
        self.permit.0.instrumentation.metrics().record_close(reason);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.in_use.set(self.0.in_use.get() - 1);
        // Waking all is cheap: there are hardly more entries than listeners, because a waiting
        // accept loop is rarely polled again before a slot is free.
        self.0.available_wakers.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let instrumentation = &self.permit.0.instrumentation;
        instrumentation.set_open_connections(instrumentation.connections() - 1);
        instrumentation.metrics().connection_states[self.state as usize].add(-1);
        if !self.is_recorded {
            // The connection's task was dropped before the connection ended, by a panic or at the
            // end of the worker.
            instrumentation.metrics().closed.increment("lost");
        }
        instrumentation.refill_reserved_fds();
        instrumentation.wake_if_work_done();
    }
}
