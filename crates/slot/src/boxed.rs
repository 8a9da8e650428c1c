//! A safe equivalent of the slot: the same interface over `Box::pin`, for comparison.

use std::future::Future;
use std::pin::Pin;

/// Behaves like [`crate::FutureSlot`], with one allocation per future.
#[derive(Debug, Default)]
pub struct BoxedSlot(());

impl BoxedSlot {
    /// Creates an empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }

    /// Boxes `future`. The guard owns the slot, as in [`crate::FutureSlot::pin`].
    pub fn pin<'f, F: Future + 'f>(
        self,
        future: F,
    ) -> Pin<Box<dyn Future<Output = F::Output> + 'f>> {
        Box::pin(future)
    }
}
