//! Figures by block, from run files.

use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_stats::estimates::{self, log_ratios};
use peregrine_lab_stats::verdicts::{SMALLEST_EFFECT, noise_band, ratio};

/// A figure of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Server CPU time per right reply, in nanoseconds.
    ServerCpu,
    /// Right replies per second.
    Throughput,
    /// Mean latency, in nanoseconds.
    LatencyMean,
    /// Median latency, in nanoseconds.
    LatencyMedian,
    /// The 99th percentile of the latency, in nanoseconds.
    LatencyP99,
}

/// The figure of each block of a contender, by the block's number; not a number where it is missing.
pub(crate) fn of(file: &RunFile, contender: &str, figure: Figure) -> Vec<f64> {
    let length = file.blocks.iter().map(|block| block.number as usize + 1).max().unwrap_or(0);
    let mut values = vec![f64::NAN; length];
    for block in file.blocks_of(contender) {
        values[block.number as usize] = value(block, figure).unwrap_or(f64::NAN);
    }
    values
}

fn value(block: &Block, figure: Figure) -> Option<f64> {
    let latency = block.latency.as_ref();
    match figure {
        Figure::ServerCpu => block.server_ns_per_request(),
        Figure::Throughput => block.requests_per_s(),
        Figure::LatencyMean => mean(latency?),
        Figure::LatencyMedian => Some(latency?.at(0.5)? as f64),
        Figure::LatencyP99 => Some(latency?.at(0.99)? as f64),
    }
}

fn mean(latency: &Histogram) -> Option<f64> {
    let count = latency.count();
    let sum: f64 =
        latency.buckets().iter().map(|(value, count)| *value as f64 * *count as f64).sum();
    (count > 0).then(|| sum / count as f64)
}

/// The median of those that are numbers; none if there is none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let numbers: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    (!numbers.is_empty()).then(|| estimates::median(&numbers))
}

/// The share up to which differences in this figure are noise, by the run's A/A arm.
pub(crate) fn band(file: &RunFile, figure: Figure) -> Option<f64> {
    let again = file.again.as_ref()?;
    let costs = |name: &str| -> Vec<f64> {
        let values = of(file, name, figure);
        match figure {
            Figure::Throughput => values.into_iter().map(|rate| 1.0 / rate).collect(),
            _ => values,
        }
    };
    let ratios = log_ratios(&costs(&again.second), &costs(&again.contender));
    let ratios: Vec<f64> = ratios.into_iter().filter(|ratio| ratio.is_finite()).collect();
    let effect = file.plan.effect_min.unwrap_or(SMALLEST_EFFECT);
    Some(noise_band(ratio(&ratios, file.plan.seed), effect))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_block_leaves_a_gap_and_not_a_shift() {
        let mut file = RunFile::new("test");
        for number in [0, 2] {
            file.blocks.push(Block {
                number,
                contender: "a".to_owned(),
                requests: 10,
                server_cpu_ns: 100 * u64::from(number + 1),
                ..Block::default()
            });
        }
        let values = of(&file, "a", Figure::ServerCpu);
        assert_eq!(values.len(), 3);
        assert!((values[0] - 10.0).abs() < 1e-9 && values[1].is_nan());
        assert_eq!(median(&values), Some(20.0));
        assert_eq!(band(&file, Figure::ServerCpu), None);
    }

    #[test]
    fn means_weigh_each_class_by_its_count() {
        let histogram = Histogram::new([(10, 3), (50, 1)]);
        assert_eq!(mean(&histogram), Some(20.0));
        assert_eq!(mean(&Histogram::default()), None);
    }
}
