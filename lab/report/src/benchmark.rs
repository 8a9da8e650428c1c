//! Times of operations inside a process, in the shape of tables.

use peregrine_lab_model::RunFile;

use crate::collect::Palette;
use crate::content::{Benchmark, Mode};

pub(crate) fn benchmarks(files: &[RunFile], palette: &Palette) -> Vec<Benchmark> {
    let timed = files.iter().filter(|file| !file.operations.is_empty());
    timed.map(|file| benchmark(file, palette)).collect()
}

/// Modes, operations and contenders stand in the order in which the file names them.
fn benchmark(file: &RunFile, palette: &Palette) -> Benchmark {
    let mut names: Vec<&str> = Vec::new();
    for operation in &file.operations {
        if !names.contains(&operation.contender.as_str()) {
            names.push(&operation.contender);
        }
    }
    let mut modes: Vec<Mode> = Vec::new();
    for operation in &file.operations {
        let mode = place(
            &mut modes,
            |mode| mode.mode == operation.mode,
            || Mode { mode: operation.mode.clone(), rows: Vec::new() },
        );
        let row = place(
            &mut mode.rows,
            |row| row.0 == operation.operation,
            || (operation.operation.clone(), vec![None; names.len()]),
        );
        let column = names.iter().position(|name| *name == operation.contender);
        let is_time = operation.nanoseconds.is_finite() && operation.nanoseconds > 0.0;
        if let Some(cell) = column.filter(|_| is_time).and_then(|column| row.1.get_mut(column)) {
            *cell = Some(operation.nanoseconds);
        }
    }
    Benchmark {
        scenario: file.plan.scenario.clone(),
        description: file.plan.description.clone(),
        run: file.run.clone(),
        contenders: names.iter().map(|name| ((*name).to_owned(), palette.series(name))).collect(),
        modes,
    }
}

/// The first that fits, which is made at the end if there is none.
fn place<T>(all: &mut Vec<T>, fits: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let index = all.iter().position(fits).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[index]
}
