//! The command `contract`: compares the OpenAPI documents of two versions of an API.
#![forbid(unsafe_code)]

use peregrine_openapi::diff::{Change, diff, find_dangling_ref};
use serde_json::{Value, json};
use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::process::ExitCode;

const USAGE: &str = "\
Reports the changes between two OpenAPI documents, and which of them break clients.

Usage: contract diff [--breaking] [--json] OLD NEW

  OLD, NEW     documents in JSON; one of them can be `-` for standard input
  --breaking   reports only changes that break clients
  --json       reports them as a JSON array

Exit status: 0 if no change breaks clients, 1 if one does, 2 if the documents cannot be compared.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        return print(USAGE, 0);
    }
    match compare(&arguments) {
        Ok((text, is_breaking)) => print(&text, u8::from(is_breaking)),
        Err(error) => {
            eprintln!("contract: {error}");
            ExitCode::from(2)
        }
    }
}

/// Prints `text`. Ignores a broken pipe, because the reader may have closed it early.
fn print(text: &str, status: u8) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("contract: cannot write the result: {error}");
            ExitCode::from(2)
        }
        _ => ExitCode::from(status),
    }
}

/// The text to print, and whether a change breaks clients.
fn compare(arguments: &[String]) -> Result<(String, bool), String> {
    let (options, rest): (Vec<_>, Vec<_>) =
        arguments.iter().map(String::as_str).partition(|argument| argument.starts_with("--"));
    if let Some(unknown) = options.iter().find(|option| !["--breaking", "--json"].contains(*option))
    {
        return Err(format!("there is no option `{unknown}`; see `contract --help`"));
    }
    let ["diff", old, new] = rest[..] else {
        return Err("expected `diff` and two documents; see `contract --help`".to_owned());
    };
    if old == "-" && new == "-" {
        return Err("only one of the documents can be standard input".to_owned());
    }
    let mut changes = diff(&read(old)?, &read(new)?);
    let breaking = changes.iter().filter(|change| change.is_breaking).count();
    if options.contains(&"--breaking") {
        changes.truncate(breaking);
    }
    let text =
        if options.contains(&"--json") { to_json(&changes) } else { to_text(&changes, breaking) };
    Ok((text, breaking > 0))
}

fn to_json(changes: &[Change]) -> String {
    let entry = |change: &Change| {
        json!({
            "breaking": change.is_breaking,
            "location": change.location,
            "rule": change.rule,
            "message": change.message,
        })
    };
    format!("{:#}\n", changes.iter().map(entry).collect::<Value>())
}

fn to_text(changes: &[Change], breaking: usize) -> String {
    let lines: String = changes.iter().map(|change| format!("{change}\n")).collect();
    let compatible = changes.len() - breaking.min(changes.len());
    match (breaking, compatible) {
        (0, 0) => "nothing changed that affects clients\n".to_owned(),
        (0, _) => format!("{lines}nothing breaks clients\n"),
        (1, _) => format!("{lines}1 change breaks clients\n"),
        _ => format!("{lines}{breaking} changes break clients\n"),
    }
}

fn read(path: &str) -> Result<Value, String> {
    let mut text = String::new();
    let result = match path {
        "-" => io::stdin().read_to_string(&mut text).map(drop),
        _ => fs::read_to_string(path).map(|content| text = content),
    };
    result.map_err(|error| format!("{path} cannot be read: {error}"))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| format!("{path} is not JSON: {error}; convert YAML documents first"))?;
    match value.get("openapi").and_then(Value::as_str) {
        Some(version) if version.starts_with("3.") => match find_dangling_ref(&value) {
            None => Ok(value),
            Some(reference) if reference.starts_with('#') => Err(format!(
                "{path} refers to `{reference}`, which is not in it, so it cannot be compared"
            )),
            Some(reference) => Err(format!(
                "{path} refers to `{reference}` outside of it: combine all parts into one document with a bundler first"
            )),
        },
        Some(version) => {
            Err(format!("{path} is an OpenAPI {version} document; only 3.x is supported"))
        }
        None => Err(format!("{path} is not an OpenAPI document: it has no member `openapi`")),
    }
}
