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

    /// Boxes `future`. Takes the slot along, as [`crate::FutureSlot::hold`] does.
    pub fn hold<'f, F: Future + 'f>(
        self,
        future: F,
    ) -> Pin<Box<dyn Future<Output = F::Output> + 'f>> {
        Box::pin(future)
    }
}
