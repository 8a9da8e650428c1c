//! Paired time slices: all servers are up, and short slices of load rotate between them.

use std::time::Instant;

use peregrine_lab_load::generator::{Ceiling, Outcome, Plan, Watch, run};
use peregrine_lab_load::workload::Workload;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::plan::Schedule;
use peregrine_lab_model::verdict::Measure;

use crate::asker::{Asker, Generated, Kept};
use crate::calls;
use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::relayed;
use crate::rotation;
use crate::session::{Level, note_ceiling};
use crate::stage::Up;

/// Unmeasured slices of each arm: connections are made in them.
const WARMUP_SLICES: usize = 3;

/// Descriptors of the client that are no connections.
const DESCRIPTORS_APART: usize = 500;

/// How often an arm of which nothing was heard is asked again, four times as long each time.
const SILENCES_MAX: u32 = 3;

/// What a longer look at an arm before its slices found.
pub(super) struct Look {
    /// Right replies per second in a closed loop.
    pub(super) rate: f64,
    /// Bytes of a right reply on average, and of its body.
    bytes: (f64, f64),
}

pub(super) fn measure(
    level: &mut Level<'_>,
    progress: &mut dyn Progress,
) -> Result<RunFile, RunError> {
    let began = Instant::now();
    let depth = level.wanted.scenario.load.pipeline as u32;
    let mut file = level.file("", Schedule::Closed { depth });
    let mut lineup = std::mem::take(&mut level.lineup);
    let started = lineup.start(level.stage, level.wanted);
    level.lineup = lineup;
    let mut ups = started?;
    let looks = look(level, &mut file, &mut ups)?;
    let mut asker = asker(level, &ups, &looks)?;
    let turns = level.turns(WARMUP_SLICES);
    let measured = rotation::paired(level.stage, &mut ups, asker.as_mut(), turns, progress)?;
    file.plan.client = asker.client_name();
    // Servers that are not asked any more are ended before anything is computed.
    for up in ups {
        up.stop()?;
    }
    level.fill(&mut file, measured, &[Measure::ServerCpu, Measure::Throughput], began);
    Ok(file)
}

/// Asks each arm for a while in a closed loop, with every rule of the generator, and measures what
/// the client alone can do. Arms that answer wrongly under load are left out of `ups`.
pub(super) fn look(
    level: &mut Level<'_>,
    file: &mut RunFile,
    ups: &mut Vec<Up>,
) -> Result<Vec<Look>, RunError> {
    let mut looks = Vec::with_capacity(ups.len());
    // Of the client's own limits, that with the scenario beside is another one.
    let mut ceilings: [Option<Option<Ceiling>>; 2] = [None, None];
    let mut kept = Vec::with_capacity(ups.len());
    for up in std::mem::take(ups) {
        let plan = Plan { duration: level.wanted.look.max(level.slice), ..level.plan(&up)? };
        let (scenario, is_beside) = level.scenario_of(&up);
        let is_relayed = scenario.is_relayed;
        let ceiling = *ceilings[usize::from(is_beside)].get_or_insert_with(|| {
            let ceiling = level.ceiling(&plan);
            if !is_beside {
                note_ceiling(file, ceiling.as_ref());
            }
            ceiling
        });
        let asked = ask(level, &up, plan)?;
        let Asked { plan, outcome, before, echoed_before } = asked;
        record::merge_checks(&mut file.checks, record::checks(&up.name, &plan, &outcome));
        let after = before.and_then(|_| calls::read(up.plain));
        file.checks.push(calls::check(&up.name, before, after, outcome.sent));
        if is_relayed {
            let echoed = level.stage.echo.bytes();
            let bytes = outcome.body_bytes;
            file.checks.push(relayed::check(&up.name, echoed_before, echoed, bytes));
        }
        if !outcome.is_valid() {
            let reason = if outcome.is_silent() {
                let asked = plan.duration;
                let text = format!("nothing came within {asked:?}, neither right nor wrong");
                RunError::NotMeasured(text)
            } else if outcome.faults.total() == 0 {
                let count = outcome.outstanding;
                let text = format!(
                    "nothing came wrongly, but {count} replies had not come when they were awaited no longer"
                );
                RunError::NotReady(text)
            } else {
                let text = format!("it answered wrongly under load: {}", outcome.faults);
                RunError::NotReady(text)
            };
            level.lineup.refuse(&up.name, &reason)?;
            level.lineup.arms.retain(|arm| arm.name != up.name);
            up.stop()?;
            continue;
        }
        if let Some(ceiling) = &ceiling {
            file.checks.push(record::headroom(&up.name, outcome.rate(), ceiling));
        }
        let replies = outcome.replies as f64;
        let bytes = (outcome.bytes_per_reply(), outcome.body_bytes as f64 / replies);
        looks.push(Look { rate: outcome.rate(), bytes });
        kept.push(up);
    }
    *ups = kept;
    Ok(looks)
}

/// What one arm said, and what was counted before it was asked.
struct Asked {
    plan: Plan,
    outcome: Outcome,
    before: Option<u64>,
    echoed_before: u64,
}

/// Asks for as long as was planned, and again for longer while nothing comes: on a busy machine the
/// time may be too short for the first reply.
fn ask(level: &Level<'_>, up: &Up, mut plan: Plan) -> Result<Asked, RunError> {
    let mut tries_left = SILENCES_MAX;
    loop {
        let before = calls::read(up.plain);
        let echoed_before = level.stage.echo.bytes();
        let outcome =
            run(&plan, &Watch::default()).map_err(RunError::io(format!("asking {}", up.name)))?;
        if !outcome.is_silent() || outcome.is_partial || tries_left == 0 {
            return Ok(Asked { plan, outcome, before, echoed_before });
        }
        tries_left -= 1;
        plan.duration *= 4;
    }
}

fn asker(level: &Level<'_>, ups: &[Up], looks: &[Look]) -> Result<Box<dyn Asker>, RunError> {
    // Where the client may not hold all connections at once, each slice makes its own.
    let held = (level.connections * ups.len() + DESCRIPTORS_APART) as u64;
    let can_hold = level.stage.descriptors.is_none_or(|limit| held <= limit);
    let workloads: Option<Vec<Workload>> =
        ups.iter().map(|up| level.scenario_of(up).0.workload().ok()).collect();
    let Some(workloads) = workloads.filter(|_| can_hold) else {
        let plans: Result<Vec<Plan>, RunError> = ups.iter().map(|up| level.plan(up)).collect();
        let names = ups.iter().map(|up| up.name.clone()).collect();
        return Ok(Box::new(Generated::new(names, plans?)));
    };
    let mut kept = Kept::new(ups, workloads, level.connections, level.slice)?;
    for (arm, look) in looks.iter().enumerate() {
        kept.set_reply_bytes(arm, look.bytes.0, look.bytes.1);
    }
    Ok(Box::new(kept))
}
