//! From blocks to verdicts: what may be said about each contender against the reference.

use std::collections::BTreeMap;

use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::verdict::{Again, Decision, Measure, Ratio, Verdict};
use peregrine_lab_stats::estimates::log_ratios;
use peregrine_lab_stats::verdicts::{
    self, Judgement, Verdict as Word, judge as judge_family, noise_band,
};

/// Fills in the A/A arm and every verdict of a run file, from its blocks, its checks and its plan.
/// `second` is the arm that runs the same program as `first`.
pub fn judge(file: &mut RunFile, (first, second): (&str, &str), measures: &[Measure]) {
    let effect = file.plan.effect_min.unwrap_or(verdicts::SMALLEST_EFFECT);
    let mut all = Vec::new();
    for &measure in measures {
        let again = ratio_of(file, second, first, measure);
        // One block has no spread, and so no band.
        let blocks = paired_ratios(file, second, first, measure).len();
        let band = if blocks < 2 { f64::INFINITY } else { noise_band(again, effect) };
        if measure == Measure::ServerCpu {
            file.again = Some(Again {
                contender: first.to_owned(),
                second: second.to_owned(),
                ratio: shown(again, measure),
                band,
            });
        }
        all.append(&mut family(file, measure, band, second));
    }
    file.verdicts = all;
}

fn family(file: &RunFile, measure: Measure, band: f64, second: &str) -> Vec<Verdict> {
    let reference = file.plan.reference.as_str();
    let members: Vec<&str> = file
        .contenders
        .iter()
        .filter(|one| one.skipped.is_none())
        .map(|one| one.name.as_str())
        .filter(|name| *name != reference && *name != second)
        .filter(|name| file.blocks_of(name).next().is_some())
        .collect();
    // Without a sound A/A pair nobody knows what is noise.
    let void_reference = [reference, second]
        .into_iter()
        .find_map(|name| Some(format!("{name}: {}", void_reason(file, name, measure)?)));
    let (void, sound): (Vec<&str>, Vec<&str>) = members
        .into_iter()
        .partition(|name| void_reference.is_some() || void_reason(file, name, measure).is_some());
    let ratios: Vec<Vec<f64>> =
        sound.iter().map(|name| paired_ratios(file, name, reference, measure)).collect();
    let ratios: Vec<&[f64]> = ratios.iter().map(Vec::as_slice).collect();
    let judged = judge_family(&ratios, band, file.plan.seed);
    let mut found: Vec<Verdict> = sound
        .iter()
        .zip(judged)
        .map(|(name, judgement)| verdict(name, reference, measure, &judgement))
        .collect();
    for name in void {
        let ratio = ratio_of(file, name, reference, measure);
        let reason =
            void_reason(file, name, measure).or_else(|| void_reference.clone()).unwrap_or_default();
        found.push(Verdict {
            contender: name.to_owned(),
            reference: reference.to_owned(),
            measure,
            ratio: shown(ratio, measure),
            decision: Decision::Void,
            blocks: paired_ratios(file, name, reference, measure).len() as u32,
            p_value: None,
            more_blocks: None,
            note: reason,
        });
    }
    found
}

/// The widest noise within which *equivalent* still tells something, as a share.
const EQUIVALENT_BAND_MAX: f64 = 0.10;

fn verdict(name: &str, reference: &str, measure: Measure, judgement: &Judgement) -> Verdict {
    let (decision, more_blocks) = match judgement.verdict {
        Word::Faster => (Decision::Faster, None),
        Word::Slower => (Decision::Slower, None),
        // Within a wide band almost anything is the same; a reader would take the word for more.
        Word::Equivalent if judgement.band > EQUIVALENT_BAND_MAX => (Decision::CannotTell, None),
        Word::Equivalent => (Decision::Equivalent, None),
        Word::CannotTell { blocks_needed } => {
            (Decision::CannotTell, blocks_needed.and_then(|blocks| u32::try_from(blocks).ok()))
        }
    };
    Verdict {
        contender: name.to_owned(),
        reference: reference.to_owned(),
        measure,
        ratio: shown(judgement.ratio, measure),
        decision,
        blocks: judgement.blocks as u32,
        p_value: judgement.p_adjusted.is_finite().then_some(judgement.p_adjusted),
        more_blocks,
        note: String::new(),
    }
}

/// Why a contender's figure says nothing, if it does.
fn void_reason(file: &RunFile, name: &str, measure: Measure) -> Option<String> {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for block in file.blocks_of(name) {
        for (kind, count) in block.errors.iter().filter(|(_, count)| **count > 0) {
            *kinds.entry(kind).or_default() += count;
        }
    }
    if !kinds.is_empty() {
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        return Some(format!("not every answer was right ({})", kinds.join(", ")));
    }
    let own = |outcome: Outcome| {
        file.checks
            .iter()
            .find(move |check| check.outcome == outcome && check.contender.as_deref() == Some(name))
    };
    if let Some(check) = own(Outcome::Failed) {
        return Some(format!("{} failed: {}", check.name, check.detail));
    }
    if measure == Measure::Throughput && own(Outcome::ClientBound).is_some() {
        return Some("the client was the limit, so rates say nothing about the server".to_owned());
    }
    None
}

/// A cost of one block, where less is better; nothing where it is not known.
fn cost(block: &Block, measure: Measure) -> Option<f64> {
    match measure {
        Measure::ServerCpu => block.server_ns_per_request(),
        Measure::Throughput => block.requests_per_s().map(|rate| 1.0 / rate),
        Measure::LatencyMedian => Some(block.latency.as_ref()?.at(0.5)? as f64),
        Measure::LatencyP99 => Some(block.latency.as_ref()?.at(0.99)? as f64),
        Measure::LatencyP999 => Some(block.latency.as_ref()?.at(0.999)? as f64),
        Measure::Memory => block.memory_peak_bytes.map(|bytes| bytes as f64),
        Measure::Other => None,
    }
}

/// The costs of an arm by block number; not a number where a block is missing.
fn costs(file: &RunFile, name: &str, measure: Measure) -> Vec<f64> {
    let length = file.blocks.iter().map(|block| block.number as usize + 1).max().unwrap_or(0);
    let mut costs = vec![f64::NAN; length];
    for block in file.blocks_of(name) {
        costs[block.number as usize] = cost(block, measure).unwrap_or(f64::NAN);
    }
    costs
}

fn paired_ratios(file: &RunFile, name: &str, reference: &str, measure: Measure) -> Vec<f64> {
    let ratios = log_ratios(&costs(file, name, measure), &costs(file, reference, measure));
    ratios.into_iter().filter(|ratio| ratio.is_finite()).collect()
}

fn ratio_of(file: &RunFile, name: &str, reference: &str, measure: Measure) -> verdicts::Ratio {
    verdicts::ratio(&paired_ratios(file, name, reference, measure), file.plan.seed)
}

/// The ratio of the figures that a report shows: of rates, not of the time between two replies.
fn shown(ratio: verdicts::Ratio, measure: Measure) -> Ratio {
    let (estimate, low, high) = (ratio.estimate, ratio.interval.low, ratio.interval.high);
    match measure {
        Measure::Throughput => Ratio { estimate: 1.0 / estimate, low: 1.0 / high, high: 1.0 / low },
        _ => Ratio { estimate, low, high },
    }
}

#[cfg(test)]
mod tests {
    use peregrine_lab_model::contender::Contender;

    use super::*;

    const PAIR: (&str, &str) = ("a", "a (again)");
    const MEASURES: [Measure; 2] = [Measure::ServerCpu, Measure::Throughput];

    /// Arms with costs that drift together, each with its own factor and a little noise.
    fn file(arms: &[(&str, f64)], blocks: u32) -> RunFile {
        let mut file = RunFile::new("test");
        file.plan.reference = arms[0].0.to_owned();
        file.plan.seed = 7;
        for &(name, _) in arms {
            file.contenders.push(Contender { name: name.to_owned(), ..Contender::default() });
        }
        let mut state = 1_u64;
        for number in 0..blocks {
            let drift = 1.0 + 0.3 * f64::from(number % 7) / 7.0;
            for &(name, factor) in arms {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let noise = 1.0 + ((state >> 40) as f64 / f64::from(1 << 24) - 0.5) * 0.01;
                file.blocks.push(Block {
                    number,
                    contender: name.to_owned(),
                    requests: 1000,
                    wall_ns: 10_000_000,
                    server_cpu_ns: (5_000_000.0 * drift * factor * noise) as u64,
                    ..Block::default()
                });
            }
        }
        file
    }

    fn decision(file: &RunFile, name: &str, measure: Measure) -> Decision {
        file.verdicts
            .iter()
            .find(|verdict| verdict.contender == name && verdict.measure == measure)
            .map(|verdict| verdict.decision)
            .unwrap()
    }

    #[test]
    fn five_per_cent_more_work_is_slower_and_the_same_program_is_not() {
        let mut file = file(&[("a", 1.0), ("b", 1.05), ("c", 1.0), ("a (again)", 1.0)], 40);
        judge(&mut file, PAIR, &MEASURES);
        assert_eq!(decision(&file, "b", Measure::ServerCpu), Decision::Slower);
        let same = decision(&file, "c", Measure::ServerCpu);
        assert!(matches!(same, Decision::Equivalent | Decision::CannotTell), "{same:?}");
        let again = file.again.unwrap();
        assert!(again.band < 0.05, "{again:?}");
        assert!(file.verdicts.iter().all(|verdict| verdict.contender != "a (again)"));
    }

    #[test]
    fn within_much_noise_nobody_is_called_equivalent() {
        let mut file = file(&[("a", 1.0), ("b", 1.0), ("a (again)", 1.4)], 40);
        judge(&mut file, PAIR, &MEASURES);
        assert!(file.again.as_ref().unwrap().band > EQUIVALENT_BAND_MAX);
        assert_eq!(decision(&file, "b", Measure::ServerCpu), Decision::CannotTell);
    }

    #[test]
    fn wrong_answers_void_a_verdict_and_name_their_kinds() {
        let mut file = file(&[("a", 1.0), ("b", 0.5), ("a (again)", 1.0)], 10);
        file.blocks[1].errors.insert("wrong body".to_owned(), 3);
        judge(&mut file, PAIR, &MEASURES);
        let verdict = &file.verdicts[0];
        assert_eq!(verdict.decision, Decision::Void);
        assert!(verdict.note.contains("3 wrong body"), "{}", verdict.note);
    }

    #[test]
    fn a_wrong_answer_of_the_second_start_voids_all_because_the_band_rests_on_it() {
        let mut file = file(&[("a", 1.0), ("b", 0.5), ("a (again)", 1.0)], 10);
        let second = file.blocks.iter_mut().find(|block| block.contender == "a (again)");
        second.unwrap().errors.insert("wrong body".to_owned(), 1);
        judge(&mut file, PAIR, &MEASURES);
        assert_eq!(decision(&file, "b", Measure::ServerCpu), Decision::Void);
        assert!(file.verdicts[0].note.contains("a (again): "), "{}", file.verdicts[0].note);
    }

    #[test]
    fn rates_that_the_client_limited_are_not_ranked_but_costs_are() {
        let mut file = file(&[("a", 1.0), ("b", 0.5), ("a (again)", 1.0)], 10);
        file.checks.push(peregrine_lab_model::check::Check {
            name: "client headroom".to_owned(),
            contender: Some("b".to_owned()),
            outcome: Outcome::ClientBound,
            detail: String::new(),
        });
        judge(&mut file, PAIR, &MEASURES);
        assert_eq!(decision(&file, "b", Measure::Throughput), Decision::Void);
        assert_eq!(decision(&file, "b", Measure::ServerCpu), Decision::Faster);
    }

    #[test]
    fn a_higher_rate_is_shown_as_a_ratio_above_one() {
        let mut file = file(&[("a", 1.0), ("b", 1.0), ("a (again)", 1.0)], 10);
        for block in file.blocks.iter_mut().filter(|block| block.contender == "b") {
            block.wall_ns = 5_000_000;
        }
        judge(&mut file, PAIR, &MEASURES);
        let verdict =
            file.verdicts.iter().find(|verdict| verdict.measure == Measure::Throughput).unwrap();
        assert_eq!(verdict.decision, Decision::Faster);
        assert!((verdict.ratio.estimate - 2.0).abs() < 1e-9, "{verdict:?}");
    }
}
