//! More than a server can do: how many right replies still come when more is offered than its
//! capacity, and how late.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use peregrine_lab_load::generator::{Plan, Watch, run};
use peregrine_lab_load::schedule::Schedule;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::plan::Schedule as Planned;
use peregrine_lab_model::verdict::Measure;

use super::separate;
use crate::asker::Generated;
use crate::error::RunError;
use crate::progress::Progress;
use crate::session::Level;

/// How long a capacity is measured, unless a block is shorter.
const CAPACITY_TIME: Duration = Duration::from_millis(1500);

/// Below this share of its capacity a server's goodput has collapsed.
const GOODPUT_SHARE_MIN: f64 = 0.8;

pub(super) fn measure(
    level: &mut Level<'_>,
    factor: f64,
    progress: &mut dyn Progress,
) -> Result<RunFile, RunError> {
    let capacities: RefCell<BTreeMap<String, Vec<f64>>> = RefCell::default();
    let file = level.file("", Planned::default());
    let measures = [Measure::ServerCpu, Measure::Throughput, Measure::LatencyP99];
    let (mut file, ceiling) = separate::turns(level, file, &measures, progress, |level, up| {
        let usual = level.plan(up)?;
        let short = Plan { duration: CAPACITY_TIME.min(usual.duration), ..usual.clone() };
        let outcome =
            run(&short, &Watch::default()).map_err(RunError::io(format!("asking {}", up.name)))?;
        let capacity = outcome.rate();
        capacities.borrow_mut().entry(up.name.clone()).or_default().push(capacity);
        // Each place for a request under way is a connection: without many, the client would hold
        // back what it cannot send, and the server would never be overloaded.
        let plan =
            Plan { schedule: Schedule::Poisson { rate: capacity * factor }, ..usual.clone() };
        Ok((usual, Box::new(Generated::new(vec![up.name.clone()], vec![plan]))))
    })?;
    let capacities = capacities.into_inner();
    let middle = |values: &[f64]| peregrine_lab_stats::estimates::median(values);
    if let Some(own) = capacities.get(&file.plan.reference) {
        file.plan.schedule = Planned::Poisson { rate_per_s: middle(own) * factor };
    }
    for (name, own) in &capacities {
        let capacity = middle(own);
        let goodputs: Vec<f64> = file.blocks_of(name).filter_map(|b| b.requests_per_s()).collect();
        if goodputs.is_empty() {
            // It was broken off within its first block.
            continue;
        }
        let (goodput, offered) = (middle(&goodputs), capacity * factor);
        let dropped: u64 = file.blocks_of(name).map(|block| block.dropped).sum();
        let is_bound = ceiling.is_some_and(|ceiling| ceiling.rate < offered);
        let outcome = match goodput >= GOODPUT_SHARE_MIN * capacity {
            _ if is_bound => Outcome::ClientBound,
            true => Outcome::Passed,
            false => Outcome::Warned,
        };
        file.checks.push(Check {
            name: "goodput under overload".to_owned(),
            contender: Some(name.clone()),
            outcome,
            detail: format!(
                "{offered:.0} requests/s offered, capacity {capacity:.0}, {goodput:.0} right \
                 replies/s ({:.0} % of the capacity); {dropped} were never sent because no \
                 connection was free",
                goodput / capacity * 100.0
            ),
        });
    }
    Ok(file)
}
