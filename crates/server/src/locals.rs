//! What a worker announces to its thread: its clock, and the orders that it gets.
//!
//! A worker has its thread for itself, and announces both once. Where several take turns on one thread, as in a
//! simulation, each has to announce them again before it goes on.

use crate::lifecycle::Order;
use crate::shutdown;
use peregrine_web::clock::{self, Clock};
use std::rc::Rc;
use tokio::sync::watch;

/// What the present worker of this thread has announced.
#[derive(Clone, Default)]
pub struct Locals {
    clock: Option<Rc<dyn Clock>>,
    orders: Option<watch::Receiver<Order>>,
}

impl Locals {
    /// What was announced last.
    #[must_use]
    pub fn current() -> Self {
        Self { clock: clock::current(), orders: shutdown::announced() }
    }

    /// Announces it again.
    pub fn announce(&self) {
        match &self.clock {
            Some(clock) => clock::announce(Rc::clone(clock)),
            None => clock::forget(),
        }
        shutdown::announce_all(self.orders.clone());
    }
}

impl std::fmt::Debug for Locals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locals").field("clock", &self.clock.is_some()).finish_non_exhaustive()
    }
}
