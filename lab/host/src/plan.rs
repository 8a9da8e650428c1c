//! How many blocks fit into a budget, in which order everything runs, and what effect that can see.
//!
//! A block measures every arm of one scenario once. Blocks of all scenarios take turns, so that a
//! run that is broken off has measured all of them about equally often.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What is to be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// The contenders by name. The first one runs twice in each block: that is the A/A arm.
    pub contenders: Vec<String>,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
    /// Fewer blocks than this say nothing.
    pub blocks_min: u32,
    /// More blocks than this are not asked for, and as many are taken where no budget is given.
    pub blocks_max: u32,
    /// Fixes the order within the blocks.
    pub seed: u64,
}

/// A scenario and what it costs per arm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Once per arm: building, and starting and warming up where processes stay.
    pub once: Duration,
    /// Once per arm and block: measuring, and starting and warming up where processes are fresh.
    pub per_block: Duration,
}

/// One of the things compared in a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Arm {
    /// Which contender.
    pub contender: String,
    /// Whether it is the second one of the A/A pair.
    pub is_twin: bool,
}

/// Which block of which scenario.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockKey {
    /// The scenario's name.
    pub scenario: String,
    /// From 0.
    pub block: u32,
}

/// One block: its key, and the arms in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Which one it is.
    pub key: BlockKey,
    /// All arms, each once.
    pub order: Vec<Arm>,
}

/// A design that fits its budget.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What was asked for.
    pub demand: Demand,
    /// How many blocks each scenario gets.
    pub blocks: u32,
    /// How long it will take by the scenarios' costs.
    pub duration: Duration,
    /// The smallest effect that it can be expected to see, as a share (0.02 is 2 %), where the
    /// formula knows one.
    pub visible_effect: Option<f64>,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// No contender, or no scenario.
    NothingToMeasure,
    /// Two contenders or two scenarios have this name.
    NameTwice(String),
    /// The least number of blocks is 0 or above the largest.
    Blocks(u32, u32),
    /// Not even the least number of blocks fits.
    BudgetTooShort {
        /// What they need.
        needed: Duration,
        /// What there is.
        budget: Duration,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::NothingToMeasure => {
                write!(formatter, "a plan needs at least one contender and one scenario")
            }
            PlanError::NameTwice(name) => write!(formatter, "{name} is named twice"),
            PlanError::Blocks(least, most) => {
                write!(formatter, "from {least} to {most} blocks is no range above 0")
            }
            PlanError::BudgetTooShort { needed, budget } => write!(
                formatter,
                "the least that says anything takes {}, the budget is {}: raise the budget, or \
                 leave out contenders or scenarios",
                minutes(*needed),
                minutes(*budget)
            ),
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Takes as many blocks as fit. `visible_effect` says which effect, as a share, so many blocks
    /// can see; it may not know.
    ///
    /// # Errors
    ///
    /// A [`PlanError`] that says what to change.
    pub fn fit(
        demand: Demand,
        budget: Option<Duration>,
        visible_effect: impl FnOnce(u32) -> Option<f64>,
    ) -> Result<Plan, PlanError> {
        check(&demand)?;
        let blocks = match budget {
            None => demand.blocks_max,
            Some(budget) => {
                let needed = demand.duration(demand.blocks_min);
                if needed > budget {
                    return Err(PlanError::BudgetTooShort { needed, budget });
                }
                let (least, most) = (demand.blocks_min, demand.blocks_max);
                let last = partition_point(least, most, |blocks| demand.duration(blocks) <= budget);
                // Blocks come in pairs of opposite order; half a pair favours somebody.
                if last % 2 == 1 && last > least { last - 1 } else { last }
            }
        };
        let duration = demand.duration(blocks);
        Ok(Plan { blocks, duration, visible_effect: visible_effect(blocks), demand })
    }

    /// All blocks in the order in which they run.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let arms = self.demand.arms();
        let mut blocks = Vec::new();
        for block in 0..self.blocks {
            for (index, scenario) in self.demand.scenarios.iter().enumerate() {
                let mut order = arms.clone();
                // Of two blocks the second runs in the opposite order of the first, so that each
                // arm comes as early as late: what drifts steadily within a block cancels out.
                let pair = u64::from(block / 2) << 32 | index as u64;
                shuffle(&mut order, self.demand.seed ^ mix(pair));
                if block % 2 == 1 {
                    order.reverse();
                }
                let key = BlockKey { scenario: scenario.name.clone(), block };
                blocks.push(Block { key, order });
            }
        }
        blocks
    }

    /// The blocks that are still to run when those in `done` are finished.
    #[must_use]
    pub fn remaining(&self, done: &BTreeSet<BlockKey>) -> Vec<Block> {
        let mut blocks = self.blocks();
        blocks.retain(|block| !done.contains(&block.key));
        blocks
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} blocks of {} arms in {} scenarios, about {}",
            self.blocks,
            self.demand.arms().len(),
            self.demand.scenarios.len(),
            minutes(self.duration)
        )?;
        match self.visible_effect {
            Some(share) => write!(formatter, "; differences of {:.1} % will show", share * 100.0),
            None => write!(formatter, "; which differences will show is not known yet"),
        }
    }
}

impl Demand {
    /// The contenders, and the first one once more.
    #[must_use]
    pub fn arms(&self) -> Vec<Arm> {
        let arm = |contender: &String, is_twin| Arm { contender: contender.clone(), is_twin };
        let mut arms: Vec<Arm> = self.contenders.iter().map(|name| arm(name, false)).collect();
        arms.extend(self.contenders.first().map(|name| arm(name, true)));
        arms
    }

    /// How long so many blocks of each scenario take. It stops at the longest duration there is.
    #[must_use]
    pub fn duration(&self, blocks: u32) -> Duration {
        let arms = u32::try_from(self.arms().len()).unwrap_or(u32::MAX);
        self.scenarios.iter().fold(Duration::ZERO, |sum, scenario| {
            let all = scenario.per_block.saturating_mul(blocks).saturating_add(scenario.once);
            sum.saturating_add(all.saturating_mul(arms))
        })
    }
}

fn check(demand: &Demand) -> Result<(), PlanError> {
    if demand.contenders.is_empty() || demand.scenarios.is_empty() {
        return Err(PlanError::NothingToMeasure);
    }
    let mut seen = BTreeSet::new();
    if let Some(name) = demand.contenders.iter().find(|&name| !seen.insert(name)) {
        return Err(PlanError::NameTwice(name.clone()));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = demand.scenarios.iter().find(|scenario| !seen.insert(&scenario.name)) {
        return Err(PlanError::NameTwice(twice.name.clone()));
    }
    if demand.blocks_min == 0 || demand.blocks_min > demand.blocks_max {
        return Err(PlanError::Blocks(demand.blocks_min, demand.blocks_max));
    }
    Ok(())
}

/// The largest number from `least` to `most` that fits, if the least one does and those that fit
/// come before those that do not.
fn partition_point(mut least: u32, mut most: u32, fits: impl Fn(u32) -> bool) -> u32 {
    while least < most {
        let middle = most - (most - least) / 2;
        if fits(middle) {
            least = middle;
        } else {
            most = middle - 1;
        }
    }
    least
}

fn shuffle(arms: &mut [Arm], seed: u64) {
    let mut state = seed;
    for last in (1..arms.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // The high bits of a product choose among a few with a bias below one in 2^58.
        let choice = (u128::from(mix(state)) * (last as u128 + 1)) >> 64;
        arms.swap(last, choice as usize);
    }
}

/// The finishing function of the SplitMix64 generator: near numbers become far ones.
fn mix(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn minutes(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().ceil();
    if seconds < 60.0 {
        return format!("{seconds} s");
    }
    format!("{} min {} s", (seconds / 60.0).floor(), seconds % 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand() -> Demand {
        let scenario = |name: &str, per_block| Scenario {
            name: name.to_owned(),
            once: Duration::from_secs(1),
            per_block: Duration::from_secs(per_block),
        };
        Demand {
            contenders: ["a", "b", "c"].map(String::from).into(),
            scenarios: vec![scenario("json", 2), scenario("hello", 3)],
            blocks_min: 3,
            blocks_max: 40,
            seed: 7,
        }
    }

    #[test]
    fn as_many_blocks_as_fit_are_planned_and_in_pairs() {
        // Four arms: 8 s once, and 20 s for each block of both scenarios.
        for (seconds, blocks) in [(68, 3), (87, 3), (88, 4), (127, 4), (128, 6), (100_000, 40)] {
            let budget = Some(Duration::from_secs(seconds));
            let plan = Plan::fit(demand(), budget, |blocks| Some(0.2 / f64::from(blocks))).unwrap();
            assert_eq!(plan.blocks, blocks, "{seconds} s");
            assert_eq!(plan.duration, Duration::from_secs(8 + 20 * u64::from(blocks)));
            assert_eq!(plan.visible_effect, Some(0.2 / f64::from(blocks)));
        }
        let plan = Plan::fit(demand(), None, |_| None).unwrap();
        assert_eq!(plan.blocks, 40);
        let text = "40 blocks of 4 arms in 2 scenarios, about 13 min 28 s";
        assert!(plan.to_string().starts_with(text), "{plan}");
    }

    #[test]
    fn a_budget_that_is_too_short_is_refused_with_what_is_needed() {
        let error = Plan::fit(demand(), Some(Duration::from_secs(67)), |_| None).unwrap_err();
        assert!(error.to_string().contains("takes 1 min 8 s, the budget is 1 min 7 s"), "{error}");
    }

    #[test]
    fn a_demand_that_makes_no_sense_is_refused() {
        let refused = |change: fn(&mut Demand)| {
            let mut demand = demand();
            change(&mut demand);
            Plan::fit(demand, None, |_| None).unwrap_err()
        };
        assert_eq!(refused(|demand| demand.contenders.clear()), PlanError::NothingToMeasure);
        assert_eq!(refused(|demand| demand.blocks_min = 0), PlanError::Blocks(0, 40));
        assert_eq!(refused(|demand| demand.blocks_max = 2), PlanError::Blocks(3, 2));
        let twice = refused(|demand| demand.contenders.push("b".into()));
        assert_eq!(twice, PlanError::NameTwice("b".into()));
    }

    #[test]
    fn each_block_has_every_arm_once_and_each_pair_of_blocks_is_balanced() {
        let plan = Plan::fit(demand(), None, |_| None).unwrap();
        let mut all = plan.demand.arms();
        all.sort();
        let blocks: Vec<Block> =
            plan.blocks().into_iter().filter(|block| block.key.scenario == "json").collect();
        for pair in blocks.chunks(2) {
            let mut sorted = pair[0].order.clone();
            sorted.sort();
            assert_eq!(sorted, all);
            let mut reversed = pair[1].order.clone();
            reversed.reverse();
            assert_eq!(pair[0].order, reversed);
        }
        let firsts: BTreeSet<&Arm> = blocks.iter().map(|block| &block.order[0]).collect();
        assert_eq!(firsts.len(), all.len(), "every arm comes first in some block");
    }

    #[test]
    fn the_order_follows_from_the_seed_alone() {
        let order = |seed| Plan::fit(Demand { seed, ..demand() }, None, |_| None).unwrap().blocks();
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }

    #[test]
    fn what_is_done_is_not_run_again() {
        let plan = Plan::fit(demand(), None, |_| None).unwrap();
        let all = plan.blocks();
        let done: BTreeSet<BlockKey> = all[..5].iter().map(|block| block.key.clone()).collect();
        assert_eq!(plan.remaining(&done), all[5..]);
    }
}
