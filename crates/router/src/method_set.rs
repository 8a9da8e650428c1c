//! Sets of methods, which are small numbers that the caller assigns.

use std::fmt;

/// A set of methods: bit `n` stands for the method with index `n`, below 32.
///
/// The indices have no meaning for the router. A server that accepts extension methods reserves one
/// index for "any other method".
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MethodSet(u32);

impl MethodSet {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All 32 methods.
    pub const ALL: Self = Self(u32::MAX);

    /// The set of one method, empty if `index` is 32 or more.
    pub const fn single(index: u8) -> Self {
        if index < 32 { Self(1 << index) } else { Self::NONE }
    }

    /// The set with these bits.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits of the set: bit `n` for method `n`.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the method with this index is in the set; false for 32 and above.
    pub const fn contains(self, index: u8) -> bool {
        self.0 & Self::single(index).0 != 0
    }

    /// The methods in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The methods in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The indices in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..32).filter(move |index| self.contains(*index))
    }
}

impl fmt::Debug for MethodSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::MethodSet;

    #[test]
    fn sets_never_contain_an_index_of_32_or_more() {
        assert!(MethodSet::single(31).contains(31));
        assert!(MethodSet::single(32).is_empty());
        assert!(!MethodSet::ALL.contains(32));
    }

    #[test]
    fn iter_returns_the_indices_in_order() {
        let set = MethodSet::single(5).union(MethodSet::single(0)).union(MethodSet::single(31));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 31]);
        assert_eq!(format!("{set:?}"), "{0, 5, 31}");
    }
}
