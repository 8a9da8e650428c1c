//! Fuzzes a target with stable Rust alone: `fuzz TARGET [--seconds N] [--seed N]`.

#![forbid(unsafe_code)]

use peregrine_fuzz::{TARGETS, Target, mutate::Mutator};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    match options(std::env::args().skip(1)) {
        Ok((target, duration, seed)) => run(target, duration, seed),
        Err(fault) => {
            let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
            eprintln!("{fault}\nusage: fuzz TARGET [--seconds N] [--seed N]");
            eprintln!("targets: {}", names.join(", "));
            ExitCode::from(2)
        }
    }
}

fn options(
    mut arguments: impl Iterator<Item = String>,
) -> Result<(&'static Target, Duration, u64), String> {
    let name = arguments.next().ok_or("no target")?;
    let target = TARGETS.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| format!("no such target: {name}"))?;
    let (mut seconds, mut seed) = (60, 1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number = value.parse().map_err(|_| format!("{value} is not a number"))?;
        match option.as_str() {
            "--seconds" => seconds = number,
            "--seed" => seed = number,
            _ => return Err(format!("no such option: {option}")),
        }
    }
    Ok((target, Duration::from_secs(seconds), seed))
}

/// Runs until the time is over or an input reveals a bug; that input is saved to a file.
fn run(target: &Target, duration: Duration, seed: u64) -> ExitCode {
    let mut mutator = Mutator::new((target.seeds)(), seed);
    let (start, mut executions) = (Instant::now(), 0_u64);
    while executions % 256 != 0 || start.elapsed() < duration {
        let input = mutator.next();
        executions += 1;
        if catch_unwind(AssertUnwindSafe(|| (target.run)(input))).is_err() {
            let path = keep(target.name, seed, executions, input);
            eprintln!("{} failed at execution {executions}; the input:", target.name);
            eprintln!("{}", input.escape_ascii());
            eprintln!("saved to {}", path.display());
            return ExitCode::FAILURE;
        }
    }
    let seconds = start.elapsed().as_secs();
    println!("{}: {executions} executions in {seconds} s, no fault (seed {seed})", target.name);
    ExitCode::SUCCESS
}

fn keep(name: &str, seed: u64, execution: u64, input: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(name);
    let path = folder.join(format!("{seed}-{execution}"));
    let kept = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    if let Err(error) = kept {
        eprintln!("the input could not be saved: {error}");
    }
    path
}
