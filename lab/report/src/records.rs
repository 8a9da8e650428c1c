//! What is listed rather than summed up: memory, checks, exclusions, errors, and the record of
//! how each run was made.

use peregrine_lab_model::RunFile;

use crate::collect::Palette;
use crate::content::{CheckRow, Errors, ExcludedRow, MemoryLine, Record, Skipped};

pub(crate) fn memory(files: &[RunFile], palette: &Palette) -> Vec<MemoryLine> {
    let mut lines: Vec<MemoryLine> = Vec::new();
    for reading in files.iter().flat_map(|file| &file.memory) {
        let point = (reading.connections, reading.bytes);
        match lines.iter_mut().find(|line| line.contender == reading.contender) {
            Some(line) => line.points.push(point),
            None => lines.push(MemoryLine {
                contender: reading.contender.clone(),
                series: palette.series(&reading.contender),
                points: vec![point],
                bytes_per_connection: None,
            }),
        }
    }
    for line in &mut lines {
        line.points.sort_unstable();
        line.bytes_per_connection = slope(&line.points);
    }
    let cost = |line: &MemoryLine| line.bytes_per_connection.unwrap_or(f64::INFINITY);
    lines.sort_by(|one, other| cost(one).total_cmp(&cost(other)));
    lines
}

fn slope(points: &[(u32, u64)]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let connections = last.0.checked_sub(first.0).filter(|connections| *connections > 0)?;
    Some((last.1 as f64 - first.1 as f64) / f64::from(connections))
}

pub(crate) fn checks(files: &[RunFile]) -> Vec<CheckRow> {
    let rows = files.iter().flat_map(|file| {
        file.checks.iter().map(|check| CheckRow {
            run: file.run.clone(),
            name: check.name.clone(),
            contender: check.contender.clone(),
            outcome: check.outcome,
            detail: check.detail.clone(),
        })
    });
    rows.collect()
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

pub(crate) fn skipped(files: &[RunFile]) -> Vec<Skipped> {
    let mut rows: Vec<Skipped> = Vec::new();
    for file in files {
        for contender in &file.contenders {
            let Some(reason) = &contender.skipped else { continue };
            rows.push(Skipped {
                run: file.run.clone(),
                contender: contender.name.clone(),
                reason: reason.clone(),
            });
        }
    }
    rows
}

pub(crate) fn record(file: &RunFile) -> Record {
    Record {
        run: file.run.clone(),
        started_unix_s: file.started_unix_s,
        took_s: file.took_s,
        tool: file.tool.clone(),
        machine: file.machine.clone(),
        plan: file.plan.clone(),
        contenders: file.contenders.clone(),
    }
}
