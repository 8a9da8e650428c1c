//! SIGTERM in the middle of a load: which requests stay without a reply, and when the server is
//! gone.
//!
//! A server that shuts down well answers what it has taken, says `Connection: close` so that no
//! client sends into a closing connection, takes no new connections, and ends. Refused new
//! connections are no fault here; requests without a reply are.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use peregrine_lab_host::interrupt::is_interrupted;
use peregrine_lab_load::client::fault::{Fault, Faults};
use peregrine_lab_load::generator::{Outcome as Seen, Watch, run};
use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::plan::Schedule;
use peregrine_lab_stats::orders;

use crate::error::RunError;
use crate::progress::Progress;
use crate::record;
use crate::rotation::Measured;
use crate::session::{Level, nanoseconds};
use crate::stage::Up;

/// How long a server may take to end.
const GRACE: Duration = Duration::from_secs(10);

/// One shutdown as it was seen.
struct Shutdown {
    seen: Seen,
    took: Duration,
    was_killed: bool,
    status: String,
    is_clean_exit: bool,
}

pub(super) fn measure(
    level: &mut Level<'_>,
    progress: &mut dyn Progress,
) -> Result<RunFile, RunError> {
    let began = Instant::now();
    let mut file = level.file("", Schedule::Closed { depth: 1 });
    let mut lineup = std::mem::take(&mut level.lineup);
    // Nothing is compared by cost, so that a second start of the reference would tell nothing.
    let second = lineup.pair.take().map(|(_, second)| second);
    lineup.arms.retain(|arm| second.as_ref() != Some(&arm.name));
    lineup.contenders.retain(|one| second.as_ref() != Some(&one.name));
    let mut measured = Measured::default();
    let rows = orders::balanced(lineup.arms.len(), level.settled.blocks, level.wanted.seed);
    'blocks: for (number, row) in rows.into_iter().enumerate() {
        for arm in row {
            if is_interrupted() {
                measured.is_partial = true;
                break 'blocks;
            }
            let arm = lineup.arms[arm].clone();
            if lineup.refused.contains(&arm.name) {
                continue;
            }
            let up = match lineup.start_one(level.stage, &level.wanted.scenario, &arm) {
                Ok(up) => up,
                Err(error) => {
                    lineup.refuse(&arm.name, &error)?;
                    continue;
                }
            };
            let started = began.elapsed();
            let shutdown = shut_down(level, up)?;
            let check = check(&arm.name, &shutdown);
            record::merge_checks(&mut measured.checks, vec![check]);
            measured.blocks.push(block(&arm.name, number, started, &shutdown.seen));
            progress.step();
        }
    }
    level.lineup = lineup;
    file.plan.client = crate::asker::engine_name(None);
    level.fill(&mut file, measured, &[], began);
    Ok(file)
}

fn shut_down(level: &Level<'_>, up: Up) -> Result<Shutdown, RunError> {
    let plan = level.plan(&up)?;
    let watch = Arc::new(Watch::default());
    let half = plan.duration / 2;
    let (seen, stopped) = std::thread::scope(|scope| {
        let ender = {
            let watch = watch.clone();
            scope.spawn(move || {
                std::thread::sleep(half);
                let begin = Instant::now();
                let stopped = up.stop_within(GRACE);
                let took = begin.elapsed();
                // Nobody listens any more: what the client would see from now on is no news.
                watch.is_stopped.store(true, Ordering::Relaxed);
                stopped.map(|stopped| (stopped, took))
            })
        };
        let seen = run(&plan, &watch).map_err(RunError::io("asking"));
        (seen, ender.join().expect("ending a server does not panic"))
    });
    let (stopped, took) = stopped?;
    Ok(Shutdown {
        seen: seen?,
        took,
        was_killed: stopped.was_killed,
        is_clean_exit: stopped.status.success(),
        status: stopped.status.to_string(),
    })
}

/// Requests that were sent and stayed without a right reply.
fn lost(faults: &Faults) -> u64 {
    faults.total() - faults.count(Fault::Connect)
}

fn check(name: &str, shutdown: &Shutdown) -> Check {
    let lost = lost(&shutdown.seen.faults);
    let outcome = match (lost, shutdown.was_killed, shutdown.is_clean_exit) {
        (0, false, true) => Outcome::Passed,
        _ => Outcome::Warned,
    };
    let mut faults = Faults::default();
    for (fault, count) in shutdown.seen.faults.seen().filter(|(fault, _)| *fault != Fault::Connect)
    {
        faults.record_many(fault, count);
    }
    let end = match shutdown.was_killed {
        true => format!("it had to be killed after {} s", GRACE.as_secs()),
        false => format!("{} after {:.0} ms", shutdown.status, shutdown.took.as_secs_f64() * 1e3),
    };
    Check {
        name: "shutdown under load".to_owned(),
        contender: Some(name.to_owned()),
        outcome,
        detail: format!(
            "{} sent, {lost} without a reply ({faults}), {} replies; {end}",
            shutdown.seen.sent, shutdown.seen.replies
        ),
    }
}

fn block(name: &str, number: usize, started: Duration, seen: &Seen) -> Block {
    let mut errors = record::errors(&seen.faults);
    // New connections are refused by whoever has ended.
    errors.insert(Fault::Connect.words().to_owned(), 0);
    Block {
        number: number as u32,
        contender: name.to_owned(),
        started_ns: nanoseconds(started),
        wall_ns: nanoseconds(seen.wall),
        requests: seen.replies,
        sent: seen.sent,
        client_cpu_ns: nanoseconds(seen.client_cpu),
        body_bytes: seen.body_bytes,
        wire_bytes: seen.reply_bytes,
        latency: Some(record::histogram(&seen.latency)),
        errors,
        ..Block::default()
    }
}
