//! What must hold for any numbers: order does not matter, signs mirror, scales carry over.

use peregrine_lab_stats::estimates::{hodges_lehmann, hodges_lehmann_shift, quantile};
use peregrine_lab_stats::family::holm;
use peregrine_lab_stats::intervals::Bootstrap;
use peregrine_lab_stats::random::Random;
use peregrine_lab_stats::rank_sum::rank_sum;
use peregrine_lab_stats::signed_rank::{Alternative, signed_rank};
use peregrine_lab_stats::verdicts::{Verdict, judge, judge_pairs};

const TRIALS: u64 = 100;

/// Between 1 and `most` values; for odd seeds on a coarse grid, so that there are ties and zeros.
fn sample(random: &mut Random, most: usize, is_coarse: bool) -> Vec<f64> {
    let count = 1 + random.below(most);
    (0..count)
        .map(|_| {
            let value = random.unit() * 12.0 - 5.0;
            if is_coarse { value.round() } else { value }
        })
        .collect()
}

fn negated(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| -value).collect()
}

fn close(left: f64, right: f64, seed: u64) {
    assert!((left - right).abs() < 1e-9, "seed {seed}: {left} is not {right}");
}

#[test]
fn order_does_not_matter() {
    for seed in 0..TRIALS {
        let mut random = Random::new(seed);
        let values = sample(&mut random, 40, seed % 2 == 1);
        let others = sample(&mut random, 30, seed % 2 == 1);
        let mut shuffled = values.clone();
        random.shuffle(&mut shuffled);
        assert_eq!(hodges_lehmann(&values), hodges_lehmann(&shuffled), "seed {seed}");
        assert_eq!(quantile(&values, 0.3), quantile(&shuffled, 0.3), "seed {seed}");
        let shift = hodges_lehmann_shift(&values, &others);
        assert_eq!(shift, hodges_lehmann_shift(&shuffled, &others), "seed {seed}");
        let two = Alternative::TwoSided;
        assert_eq!(signed_rank(&values, two), signed_rank(&shuffled, two), "seed {seed}");
        assert_eq!(rank_sum(&values, &others, two), rank_sum(&shuffled, &others, two));
        let interval = |values| Bootstrap::of_hodges_lehmann(values, 200, seed).bca(0.95);
        assert_eq!(interval(&values), interval(&shuffled), "seed {seed}");
    }
}

#[test]
fn the_other_sign_gives_the_mirror_image() {
    for seed in 0..TRIALS {
        let mut random = Random::new(seed);
        let values = sample(&mut random, 40, seed % 2 == 1);
        let others = sample(&mut random, 30, seed % 2 == 1);
        let mirrored = negated(&values);
        close(hodges_lehmann(&values), -hodges_lehmann(&mirrored), seed);
        let p = |values, alternative| signed_rank(values, alternative).p;
        close(p(&values, Alternative::TwoSided), p(&mirrored, Alternative::TwoSided), seed);
        close(p(&values, Alternative::Greater), p(&mirrored, Alternative::Less), seed);
        let sums = |first, second, alternative| rank_sum(first, second, alternative).p;
        let [two, greater, less] = [Alternative::TwoSided, Alternative::Greater, Alternative::Less];
        close(sums(&values, &others, two), sums(&others, &values, two), seed);
        close(sums(&values, &others, greater), sums(&others, &values, less), seed);
        let pairs =
            rank_sum(&values, &others, two).statistic + rank_sum(&others, &values, two).statistic;
        close(pairs, (values.len() * others.len()) as f64, seed);
    }
}

#[test]
fn a_shift_and_a_scale_carry_over() {
    for seed in 0..TRIALS {
        let mut random = Random::new(seed);
        let values = sample(&mut random, 40, seed % 2 == 1);
        let moved: Vec<f64> = values.iter().map(|value| 3.0 * value + 7.0).collect();
        close(hodges_lehmann(&moved), 3.0 * hodges_lehmann(&values) + 7.0, seed);
        let before = Bootstrap::of_hodges_lehmann(&values, 200, seed).bca(0.9);
        let after = Bootstrap::of_hodges_lehmann(&moved, 200, seed).bca(0.9);
        close(after.low, 3.0 * before.low + 7.0, seed);
        close(after.high, 3.0 * before.high + 7.0, seed);
    }
}

#[test]
fn the_quick_bootstrap_is_the_plain_one() {
    for seed in 0..TRIALS {
        let values = sample(&mut Random::new(seed), 25, seed % 2 == 1);
        let plain = Bootstrap::new(&values, 100, seed, hodges_lehmann);
        let quick = Bootstrap::of_hodges_lehmann(&values, 100, seed);
        assert_eq!(plain.estimate(), quick.estimate(), "seed {seed}");
        assert_eq!(plain.bca(0.95), quick.bca(0.95), "seed {seed}");
        assert_eq!(plain.percentile(0.8), quick.percentile(0.8), "seed {seed}");
    }
}

#[test]
fn wider_levels_give_wider_intervals() {
    for seed in 0..TRIALS {
        let values = sample(&mut Random::new(seed), 40, seed % 2 == 1);
        let bootstrap = Bootstrap::of_hodges_lehmann(&values, 500, seed);
        let (narrow, wide) = (bootstrap.bca(0.90), bootstrap.bca(0.95));
        assert!(wide.low <= narrow.low && narrow.high <= wide.high, "seed {seed}");
    }
}

#[test]
fn holm_never_makes_a_probability_smaller_and_keeps_the_order() {
    for seed in 0..TRIALS {
        let mut random = Random::new(seed);
        let raw: Vec<f64> = (0..1 + random.below(20)).map(|_| random.unit().powi(4)).collect();
        let adjusted = holm(&raw);
        for (first, one) in raw.iter().enumerate() {
            assert!(*one <= adjusted[first] && adjusted[first] <= 1.0);
            for (second, other) in raw.iter().enumerate() {
                assert!(one > other || adjusted[first] <= adjusted[second], "seed {seed}");
            }
        }
        let smallest = raw.iter().copied().fold(1.0, f64::min);
        let least = adjusted.iter().copied().fold(1.0, f64::min);
        close(least, (smallest * raw.len() as f64).min(1.0), seed);
    }
}

#[test]
fn exchanging_the_two_reverses_the_verdict() {
    for seed in 0..TRIALS {
        let mut random = Random::new(seed);
        let shift = random.unit() * 0.06 - 0.03;
        let values: Vec<f64> = (0..30).map(|_| shift + 0.02 * (random.unit() - 0.5)).collect();
        let one = judge(&[&values], 0.01, seed)[0];
        let other = judge(&[&negated(&values)], 0.01, seed)[0];
        // Draws of the mirror image are other draws, so verdicts on the edge may differ.
        if one.verdict.is_separation() && other.verdict.is_separation() {
            assert_eq!(one.verdict, other.verdict.reversed(), "seed {seed}");
        }
        close(one.p, other.p, seed);
        close(one.ratio.estimate, 1.0 / other.ratio.estimate, seed);
        if shift > 0.015 {
            assert_eq!(one.verdict, Verdict::Slower, "seed {seed}");
            assert_eq!(other.verdict, Verdict::Faster, "seed {seed}");
        }
    }
}

#[test]
fn every_pair_is_judged_once() {
    let costs: Vec<Vec<f64>> =
        (0..4).map(|base| (0..12).map(|block| f64::from(base + 5 + block % 3)).collect()).collect();
    let costs: Vec<&[f64]> = costs.iter().map(Vec::as_slice).collect();
    let pairs: Vec<(usize, usize)> =
        judge_pairs(&costs, 0.01, 1).iter().map(|(one, other, _)| (*one, *other)).collect();
    assert_eq!(pairs, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
}
