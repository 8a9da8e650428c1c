//! How long each trial may take.
//!
//! The budget is spread evenly: every trial gets the same share of what it would take in full, both
//! for its runs as published and for its paired blocks. Where not even the least fits, trials are
//! dropped from the last to the first, each with its reason.

use peregrine_lab_stats::power::Design;
use peregrine_lab_stats::verdicts::SMALLEST_EFFECT;
use serde::{Deserialize, Serialize};

use crate::program::{Method, Program, Published, Trial, Unrepeated};

/// Fewer blocks than this leave no room for a correction over several pairs.
pub const BLOCKS_LEAST: u32 = 12;

/// More blocks than this are not asked for.
pub const BLOCKS_MOST: u32 = 120;

/// The shortest run as published, in seconds: tools count in whole seconds.
pub const PUBLISHED_SECONDS_LEAST: f64 = 2.0;

/// What the budget is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// All the time there is, in seconds, without building.
    pub seconds: f64,
    /// What things take on this machine.
    pub costs: Costs,
}

/// What things take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// Starting, checking and stopping one server, in seconds.
    pub start_s: f64,
    /// Opening one connection, in seconds; a TLS handshake of both sides on one core.
    pub connect_s: f64,
    /// Warming up one server in the corrected trial, in seconds.
    pub warmup_s: f64,
    /// One slice of a paired block, in seconds.
    pub slice_s: f64,
    /// Changing from one server to the next, in seconds.
    pub switch_s: f64,
    /// The router benchmark, in seconds, without building.
    pub router_s: f64,
    /// The expected standard deviation of the log-ratio of one block (0.02 is 2 %).
    pub spread: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            start_s: 1.0,
            connect_s: 0.001,
            warmup_s: 0.5,
            slice_s: 0.05,
            switch_s: 0.01,
            router_s: 60.0,
            spread: 0.03,
        }
    }
}

impl Budget {
    /// A budget with the usual costs.
    #[must_use]
    pub fn seconds(seconds: f64) -> Self {
        Self { seconds, costs: Costs::default() }
    }
}

/// The design of all trials.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The trials that fit, in the program's order.
    pub trials: Vec<PlannedTrial>,
    /// Those that do not, and why.
    pub dropped: Vec<Unrepeated>,
    /// What it will take by the given costs, in seconds.
    pub seconds: f64,
}

/// The design of one trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedTrial {
    /// The trial's id.
    pub trial: String,
    /// Whole seconds of one run as published; 0 for the router benchmark.
    pub published_s: f64,
    /// Runs as published per contender; 0 for the router benchmark.
    pub published_runs: u32,
    /// Paired blocks, an even number; 0 for the router benchmark.
    pub blocks: u32,
    /// The length of a slice, in seconds.
    pub slice_s: f64,
    /// Blocks at the equal rate; 0 if no latency is compared.
    pub rate_blocks: u32,
    /// The length of their slices, in seconds: long enough for percentiles.
    pub rate_slice_s: f64,
    /// What it will take, in seconds.
    pub seconds: f64,
    /// The smallest difference that the blocks can be expected to see, as a share.
    pub visible_effect: Option<f64>,
}

/// How much longer a slice of the open loop is.
const RATE_SLICE_FACTOR: f64 = 4.0;

/// Fits the trials of a program into a budget. The same input gives the same plan; take what is
/// dropped out of the program ([`Program::remove_trial`]), so that its claims say why.
#[must_use]
pub fn plan(program: &Program, budget: &Budget) -> Planned {
    let costs = &budget.costs;
    let total = |trials: &[Trial], share: f64| {
        trials.iter().map(|trial| designed(trial, costs, share).seconds).sum::<f64>()
    };
    let mut kept = program.trials.len();
    while kept > 0 && total(&program.trials[..kept], 0.0) > budget.seconds {
        kept -= 1;
    }
    let (trials, rest) = program.trials.split_at(kept);
    let dropped = rest.iter().map(|trial| {
        let needed = designed(trial, costs, 0.0).seconds;
        Unrepeated {
            scenario: trial.id.clone(),
            reason: format!(
                "The budget of {:.0} s has no room: the least for this trial is {:.0} s, after the \
                 trials before it.",
                budget.seconds,
                needed.ceil()
            ),
        }
    });
    let share = largest_share(|share| total(trials, share) <= budget.seconds);
    let designed: Vec<PlannedTrial> =
        trials.iter().map(|trial| designed(trial, costs, share)).collect();
    Planned {
        seconds: designed.iter().map(|trial| trial.seconds).sum(),
        dropped: dropped.collect(),
        trials: designed,
    }
}

/// The largest share from 0 to 1 that fits, to within a thousandth.
fn largest_share(fits: impl Fn(f64) -> bool) -> f64 {
    if fits(1.0) {
        return 1.0;
    }
    let (mut fitting, mut failing) = (0_u32, 1000_u32);
    while failing - fitting > 1 {
        let middle = u32::midpoint(fitting, failing);
        if fits(f64::from(middle) / 1000.0) {
            fitting = middle;
        } else {
            failing = middle;
        }
    }
    f64::from(fitting) / 1000.0
}

/// A trial at a share of its full length, from the least (0) to everything (1).
fn designed(trial: &Trial, costs: &Costs, share: f64) -> PlannedTrial {
    let (published, corrected) = match &trial.method {
        Method::Load { published, corrected } => (published, corrected),
        Method::Operations => return router(trial, costs),
    };
    let contenders = trial.contenders.len() as f64;
    let start = |connections: u32| costs.start_s + costs.connect_s * f64::from(connections);
    let published_s = published_seconds(published, share);
    // Repeats are cut before the runs themselves are: one run is what most pages had.
    let repeats = between(1, published.repeats, share);
    let run = start(published.connections) + published.warmup_s * share + published_s;
    let of_published = contenders * f64::from(repeats) * run;

    let blocks = even(between(BLOCKS_LEAST, BLOCKS_MOST, share));
    let arms = contenders + 1.0; // The first contender again: the A/A arm.
    let rate_blocks = if corrected.equal_rate_share.is_some() { blocks } else { 0 };
    let rate_slice_s = costs.slice_s * RATE_SLICE_FACTOR;
    let slices = f64::from(blocks) * (costs.slice_s + costs.switch_s)
        + f64::from(rate_blocks) * (rate_slice_s + costs.switch_s);
    let of_corrected = arms * (start(corrected.connections) + costs.warmup_s + slices);

    let design = Design {
        blocks: blocks as usize,
        spread: costs.spread,
        family: trial.pairs.len().max(1),
        smallest_effect: SMALLEST_EFFECT,
        power: 0.8,
    };
    let effect = design.visible_effect();
    PlannedTrial {
        trial: trial.id.clone(),
        published_s,
        published_runs: repeats,
        blocks,
        slice_s: costs.slice_s,
        rate_blocks,
        rate_slice_s,
        seconds: of_published + of_corrected,
        visible_effect: effect.is_finite().then_some(effect),
    }
}

fn router(trial: &Trial, costs: &Costs) -> PlannedTrial {
    PlannedTrial {
        trial: trial.id.clone(),
        published_s: 0.0,
        published_runs: 0,
        blocks: 0,
        slice_s: 0.0,
        rate_blocks: 0,
        rate_slice_s: 0.0,
        seconds: costs.router_s,
        visible_effect: None,
    }
}

/// Whole seconds between the least and the page's.
fn published_seconds(published: &Published, share: f64) -> f64 {
    let least = PUBLISHED_SECONDS_LEAST.min(published.seconds);
    (least + (published.seconds - least) * share).floor().max(1.0)
}

fn between(least: u32, most: u32, share: f64) -> u32 {
    let most = most.max(least);
    least + (f64::from(most - least) * share).floor() as u32
}

/// Blocks come in pairs of opposite order.
fn even(blocks: u32) -> u32 {
    blocks - blocks % 2
}
