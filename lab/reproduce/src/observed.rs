//! What came out of the trials.

use std::collections::BTreeMap;

use peregrine_lab_model::verdict::{Decision, Ratio, Verdict as Written};
use peregrine_lab_stats::estimates::log_ratios;
use peregrine_lab_stats::verdicts::{self, Verdict};
use serde::{Deserialize, Serialize};

use crate::method::EQUAL_RATE_SHARE;
use crate::program::Pair;

/// One contender in one trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Observed {
    /// The trial's id.
    pub trial: String,
    /// The contender's id; for the router benchmark the router's name.
    pub contender: String,
    /// What the published method gave; none if it was not run.
    pub published: Option<PublishedFigures>,
    /// What the corrected method gave; none if it was not run.
    pub corrected: Option<CorrectedFigures>,
    /// Times of the router benchmark.
    pub operations: Vec<OperationTime>,
}

/// What the published method gave: the means over its runs, and the sums of errors.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PublishedFigures {
    /// Requests per second, as the tool counts them.
    pub requests_per_s: f64,
    /// Mean latency in nanoseconds, as the tool prints it.
    pub mean_ns: Option<f64>,
    /// Median latency in nanoseconds.
    pub p50_ns: Option<f64>,
    /// The 99th percentile of the latency in nanoseconds.
    pub p99_ns: Option<f64>,
    /// The highest latency in nanoseconds.
    pub max_ns: Option<f64>,
    /// Bytes read per second.
    pub bytes_per_s: Option<f64>,
    /// Failed requests of any kind but timeouts.
    pub errors: u64,
    /// Requests without a reply in time.
    pub timeouts: u64,
    /// Replies that were not what was asked for.
    pub wrong_replies: u64,
    /// How many runs it rests on.
    pub runs: u32,
}

impl PublishedFigures {
    /// Everything that went wrong.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.errors.saturating_add(self.timeouts).saturating_add(self.wrong_replies)
    }
}

/// What the corrected method gave for one contender; how it compares is in [`PairJudged`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CorrectedFigures {
    /// Server CPU time per right reply, in nanoseconds; none without a counter.
    pub server_cpu_ns: Option<f64>,
    /// Right replies per second.
    pub requests_per_s: Option<f64>,
    /// Whether the client was the limit, so that requests per second say nothing about the server.
    pub is_client_bound: bool,
    /// Bytes of a reply on the wire, its head included.
    pub reply_bytes: Option<f64>,
    /// Latency in the open loop.
    pub latency: Option<LatencyFigures>,
    /// Wrong replies and errors of any kind; with any, nothing is judged.
    pub wrong_replies: u64,
}

/// Latency in an open loop, from the intended start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencyFigures {
    /// The rate, the same for all contenders of the trial.
    pub rate_per_s: f64,
    /// Mean, in nanoseconds.
    pub mean_ns: f64,
    /// Median, in nanoseconds.
    pub p50_ns: f64,
    /// 99th percentile, in nanoseconds.
    pub p99_ns: f64,
}

/// A time of the router benchmark.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OperationTime {
    /// The benchmark's case, as `case` in a claim file.
    pub case: String,
    /// The median, in nanoseconds.
    pub ns: f64,
    /// The interval of it, in nanoseconds, if the benchmark gives one.
    pub interval_ns: Option<(f64, f64)>,
}

/// The file that the router benchmark writes.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct RouterTimes {
    /// All cases.
    pub cases: Vec<RouterCase>,
}

/// One case in one mode, for all routers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RouterCase {
    /// The case's name.
    pub case: String,
    /// `match` alone, or `read` with every parameter read by its name.
    pub mode: String,
    /// Nanoseconds per lookup by router.
    #[serde(flatten)]
    pub times: BTreeMap<String, f64>,
}

impl RouterTimes {
    /// One observation per router. The mode is `read`: a route whose parameters nobody reads is
    /// not what the pages time.
    #[must_use]
    pub fn observed(&self) -> Vec<Observed> {
        let mut by_router: BTreeMap<&str, Vec<OperationTime>> = BTreeMap::new();
        for case in self.cases.iter().filter(|case| case.mode == "read") {
            for (router, &ns) in &case.times {
                let time = OperationTime { case: case.case.clone(), ns, interval_ns: None };
                by_router.entry(router).or_default().push(time);
            }
        }
        let observed = |(router, operations): (&str, _)| Observed {
            trial: crate::program::ROUTER.to_owned(),
            contender: router.to_owned(),
            operations,
            ..Observed::default()
        };
        by_router.into_iter().map(observed).collect()
    }
}

/// By which measure a pair was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PairMeasure {
    /// Server CPU time per right reply, in the closed loop. Less is better.
    ServerCpu,
    /// Right replies per second, in the closed loop. More is better.
    Throughput,
    /// Mean latency at the equal rate. Less is better.
    LatencyMean,
    /// Median latency at the equal rate. Less is better.
    LatencyMedian,
    /// The 99th percentile of the latency at the equal rate. Less is better.
    LatencyP99,
}

impl PairMeasure {
    /// Whether more is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        self == Self::Throughput
    }
}

/// How one contender compares with another in paired blocks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairJudged {
    /// The trial's id.
    pub trial: String,
    /// The contender that is judged.
    pub contender: String,
    /// The one it is compared with.
    pub reference: String,
    /// By which measure.
    pub measure: PairMeasure,
    /// The contender's figure over the reference's, with its 95 % interval.
    pub ratio: Ratio,
    /// The word: *faster* is better, whatever the measure.
    pub decision: Decision,
    /// The share up to which differences are noise: 0.02 is 2 %.
    pub band: f64,
    /// How many blocks it rests on.
    pub blocks: u32,
    /// About how many more blocks would tell, if it cannot be told.
    pub more_blocks: Option<u32>,
    /// Why it is void, if it is.
    pub note: String,
}

impl PairJudged {
    /// From a verdict of a run file, with the band of its A/A arm; none if the measure is another.
    #[must_use]
    pub fn of(trial: &str, verdict: &Written, band: f64) -> Option<Self> {
        use peregrine_lab_model::verdict::Measure;
        let measure = match verdict.measure {
            Measure::ServerCpu => PairMeasure::ServerCpu,
            Measure::Throughput => PairMeasure::Throughput,
            Measure::LatencyMedian => PairMeasure::LatencyMedian,
            Measure::LatencyP99 => PairMeasure::LatencyP99,
            _ => return None,
        };
        Some(Self {
            trial: trial.to_owned(),
            contender: verdict.contender.clone(),
            reference: verdict.reference.clone(),
            measure,
            ratio: verdict.ratio,
            decision: verdict.decision,
            band,
            blocks: verdict.blocks,
            more_blocks: verdict.more_blocks,
            note: verdict.note.clone(),
        })
    }

    /// The same comparison, seen from the reference.
    #[must_use]
    pub fn reversed(&self) -> Self {
        let ratio = Ratio {
            estimate: 1.0 / self.ratio.estimate,
            low: 1.0 / self.ratio.high,
            high: 1.0 / self.ratio.low,
        };
        let decision = match self.decision {
            Decision::Faster => Decision::Slower,
            Decision::Slower => Decision::Faster,
            same => same,
        };
        Self {
            contender: self.reference.clone(),
            reference: self.contender.clone(),
            ratio,
            decision,
            ..self.clone()
        }
    }
}

/// Judges the pairs of a trial by one measure, as one family. `values` has a list per contender,
/// one value a block, in the same order for all; `band` is that of the A/A arm for this measure (a
/// share). Pairs without values are left out. The same seed gives the same judgements.
#[must_use]
pub fn judge_pairs(
    trial: &str,
    measure: PairMeasure,
    pairs: &[Pair],
    values: &BTreeMap<String, Vec<f64>>,
    band: f64,
    seed: u64,
) -> Vec<PairJudged> {
    let mut asked = Vec::new();
    for pair in pairs {
        let both = values.get(&pair.contender).zip(values.get(&pair.reference));
        if let Some((contender, reference)) = both {
            // The statistics know costs only. A rate's cost is its inverse, so the two change
            // places.
            let costs = if measure.more_is_better() {
                log_ratios(reference, contender)
            } else {
                log_ratios(contender, reference)
            };
            asked.push((pair, costs));
        }
    }
    let family: Vec<&[f64]> = asked.iter().map(|(_, ratios)| ratios.as_slice()).collect();
    let judgements = verdicts::judge(&family, band, seed);
    let judged = asked.iter().zip(judgements).map(|((pair, _), judgement)| {
        let cost = judgement.ratio;
        let (estimate, low, high) = (cost.estimate, cost.interval.low, cost.interval.high);
        let ratio = if measure.more_is_better() {
            Ratio { estimate: 1.0 / estimate, low: 1.0 / high, high: 1.0 / low }
        } else {
            Ratio { estimate, low, high }
        };
        let (decision, more_blocks) = match judgement.verdict {
            Verdict::Faster => (Decision::Faster, None),
            Verdict::Slower => (Decision::Slower, None),
            Verdict::Equivalent => (Decision::Equivalent, None),
            Verdict::CannotTell { blocks_needed } => (Decision::CannotTell, blocks_needed),
        };
        PairJudged {
            trial: trial.to_owned(),
            contender: pair.contender.clone(),
            reference: pair.reference.clone(),
            measure,
            ratio,
            decision,
            band,
            blocks: u32::try_from(judgement.blocks).unwrap_or(u32::MAX),
            more_blocks: more_blocks.map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX)),
            note: String::new(),
        }
    });
    judged.collect()
}

/// The rate of the open loop for all contenders of a trial, in requests per second: half of the
/// slowest closed loop's rate, so that no one is near its limit. None without a rate.
#[must_use]
pub fn equal_rate(closed_rates: &[f64]) -> Option<f64> {
    let slowest = closed_rates.iter().copied().filter(|rate| *rate > 0.0).reduce(f64::min)?;
    Some(slowest * EQUAL_RATE_SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(measure: PairMeasure) -> PairJudged {
        let blocks = |value: f64, step: usize| -> Vec<f64> {
            (0..20).map(|block| value * (1.0 + ((block * step) % 5) as f64 / 1000.0)).collect()
        };
        let values = BTreeMap::from([
            ("one".to_owned(), blocks(150.0, 2)),
            ("two".to_owned(), blocks(100.0, 3)),
        ]);
        let pairs = [Pair::new("one", "two"), Pair::new("one", "absent")];
        let mut judged = judge_pairs("T", measure, &pairs, &values, 0.01, 7);
        assert_eq!(judged.len(), 1, "a pair without values is left out");
        judged.remove(0)
    }

    #[test]
    fn half_as_much_again_is_faster_as_a_rate_and_slower_as_a_cost() {
        let table = [
            (PairMeasure::Throughput, Decision::Faster),
            (PairMeasure::ServerCpu, Decision::Slower),
            (PairMeasure::LatencyP99, Decision::Slower),
        ];
        for (measure, expected) in table {
            let judged = judged(measure);
            assert_eq!((judged.decision, judged.blocks), (expected, 20), "{measure:?}");
            let Ratio { estimate, low, high } = judged.ratio;
            assert!((estimate - 1.5).abs() < 0.01, "{estimate}");
            assert!(1.49 < low && low < estimate && estimate < high && high < 1.51);
        }
    }

    #[test]
    fn a_pair_turned_round_has_the_inverse_ratio_and_the_other_word() {
        let judged = judged(PairMeasure::ServerCpu);
        let reversed = judged.reversed();
        assert_eq!((reversed.contender.as_str(), reversed.reference.as_str()), ("two", "one"));
        assert_eq!(reversed.decision, Decision::Faster);
        assert!((reversed.ratio.low * judged.ratio.high - 1.0).abs() < 1e-12);
        assert!((reversed.ratio.high * judged.ratio.low - 1.0).abs() < 1e-12);
        assert!(reversed.ratio.low < reversed.ratio.high);
    }

    #[test]
    fn the_equal_rate_is_half_of_the_slowest() {
        assert_eq!(equal_rate(&[300.0, 0.0, f64::NAN, 200.0]), Some(100.0));
        assert_eq!(equal_rate(&[]), None);
    }
}
