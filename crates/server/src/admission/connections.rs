//! Limits how many connections are open at a time, and counts them.
//!
//! Listeners that share a limit share one [`ConnectionLimiter`]. A [`ConnectionPermit`] is a slot
//! for one connection, taken until it is dropped. When its connection is opened, the
//! `ConnectionPermit` becomes a [`ConnectionGuard`], which reports the connection's state and its
//! end to [`Instrumentation`].

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
    /// How many slots are taken, with or without an open connection.
    in_use: Cell<usize>,
    /// Accept loops that wait for a free slot.
    waiters: RefCell<Vec<Waker>>,
    /// Accept loops that wait for a connection. They are woken when the last slot is taken.
    exhausted_wakers: RefCell<Vec<Waker>>,
}

impl ConnectionLimiter {
    pub(crate) fn new(observed: &Rc<Instrumentation>) -> Rc<Self> {
        Rc::new(Self {
            instrumentation: Rc::clone(observed),
            in_use: Cell::new(0),
            waiters: RefCell::default(),
            exhausted_wakers: RefCell::default(),
        })
    }

    /// Waits for a free slot of `max`, and takes it.
    pub(crate) async fn acquire(self: &Rc<Self>, max: usize) -> ConnectionPermit {
        self.wait_available(max).await;
        self.try_acquire(max).expect("`vacancy` found a free slot")
    }

    /// Waits until a slot of `max` is free.
    pub(crate) async fn wait_available(&self, max: usize) {
        let mut is_told = false;
        poll_fn(|cx| {
            if self.has_available(max) {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_told, true) {
                self.instrumentation.record_limit("connections_max");
            }
            self.waiters.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ready when all `max` slots are taken.
    pub(crate) fn poll_exhausted(&self, max: usize, context: &Context<'_>) -> Poll<()> {
        if !self.has_available(max) {
            return Poll::Ready(());
        }
        let mut accepting = self.exhausted_wakers.borrow_mut();
        // There are only as many entries as listeners.
        if !accepting.iter().any(|waker| waker.will_wake(context.waker())) {
            accepting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Returns whether a slot of `max` is free.
    pub(crate) fn has_available(&self, max: usize) -> bool {
        self.in_use.get() < max
    }

    /// Returns whether fewer than `spare` slots are free, or reserved descriptors are missing.
    pub(crate) fn is_nearly_exhausted(&self, max: usize, spare: usize) -> bool {
        max.saturating_sub(self.in_use.get()) < spare || self.instrumentation.is_reserve_short()
    }

    /// Takes a slot for a connection that already exists, even if none is free.
    pub(crate) fn acquire_over_limit(self: &Rc<Self>) -> ConnectionPermit {
        self.in_use.set(self.in_use.get() + 1);
        ConnectionPermit(Rc::clone(self))
    }

    /// Takes a slot of `max`, if one is free.
    pub(crate) fn try_acquire(self: &Rc<Self>, max: usize) -> Option<ConnectionPermit> {
        let taken = self.in_use.get();
        if taken >= max {
            return None;
        }
        self.in_use.set(taken + 1);
        if taken + 1 == max {
            self.exhausted_wakers.take().into_iter().for_each(Waker::wake);
        }
        Some(ConnectionPermit(Rc::clone(self)))
    }
}

/// A connection slot, taken until this is dropped.
pub(crate) struct ConnectionPermit(Rc<ConnectionLimiter>);

/// A connection that counts as open until this is dropped.
pub(crate) struct ConnectionGuard {
    permit: ConnectionPermit,
    state: ConnectionState,
    is_recorded: bool,
}

impl ConnectionPermit {
    /// Turns the slot into an open connection.
    pub(crate) fn into_guard(self) -> ConnectionGuard {
        let observed = &self.0.instrumentation;
        observed.set_open_connections(observed.connections() + 1);
        observed.metrics().accepted.add(1);
        let place = ConnectionState::Opening;
        observed.metrics().connection_states[place as usize].add(1);
        ConnectionGuard { permit: self, state: place, is_recorded: false }
    }
}

impl ConnectionGuard {
    /// Records the connection's new state.
    #[inline]
    pub(crate) fn set_state(&mut self, place: ConnectionState) {
        let before = std::mem::replace(&mut self.state, place);
        if before != place {
            let places = &self.permit.0.instrumentation.metrics().connection_states;
            places[before as usize].add(-1);
            places[place as usize].add(1);
        }
    }

    pub(crate) fn record_close(&mut self, ended: &CloseReason) {
        self.is_recorded = true;
        self.permit.0.instrumentation.metrics().record_close(ended);
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.in_use.set(self.0.in_use.get() - 1);
        // There are only as many entries as listeners.
        self.0.waiters.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let observed = &self.permit.0.instrumentation;
        observed.set_open_connections(observed.connections() - 1);
        observed.metrics().connection_states[self.state as usize].add(-1);
        if !self.is_recorded {
            // The connection's task was dropped before the connection ended, by a panic or at the
            // end of the worker.
            observed.metrics().closed.increment("lost");
        }
        observed.refill_reserved_fds();
        observed.wake_if_idle();
    }
}
