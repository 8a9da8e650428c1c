//! Fresh processes: each block of each contender is a process of its own, alone on the machine.

use std::cell::RefCell;
use std::time::Instant;

use peregrine_lab_load::generator::{Ceiling, Plan};
use peregrine_lab_model::RunFile;
use peregrine_lab_model::plan::Schedule;
use peregrine_lab_model::verdict::Measure;

use crate::arms::Lineup;
use crate::asker::{Asker, Generated};
use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::rotation::{self, Measured};
use crate::session::{Keep, Level, note_ceiling};
use crate::stage::Up;

pub(super) fn measure(
    level: &mut Level<'_>,
    progress: &mut dyn Progress,
) -> Result<RunFile, RunError> {
    let depth = level.wanted.scenario.load.pipeline as u32;
    let file = level.file("", Schedule::Closed { depth });
    let measures = [Measure::ServerCpu, Measure::Throughput, Measure::Memory];
    let (mut file, ceiling) = turns(level, file, &measures, progress, |level, up| {
        let plan = Plan { warmup: level.settled.warmup, ..level.plan(up)? };
        Ok((plan.clone(), Box::new(Generated::new(vec![up.name.clone()], vec![plan]))))
    })?;
    let Some(ceiling) = ceiling else { return Ok(file) };
    for name in level.lineup.names() {
        let rates: Vec<f64> = file.blocks_of(&name).filter_map(|b| b.requests_per_s()).collect();
        if rates.is_empty() {
            continue;
        }
        let rate = peregrine_lab_stats::estimates::median(&rates);
        file.checks.push(record::headroom(&name, rate, &ceiling));
    }
    // The client's limit is known only now, and verdicts on rates depend on it.
    if let Some((first, second)) = level.lineup.pair.clone() {
        crate::judge::judge(&mut file, (&first, &second), &measures);
    }
    Ok(file)
}

/// Lets fresh processes take turns. `asker` says how a started one is asked, and with which plan
/// the client's own limit is to be measured.
pub(super) fn turns(
    level: &mut Level<'_>,
    mut file: RunFile,
    measures: &[Measure],
    progress: &mut dyn Progress,
    mut asker: impl FnMut(&Level<'_>, &Up) -> Result<(Plan, Box<dyn Asker>), RunError>,
) -> Result<(RunFile, Option<Ceiling>), RunError> {
    let began = Instant::now();
    gate_all(level)?;
    let names = level.lineup.names();
    let turns = level.turns(0);
    let done: Vec<(u32, String)> =
        level.finished.iter().map(|(block, _)| (block.number, block.contender.clone())).collect();
    let mut keep = std::mem::take(&mut level.keep);
    let lineup = RefCell::new(std::mem::take(&mut level.lineup));
    let ceiling = RefCell::new(None);
    let client = RefCell::new(String::new());
    let measured = {
        let level = &*level;
        let start = |arm: usize| {
            let mut lineup = lineup.borrow_mut();
            let chosen = lineup.arms[arm].clone();
            let up = lineup.start_one(level.stage, &level.wanted.scenario, &chosen)?;
            let (plan, asker) = asker(level, &up)?;
            if ceiling.borrow().is_none() {
                *ceiling.borrow_mut() = Some(level.ceiling(&plan));
            }
            *client.borrow_mut() = asker.client_name();
            Ok((up, asker))
        };
        let connections = level.connections;
        let keep_block =
            |block: &_, checks: &[_]| Keep::block(&mut keep, connections, block, checks);
        rotation::separate(level.stage, &names, turns, progress, keep_block, start, &done)
    };
    level.lineup = lineup.into_inner();
    level.keep = keep;
    let measured: Measured = measured?;
    let ceiling = ceiling.into_inner().flatten();
    note_ceiling(&mut file, ceiling.as_ref());
    file.plan.client = client.into_inner();
    level.fill(&mut file, measured, measures, began);
    Ok((file, ceiling))
}

/// Starts each arm once for its gate, so that nobody is turned away in the middle.
fn gate_all(level: &mut Level<'_>) -> Result<(), RunError> {
    let mut lineup: Lineup = std::mem::take(&mut level.lineup);
    let started = lineup.start(level.stage, level.wanted);
    level.lineup = lineup;
    for up in started? {
        up.stop()?;
    }
    Ok(())
}
