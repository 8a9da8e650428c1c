//! One file for each command.

mod compare;
mod contenders;
mod ladder;
mod report;
pub(crate) mod reproduce;
mod run;
mod scenarios;
mod verify;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use peregrine_lab_host::doctor::{self, Badge};

use crate::exit::{Exit, Failure};
use crate::options::{Command, Options, Rest};
use crate::places::Places;

pub(crate) fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // The terminal may be gone; there is nobody left to tell.
            let _ = error.print();
            let is_help =
                matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if is_help { ExitCode::SUCCESS } else { Exit::Usage.into() };
        }
    };
    match &options.command {
        Command::Load(Rest { words }) => return peregrine_lab_load::command::load(words),
        Command::Null(Rest { words }) => return peregrine_lab_load::command::null_server(words),
        Command::Audit(Rest { words }) => return audit(&options, words),
        _ => {}
    }
    match carry_out(&options) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            eprintln!("lab: {}", failure.text);
            failure.exit.into()
        }
    }
}

fn carry_out(options: &Options) -> Result<Exit, Failure> {
    if let Command::Doctor { json } = options.command {
        return Ok(examine(json));
    }
    if let Command::Report(wanted) = &options.command {
        return report::report(wanted);
    }
    if let Command::Pack(wanted) = &options.command {
        return report::pack(wanted);
    }
    let places = Places::find(options.lab.as_deref(), options.target.as_deref())?;
    match &options.command {
        Command::Reproduce(wanted) => reproduce::reproduce(wanted, &places),
        Command::Run(wanted) => run::run(wanted, &places),
        Command::Compare(wanted) => compare::compare(wanted, &places),
        Command::Ladder(wanted) => ladder::ladder(wanted, &places),
        Command::Verify(wanted) => verify::verify(wanted, &places),
        Command::Contenders(wanted) => contenders::contenders(wanted, &places),
        Command::Scenarios => scenarios::scenarios(&places),
        Command::Doctor { .. }
        | Command::Audit(_)
        | Command::Load(_)
        | Command::Null(_)
        | Command::Report(_)
        | Command::Pack(_) => Ok(Exit::Right),
    }
}

fn examine(is_json: bool) -> Exit {
    let diagnosis = doctor::examine();
    if is_json {
        let text = serde_json::to_string_pretty(&diagnosis)
            .expect("a diagnosis holds nothing that JSON cannot");
        println!("{text}");
    } else {
        print!("{diagnosis}");
    }
    if diagnosis.badge == Badge::Red { Exit::Unfit } else { Exit::Right }
}

/// Claim files may be named as other commands name them: by path, below the lab, or by name.
fn audit(options: &Options, words: &[String]) -> ExitCode {
    let places = Places::find(options.lab.as_deref(), options.target.as_deref()).ok();
    let find = |word: &String| match &places {
        Some(places) if !word.starts_with('-') => places.claim(word.as_ref()).display().to_string(),
        _ => word.clone(),
    };
    // Options come with values; only a list without any is one of files.
    let is_by_hand = words.iter().any(|word| word.starts_with("--") && word != "--format");
    let words: Vec<String> =
        if is_by_hand { words.to_vec() } else { words.iter().map(find).collect() };
    let (mut output, mut complaints) = (io::stdout().lock(), io::stderr().lock());
    let code = peregrine_lab_audit::command::run(&words, &mut output, &mut complaints)
        .and_then(|code| output.flush().map(|()| code));
    ExitCode::from(code.unwrap_or(peregrine_lab_audit::command::EXIT_OUTPUT))
}
