//! `doctor [--json]`: is this machine fit, and what may be said from runs on it?
//!
//! Exit codes: 0 green or amber, 3 red, 64 wrong arguments.

use std::process::ExitCode;

use peregrine_lab_host::doctor::{self, Badge};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let is_json = match words[..] {
        [] => false,
        ["--json"] => true,
        _ => {
            eprintln!("usage: doctor [--json]");
            return ExitCode::from(64);
        }
    };
    let diagnosis = doctor::examine();
    if is_json {
        let text = serde_json::to_string_pretty(&diagnosis)
            .expect("a diagnosis holds nothing that JSON cannot");
        println!("{text}");
    } else {
        print!("{diagnosis}");
    }
    if diagnosis.badge == Badge::Red { ExitCode::from(3) } else { ExitCode::SUCCESS }
}
