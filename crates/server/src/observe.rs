//! What a worker counts about itself.

use crate::ended::Ended;
use crate::pulse::Pulse;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// One worker's counts. It stays on the worker's thread, so that counting costs an addition.
#[derive(Default)]
pub struct Observed {
    connections: Cell<usize>,
    /// Connections, and places kept for those that are about to be accepted.
    taken: Cell<usize>,
    waiting_for_room: RefCell<Vec<Waker>>,
    accepted: Cell<u64>,
    refused: Cell<u64>,
    requests: Cell<u64>,
    sends: Cell<u64>,
    tasks_cut: Cell<usize>,
    functions_left: Cell<usize>,
    pulse: Arc<Pulse>,
    ended: RefCell<BTreeMap<&'static str, u64>>,
    waiting_for_empty: RefCell<Option<Waker>>,
}

/// A worker's counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections open.
    pub connections: usize,
    /// Connections accepted so far.
    pub accepted: u64,
    /// Times that accepting failed because the process was out of descriptors or memory.
    pub refused: u64,
    /// Requests whose head was complete and valid.
    pub requests: u64,
    /// Times that something was given to the kernel to send.
    pub sends: u64,
    /// Times that a handler was found to keep its thread for longer than
    /// [`Limits::poll_budget`](crate::Limits::poll_budget).
    pub blocked: u64,
    /// Tasks of tokio's that were dropped at the end, because they did not end in time.
    pub tasks_cut: usize,
    /// Functions on tokio's blocking threads that were not waited for any longer at the end. Nothing
    /// can stop them but the end of the process.
    pub functions_left: usize,
    /// Connections that are over, by how they ended ([`Ended::name`]).
    pub ended: BTreeMap<&'static str, u64>,
}

impl Observed {
    /// Counts of a worker that shows which handler has its thread in `pulse`.
    #[must_use]
    pub fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, ..Self::default() }
    }

    pub(crate) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The counts now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            connections: self.connections.get(),
            accepted: self.accepted.get(),
            refused: self.refused.get(),
            requests: self.requests.get(),
            sends: self.sends.get(),
            blocked: self.pulse.blocked(),
            tasks_cut: self.tasks_cut.get(),
            functions_left: self.functions_left.get(),
            ended: self.ended.borrow().clone(),
        }
    }

    /// Waits until there may be one more connection, of at most `max`.
    pub(crate) async fn room(self: &Rc<Self>, max: usize) -> Room {
        poll_fn(|context| {
            if self.taken.get() < max {
                return Poll::Ready(());
            }
            self.waiting_for_room.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
        self.taken.set(self.taken.get() + 1);
        Room(Rc::clone(self))
    }

    pub(crate) fn refused(&self) {
        self.refused.set(self.refused.get() + 1);
    }

    pub(crate) fn request(&self) {
        self.requests.set(self.requests.get() + 1);
    }

    pub(crate) fn send(&self) {
        self.sends.set(self.sends.get() + 1);
    }

    pub(crate) fn tasks_cut(&self, count: usize) {
        self.tasks_cut.set(count);
    }

    pub(crate) fn functions_left(&self, count: usize) {
        self.functions_left.set(count);
    }

    /// Ends when no connection is open.
    pub(crate) async fn empty(&self) {
        poll_fn(|context| {
            if self.connections.get() == 0 {
                return Poll::Ready(());
            }
            *self.waiting_for_empty.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

/// A place among the connections there may be, until it is dropped.
pub(crate) struct Room(Rc<Observed>);

/// A connection that counts as open until this is dropped.
pub(crate) struct Open(Room);

impl Room {
    /// A connection takes the place.
    pub(crate) fn open(self) -> Open {
        self.0.connections.set(self.0.connections.get() + 1);
        self.0.accepted.set(self.0.accepted.get() + 1);
        Open(self)
    }
}

impl Open {
    pub(crate) fn ended(&self, ended: &Ended) {
        *self.0.0.ended.borrow_mut().entry(ended.name()).or_default() += 1;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        // There are as many who wait as there are listeners: few.
        self.0.waiting_for_room.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let observed = &self.0.0;
        let left = observed.connections.get() - 1;
        observed.connections.set(left);
        if left == 0
            && let Some(waker) = observed.waiting_for_empty.take()
        {
            waker.wake();
        }
    }
}
