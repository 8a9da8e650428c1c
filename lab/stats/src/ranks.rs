//! Ranks that do not pretend: whoever cannot be told apart shares one.

use crate::verdicts::{Verdict, judge_pairs};

/// The place of a contender among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// The shared rank, from 1. Two contenders have different ones only if every contender of the
    /// better rank is apart from every contender of the worse one, so a chain of ties (A like B,
    /// B like C) shares one rank even if its ends are apart.
    pub shared: usize,
    /// The best place it may have: one more than the number of contenders that beat it.
    pub best: usize,
    /// The worst place it may have: the number of contenders that it does not beat, itself
    /// included.
    pub worst: usize,
}

/// The ranks of `contenders` by the verdicts on pairs: `verdict(a, b)` is on `a` against `b`, and
/// is asked for `a < b` only. Contenders with nothing measured must be left out, for they tie with
/// all others.
pub fn ranks(contenders: usize, verdict: impl Fn(usize, usize) -> Verdict) -> Vec<Rank> {
    // Whether a row is beaten by a column.
    let mut is_beaten = vec![vec![false; contenders]; contenders];
    let pairs = (0..contenders)
        .flat_map(|first| (first + 1..contenders).map(move |second| (first, second)));
    for (first, second) in pairs {
        match verdict(first, second) {
            Verdict::Faster => is_beaten[second][first] = true,
            Verdict::Slower => is_beaten[first][second] = true,
            Verdict::Equivalent | Verdict::CannotTell { .. } => {}
        }
    }
    // Whether a row is as good as a column, or as one that is as good as it, and so on. Every pair
    // is related in at least one direction, so those related in both form groups in one line.
    let mut reaches: Vec<Vec<bool>> =
        is_beaten.iter().map(|row| row.iter().map(|is_beaten| !is_beaten).collect()).collect();
    for middle in 0..contenders {
        let through = reaches[middle].clone();
        for row in &mut reaches {
            if row[middle] {
                row.iter_mut().zip(&through).for_each(|(reached, &more)| *reached |= more);
            }
        }
    }
    (0..contenders)
        .map(|contender| {
            let beaten = (0..contenders).filter(|&other| is_beaten[other][contender]).count();
            Rank {
                shared: 1 + reaches[contender].iter().filter(|reached| !**reached).count(),
                best: 1 + is_beaten[contender].iter().filter(|is_beaten| **is_beaten).count(),
                worst: contenders - beaten,
            }
        })
        .collect()
}

/// The ranks of contenders by their costs in the same blocks, every pair judged as one family by
/// `band` (see [`crate::verdicts::judge`]).
#[must_use]
pub fn ranks_of_costs(costs: &[&[f64]], band: f64, seed: u64) -> Vec<Rank> {
    let pairs = judge_pairs(costs, band, seed);
    ranks(costs.len(), |first, second| {
        let found = pairs.iter().find(|(one, other, _)| (*one, *other) == (first, second));
        found.expect("every pair was judged").2.verdict
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(contenders: usize, apart: &[(usize, usize)]) -> Vec<usize> {
        let ranks = ranks(contenders, |first, second| {
            if apart.contains(&(first, second)) {
                Verdict::Faster
            } else if apart.contains(&(second, first)) {
                Verdict::Slower
            } else {
                Verdict::Equivalent
            }
        });
        ranks.iter().map(|rank| rank.shared).collect()
    }

    #[test]
    fn ties_share_a_rank_and_take_up_places() {
        assert_eq!(shared(3, &[(0, 1), (0, 2), (1, 2)]), [1, 2, 3]);
        assert_eq!(shared(3, &[(2, 0), (2, 1)]), [2, 2, 1]);
        assert_eq!(shared(4, &[(0, 3), (1, 3), (2, 3)]), [1, 1, 1, 4]);
        assert_eq!(shared(2, &[]), [1, 1]);
        assert_eq!(shared(1, &[]), [1]);
        assert!(shared(0, &[]).is_empty());
    }

    #[test]
    fn a_chain_of_ties_is_one_rank_with_ranges() {
        assert_eq!(shared(3, &[(0, 2)]), [1, 1, 1]);
        let verdict = |first, second| match (first, second) {
            (0, 2) => Verdict::Faster,
            _ => Verdict::CannotTell { blocks_needed: None },
        };
        let ranges: Vec<_> = ranks(3, verdict).iter().map(|rank| (rank.best, rank.worst)).collect();
        assert_eq!(ranges, [(1, 2), (1, 3), (2, 3)]);
    }

    #[test]
    fn a_circle_of_verdicts_is_a_tie() {
        assert_eq!(shared(4, &[(0, 1), (1, 2), (2, 0), (0, 3), (1, 3), (2, 3)]), [1, 1, 1, 4]);
    }

    #[test]
    fn costs_are_ranked_where_they_are_apart() {
        let costs = |base: f64, step: usize| -> Vec<f64> {
            (0..30).map(|block| base * (1.0 + 0.001 * ((block * step) % 7) as f64)).collect()
        };
        let (cheap, same, dear) = (costs(1.0, 2), costs(1.0, 3), costs(1.1, 5));
        let found = ranks_of_costs(&[&dear, &cheap, &same], 0.01, 4);
        assert_eq!(found.iter().map(|rank| rank.shared).collect::<Vec<_>>(), [3, 1, 1]);
    }
}
