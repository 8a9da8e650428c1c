//! Repeatable randomness: the same seed gives the same run order and the same intervals.

/// A small generator: SplitMix64, by Steele, Lea and Flood (2014). It counts in steps of an odd
/// constant and scrambles each count, so every seed has a sequence of the full length of 2^64.
/// Good for resampling and run orders, not for secrets.
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A generator whose whole sequence is decided by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random { state: seed }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero. The bias is below 2^-32 for bounds below 2^32.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "a bound of zero leaves nothing to choose");
        let product = u128::from(self.draw()) * bound as u128;
        usize::try_from(product >> 64).expect("the result is below the bound")
    }

    /// A number from 0 up to, but not including, 1: a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.draw() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Puts `items` in a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        // The reference values of SplitMix64 for the seed 1234567.
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.draw()).collect();
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn units_fill_their_range_evenly() {
        let mut random = Random::new(2);
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            let unit = random.unit();
            assert!((0.0..1.0).contains(&unit));
            counts[(unit * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_shuffle_keeps_every_item_and_reaches_every_order() {
        let mut random = Random::new(1);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [0, 1, 2];
            random.shuffle(&mut items);
            let mut sorted = items;
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            orders.insert(items);
        }
        assert_eq!(orders.len(), 6);
    }
}
