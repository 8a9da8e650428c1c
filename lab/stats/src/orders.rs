//! Who comes when: balanced orders in which nobody profits from a place or from a neighbour.
//!
//! The rows come from Williams squares: every contender stands in every place once, and every
//! contender follows every other one equally often, so a server that leaves dirty caches behind
//! leaves them to all. Each odd row is the reverse of the row before, as in ABBA, so a steady
//! drift cancels within two blocks. Which contender plays which part, and which rows come first,
//! is random.

use crate::random::Random;

/// The order of `contenders` (by number) in each of `blocks` blocks; each block holds each once.
///
/// Over every 2 `contenders` blocks (for an even number of contenders, over half of that) each
/// contender stands in each place equally often, and directly after each other one equally often
/// within blocks. If the blocks end within such a cycle, the counts of places differ by at most 1
/// for an even number of contenders, and at most 2 for an odd one, whose middle contender stays in
/// its place when a row is reversed. The same seed gives the same order.
#[must_use]
pub fn balanced(contenders: usize, blocks: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = Random::new(seed);
    let mut rows = Vec::with_capacity(blocks + 2 * contenders);
    while rows.len() < blocks {
        let mut names: Vec<usize> = (0..contenders).collect();
        random.shuffle(&mut names);
        let mut shifts: Vec<usize> = (0..shifts_of(contenders)).collect();
        random.shuffle(&mut shifts);
        for shift in shifts {
            let mut row: Vec<usize> =
                williams_row(contenders, shift).into_iter().map(|part| names[part]).collect();
            if random.below(2) == 1 {
                row.reverse();
            }
            rows.push(row.clone());
            row.reverse();
            rows.push(row);
        }
    }
    rows.truncate(blocks);
    rows
}

/// A Williams square: rows in which each of `contenders` stands in each place equally often, and
/// directly after each other one equally often. It has as many rows as contenders if that is an
/// even number, and twice as many if it is odd, each second one being the reverse of the first.
#[must_use]
pub fn williams(contenders: usize) -> Vec<Vec<usize>> {
    let mut rows = Vec::with_capacity(2 * contenders);
    for shift in 0..shifts_of(contenders) {
        let row = williams_row(contenders, shift);
        let reversed = row.iter().rev().copied().collect();
        rows.push(row);
        rows.push(reversed);
    }
    rows
}

/// How many rows there are, without those that are the reverse of another.
fn shifts_of(contenders: usize) -> usize {
    // In an even square, the reverse of a row is the row that is shifted by half.
    if contenders.is_multiple_of(2) { contenders / 2 } else { contenders }.max(1)
}

/// The row 0, 1, n - 1, 2, n - 2 ..., in which all distances of neighbours differ, shifted.
fn williams_row(contenders: usize, shift: usize) -> Vec<usize> {
    (0..contenders)
        .map(|place| {
            let zigzag = if place % 2 == 1 { place.div_ceil(2) } else { contenders - place / 2 };
            (zigzag + shift) % contenders
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often each contender (row) stands in each place (column), and follows each other one.
    fn counts(rows: &[Vec<usize>], contenders: usize) -> (Vec<Vec<usize>>, Vec<Vec<usize>>) {
        let mut places = vec![vec![0; contenders]; contenders];
        let mut follows = vec![vec![0; contenders]; contenders];
        for row in rows {
            for (place, &contender) in row.iter().enumerate() {
                places[contender][place] += 1;
            }
            for pair in row.windows(2) {
                follows[pair[1]][pair[0]] += 1;
            }
        }
        (places, follows)
    }

    #[test]
    fn williams_squares_balance_places_and_neighbours() {
        for contenders in 2..=20 {
            let rows = williams(contenders);
            let times = if contenders % 2 == 0 { 1 } else { 2 };
            assert_eq!(rows.len(), times * contenders);
            let (places, follows) = counts(&rows, contenders);
            assert!(places.iter().flatten().all(|&count| count == times), "{contenders}");
            for (after, row) in follows.iter().enumerate() {
                for (before, &count) in row.iter().enumerate() {
                    let expected = if after == before { 0 } else { times };
                    assert_eq!(count, expected, "{contenders}: {after} after {before}");
                }
            }
        }
        assert_eq!(williams(2), [[0, 1], [1, 0]]);
    }

    #[test]
    fn every_block_holds_each_contender_and_every_second_is_reversed() {
        for contenders in 0..=9 {
            for blocks in 0..30 {
                let rows = balanced(contenders, blocks, 7 + blocks as u64);
                assert_eq!(rows.len(), blocks);
                for (block, row) in rows.iter().enumerate() {
                    let mut sorted = row.clone();
                    sorted.sort_unstable();
                    assert!(sorted.into_iter().eq(0..contenders));
                    if block % 2 == 1 {
                        assert!(row.iter().eq(rows[block - 1].iter().rev()));
                    }
                }
            }
        }
    }

    #[test]
    fn places_are_shared_equally_up_to_the_unfinished_cycle() {
        for contenders in 1..=12 {
            for blocks in 0..70 {
                let rows = balanced(contenders, blocks, 31 * blocks as u64);
                let (places, _) = counts(&rows, contenders);
                let least = places.iter().flatten().min().unwrap();
                let most = places.iter().flatten().max().unwrap();
                let cycle = if contenders % 2 == 0 { contenders } else { 2 * contenders };
                let allowed = match (blocks % cycle, contenders % 2) {
                    (0, _) => 0,
                    (_, 0) => 1,
                    (_, _) => 2,
                };
                assert!(most - least <= allowed, "{contenders} in {blocks}: {places:?}");
            }
        }
    }

    #[test]
    fn the_order_is_random_and_decided_by_the_seed() {
        assert_eq!(balanced(5, 40, 11), balanced(5, 40, 11));
        assert_ne!(balanced(5, 40, 11), balanced(5, 40, 12));
        let firsts: std::collections::BTreeSet<Vec<usize>> =
            (0..200).map(|seed| balanced(3, 1, seed).remove(0)).collect();
        assert_eq!(firsts.len(), 6, "every order can come first");
    }
}
