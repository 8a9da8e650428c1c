//! The safe twin of the slot: the same interface over `Box::pin`, for comparison.

use std::future::Future;
use std::pin::Pin;

/// Does what [`crate::FutureSlot`] does, with one allocation per future.
#[derive(Debug, Default)]
pub struct BoxedSlot(());

impl BoxedSlot {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }

    /// Boxes `future`. Borrows the slot as [`crate::FutureSlot::place`] does.
    pub fn place<'s, F: Future + 's>(
        &'s mut self,
        future: F,
    ) -> Pin<Box<dyn Future<Output = F::Output> + 's>> {
        Box::pin(future)
    }
}
