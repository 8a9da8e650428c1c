//! What is listed rather than summed up: memory, checks, exclusions, errors, and the record of
//! how each run was made.

use std::collections::BTreeMap;

use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::Check;

use crate::collect::Palette;
use crate::content::{CheckRow, Errors, ExcludedRow, MemoryLine, Record, Skipped};
use crate::subject::{self, Subject};

pub(crate) fn memory(files: &[RunFile], palette: &Palette) -> Vec<MemoryLine> {
    let mut readings: BTreeMap<(&str, u32), Vec<u64>> = BTreeMap::new();
    for reading in files.iter().flat_map(|file| &file.memory) {
        readings.entry((&reading.contender, reading.connections)).or_default().push(reading.bytes);
    }
    let mut lines: Vec<MemoryLine> = Vec::new();
    for ((name, connections), bytes) in readings {
        // Fresh processes are read several times: the middle one, so that no outlier is a slope.
        let point = (connections, middle(bytes));
        match lines.iter_mut().find(|line| line.contender == name) {
            Some(line) => line.points.push(point),
            None => lines.push(MemoryLine {
                contender: name.to_owned(),
                series: palette.series(name),
                points: vec![point],
                bytes_per_connection: None,
            }),
        }
    }
    for line in &mut lines {
        line.bytes_per_connection = slope(&line.points);
    }
    let cost = |line: &MemoryLine| line.bytes_per_connection.unwrap_or(f64::INFINITY);
    lines.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    lines
}

/// The median; of two in the middle, the lower one, so that it is a value that was read.
fn middle(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

fn slope(points: &[(u32, u64)]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let connections = last.0.checked_sub(first.0).filter(|connections| *connections > 0)?;
    Some((last.1 as f64 - first.1 as f64) / f64::from(connections))
}

pub(crate) fn checks(files: &[RunFile]) -> Vec<CheckRow> {
    files.iter().flat_map(|file| file.checks.iter().map(|check| check_row(file, check))).collect()
}

/// What the scenario of a run was made to find out.
pub(crate) fn findings(file: &RunFile) -> Vec<CheckRow> {
    let found = file.checks.iter().filter(|check| subject::is_finding(&check.name));
    found.map(|check| check_row(file, check)).collect()
}

fn check_row(file: &RunFile, check: &Check) -> CheckRow {
    CheckRow {
        run: file.run.clone(),
        name: check.name.clone(),
        contender: check.contender.clone(),
        outcome: check.outcome,
        detail: check.detail.clone(),
    }
}

pub(crate) fn excluded(files: &[RunFile]) -> Vec<ExcludedRow> {
    let rows = files.iter().flat_map(|file| {
        file.excluded.iter().map(|excluded| ExcludedRow {
            run: file.run.clone(),
            block: excluded.number,
            contender: excluded.contender.clone(),
            reason: excluded.reason.clone(),
            is_repeated: excluded.is_repeated,
        })
    });
    rows.collect()
}

pub(crate) fn errors(files: &[RunFile]) -> Errors {
    let blocks = || files.iter().flat_map(|file| &file.blocks);
    let mut kinds: Vec<String> = blocks().flat_map(|block| block.errors.keys().cloned()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut rows: Vec<(String, u64, Vec<u64>)> = Vec::new();
    for block in blocks() {
        let index = rows.iter().position(|row| row.0 == block.contender).unwrap_or_else(|| {
            rows.push((block.contender.clone(), 0, vec![0; kinds.len()]));
            rows.len() - 1
        });
        let (_, requests, counts) = &mut rows[index];
        *requests += block.requests;
        for (kind, count) in kinds.iter().zip(counts) {
            *count += block.errors.get(kind).copied().unwrap_or(0);
        }
    }
    rows.sort_unstable();
    Errors { kinds, rows }
}

/// A contender with the same reason in several runs is named once.
pub(crate) fn skipped(files: &[RunFile]) -> Vec<Skipped> {
    let mut rows: Vec<Skipped> = Vec::new();
    for file in files {
        for contender in &file.contenders {
            let Some(reason) = &contender.skipped else { continue };
            let same = rows
                .iter_mut()
                .find(|row| row.contender == contender.name && row.reason == *reason);
            match same {
                Some(row) => row.runs.push(file.run.clone()),
                None => rows.push(Skipped {
                    runs: vec![file.run.clone()],
                    contender: contender.name.clone(),
                    reason: reason.clone(),
                }),
            }
        }
    }
    rows
}

pub(crate) fn record(file: &RunFile) -> Record {
    Record {
        run: file.run.clone(),
        is_page: subject::of(file) == Subject::Page,
        started_unix_s: file.started_unix_s,
        took_s: file.took_s,
        tool: file.tool.clone(),
        machine: file.machine.clone(),
        plan: file.plan.clone(),
        contenders: file.contenders.clone(),
    }
}
