//! Benchmarks inside a process: a table of operations for each way of timing them.

use crate::content::{Benchmark, Mode};
use crate::document::{Cell, Part, Section, Table};
use crate::numbers;

/// Times within this share of the smallest are marked like it: there is no A/A arm here that
/// could tell them apart.
const SAME_SHARE: f64 = 0.05;

pub(crate) fn section(benchmark: &Benchmark) -> Section {
    let mut parts = Vec::new();
    if !benchmark.description.is_empty() {
        parts.push(Part::Text(benchmark.description.clone()));
    }
    let text = "Nanoseconds per operation inside a process, medians, without sockets: a small part \
                of a request. In bold, the shortest time of a row and those within 5\u{a0}% of it. \
                Without an A/A arm nothing is ranked.";
    parts.push(Part::Text(text.to_owned()));
    for mode in &benchmark.modes {
        if !mode.mode.is_empty() {
            parts.push(Part::Heading(format!("Mode: {}", mode.mode)));
        }
        parts.push(Part::Table(table(benchmark, mode)));
    }
    Section { title: format!("{}, in the process", benchmark.scenario), parts }
}

fn table(benchmark: &Benchmark, mode: &Mode) -> Table {
    // Who does not know a mode has no column in it.
    let is_shown: Vec<bool> = (0..benchmark.contenders.len())
        .map(|column| mode.rows.iter().any(|(_, times)| times[column].is_some()))
        .collect();
    let shown = || is_shown.iter().enumerate().filter(|(_, is_shown)| **is_shown).map(|(at, _)| at);
    let mut columns = vec![("operation", "", false)];
    columns.extend(shown().map(|column| (benchmark.contenders[column].0.as_str(), "ns", true)));
    let mut table = Table::new(&columns);
    for (operation, times) in &mode.rows {
        let shortest = times.iter().flatten().copied().fold(f64::INFINITY, f64::min);
        let mut cells: Vec<Cell> = vec![operation.as_str().into()];
        cells.extend(shown().map(|column| {
            let is_strong = times[column].is_some_and(|time| time <= shortest * (1.0 + SAME_SHARE));
            let text = numbers::fixed_or_dash(times[column], 1);
            Cell { text, is_strong, ..Cell::default() }
        }));
        table.push(cells);
    }
    table
}
