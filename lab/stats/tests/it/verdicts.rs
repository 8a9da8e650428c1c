//! The four words, and when each is used.

use peregrine_lab_stats::estimates::log_ratios;
use peregrine_lab_stats::intervals::Interval;
use peregrine_lab_stats::verdicts::{
    BLOCKS_MIN, Judgement, Ratio, SMALLEST_EFFECT, Verdict, judge, noise_band, ratio,
};

/// Log-ratios around `centre` that reach about `spread` to either side.
fn blocks(count: usize, centre: f64, spread: f64) -> Vec<f64> {
    (0..count).map(|block| centre + spread * (((block * 7) % 11) as f64 / 5.0 - 1.0)).collect()
}

fn one(log_ratios: &[f64], band: f64) -> Judgement {
    judge(&[log_ratios], band, 3)[0]
}

#[test]
fn each_word_has_its_place() {
    assert_eq!(one(&blocks(33, -0.05, 0.01), 0.01).verdict, Verdict::Faster);
    assert_eq!(one(&blocks(33, 0.05, 0.01), 0.01).verdict, Verdict::Slower);
    assert_eq!(one(&blocks(33, 0.001, 0.01), 0.01).verdict, Verdict::Equivalent);
    let unclear = one(&blocks(33, 0.012, 0.02), 0.01).verdict;
    assert!(matches!(unclear, Verdict::CannotTell { blocks_needed: Some(_) }), "{unclear:?}");
    // The same blocks, in a run that differs from itself by 10 %.
    assert_eq!(one(&blocks(33, 0.05, 0.01), 0.10).verdict, Verdict::Equivalent);
    let inside = one(&blocks(33, 0.095, 0.01), 0.10).verdict;
    assert!(!inside.is_separation(), "{inside:?}");
}

#[test]
fn a_judgement_tells_its_evidence() {
    let found = one(&blocks(33, 0.05, 0.01), 0.01);
    assert_eq!((found.blocks, found.band), (33, 0.01));
    // A block that was lost changes nothing but its own absence.
    let mut with_lost = blocks(33, 0.05, 0.01);
    with_lost.extend([f64::NAN, f64::INFINITY]);
    assert_eq!(one(&with_lost, 0.01), found);
    assert!((found.ratio.estimate - 0.05_f64.exp()).abs() < 1e-3);
    let Interval { low, high } = found.ratio.interval;
    assert!(low < found.ratio.estimate && found.ratio.estimate < high);
    assert!(low <= found.equivalence_interval.low && found.equivalence_interval.high <= high);
    assert!(found.p < 1e-5 && found.p == found.p_adjusted);
    let equal = one(&blocks(33, 0.0, 0.01), 0.01);
    assert_eq!((equal.p, equal.verdict), (1.0, Verdict::Equivalent));
}

#[test]
fn a_constant_factor_survives_any_drift() {
    let reference: Vec<f64> = (0..40).map(|block| 4.4 + 0.03 * f64::from(block)).collect();
    let costs: Vec<f64> = reference.iter().map(|cost| cost * 1.05).collect();
    let found = ratio(&log_ratios(&costs, &reference), 3);
    for value in [found.estimate, found.interval.low, found.interval.high] {
        assert!((value - 1.05).abs() < 1e-12, "{found:?}");
    }
}

#[test]
fn too_few_blocks_decide_nothing() {
    for count in 1..BLOCKS_MIN {
        for centre in [-1.0, 0.0, 1.0] {
            let found = one(&blocks(count, centre, 0.001), 0.01).verdict;
            let Verdict::CannotTell { blocks_needed: Some(more) } = found else {
                panic!("{count}: {found:?}")
            };
            assert_eq!(count + more, BLOCKS_MIN);
        }
    }
    assert_eq!(one(&blocks(BLOCKS_MIN, 1.0, 0.001), 0.01).verdict, Verdict::Slower);
}

#[test]
fn nothing_can_be_told_without_blocks_or_without_a_band() {
    let unknown = Verdict::CannotTell { blocks_needed: None };
    let found = one(&[], 0.01);
    assert_eq!(found.verdict, unknown);
    assert!(found.p.is_nan() && found.ratio.estimate.is_nan());
    assert_eq!(one(&blocks(40, 2.0, 0.01), f64::INFINITY).verdict, unknown);
    assert_eq!(one(&blocks(40, 2.0, 0.01), f64::NAN).verdict, unknown);
}

#[test]
fn the_family_makes_each_of_its_members_prove_more() {
    // Seven blocks of one sign have a probability of 2/128, which three contenders may have and
    // four may not.
    let apart = blocks(7, 0.5, 0.01);
    let verdicts = |count: usize| -> Vec<Verdict> {
        let family = vec![apart.as_slice(); count];
        judge(&family, 0.01, 1).iter().map(|judgement| judgement.verdict).collect()
    };
    assert_eq!(verdicts(3), [Verdict::Slower; 3]);
    // One more block makes 2/256, which four may have.
    assert_eq!(verdicts(4), [Verdict::CannotTell { blocks_needed: Some(1) }; 4]);
    // A contender without blocks does not weigh on the others.
    let family = [apart.as_slice(), &apart, &apart, &[]];
    assert_eq!(judge(&family, 0.01, 1)[0].verdict, Verdict::Slower);
}

#[test]
fn the_blocks_needed_grow_with_the_square_of_the_spread() {
    let needed = |spread: f64| {
        let found = one(&blocks(33, 0.012, spread), 0.01).verdict;
        let Verdict::CannotTell { blocks_needed: Some(more) } = found else { panic!("{found:?}") };
        (33 + more) as f64
    };
    let growth = needed(0.04) / needed(0.02);
    assert!((3.0..5.0).contains(&growth), "{growth}");
    // An estimate on the edge of the band needs more blocks than anyone has.
    let edge = one(&blocks(33, 0.01_f64.ln_1p(), 0.02), 0.01).verdict;
    assert_eq!(edge, Verdict::CannotTell { blocks_needed: None });
}

#[test]
fn the_band_is_the_far_end_of_the_program_against_itself() {
    let band = |low, high, smallest| {
        noise_band(Ratio { estimate: 1.0, interval: Interval { low, high } }, smallest)
    };
    let close = |left: f64, right: f64| assert!((left - right).abs() < 1e-12, "{left}");
    close(band(0.999, 1.002, SMALLEST_EFFECT), 0.01);
    close(band(0.999, 1.002, 0.0), 0.002);
    close(band(0.999, 1.002, 0.05), 0.05);
    close(band(0.8, 1.1, SMALLEST_EFFECT), 0.25);
    close(band(0.99, 1.03, SMALLEST_EFFECT), 0.03);
    assert!(band(f64::NAN, f64::NAN, SMALLEST_EFFECT).is_infinite());
}

#[test]
fn words_are_those_of_a_report() {
    let needs = |blocks| Verdict::CannotTell { blocks_needed: Some(blocks) }.words();
    assert_eq!(Verdict::Faster.words(), "faster");
    assert_eq!(Verdict::Equivalent.words(), "equivalent");
    assert_eq!(Verdict::CannotTell { blocks_needed: None }.words(), "cannot tell");
    assert_eq!(needs(1), "cannot tell (needs about 1 more block)");
    assert_eq!(needs(7), "cannot tell (needs about 7 more blocks)");
    assert_eq!(needs(57), "cannot tell (needs about 57 more blocks)");
    assert_eq!(needs(1234), "cannot tell (needs about 1300 more blocks)");
}
