//! `audit`: checks published benchmark numbers on paper. `audit --help` lists the options.

#![forbid(unsafe_code)]

use std::io::{self, Write as _};
use std::process::ExitCode;

use peregrine_lab_audit::command;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut output = io::stdout().lock();
    let mut complaints = io::stderr().lock();
    let code = command::run(&arguments, &mut output, &mut complaints)
        .and_then(|code| output.flush().map(|()| code));
    ExitCode::from(code.unwrap_or(command::EXIT_OUTPUT))
}
