//! Limits how many connections are open at a time, and counts them.
//!
//! Listeners that share a limit share one [`Rooms`]. A [`Room`] is a slot for one connection, taken
//! until it is dropped. When its connection is opened, the `Room` becomes an [`Open`], which
//! reports the connection's state and its end to [`Observed`].

use crate::observe::Observed;
use crate::observe::close_reason::Ended;
use crate::observe::metrics::Place;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The connection slots of listeners that share a limit.
pub(crate) struct Rooms {
    observed: Rc<Observed>,
    /// How many slots are taken, with or without an open connection.
    taken: Cell<usize>,
    /// Accept loops that wait for a free slot.
    waiting: RefCell<Vec<Waker>>,
    /// Accept loops that wait for a connection. They are woken when the last slot is taken.
    accepting: RefCell<Vec<Waker>>,
}

impl Rooms {
    pub(crate) fn new(observed: &Rc<Observed>) -> Rc<Self> {
        Rc::new(Self {
            observed: Rc::clone(observed),
            taken: Cell::new(0),
            waiting: RefCell::default(),
            accepting: RefCell::default(),
        })
    }

    /// Waits for a free slot of `max`, and takes it.
    pub(crate) async fn room(self: &Rc<Self>, max: usize) -> Room {
        self.vacancy(max).await;
        self.try_room(max).expect("`vacancy` found a free slot")
    }

    /// Waits until a slot of `max` is free.
    pub(crate) async fn vacancy(&self, max: usize) {
        let mut is_told = false;
        poll_fn(|context| {
            if self.has_room(max) {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_told, true) {
                self.observed.limit("connections_max");
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ready when all `max` slots are taken.
    pub(crate) fn poll_full(&self, max: usize, context: &Context<'_>) -> Poll<()> {
        if !self.has_room(max) {
            return Poll::Ready(());
        }
        let mut accepting = self.accepting.borrow_mut();
        // There are only as many entries as listeners.
        if !accepting.iter().any(|waker| waker.will_wake(context.waker())) {
            accepting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Returns whether a slot of `max` is free.
    pub(crate) fn has_room(&self, max: usize) -> bool {
        self.taken.get() < max
    }

    /// Returns whether fewer than `spare` slots are free, or reserved descriptors are missing.
    pub(crate) fn is_nearly_full(&self, max: usize, spare: usize) -> bool {
        max.saturating_sub(self.taken.get()) < spare || self.observed.is_reserve_short()
    }

    /// Takes a slot for a connection that already exists, even if none is free.
    pub(crate) fn last_room(self: &Rc<Self>) -> Room {
        self.taken.set(self.taken.get() + 1);
        Room(Rc::clone(self))
    }

    /// Takes a slot of `max`, if one is free.
    pub(crate) fn try_room(self: &Rc<Self>, max: usize) -> Option<Room> {
        let taken = self.taken.get();
        if taken >= max {
            return None;
        }
        self.taken.set(taken + 1);
        if taken + 1 == max {
            self.accepting.take().into_iter().for_each(Waker::wake);
        }
        Some(Room(Rc::clone(self)))
    }
}

/// A connection slot, taken until this is dropped.
pub(crate) struct Room(Rc<Rooms>);

/// A connection that counts as open until this is dropped.
pub(crate) struct Open {
    room: Room,
    place: Place,
    is_told: bool,
}

impl Room {
    /// Turns the slot into an open connection.
    pub(crate) fn open(self) -> Open {
        let observed = &self.0.observed;
        observed.has_open(observed.connections() + 1);
        observed.counts().accepted.add(1);
        let place = Place::Opening;
        observed.counts().places[place as usize].add(1);
        Open { room: self, place, is_told: false }
    }
}

impl Open {
    /// Records the connection's new state.
    #[inline]
    pub(crate) fn moves(&mut self, place: Place) {
        let before = std::mem::replace(&mut self.place, place);
        if before != place {
            let places = &self.room.0.observed.counts().places;
            places[before as usize].add(-1);
            places[place as usize].add(1);
        }
    }

    pub(crate) fn ended(&mut self, ended: &Ended) {
        self.is_told = true;
        self.room.0.observed.counts().end(ended);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.0.taken.set(self.0.taken.get() - 1);
        // There are only as many entries as listeners.
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let observed = &self.room.0.observed;
        observed.has_open(observed.connections() - 1);
        observed.counts().places[self.place as usize].add(-1);
        if !self.is_told {
            // The connection's task was dropped before the connection ended, by a panic or at the
            // end of the worker.
            observed.counts().ended.note("lost");
        }
        observed.refill_reserve();
        observed.wake_if_empty();
    }
}
