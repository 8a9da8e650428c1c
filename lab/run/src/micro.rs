//! Benchmarks inside a process: a command that writes its times to a file.

use std::process::{Command, Stdio};

use peregrine_lab_model::RunFile;
use peregrine_lab_model::micro::Operation;
use peregrine_lab_scenario::{Micro, Scenario, micro};

use crate::error::RunError;
use crate::facts::{Facts, now_unix_s};

/// The most of a failed benchmark's output that is shown, in lines.
const LINES_SHOWN: usize = 15;

/// Runs the benchmark of a scenario and reads its times.
///
/// # Errors
///
/// [`RunError::NotReady`] if the command fails or its result cannot be read.
pub fn measure(scenario: &Scenario, benchmark: &Micro, facts: &Facts) -> Result<RunFile, RunError> {
    let folder = tempfile::tempdir().map_err(RunError::io("a temporary folder"))?;
    let result = folder.path().join("times.json");
    let (program, arguments) = benchmark
        .command
        .split_first()
        .ok_or_else(|| RunError::Invalid(format!("{}: no command", scenario.name)))?;
    let began = std::time::Instant::now();
    let output = Command::new(program)
        .args(arguments)
        .current_dir(&benchmark.folder)
        .env(&benchmark.result_variable, &result)
        .stdin(Stdio::null())
        .output()
        .map_err(RunError::io(format!("starting {program}")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
        return Err(RunError::NotReady(format!(
            "the benchmark of {} failed ({}):\n{last}",
            scenario.name, output.status
        )));
    }
    let text = std::fs::read_to_string(&result).map_err(RunError::io(format!(
        "the benchmark of {} wrote no result to ${}",
        scenario.name, benchmark.result_variable
    )))?;
    let rows = micro::read(&text).map_err(|error| RunError::NotReady(error.to_string()))?;
    let mut file = RunFile::new(scenario.name.clone());
    file.started_unix_s = now_unix_s();
    file.took_s = began.elapsed().as_secs_f64();
    file.tool = facts.tool.clone();
    file.machine = facts.machine.clone();
    file.plan.scenario.clone_from(&scenario.name);
    file.plan.description.clone_from(&scenario.title);
    file.plan.scenario_sha256.clone_from(&scenario.sha256);
    file.operations = rows
        .into_iter()
        .map(|row| Operation {
            operation: row.operation,
            mode: row.mode,
            contender: row.contender,
            nanoseconds: row.nanoseconds,
        })
        .collect();
    Ok(file)
}
