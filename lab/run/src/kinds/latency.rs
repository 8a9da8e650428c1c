//! Latency at equal rates, so that a slow server is not asked less than a fast one: open loops at shares
//! of the capacity that all contenders have in common, or at rates that are given.

use std::time::{Duration, Instant};

use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_load::generator::{Ceiling, Plan};
use peregrine_lab_load::schedule::Schedule;
use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::plan::Schedule as Planned;
use peregrine_lab_model::verdict::Measure;
use peregrine_lab_scenario::OpenRate;

use super::paired;
use crate::asker::{Asker, Generated};
use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::rotation;
use crate::session::Level;
use crate::stage::Up;

/// How long a slice asks before it counts, so that its connections are made; never longer than the
/// slice itself.
const WARMUP: Duration = Duration::from_millis(200);

/// The fewest samples beyond the 99.9 % of each block for these to be compared.
const BEYOND_P99_9_MIN: u64 = 10;

/// Above this share of what the client can do, its own lateness would be measured.
const CLIENT_SHARE_MAX: f64 = 0.8;

pub(super) fn measure(
    level: &mut Level<'_>,
    rates: &[OpenRate],
    progress: &mut dyn Progress,
) -> Result<Vec<RunFile>, RunError> {
    let began = Instant::now();
    let mut first = level.file("", Planned::default());
    let mut lineup = std::mem::take(&mut level.lineup);
    let started = lineup.start(level.stage, level.wanted);
    level.lineup = lineup;
    let mut ups = started?;
    let looks = paired::look(level, &mut first, &mut ups)?;
    let lowest = looks.iter().map(|look| look.rate).fold(f64::INFINITY, f64::min);
    let client = first.calibration.map_or(f64::INFINITY, |client| client.requests_per_s);
    let common = lowest.min(client * CLIENT_SHARE_MAX);
    progress.say(&format!(
        "the capacity that all have in common is {common:.0} requests/s{}",
        if common < lowest { ", by the client's limit" } else { "" }
    ));
    let mut files = Vec::new();
    // The looks are part of the first rate's time.
    let mut spent = Some(began);
    for &rate in rates {
        let began = spent.take().unwrap_or_else(Instant::now);
        let rate = match rate {
            OpenRate::Share(share) => common * share,
            OpenRate::PerSecond(rate) => rate,
        };
        if rate > common {
            return Err(RunError::Invalid(format!(
                "{rate:.0} requests/s are more than the {common:.0} that all can answer here: ask at lower \
                 rates, or leave the slowest out"
            )));
        }
        let mut file = one_rate(level, &first, &mut ups, rate, progress)?;
        let suffix = format!("-r{rate:.0}");
        file.1.run = format!("{}{suffix}", file.1.run);
        let (measured, mut run_file) = file;
        let measures = measures(&measured.blocks);
        level.fill(&mut run_file, measured, measures, began);
        files.push(run_file);
        if is_interrupted() {
            break;
        }
    }
    for up in ups {
        up.stop()?;
    }
    Ok(files)
}

/// What blocks with so many samples can be compared by.
fn measures(blocks: &[Block]) -> &'static [Measure] {
    let all =
        &[Measure::ServerCpu, Measure::LatencyMedian, Measure::LatencyP99, Measure::LatencyP999];
    let beyond = |block: &Block| block.latency.as_ref().map_or(0, |latency| latency.beyond(0.999));
    let has_tail = blocks.iter().all(|block| beyond(block) >= BEYOND_P99_9_MIN);
    if has_tail { all } else { &all[..3] }
}

fn one_rate(
    level: &Level<'_>,
    first: &RunFile,
    ups: &mut [Up],
    rate: f64,
    progress: &mut dyn Progress,
) -> Result<(rotation::Measured, RunFile), RunError> {
    let mut file = level.file("", Planned::Poisson { rate_per_s: rate });
    file.calibration = first.calibration;
    // The looks before found what the client can do at its most; here it is asked for less.
    let is_about_looks = |name: &str| name == record::HEADROOM;
    file.checks = first.checks.iter().filter(|one| !is_about_looks(&one.name)).cloned().collect();
    if let Some(client) = first.calibration {
        let ceiling = Ceiling {
            rate: client.requests_per_s,
            client_us_per_reply: client.client_cpu_ns_per_request / 1e3,
        };
        let checks = ups.iter().map(|up| record::headroom(&up.name, rate, &ceiling));
        file.checks.extend(checks);
    }
    let plans: Result<Vec<Plan>, RunError> = ups
        .iter()
        .map(|up| {
            let plan = level.plan(up)?;
            let warmup = WARMUP.min(plan.duration);
            Ok(Plan { schedule: Schedule::Poisson { rate }, warmup, ..plan })
        })
        .collect();
    let plans = plans?;
    file.plan.timeout_ns = plans.first().map(|plan| crate::session::nanoseconds(plan.timeout));
    let names = ups.iter().map(|up| up.name.clone()).collect();
    let mut asker = Generated::new(names, plans);
    let turns = level.turns(0);
    let measured = rotation::paired(level.stage, ups, &mut asker, turns, progress)?;
    file.plan.client = asker.client_name();
    Ok((measured, file))
}
