//! The one loop of every design: arms take turns in balanced random order, and counters are read
//! at each switch.
//!
//! The cost of a request drifts by a quarter within minutes on a shared machine. Neighbours in
//! time share that drift, so a block holds every arm once, and only blocks are compared. A block
//! that a guard voids is measured again, at the end.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use peregrine_lab_host::guard::{Expected, Guard, Tolerances, Trip, Use};
use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_host::usage::{Reading, Spent};
use peregrine_lab_model::block::{Block, Excluded};
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_stats::orders;

use crate::asker::{Asked, Asker};
use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::stage::{Stage, Up};

/// How long a server may finish what it does after its last reply, before its counters are read.
const SETTLE_TIME: Duration = Duration::from_micros(300);

/// How many blocks may be measured again, as a part of those that were planned.
const REPEATS_SHARE: f64 = 0.5;

/// The CPU share of a server in the slices of others beyond which the report says so.
const IDLE_SHARE_MAX: f64 = 0.01;

/// How long and in which order.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    /// How many blocks are wanted.
    pub blocks: usize,
    /// How many slices of each arm go before them, unmeasured.
    pub warmup: usize,
    /// Decides the order.
    pub seed: u64,
    /// Whether blocks that a guard would void count all the same, with a remark.
    pub is_noise_tolerated: bool,
    /// What no guard trips over.
    pub tolerances: Tolerances,
}

/// What a rotation measured.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// In the order of time.
    pub blocks: Vec<Block>,
    /// Those that do not count.
    pub excluded: Vec<Excluded>,
    /// Rules of the run.
    pub checks: Vec<Check>,
    /// Whether it was stopped before its plan was done.
    pub is_partial: bool,
    /// What the servers' CPUs did while the blocks that count were measured, and the connections
    /// made and the warm-ups asked that belong to them.
    pub used: Use,
}

/// All servers stay up, and slices rotate between them.
///
/// A server that ends is asked no more, and a failed check says so; the others go on.
///
/// # Errors
///
/// What keeps the client from going on. Ctrl-C is no error: what was measured until then is given,
/// up to the last whole block.
pub fn paired(
    stage: &Stage,
    ups: &mut [Up],
    asker: &mut dyn Asker,
    turns: Turns,
    progress: &mut dyn Progress,
) -> Result<Measured, RunError> {
    for _ in 0..turns.warmup {
        for arm in 0..ups.len() {
            asker.ask(arm, &|| ())?;
        }
    }
    ups.iter_mut().for_each(Up::refresh);
    let expected =
        Expected { servers: ups.iter().map(Up::id).collect(), clients: vec![std::process::id()] };
    let mut guard = Guard::new(stage.root.clone(), stage.sets.clone(), turns.tolerances);
    let mut measured = Measured::default();
    let mut spent = vec![Spent::default(); ups.len()];
    let before_all: Vec<Reading> = ups.iter().map(Up::read).collect();
    let begin = Instant::now();
    let rows = orders::balanced(ups.len(), most_rows(turns.blocks), turns.seed);
    let (mut whole, mut number) = (0, 0);
    let mut is_gone = vec![false; ups.len()];
    for row in rows {
        if whole == turns.blocks {
            break;
        }
        guard.begin();
        let mut blocks = Vec::with_capacity(row.len());
        for arm in row.into_iter().filter(|&arm| !is_gone[arm]) {
            let started = begin.elapsed();
            let before = ups[arm].read_cpu();
            let warm = OnceLock::new();
            let asked = asker.ask(arm, &|| drop(warm.set(ups[arm].read_cpu())))?;
            std::thread::sleep(SETTLE_TIME);
            let after = ups[arm].read_cpu();
            add(&mut spent[arm], &after.since(&before));
            let used = after.since(warm.get().unwrap_or(&before));
            record::merge_checks(&mut measured.checks, asked.checks.clone());
            let mut block = block(&ups[arm], number, started, &asked, &used);
            block.context_switches = None;
            blocks.push(block);
        }
        if is_interrupted() {
            measured.is_partial = true;
            break;
        }
        note_deaths(ups, &mut is_gone, &mut measured.checks);
        let trips = guard.boundary(&expected);
        if trips.is_empty() || turns.is_noise_tolerated {
            note_trips(&mut blocks, &trips);
            measured.blocks.append(&mut blocks);
            measured.used += guard.used();
            whole += 1;
            progress.step();
        } else {
            measured.excluded.push(excluded(number, String::new(), &trips));
        }
        number += 1;
    }
    note_shortage(&mut measured, whole, turns.blocks);
    finish(ups, &before_all, &spent, &mut measured);
    Ok(measured)
}

/// Each block of each arm is a fresh process, alone on the machine. `start` starts an arm and says
/// who asks it; the asker's only arm is number 0.
///
/// # Errors
///
/// What keeps the client from going on. Ctrl-C and a server that does not start are none, as above.
pub fn separate(
    stage: &Stage,
    names: &[String],
    turns: Turns,
    progress: &mut dyn Progress,
    mut keep: impl FnMut(&Block, &[Check]) -> Result<(), RunError>,
    mut start: impl FnMut(usize) -> Result<(Up, Box<dyn Asker>), RunError>,
    done: &[(u32, String)],
) -> Result<Measured, RunError> {
    let mut measured = Measured::default();
    let begin = Instant::now();
    let rows = orders::balanced(names.len(), turns.blocks, turns.seed);
    for (number, row) in rows.into_iter().enumerate() {
        let number = number as u32;
        for arm in row {
            if done.contains(&(number, names[arm].clone())) {
                progress.step();
                continue;
            }
            let mut tries = 0;
            loop {
                if is_interrupted() {
                    measured.is_partial = true;
                    return Ok(measured);
                }
                let started = begin.elapsed();
                let OneRun { mut block, mut trips, checks, used } =
                    match one_run(stage, turns.tolerances, &mut start, arm, number, started) {
                        Err(RunError::Interrupted) => {
                            measured.is_partial = true;
                            return Ok(measured);
                        }
                        // It did start for its gate; the others go on without it.
                        Err(RunError::NotReady(reason)) => {
                            let check = never_started(&names[arm], number, reason);
                            record::merge_checks(&mut measured.checks, vec![check]);
                            break;
                        }
                        other => other?,
                    };
                if turns.is_noise_tolerated {
                    note_trips(std::slice::from_mut(&mut block), &trips);
                    trips.clear();
                }
                if is_interrupted() {
                    measured.is_partial = true;
                    return Ok(measured);
                }
                tries += 1;
                let is_last = tries == 3;
                if !trips.is_empty() {
                    let mut one = excluded(number, names[arm].clone(), &trips);
                    one.is_repeated = !is_last;
                    measured.excluded.push(one);
                }
                if trips.is_empty() {
                    keep(&block, &checks)?;
                    record::merge_checks(&mut measured.checks, checks);
                    measured.blocks.push(block);
                    measured.used += used;
                }
                if trips.is_empty() || is_last {
                    break;
                }
            }
            progress.step();
        }
    }
    Ok(measured)
}

/// A block of one fresh process.
struct OneRun {
    block: Block,
    trips: Vec<Trip>,
    checks: Vec<Check>,
    used: Use,
}

fn one_run(
    stage: &Stage,
    tolerances: Tolerances,
    start: &mut dyn FnMut(usize) -> Result<(Up, Box<dyn Asker>), RunError>,
    arm: usize,
    number: u32,
    started: Duration,
) -> Result<OneRun, RunError> {
    let (mut up, mut asker) = start(arm)?;
    up.refresh();
    let expected = Expected { servers: vec![up.id()], clients: vec![std::process::id()] };
    let mut guard = Guard::new(stage.root.clone(), stage.sets.clone(), tolerances);
    let before = up.read();
    let warm = OnceLock::new();
    let asked = asker.ask(0, &|| drop(warm.set(up.read())))?;
    std::thread::sleep(SETTLE_TIME);
    let used = up.read().since(warm.get().unwrap_or(&before));
    let trips = guard.boundary(&expected);
    let mut block = block(&up, number, started, &asked, &used);
    block.server_user_ns = user_share(&used).map(|share| part(used.used_ns, share));
    up.stop()?;
    Ok(OneRun { block, trips, checks: asked.checks, used: guard.used() })
}

/// Room for blocks that are measured again.
fn most_rows(blocks: usize) -> usize {
    blocks + (blocks as f64 * REPEATS_SHARE).ceil() as usize
}

fn block(up: &Up, number: u32, started: Duration, asked: &Asked, used: &Spent) -> Block {
    Block {
        number,
        contender: up.name.clone(),
        started_ns: nanoseconds(started),
        wall_ns: nanoseconds(asked.wall),
        requests: asked.requests,
        sent: asked.sent,
        late: asked.late,
        dropped: asked.dropped,
        server_cpu_ns: used.used_ns,
        server_user_ns: None,
        server_busiest_ns: Some(used.busiest_ns),
        server_wait_ns: used.waited_ns,
        client_cpu_ns: nanoseconds(asked.client_cpu),
        body_bytes: asked.body_bytes,
        wire_bytes: asked.wire_bytes,
        context_switches: Some(used.switches_voluntary + used.switches_forced),
        memory_peak_bytes: up.holdings(false).peak_bytes,
        latency: asked.latency.clone(),
        quantiles: None,
        // Once per contender is enough to say what was looked for and not seen.
        errors: match number {
            0 => record::errors(&asked.faults),
            _ => record::errors_seen(&asked.faults),
        },
        guards: Vec::new(),
    }
}

fn excluded(number: u32, contender: String, trips: &[Trip]) -> Excluded {
    let reasons: Vec<String> = trips.iter().map(ToString::to_string).collect();
    Excluded { number, contender, reason: reasons.join("; "), is_repeated: true }
}

/// Looks who has ended since the last look, and keeps that as a failed check.
fn note_deaths(ups: &[Up], is_gone: &mut [bool], checks: &mut Vec<Check>) {
    for (up, is_gone) in ups.iter().zip(is_gone).filter(|(_, is_gone)| !**is_gone) {
        *is_gone = up.has_ended();
        if *is_gone {
            checks.push(Check {
                name: "lives to the end".to_owned(),
                contender: Some(up.name.clone()),
                outcome: Outcome::Failed,
                detail: format!("it ended during the run; it printed:\n{}", up.output()),
            });
        }
    }
}

fn never_started(name: &str, number: u32, reason: String) -> Check {
    Check {
        name: "starts each time".to_owned(),
        contender: Some(name.to_owned()),
        outcome: Outcome::Failed,
        detail: format!("not in block {number}: {reason}"),
    }
}

/// Leaves a remark in blocks that count in spite of a guard.
fn note_trips(blocks: &mut [Block], trips: &[Trip]) {
    for block in blocks {
        block.guards.extend(trips.iter().map(ToString::to_string));
    }
}

fn note_shortage(measured: &mut Measured, whole: usize, wanted: usize) {
    if whole < wanted && !measured.is_partial {
        measured.checks.push(Check {
            name: "quiet machine".to_owned(),
            contender: None,
            outcome: Outcome::Warned,
            detail: format!(
                "{} blocks were voided by guards, so {whole} of {wanted} could be measured",
                measured.excluded.len()
            ),
        });
    }
    if let Some(last) = measured.excluded.last_mut().filter(|_| whole < wanted) {
        last.is_repeated = false;
    }
}

/// What needs the counters of the whole run: the split between program and kernel, for which
/// single slices are too short, context switches, which cost a file per thread to read, and whether
/// servers were idle in the slices of others.
fn finish(ups: &[Up], before_all: &[Reading], spent: &[Spent], measured: &mut Measured) {
    let wall: u64 = measured.blocks.iter().map(|block| block.wall_ns).sum();
    for (arm, up) in ups.iter().enumerate() {
        let all = up.read().since(&before_all[arm]);
        let share = user_share(&all);
        let own = measured.blocks.iter_mut().filter(|block| block.contender == up.name);
        let mut own_wall = 0;
        for block in own {
            own_wall += block.wall_ns;
            block.server_user_ns = share.map(|share| part(block.server_cpu_ns, share));
            let of_all = block.server_cpu_ns as f64 / all.used_ns.max(1) as f64;
            block.context_switches =
                Some(part(all.switches_voluntary + all.switches_forced, of_all));
        }
        let others = wall.saturating_sub(own_wall);
        if others == 0 {
            continue;
        }
        let idle = all.used_ns.saturating_sub(spent[arm].used_ns) as f64 / others as f64;
        measured.checks.push(Check {
            name: "idle while others are asked".to_owned(),
            contender: Some(up.name.clone()),
            outcome: if idle > IDLE_SHARE_MAX { Outcome::Warned } else { Outcome::Passed },
            detail: format!("used {:.2} % of a CPU then", idle * 100.0),
        });
    }
}

fn user_share(spent: &Spent) -> Option<f64> {
    let ticks = spent.user_ticks + spent.system_ticks;
    (ticks > 0).then(|| spent.user_ticks as f64 / ticks as f64)
}

fn part(all: u64, share: f64) -> u64 {
    (all as f64 * share).round() as u64
}

fn add(sum: &mut Spent, more: &Spent) {
    sum.used_ns += more.used_ns;
    sum.waited_ns += more.waited_ns;
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a run is shorter than 500 years")
}
