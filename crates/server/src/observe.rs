//! What a worker counts about itself.

use crate::ended::Ended;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use tokio::sync::OwnedSemaphorePermit;

/// One worker's counts. It stays on the worker's thread, so that counting costs an addition.
#[derive(Default)]
pub struct Observed {
    connections: Cell<usize>,
    accepted: Cell<u64>,
    refused: Cell<u64>,
    requests: Cell<u64>,
    sends: Cell<u64>,
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
    /// Connections that are over, by how they ended ([`Ended::name`]).
    pub ended: BTreeMap<&'static str, u64>,
}

impl Observed {
    /// The counts now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            connections: self.connections.get(),
            accepted: self.accepted.get(),
            refused: self.refused.get(),
            requests: self.requests.get(),
            sends: self.sends.get(),
            ended: self.ended.borrow().clone(),
        }
    }

    /// A new connection, and its place among the most there may be.
    pub(crate) fn opened(self: &Rc<Self>, room: OwnedSemaphorePermit) -> Open {
        self.connections.set(self.connections.get() + 1);
        self.accepted.set(self.accepted.get() + 1);
        Open { observed: Rc::clone(self), _room: room }
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

/// A connection that counts as open until this is dropped.
pub(crate) struct Open {
    observed: Rc<Observed>,
    _room: OwnedSemaphorePermit,
}

impl Open {
    pub(crate) fn ended(&self, ended: &Ended) {
        *self.observed.ended.borrow_mut().entry(ended.name()).or_default() += 1;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let left = self.observed.connections.get() - 1;
        self.observed.connections.set(left);
        if left == 0
            && let Some(waker) = self.observed.waiting_for_empty.take()
        {
            waker.wake();
        }
    }
}
