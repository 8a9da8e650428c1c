//! How long each trial may take.
//!
//! Every trial gets the same time, for its runs as published and for its paired blocks, but never
//! less than its least nor more than it has use for; what one leaves goes to the others. Where not
//! even the least of all fits, trials are dropped from the last to the first, each with its reason.

use std::fmt;

use peregrine_lab_stats::power::Design;
use peregrine_lab_stats::verdicts::SMALLEST_EFFECT;
use serde::{Deserialize, Serialize};

use crate::method::Published;
use crate::program::{Method, Program, Trial, Unrepeated};

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
    /// One slice of a paired block, in seconds; longer with many connections.
    pub slice_s: f64,
    /// Changing from one server to the next, in seconds, apart from waiting for replies.
    pub switch_s: f64,
    /// About how many requests per second a server answers here. With many connections a slice
    /// has to be longer, so that its edges do not weigh.
    pub requests_per_s: f64,
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
            requests_per_s: 30_000.0,
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

impl fmt::Display for PlannedTrial {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: ", self.trial)?;
        if self.blocks > 0 {
            let runs = if self.published_runs == 1 { "run" } else { "runs" };
            write!(
                formatter,
                "{} {runs} of {:.0} s each as published, then {} paired blocks with slices of \
                 {:.0} ms; ",
                self.published_runs,
                self.published_s,
                self.blocks,
                self.slice_s * 1000.0
            )?;
            if self.rate_blocks > 0 {
                write!(formatter, "as many at an equal rate; ")?;
            }
        }
        if let Some(effect) = self.visible_effect {
            write!(formatter, "differences of {:.1} % will show; ", effect * 100.0)?;
        }
        write!(formatter, "about {:.0} s", self.seconds)
    }
}

/// How many replies each connection should get in a slice.
const SLICE_ROUNDS: f64 = 3.0;

/// How much longer a slice of the open loop is.
const RATE_SLICE_FACTOR: f64 = 4.0;

/// Fits the trials of a program into a budget. The same input gives the same plan; take what is
/// dropped out of the program ([`Program::remove_trial`]), so that its claims say why.
#[must_use]
pub fn plan(program: &Program, budget: &Budget) -> Planned {
    let costs = &budget.costs;
    let least = |trials: &[Trial]| {
        trials.iter().map(|trial| designed(trial, costs, 0.0).seconds).sum::<f64>()
    };
    let mut kept = program.trials.len();
    while kept > 0 && least(&program.trials[..kept]) > budget.seconds {
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
    // The level rises until the sum no longer fits.
    let level = largest_share(|level| {
        let filled = trials.iter().map(|trial| filled(trial, costs, level * budget.seconds));
        filled.map(|trial| trial.seconds).sum::<f64>() <= budget.seconds
    });
    let planned: Vec<PlannedTrial> =
        trials.iter().map(|trial| filled(trial, costs, level * budget.seconds)).collect();
    Planned {
        seconds: planned.iter().map(|trial| trial.seconds).sum(),
        dropped: dropped.collect(),
        trials: planned,
    }
}

/// The longest design of a trial that takes no more than `seconds`, or its least.
fn filled(trial: &Trial, costs: &Costs, seconds: f64) -> PlannedTrial {
    designed(trial, costs, largest_share(|share| designed(trial, costs, share).seconds <= seconds))
}

/// The largest share from 0 to 1 that fits, to within a thousandth; 0 whether it fits or not.
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
    let run = start(published.connections) + published.warmup_s + published_s;
    let of_published = contenders * f64::from(repeats) * run;

    let blocks = even(between(BLOCKS_LEAST, BLOCKS_MOST, share));
    let arms = contenders + 1.0; // The first contender again: the A/A arm.
    let rate_blocks = if corrected.equal_rate_share.is_some() { blocks } else { 0 };
    // At the end of a slice every connection still waits for a reply.
    let round_s = f64::from(corrected.connections) / costs.requests_per_s;
    let slice_s = costs.slice_s.max(round_s * SLICE_ROUNDS);
    let switch_s = costs.switch_s + round_s;
    let rate_slice_s = slice_s * RATE_SLICE_FACTOR;
    let slices = f64::from(blocks) * (slice_s + switch_s)
        + f64::from(rate_blocks) * (rate_slice_s + switch_s);
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
        slice_s,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::{Client, Corrected};

    fn trial(id: &str, connections: u32, contenders: usize, seconds: f64) -> Trial {
        Trial {
            id: id.to_owned(),
            scenario: "hello".to_owned(),
            request: String::new(),
            contenders: (0..contenders).map(|number| number.to_string()).collect(),
            missing: Vec::new(),
            claims: vec![format!("claim of {id}")],
            pairs: Vec::new(),
            joined: Vec::new(),
            method: Method::Load {
                published: Published {
                    client: Client::Wrk,
                    connections,
                    threads: Some(1),
                    seconds,
                    warmup_s: 0.0,
                    repeats: 3,
                    timeout_s: None,
                    remarks: Vec::new(),
                },
                corrected: Corrected { connections, equal_rate_share: None, remarks: Vec::new() },
            },
        }
    }

    fn program(trials: Vec<Trial>) -> Program {
        Program { trials, ..Program::default() }
    }

    #[test]
    fn all_the_time_in_the_world_gives_the_full_design() {
        let program = program(vec![trial("a", 64, 3, 9.0)]);
        let planned = plan(&program, &Budget::seconds(1e9));
        let only = &planned.trials[0];
        assert_eq!((only.published_s, only.published_runs), (9.0, 3));
        assert_eq!((only.blocks, only.rate_blocks), (BLOCKS_MOST, 0));
        assert!(only.visible_effect.is_some_and(|effect| effect < 0.03), "{only:?}");
        let text =
            "a: 3 runs of 9 s each as published, then 120 paired blocks with slices of 50 ms";
        assert!(only.to_string().starts_with(text), "{only}");
    }

    #[test]
    fn no_plan_is_longer_than_its_budget_and_more_time_never_gives_less() {
        let trials =
            vec![trial("a", 30, 6, 9.0), trial("b", 500, 6, 9.0), trial("c", 8000, 6, 9.0)];
        let program = program(trials);
        let mut before = (0, 0);
        for seconds in (20..2000).step_by(20) {
            let planned = plan(&program, &Budget::seconds(f64::from(seconds)));
            assert!(planned.seconds <= f64::from(seconds), "{seconds}: {}", planned.seconds);
            assert_eq!(planned.trials.len() + planned.dropped.len(), 3);
            let blocks = planned.trials.iter().map(|trial| trial.blocks).sum::<u32>();
            if planned.trials.len() == before.0 {
                assert!(blocks >= before.1, "{seconds}");
            }
            assert!(planned.trials.len() >= before.0, "{seconds}");
            assert!(planned.trials.iter().all(|trial| trial.blocks % 2 == 0));
            before = (planned.trials.len(), blocks);
        }
        assert_eq!(before.0, 3);
    }

    #[test]
    fn the_last_trial_is_dropped_first_and_its_claims_say_why() {
        let mut program = program(vec![trial("a", 64, 4, 9.0), trial("b", 64, 4, 9.0)]);
        let least = designed(&program.trials[0], &Costs::default(), 0.0).seconds;
        let planned = plan(&program, &Budget::seconds(least * 1.5));
        assert_eq!(planned.trials.len(), 1);
        assert_eq!(planned.dropped[0].scenario, "b");
        program.remove_trial("b", &planned.dropped[0].reason);
        assert_eq!(program.trials.len(), 1);
        assert!(program.reason("claim of b").is_some_and(|reason| reason.contains("no room")));
        assert_eq!(program.reason("claim of a"), None);
        assert!(plan(&program, &Budget::seconds(0.0)).trials.is_empty());
    }

    #[test]
    fn a_slice_is_long_enough_for_every_connection() {
        let program = program(vec![trial("a", 8000, 2, 9.0), trial("b", 30, 2, 9.0)]);
        let planned = plan(&program, &Budget::seconds(1e6));
        assert!((planned.trials[0].slice_s - 0.8).abs() < 1e-9);
        assert!((planned.trials[1].slice_s - 0.05).abs() < 1e-9);
    }
}
