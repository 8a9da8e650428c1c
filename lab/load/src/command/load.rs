//! The command `load`.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::load_options::{LOAD_USAGE, LoadOptions};
use super::text;
use crate::calibration::calibrate;
use crate::cross_check;
use crate::generator::{Outcome, Watch, run};
use crate::summary::{Record, Summary};
use crate::system::raise_descriptor_limit;

/// How often progress is shown.
const PROGRESS_PERIOD: Duration = Duration::from_millis(250);

/// The exit status of a wrong command line.
const WRONG_USAGE: u8 = 64;

/// The exit status where the client itself could not go on.
const FAILED: u8 = 74;

/// The exit status of a run in which nothing came, neither right nor wrong.
const SILENT: u8 = 2;

/// The exit status of a run with wrong answers.
const WRONG_ANSWERS: u8 = 4;

/// The exit status of a run that the client limited.
const CLIENT_BOUND: u8 = 5;

/// Runs `load` with these arguments (without the program's name). Ctrl-C ends the run early; what
/// was measured until then is reported.
#[must_use]
pub fn load(arguments: &[String]) -> ExitCode {
    if matches!(arguments.first().map(String::as_str), None | Some("--help" | "-h")) {
        print!("{LOAD_USAGE}");
        return ExitCode::SUCCESS;
    }
    let options = match LoadOptions::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("load: {error}");
            return ExitCode::from(WRONG_USAGE);
        }
    };
    match run_and_report(&options) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn run_and_report(options: &LoadOptions) -> io::Result<ExitCode> {
    raise_descriptor_limit()?;
    let watch = Watch::default();
    for signal in [SIGINT, SIGTERM] {
        // A second signal ends the program at once, in case the first one does not.
        signal_hook::flag::register_conditional_default(signal, watch.is_stopped.clone())?;
        signal_hook::flag::register(signal, watch.is_stopped.clone())?;
    }
    let ceiling = if options.is_calibrated {
        calibrate(&options.plan, &options.null_cpus, &Watch::stopped_by(&watch))?
    } else {
        None
    };
    let outcome = run_with_progress(options, &watch)?;
    let record = Record::new(&options.plan, &outcome, ceiling);
    let others = ask_others(options, &watch);
    let is_json_alone = options.json.as_ref().is_some_and(|path| path.as_os_str() == "-");
    if !is_json_alone {
        let mut text = text::describe(options, &record);
        text += &text::compare(&record.summary, &others);
        io::stdout().write_all(text.as_bytes())?;
    }
    if let Some(path) = &options.json {
        let file = serde_json::json!({ "url": options.url, "run": record, "others": others });
        let mut bytes = serde_json::to_vec_pretty(&file)?;
        bytes.push(b'\n');
        if is_json_alone {
            io::stdout().write_all(&bytes)?;
        } else {
            std::fs::write(path, bytes)?;
        }
    }
    Ok(match (record.is_valid, record.is_client_bound) {
        (false, _) if outcome.is_silent() => ExitCode::from(SILENT),
        (false, _) => ExitCode::from(WRONG_ANSWERS),
        (true, Some(true)) => ExitCode::from(CLIENT_BOUND),
        _ => ExitCode::SUCCESS,
    })
}

/// Runs the plan; on a terminal, one line shows how far it is.
fn run_with_progress(options: &LoadOptions, watch: &Watch) -> io::Result<Outcome> {
    if !io::stderr().is_terminal() {
        return run(&options.plan, watch);
    }
    let is_done = AtomicBool::new(false);
    let whole = options.plan.warmup + options.plan.duration;
    std::thread::scope(|scope| {
        let shower = scope.spawn(|| {
            let (start, mut before) = (Instant::now(), 0);
            while !is_done.load(Ordering::Relaxed) {
                std::thread::park_timeout(PROGRESS_PERIOD);
                let replies = watch.replies();
                let rate = (replies - before) as f64 / PROGRESS_PERIOD.as_secs_f64();
                before = replies;
                let line = text::progress(start.elapsed(), whole, rate, watch.faults());
                eprint!("\r{line}\x1b[K");
            }
            eprint!("\r\x1b[K");
        });
        let outcome = run(&options.plan, watch);
        is_done.store(true, Ordering::Relaxed);
        shower.thread().unpark();
        outcome
    })
}

/// Asks again with the other tools. One that is missing or fails is named, and no more.
fn ask_others(options: &LoadOptions, watch: &Watch) -> Vec<Summary> {
    let mut summaries = Vec::new();
    for &tool in &options.tools {
        if watch.is_stopped.load(Ordering::Relaxed) {
            break;
        }
        match cross_check::ask(tool, &options.plan, &options.wording, &options.url) {
            Ok(summary) => summaries.push(summary),
            Err(error) => eprintln!("load: {}: {error}", tool.program()),
        }
    }
    summaries
}
