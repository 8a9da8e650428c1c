//! A range of a head, as two offsets.

use std::ops::Range;

/// A range of bytes in a head: offsets from the head's first byte, so that a span is valid for
/// every copy of the head. A head has at most 65,535 bytes, so both fit in 16 bits. `start <= end`
/// always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u16,
    /// Offset after the last byte.
    pub end: u16,
}

impl Span {
    /// The span of no bytes at the head's start.
    pub const EMPTY: Self = Self { start: 0, end: 0 };

    /// The span of `start..end`, which lie within a head and so fit into 16 bits. Only debug builds
    /// check that.
    #[inline]
    pub(crate) fn new(start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= usize::from(u16::MAX), "a span lies within a head");
        #[expect(clippy::cast_possible_truncation, reason = "a head has at most 65,535 bytes")]
        Self { start: start as u16, end: end as u16 }
    }

    /// The bytes of this span in `head`, the head for which the span was created. Panics if `head`
    /// is shorter than that.
    #[inline]
    #[must_use]
    pub fn slice(self, head: &[u8]) -> &[u8] {
        &head[usize::from(self.start)..usize::from(self.end)]
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        usize::from(self.end - self.start)
    }

    /// Returns whether the span has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// The span as a range of `usize`.
    #[inline]
    #[must_use]
    pub fn range(self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.end)
    }
}
