//! Run files to figures.

use std::collections::BTreeMap;

use peregrine_lab_model::RunFile;
use peregrine_lab_model::block::Block;
use peregrine_lab_model::check::Outcome;
use peregrine_lab_model::histogram::Histogram;
use peregrine_lab_model::plan::{Design, Schedule};
use peregrine_lab_model::verdict::{Decision, Measure, Ratio};

use crate::content::{Benchmark, BlockPoint, Latency, Report, Row, Run, Section, Series, Spread};
use crate::subject::{self, Subject};
use crate::verdict::judged;
use crate::{benchmark, limits, numbers, rank, records, standing};

/// The version of the report's own JSON form.
const SCHEMA: u32 = 1;

/// The fewest samples beyond p99.9 (and beyond any higher share) for it to be shown.
const BEYOND_MIN: u64 = 1_000;

/// The points of a percentile curve between a share and ten times fewer samples beyond it. With 10,
/// one of them is the median.
const CURVE_STEPS: i32 = 10;

/// How every contender of the report is drawn.
#[derive(Debug, Default)]
pub(crate) struct Palette {
    numbers: BTreeMap<String, usize>,
}

impl Palette {
    fn new(files: &[RunFile]) -> Palette {
        let is_second = |name: &String| {
            files.iter().any(|file| file.again.as_ref().is_some_and(|again| again.second == *name))
        };
        let mut names: Vec<String> = files
            .iter()
            .flat_map(|file| {
                let started = file.contenders.iter().filter(|one| one.skipped.is_none());
                let timed = file.operations.iter().map(|operation| operation.contender.clone());
                started.map(|one| one.name.clone()).chain(timed)
            })
            .filter(|name| !is_second(name))
            .collect();
        names.sort_unstable_by_key(|name| (name.to_lowercase(), name.clone()));
        names.dedup();
        Palette { numbers: names.into_iter().zip(0..).collect() }
    }

    pub(crate) fn series(&self, name: &str) -> Series {
        self.numbers.get(name).map_or(Series::Neutral, |number| Series::Number(*number))
    }
}

pub(crate) fn report(files: &[RunFile]) -> Report {
    let palette = Palette::new(files);
    let mut sections: Vec<Section> = Vec::new();
    for file in files.iter().filter(|file| !file.blocks.is_empty() || !file.verdicts.is_empty()) {
        let run = run(file, &palette);
        let plan = &file.plan;
        let found = sections.iter_mut().find(|section| {
            section.scenario == plan.scenario
                && section.connections == plan.connections
                && section.streams == plan.streams
        });
        if let Some(section) = found {
            section.runs.push(run);
            continue;
        }
        sections.push(Section {
            scenario: plan.scenario.clone(),
            description: plan.description.clone(),
            connections: plan.connections,
            streams: plan.streams,
            is_tls: plan.is_tls,
            runs: vec![run],
        });
    }
    let benchmarks = benchmark::benchmarks(files, &palette);
    Report {
        schema: SCHEMA,
        title: title(files, &sections, &benchmarks),
        started_unix_s: files.iter().map(|file| file.started_unix_s).min().unwrap_or(0),
        standing: standing::standing(files),
        not_shown: limits::not_shown(files),
        memory: records::memory(files, &palette),
        claims: files.iter().flat_map(|file| file.claims.clone()).collect(),
        audits: files.iter().flat_map(|file| file.audits.clone()).collect(),
        beside: files.iter().flat_map(|file| file.beside.clone()).collect(),
        checks: records::checks(files),
        excluded: records::excluded(files),
        errors: records::errors(files),
        skipped: records::skipped(files),
        records: files.iter().map(records::record).collect(),
        benchmarks,
        sections,
    }
}

fn title(files: &[RunFile], sections: &[Section], benchmarks: &[Benchmark]) -> String {
    let page = files.iter().find(|file| subject::of(file) == Subject::Page);
    if let Some(page) = page.filter(|page| !page.plan.description.is_empty()) {
        return format!("Reproduced: {}", page.plan.description);
    }
    let mut names: Vec<&str> = Vec::new();
    let measured = sections.iter().map(|section| section.scenario.as_str());
    for name in measured.chain(benchmarks.iter().map(|one| one.scenario.as_str())) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    match names[..] {
        [] => "Lab report".to_owned(),
        [name] => format!("Lab report: {name}"),
        [first, second] => format!("Lab report: {first} and {second}"),
        [..] => format!("Lab report: {} scenarios", names.len()),
    }
}

fn run(file: &RunFile, palette: &Palette) -> Run {
    let again = file.again.as_ref();
    // One block of the A/A arm says nothing about how far its blocks differ.
    let band = again
        .filter(|again| numbers::has_interval(&again.ratio))
        .map(|again| again.band)
        .filter(|band| band.is_finite());
    let mut rows: Vec<Row> = file
        .contenders
        .iter()
        .filter(|contender| contender.skipped.is_none())
        .filter_map(|contender| row(file, &contender.name, palette))
        .collect();
    let ratios: Vec<Option<Ratio>> = rows.iter().map(|row| ratio_for_rank(file, row)).collect();
    // A reference without anybody beside it has no rank.
    let band_of_ranks = band.filter(|_| ratios.iter().flatten().count() > 1);
    for (row, rank) in rows.iter_mut().zip(rank::ranks(&ratios, band_of_ranks)) {
        row.rank = rank;
    }
    rows.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    Run {
        run: file.run.clone(),
        load: load(file),
        // Where each has a rate of its own, there is no rate at which all are compared.
        rate_per_s: file.plan.schedule.rate_per_s().filter(|_| !subject::has_own_rates(file)),
        is_closed: matches!(file.plan.schedule, Schedule::Closed { .. }),
        reference: file.plan.reference.clone(),
        band,
        again: again.map(|again| (again.second.clone(), again.ratio)),
        rows,
        verdicts: file.verdicts.iter().map(|verdict| judged(verdict, palette)).collect(),
        findings: records::findings(file),
    }
}

fn cost(row: &Row) -> f64 {
    row.server_us.map_or(f64::INFINITY, |spread| spread.median)
}

/// The reference itself has the ratio 1 to itself, without doubt. The second start of the A/A arm
/// and who has errors have none.
fn ratio_for_rank(file: &RunFile, row: &Row) -> Option<Ratio> {
    let is_second = file.again.as_ref().is_some_and(|again| again.second == row.contender);
    if is_second || row.errors > 0 {
        return None;
    }
    if row.contender == file.plan.reference {
        return Some(Ratio { estimate: 1.0, low: 1.0, high: 1.0 });
    }
    let verdict = file.verdicts.iter().find(|verdict| {
        verdict.contender == row.contender
            && verdict.reference == file.plan.reference
            && verdict.measure == Measure::ServerCpu
    })?;
    let ratio = verdict.ratio;
    if !ratio.is_known() || !numbers::has_interval(&ratio) {
        return None;
    }
    match verdict.decision {
        Decision::Faster | Decision::Slower => Some(ratio),
        // Who is not told from the reference shares its rank, whatever the interval looks like.
        Decision::Equivalent | Decision::CannotTell => {
            Some(Ratio { low: ratio.low.min(1.0), high: ratio.high.max(1.0), ..ratio })
        }
        Decision::Void | Decision::Other => None,
    }
}

fn load(file: &RunFile) -> String {
    let plan = &file.plan;
    let connections = numbers::count(u64::from(plan.connections));
    let streams = streams(plan.streams);
    let schedule = match &plan.schedule {
        Schedule::Closed { .. } if plan.streams.is_some() => "closed loop".to_owned(),
        Schedule::Closed { depth: 0 | 1 } => "closed loop".to_owned(),
        Schedule::Closed { depth } => format!("closed loop, {depth} requests sent together"),
        Schedule::Constant { rate_per_s } => {
            format!("open loop, {} requests/s evenly", numbers::fixed(*rate_per_s, 0))
        }
        Schedule::Poisson { rate_per_s } => {
            format!("open loop, {} requests/s at random", numbers::fixed(*rate_per_s, 0))
        }
        Schedule::Ramp { from_per_s, to_per_s } => format!(
            "open loop, from {} to {} requests/s",
            numbers::fixed(*from_per_s, 0),
            numbers::fixed(*to_per_s, 0)
        ),
        Schedule::Steps { rates_per_s } => {
            format!("open loop, {} steps of requests/s", rates_per_s.len())
        }
        Schedule::Other => "a schedule this report does not know".to_owned(),
    };
    let schedule = match subject::has_own_rates(file) {
        true => format!(
            "{schedule} for {}, and as many times its own capacity for everybody else",
            plan.reference
        ),
        false => schedule,
    };
    let time = numbers::latency(plan.block_ns as f64 / 1e6);
    let blocks = plan.blocks;
    let design = match plan.design {
        Design::Paired => format!("{blocks} paired slices of {time}"),
        Design::Separate if blocks == 1 => format!("a fresh process for {time}"),
        Design::Separate => format!("{blocks} fresh processes in turns, each for {time}"),
        Design::Other => format!("{blocks} times {time} by a design this report does not know"),
    };
    format!("{connections} connections{streams}, {schedule}; {design}")
}

/// What follows the number of connections where each has streams.
pub(crate) fn streams(streams: Option<u32>) -> String {
    streams.map_or(String::new(), |streams| {
        let word = if streams == 1 { "stream" } else { "streams" };
        format!(" x {} {word}", numbers::count(u64::from(streams)))
    })
}

fn row(file: &RunFile, name: &str, palette: &Palette) -> Option<Row> {
    let blocks: Vec<&Block> = file.blocks_of(name).collect();
    if blocks.is_empty() {
        return None;
    }
    let sum = |value: fn(&Block) -> u64| -> u64 { blocks.iter().map(|block| value(block)).sum() };
    let requests = sum(|block| block.requests);
    let per_request = |total: u64| (requests > 0).then(|| total as f64 / requests as f64);
    let middle = |value: fn(&Block) -> Option<f64>| -> Option<f64> {
        spread(blocks.iter().filter_map(|block| value(block)).collect()).map(|it| it.median)
    };
    let costs = blocks.iter().filter_map(|block| Some(block.server_ns_per_request()? / 1e3));
    let server_us = spread(costs.collect());
    let requests_per_s = middle(Block::requests_per_s);
    let is_client_bound = file.checks.iter().any(|check| {
        check.outcome == Outcome::ClientBound && check.contender.as_deref() == Some(name)
    });
    let switches: Option<u64> = blocks.iter().map(|block| block.context_switches).sum();
    let busiest: Option<u64> = blocks.iter().map(|block| block.server_busiest_ns).sum();
    let all = sum(|block| block.server_cpu_ns);
    Some(Row {
        contender: name.to_owned(),
        series: palette.series(name),
        class: file.contender(name)?.class.word(),
        rank: None,
        is_client_bound,
        server_us,
        user_us: user_us(&blocks, server_us),
        requests_per_s,
        goodput_mb_per_s: middle(|block| {
            (block.wall_ns > 0).then(|| block.body_bytes as f64 * 1e3 / block.wall_ns as f64)
        }),
        client_us: middle(Block::client_ns_per_request).map(|nanoseconds| nanoseconds / 1e3),
        headroom: file
            .calibration
            .zip(requests_per_s)
            .map(|(calibration, rate)| calibration.requests_per_s / rate),
        switches_per_request: switches.and_then(per_request),
        busiest_share: busiest.filter(|_| all > 0).map(|busiest| busiest as f64 / all as f64),
        wire_bytes_per_reply: per_request(sum(|block| block.wire_bytes)),
        memory_peak_bytes: blocks.iter().filter_map(|block| block.memory_peak_bytes).max(),
        late: sum(|block| block.late),
        dropped: sum(|block| block.dropped),
        errors: sum(Block::errors_total),
        latency: latency(&file.latency_of(name)),
        blocks: blocks.iter().map(|block| point(block)).collect(),
    })
}

fn point(block: &Block) -> BlockPoint {
    BlockPoint {
        number: block.number,
        // To a millisecond, as packed runs have it.
        started_s: (block.started_ns / 1_000_000) as f64 / 1e3,
        server_us: block.server_ns_per_request().map(|nanoseconds| nanoseconds / 1e3),
        requests_per_s: block.requests_per_s(),
    }
}

/// The user part of the median, by the share over all blocks: single blocks have too few ticks.
fn user_us(blocks: &[&Block], server_us: Option<Spread>) -> Option<f64> {
    let user: u64 = blocks.iter().map(|block| block.server_user_ns).sum::<Option<u64>>()?;
    let all: u64 = blocks.iter().map(|block| block.server_cpu_ns).sum();
    (all > 0).then_some(server_us?.median * (user as f64 / all as f64).min(1.0))
}

/// The quartiles by linear interpolation between neighbours; none if there are no values.
fn spread(mut values: Vec<f64>) -> Option<Spread> {
    if values.is_empty() {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        let position = share * (values.len() - 1) as f64;
        let index = position as usize;
        let above = values[(index + 1).min(values.len() - 1)];
        values[index] + (above - values[index]) * position.fract()
    };
    Some(Spread { median: at(0.5), quarter_low: at(0.25), quarter_high: at(0.75) })
}

fn latency(all: &Histogram) -> Option<Latency> {
    let milliseconds = |share: f64| Some(all.at(share)? as f64 / 1e6);
    let beyond_p99_9 = all.beyond(0.999);
    // Shares at even distances of the logarithm of what lies beyond: 0, 50 %, 90 %, 99 %, ...
    let curve = (0..=4 * CURVE_STEPS)
        .map(|step| 1.0 - 10_f64.powf(-f64::from(step) / f64::from(CURVE_STEPS)))
        .filter(|share| *share <= 0.990_001 || all.beyond(*share) >= BEYOND_MIN)
        .filter_map(|share| Some((share, milliseconds(share)?)))
        .collect();
    Some(Latency {
        samples: all.count(),
        p50_ms: milliseconds(0.5)?,
        p90_ms: milliseconds(0.9)?,
        p99_ms: milliseconds(0.99)?,
        p99_9_ms: milliseconds(0.999).filter(|_| beyond_p99_9 >= BEYOND_MIN),
        beyond_p99_9,
        max_ms: all.longest()? as f64 / 1e6,
        censored: all.censored,
        curve,
    })
}
