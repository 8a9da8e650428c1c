//! Values that others have computed. Those without a source of their own come from Python with
//! SciPy 1.17 (`wilcoxon`, `mannwhitneyu`, `bootstrap`) on the samples written here; those with
//! ties, where SciPy is not exact, from counting out every sign or every choice in a plain loop.

use peregrine_lab_stats::estimates::hodges_lehmann;
use peregrine_lab_stats::intervals::{Bootstrap, Interval, RESAMPLES, bca, centre, percentile};
use peregrine_lab_stats::rank_sum::rank_sum;
use peregrine_lab_stats::signed_rank::{Alternative, signed_rank};

/// The differences of Hollander and Wolfe's depression data.
const DEPRESSION: [f64; 9] = [-0.952, 0.147, -1.022, -0.430, -0.620, -0.590, -0.490, 0.080, -0.010];

/// Hollander and Wolfe's permeability of membranes, at term and early.
const TERM: [f64; 10] = [0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46];
const EARLY: [f64; 5] = [1.15, 0.88, 0.90, 0.74, 1.21];

/// Times between events, skewed as such times are.
const SKEWED: [f64; 20] = [
    0.1, 0.2, 0.2, 0.4, 0.5, 0.7, 0.9, 1.0, 1.3, 1.6, 1.8, 2.1, 2.7, 3.3, 4.2, 5.0, 6.1, 7.9, 10.4,
    15.2,
];

fn sequence(count: i32, step: i32, modulus: i32, scale: f64, shift: f64) -> Vec<f64> {
    (0..count).map(|index| f64::from(index * step % modulus) / scale + shift).collect()
}

fn close(found: f64, expected: f64) {
    let error = (found - expected).abs();
    assert!(error < 1e-9, "{found} is not {expected}");
}

#[test]
fn signed_rank_probabilities_are_exact_for_few_values() {
    let p = |values: &[f64], alternative| {
        let test = signed_rank(values, alternative);
        assert!(test.is_exact);
        (test.statistic, test.p)
    };
    assert_eq!(p(&DEPRESSION, Alternative::TwoSided), (5.0, 0.039_062_5));
    assert_eq!(p(&DEPRESSION, Alternative::Greater), (5.0, 0.986_328_125));
    assert_eq!(p(&DEPRESSION, Alternative::Less), (5.0, 0.019_531_25));
    let many = sequence(25, 37, 101, 10.0, -3.05);
    assert_eq!(p(&many, Alternative::TwoSided), (252.0, 0.014_722_049_236_297_607));
    assert_eq!(p(&many, Alternative::Less), (252.0, 0.993_222_653_865_814_2));
    // Five values of one sign: 2 of the 2^5 signs are as extreme.
    assert_eq!(p(&[1.0, 2.0, 3.0, 4.0, 5.0], Alternative::TwoSided), (15.0, 0.0625));
}

#[test]
fn signed_rank_probabilities_are_exact_with_ties_and_zeros() {
    let values = [1.0, 2.0, -2.0, 3.0, 0.0, 3.0, -1.0, 4.0, 5.0, 0.0, 2.0, -3.0, 6.0, 6.0];
    let p = |alternative| signed_rank(&values, alternative).p;
    assert_eq!(signed_rank(&values, Alternative::Less).statistic, 65.5);
    assert_eq!(p(Alternative::Less), 0.985_595_703_125);
    assert_eq!(p(Alternative::Greater), 0.018_798_828_125);
    assert_eq!(p(Alternative::TwoSided), 0.037_597_656_25);
    assert_eq!(signed_rank(&[0.0, 0.0], Alternative::TwoSided).p, 1.0);
    assert!(signed_rank(&[], Alternative::TwoSided).p.is_nan());
    let with_unknown = [f64::NAN, 1.0, 2.0, 3.0, 4.0, 5.0];
    assert_eq!(signed_rank(&with_unknown, Alternative::Greater).p, 0.031_25);
}

#[test]
fn signed_rank_probabilities_are_approximated_for_many_values() {
    let distinct = sequence(40, 29, 67, 1.0, -24.0);
    let p = |values: &[f64], alternative| {
        let test = signed_rank(values, alternative);
        assert!(!test.is_exact);
        test.p
    };
    assert_eq!(signed_rank(&distinct, Alternative::Less).statistic, 568.0);
    close(p(&distinct, Alternative::TwoSided), 0.013_235_313_387_905_61);
    close(p(&distinct, Alternative::Greater), 0.006_617_656_693_952_805);
    close(p(&distinct, Alternative::Less), 0.993_636_725_749_798_7);
    let tied = sequence(40, 29, 7, 1.0, -2.0);
    close(p(&tied, Alternative::TwoSided), 0.011_029_410_160_461_684);
    close(p(&tied, Alternative::Greater), 0.005_514_705_080_230_842);
}

#[test]
fn rank_sum_probabilities_are_exact_for_small_samples() {
    let p = |first: &[f64], second: &[f64], alternative| {
        let test = rank_sum(first, second, alternative);
        assert!(test.is_exact);
        (test.statistic, test.p)
    };
    let (statistic, two_sided) = p(&TERM, &EARLY, Alternative::TwoSided);
    close(statistic, 35.0);
    close(two_sided, 0.254_412_254_412_254_4);
    close(p(&TERM, &EARLY, Alternative::Greater).1, 0.127_206_127_206_127_2);
    close(p(&TERM, &EARLY, Alternative::Less).1, 0.896_769_896_769_896_7);
    let first = sequence(20, 37, 101, 10.0, 0.0);
    let second = sequence(20, 53, 89, 10.0, 1.25);
    let (statistic, two_sided) = p(&first, &second, Alternative::TwoSided);
    close(statistic, 164.0);
    close(two_sided, 0.340_784_851_589_126_86);
    // With ties, counted out over all 1,716 choices.
    let (first, second) = ([1.0, 2.0, 2.0, 5.0, 9.0, 9.0], [1.0, 1.0, 2.0, 3.0, 3.0, 2.0, 4.0]);
    let (statistic, two_sided) = p(&first, &second, Alternative::TwoSided);
    close(statistic, 28.0);
    close(two_sided, 0.333_916_083_916_083_9);
    close(p(&first, &second, Alternative::Greater).1, 0.173_659_673_659_673_66);
    close(p(&first, &second, Alternative::Less).1, 0.840_326_340_326_340_3);
}

#[test]
fn rank_sum_probabilities_are_approximated_for_large_samples() {
    let first = sequence(30, 37, 101, 10.0, 0.0);
    let second = sequence(25, 53, 89, 10.0, 1.2);
    let test = rank_sum(&first, &second, Alternative::TwoSided);
    assert!(!test.is_exact);
    close(test.statistic, 310.5);
    close(test.p, 0.279_281_828_002_350_46);
    close(rank_sum(&first, &second, Alternative::Greater).p, 0.864_080_912_723_336_4);
    close(rank_sum(&first, &second, Alternative::Less).p, 0.139_640_914_001_175_23);
    let (first, second) = (sequence(30, 37, 11, 1.0, 0.0), sequence(25, 53, 13, 1.0, 0.0));
    close(rank_sum(&first, &second, Alternative::TwoSided).p, 0.355_273_731_808_445_2);
    assert!(rank_sum(&first, &[], Alternative::TwoSided).p.is_nan());
}

/// The mean ends of SciPy's intervals over 20 seeds of 10,000 resamples, and how far one seed may
/// be from them: four of their standard deviations.
fn near(found: Interval, low: (f64, f64), high: (f64, f64)) {
    let is_near =
        (found.low - low.0).abs() < 4.0 * low.1 && (found.high - high.0).abs() < 4.0 * high.1;
    assert!(is_near, "{found:?} is not {low:?} to {high:?}");
}

#[test]
fn bootstrap_intervals_are_those_of_another_implementation() {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for seed in 0..3 {
        near(bca(&SKEWED, seed, mean), (1.967_63, 0.017), (5.587_24, 0.065));
        near(percentile(&SKEWED, seed, mean), (1.759_74, 0.013), (5.123_78, 0.034));
        let (estimate, interval) = centre(&SKEWED, seed);
        close(estimate, 2.45);
        near(interval, (1.152_5, 0.011), (4.855_05, 0.101));
        near(percentile(&SKEWED, seed, hodges_lehmann), (1.148_75, 0.0054), (4.630_09, 0.055));
    }
}

#[test]
fn the_same_seed_gives_the_same_interval_and_another_one_nearly() {
    let interval = |seed| centre(&SKEWED, seed).1;
    assert_eq!(interval(9), interval(9));
    assert_ne!(interval(9), interval(10));
    assert!((interval(9).low - interval(10).low).abs() < 0.1);
}

#[test]
fn resamples_that_equal_the_estimate_lean_to_neither_side() {
    // Most draws of these have the estimate 0 exactly, and as many lie below it as above.
    let values: Vec<f64> = (0..30).map(|index| f64::from(index % 3 - 1)).collect();
    let bootstrap = Bootstrap::of_hodges_lehmann(&values, RESAMPLES, 5);
    assert_eq!(bootstrap.bca(0.95), bootstrap.percentile(0.95));
    assert_eq!(bootstrap.bca(0.95), Interval { low: -0.5, high: 0.5 });
}

#[test]
fn values_without_a_spread_have_an_interval_without_a_width() {
    let interval = centre(&[3.0; 20], 1).1;
    assert_eq!(interval, Interval { low: 3.0, high: 3.0 });
    assert_eq!(centre(&[4.0], 1), (4.0, Interval { low: 4.0, high: 4.0 }));
    let (estimate, interval) = centre(&[], 1);
    assert!(estimate.is_nan() && interval.low.is_nan() && interval.high.is_nan());
    let none = Bootstrap::new(&SKEWED, 0, 1, hodges_lehmann);
    assert!(none.bca(0.95).low.is_nan() && none.estimate() == 2.45);
    assert_eq!(RESAMPLES, 10_000);
}
