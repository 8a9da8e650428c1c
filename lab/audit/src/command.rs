//! The command `audit`, apart from the process it runs in, so that a larger program can offer it.

use std::io::{self, Write};
use std::path::Path;

use crate::claim::Document;
use crate::read::{self, InputError};
use crate::report::Report;
use crate::{hand, render};

/// Nothing on the page is impossible. It may still mislead; the findings say how.
pub const EXIT_POSSIBLE: u8 = 0;
/// At least one number on a page cannot be a measurement.
pub const EXIT_IMPOSSIBLE: u8 = 3;
/// An option or a claim file could not be used; nothing was audited.
pub const EXIT_INPUT: u8 = 64;
/// The result could not be written.
pub const EXIT_OUTPUT: u8 = 74;

/// What `--help` prints.
pub const HELP: &str = "\
Checks published benchmark numbers against arithmetic. Sends nothing.

  audit [--format text|markdown|json] CLAIMS.toml...
  audit [--format ...] --connections 500 --rate 144342 --mean 4.99ms [more numbers]

Numbers by hand, each as the page prints it (a printed 4.99ms stands for 4.985ms to 4.995ms):
  --connections N       connections of the client
  --rate N              requests per second (also --rps)
  --mean --min --max    latency, with its unit: ns, us, ms, s
  --p50 --p75 --p90 --p95 --p99
  --bytes-per-second N  with its unit: MiB for what wrk prints as MB
  --threads N           threads of the load tool
  --timeout T           of the load tool; 2s for wrk if not given
  --duration T          of the run
  --requests N          counted in the run
  --errors --non-2xx --read-errors --timeouts N
  --tool NAME           wrk if not given
  --open                requests were sent by the clock, not after each reply

Exit codes: 0 nothing is impossible, 3 something is, 64 the input could not be used, 74 the
result could not be written.
";

/// How the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Aligned tables and paragraphs of at most 100 columns.
    Text,
    /// For documents.
    Markdown,
    /// For programs: one report, or one after another.
    Json,
}

/// Runs the command with its arguments (without the program's name) and returns the exit code.
///
/// # Errors
///
/// If `output` or `complaints` cannot be written to.
pub fn run(
    arguments: &[String],
    output: &mut dyn Write,
    complaints: &mut dyn Write,
) -> io::Result<u8> {
    if arguments.is_empty()
        || arguments.iter().any(|argument| argument == "--help" || argument == "-h")
    {
        output.write_all(HELP.as_bytes())?;
        return Ok(if arguments.is_empty() { EXIT_INPUT } else { EXIT_POSSIBLE });
    }
    let (format, documents) = match read_all(arguments) {
        Ok(read) => read,
        Err(error) => {
            writeln!(complaints, "{error}")?;
            return Ok(EXIT_INPUT);
        }
    };
    let mut code = EXIT_POSSIBLE;
    for (index, document) in documents.iter().enumerate() {
        let report = Report::of(document);
        if report.is_impossible() {
            code = EXIT_IMPOSSIBLE;
        }
        if index > 0 && format != Format::Json {
            writeln!(output)?;
        }
        output.write_all(written(&report, format).as_bytes())?;
    }
    Ok(code)
}

/// The report in a format.
#[must_use]
pub fn written(report: &Report, format: Format) -> String {
    match format {
        Format::Text => render::text(report),
        Format::Markdown => render::markdown(report),
        Format::Json => report.json(),
    }
}

fn read_all(arguments: &[String]) -> Result<(Format, Vec<Document>), InputError> {
    let (format, rest) = format_of(arguments)?;
    if rest.iter().any(|argument| argument.starts_with("--")) || rest.is_empty() {
        return Ok((format, vec![hand::document(&rest)?]));
    }
    let documents: Result<Vec<Document>, InputError> =
        rest.iter().map(|path| read::file(Path::new(path))).collect();
    Ok((format, documents?))
}

fn format_of(arguments: &[String]) -> Result<(Format, Vec<String>), InputError> {
    let mut rest = arguments.to_vec();
    let Some(index) = rest.iter().position(|argument| argument == "--format") else {
        return Ok((Format::Text, rest));
    };
    rest.remove(index);
    let word = if index < rest.len() { rest.remove(index) } else { String::new() };
    let format = match word.as_str() {
        "text" => Format::Text,
        "markdown" => Format::Markdown,
        "json" => Format::Json,
        _ => {
            return Err(InputError {
                file: "command line".to_owned(),
                line: None,
                key: "--format".to_owned(),
                problem: format!("`{word}` is not a format"),
                fix: "write text, markdown or json".to_owned(),
            });
        }
    };
    Ok((format, rest))
}
