//! The only source of randomness.

/// A small generator (SplitMix64): every number follows from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number of 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `limit`, or 0 if `limit` is 0. The bias of the remainder is negligible for
    /// limits much smaller than 2^64.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next().checked_rem(limit).unwrap_or(0)
    }

    /// An index into a collection with `length` items.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        let length = u64::try_from(length).expect("a length has at most 64 bits");
        usize::try_from(self.below(length)).expect("the number is below a usize")
    }

    /// Returns true with a probability of `per_mille` in 1,000. Draws no number if the result is
    /// certain.
    pub(crate) fn chance(&mut self, per_mille: u32) -> bool {
        match per_mille {
            0 => false,
            1000.. => true,
            some => self.below(1000) < u64::from(some),
        }
    }
}

/// Spreads every bit of `value` over the result.
pub(crate) fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_from_the_seed_and_stay_below_the_limit() {
        let draw = |seed| {
            let mut random = Rng::new(seed);
            (0..100).map(|_| random.below(10)).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!((0..10).all(|number| draw(3).contains(&number)));
        assert!(draw(4).iter().all(|number| *number < 10));
        assert_eq!(Rng::new(5).below(0), 0);
    }

    #[test]
    fn chance_is_true_about_as_often_as_requested() {
        let mut random = Rng::new(7);
        let hits = (0..10_000).filter(|_| random.chance(250)).count();
        assert!((2_200..2_800).contains(&hits), "{hits} of 10,000");
        assert!(!random.chance(0));
        assert!(random.chance(1000));
    }
}
