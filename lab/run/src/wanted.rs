//! What a user asks a run for, and what is filled in where nothing was said.

use std::fmt::Write as _;
use std::time::Duration;

use peregrine_lab_contender::Recipe;
use peregrine_lab_host::plan::{Demand, Plan, Scenario as Cost};
use peregrine_lab_model::plan::Design;
use peregrine_lab_scenario::{Kind, Scenario};
use peregrine_lab_stats::power;
use peregrine_lab_stats::verdicts::{BLOCKS_MIN, SMALLEST_EFFECT};

use crate::error::RunError;

/// How long a look at each arm takes before its slices, unless said otherwise: long enough for Date
/// to move.
pub const LOOK_TIME: Duration = Duration::from_millis(1600);

/// What starting a server and its gate usually take.
const START_TIME: Duration = Duration::from_millis(700);

/// What measuring the client's own limit takes.
const CALIBRATION_TIME: Duration = Duration::from_millis(1300);

/// The blocks of a paired run, unless said otherwise.
const PAIRED_BLOCKS: usize = 60;

/// The most blocks that a budget buys.
const BLOCKS_MAX: u32 = 400;

/// The blocks of a run with fresh processes, unless said otherwise: as few as can separate.
const SEPARATE_BLOCKS: usize = BLOCKS_MIN;

/// The blocks of an open loop, unless said otherwise.
const LATENCY_BLOCKS: usize = 8;

/// The spread of the log-ratio of one paired block that is expected before anything is known.
const SPREAD_PAIRED: f64 = 0.03;

/// The same between fresh processes.
const SPREAD_SEPARATE: f64 = 0.08;

/// A run as it was asked for. What is none is filled in by [`Wanted::settle`].
#[derive(Debug, Clone)]
pub struct Wanted {
    /// What is asked.
    pub scenario: Scenario,
    /// What else everyone is asked in the same blocks, by arms of its own; paired closed loops only.
    pub beside: Option<Scenario>,
    /// Who is measured, in the order of the report.
    pub recipes: Vec<Recipe>,
    /// Connections per server, one level after the other; empty: those of the scenario.
    pub connections: Vec<usize>,
    /// Whether servers stay up together or each block has a fresh process.
    pub design: Design,
    /// How many blocks at each level.
    pub blocks: Option<usize>,
    /// How long one block of one contender measures.
    pub slice: Option<Duration>,
    /// How long each is warmed up.
    pub warmup: Option<Duration>,
    /// How long a look at each arm takes before its slices; the default is [`LOOK_TIME`].
    pub look: Duration,
    /// How long the whole run may take.
    pub budget: Option<Duration>,
    /// Decides orders, random values and resampling.
    pub seed: u64,
    /// The contender that the others are compared with; the first one unless named.
    pub reference: Option<String>,
    /// The smallest difference that counts, as a share; the default is 1 %.
    pub effect_min: Option<f64>,
    /// Whether blocks that a guard would void count all the same, with a remark. What comes out
    /// may not be published.
    pub is_noise_tolerated: bool,
}

/// A run with nothing left open.
#[derive(Debug, Clone)]
pub struct Settled {
    /// Connections per server, one level after the other.
    pub connections: Vec<usize>,
    /// How many blocks at each level.
    pub blocks: usize,
    /// How long one block of one contender measures, at each level.
    pub slices: Vec<Duration>,
    /// How long each is warmed up.
    pub warmup: Duration,
    /// How long all of it will take.
    pub duration: Duration,
    /// The smallest difference that it can be expected to see, as a share.
    pub visible_effect: Option<f64>,
}

impl Settled {
    /// The plan in a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let seconds = self.duration.as_secs();
        let mut text = format!(
            "{} blocks at {} level{}, about {}:{:02} minutes",
            self.blocks,
            self.connections.len(),
            if self.connections.len() == 1 { "" } else { "s" },
            seconds / 60,
            seconds % 60
        );
        match self.visible_effect.filter(|effect| effect.is_finite()) {
            // Writing to a string does not fail.
            Some(effect) => {
                let _ = write!(text, "; differences of {:.1} % will probably show", effect * 100.0);
            }
            None => text.push_str("; too few blocks to tell any difference"),
        }
        text
    }
}

impl Wanted {
    /// A paired run of this scenario with all defaults.
    #[must_use]
    pub fn new(scenario: Scenario, recipes: Vec<Recipe>) -> Wanted {
        Wanted {
            scenario,
            beside: None,
            recipes,
            connections: Vec::new(),
            design: Design::Paired,
            blocks: None,
            slice: None,
            warmup: None,
            look: LOOK_TIME,
            budget: None,
            seed: 1,
            reference: None,
            effect_min: None,
            is_noise_tolerated: false,
        }
    }

    /// Fills in what was left open, so that it fits the budget.
    ///
    /// # Errors
    ///
    /// [`RunError::Invalid`] that says what to change: nothing to measure, or a budget too short.
    pub fn settle(&self, arms: usize) -> Result<Settled, RunError> {
        let connections = match self.connections.as_slice() {
            [] => self.scenario.load.connections.clone(),
            levels => levels.to_vec(),
        };
        if connections.is_empty() {
            let text = format!("{} has no connections: it asks no server", self.scenario.name);
            return Err(RunError::Invalid(text));
        }
        let slices: Vec<Duration> =
            connections.iter().map(|&count| self.slice.unwrap_or(self.slice_for(count))).collect();
        let warmup = self.warmup.unwrap_or(match self.is_fresh() {
            true => Duration::from_millis(500),
            false => Duration::ZERO,
        });
        let rounds = match &self.scenario.kind {
            Kind::Latency { rates } => rates.len() as u32,
            _ => 1,
        };
        let costs = connections.iter().zip(&slices).map(|(count, slice)| {
            let per_block = if self.is_fresh() {
                START_TIME + warmup + *slice
            } else {
                // Connections are made one after the other, some 20 us each.
                *slice + Duration::from_micros(800)
            };
            let once = Duration::from_micros(40 * *count as u64) + CALIBRATION_TIME / arms as u32;
            let once = if self.is_fresh() { once } else { once + START_TIME + self.look };
            Cost { name: count.to_string(), once, per_block: per_block * rounds }
        });
        let least = self.blocks.unwrap_or(BLOCKS_MIN) as u32;
        let most = match (self.blocks, self.budget) {
            (Some(blocks), _) => blocks as u32,
            (None, Some(_)) => BLOCKS_MAX,
            (None, None) => self.blocks_default() as u32,
        };
        let demand = Demand {
            // The A/A arm is counted as a contender here: host::plan adds one of its own.
            contenders: (1..arms).map(|arm| arm.to_string()).collect(),
            scenarios: costs.collect(),
            blocks_min: least,
            blocks_max: most,
            seed: self.seed,
        };
        let spread = if self.is_fresh() { SPREAD_SEPARATE } else { SPREAD_PAIRED };
        let effect = |blocks: u32| {
            let design = power::Design {
                blocks: blocks as usize,
                spread,
                family: arms.saturating_sub(2),
                smallest_effect: self.effect_min.unwrap_or(SMALLEST_EFFECT),
                power: 0.8,
            };
            Some(design.visible_effect())
        };
        let plan = Plan::fit(demand, self.budget, effect)
            .map_err(|error| RunError::Invalid(error.to_string()))?;
        Ok(Settled {
            connections,
            blocks: plan.blocks as usize,
            slices,
            warmup,
            duration: plan.duration,
            visible_effect: plan.visible_effect,
        })
    }

    /// Whether the scenario beside can be asked in the same blocks.
    ///
    /// # Errors
    ///
    /// [`RunError::Invalid`] that says why not.
    pub fn check_beside(&self) -> Result<(), RunError> {
        let Some(beside) = &self.beside else { return Ok(()) };
        let is_paired = !self.is_fresh() && self.scenario.workload().is_ok();
        if is_paired && beside.workload().is_ok() {
            return Ok(());
        }
        let names = (&self.scenario.name, &beside.name);
        let text = format!(
            "{} cannot be asked beside {}: both have to be closed loops in paired slices",
            names.1, names.0
        );
        Err(RunError::Invalid(text))
    }

    /// Whether each block of each contender has a process of its own.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        let is_apart =
            matches!(self.scenario.kind, Kind::Idle | Kind::Overload { .. } | Kind::Shutdown);
        is_apart || self.design == Design::Separate
    }

    fn blocks_default(&self) -> usize {
        match &self.scenario.kind {
            Kind::Latency { .. } if !self.is_fresh() => LATENCY_BLOCKS,
            _ if self.is_fresh() => SEPARATE_BLOCKS,
            _ => PAIRED_BLOCKS,
        }
    }

    /// A slice is long enough for some rounds over all connections, and for a loop whose
    /// connections are made anew, long enough that the first ones do not weigh.
    fn slice_for(&self, connections: usize) -> Duration {
        let rounds = Duration::from_micros(50 * connections as u64);
        match &self.scenario.kind {
            Kind::Latency { .. } => Duration::from_millis(1500),
            _ if self.is_fresh() => Duration::from_secs(3) + rounds,
            _ if self.scenario.workload().is_err() => Duration::from_millis(300) + rounds,
            _ => Duration::from_millis(40) + rounds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn every_scenario_that_asks_a_server_has_defaults_that_make_a_plan() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut settled = 0;
        for entry in std::fs::read_dir(folder).expect("the folder is there") {
            let path = entry.expect("it can be listed").path();
            if path.extension().is_none_or(|extension| extension != "toml") {
                continue;
            }
            let scenario = Scenario::read(&path).expect("it is right");
            if scenario.exchange.is_none() {
                continue;
            }
            let name = scenario.name.clone();
            if let Err(error) = Wanted::new(scenario, Vec::new()).settle(3) {
                panic!("{name}: {error}");
            }
            settled += 1;
        }
        assert!(settled > 20, "{settled}");
    }
}
