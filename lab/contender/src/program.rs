//! Programs that are asked something or build something: bounded in time and output, without
//! input, and ended with all they started.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use peregrine_lab_host::interrupt;
use peregrine_lab_host::server::{Launch, Server};

/// The shortest and the longest pause between two looks at a running program.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(100)];

/// What is run, and how long it may take.
#[derive(Debug)]
pub(crate) struct Task<'task> {
    /// Whose it is, for messages.
    pub(crate) name: &'task str,
    /// The program and its arguments.
    pub(crate) words: Vec<String>,
    /// Variables added to the environment.
    pub(crate) environment: BTreeMap<String, String>,
    /// Where it runs.
    pub(crate) folder: &'task Path,
    /// How long it may run.
    pub(crate) timeout: Duration,
    /// How much of the end of its output is kept.
    pub(crate) output_bytes_max: usize,
}

/// How a program ended. The output is what it wrote on both outputs, in the order of writing.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself.
    Exited { status: ExitStatus, output: String },
    /// Not at all: it never began.
    NotStarted(io::Error),
    /// It took too long and was killed.
    TimedOut { output: String },
    /// The user wants the lab to end, so it was killed.
    Interrupted { output: String },
}

impl Task<'_> {
    /// Runs to the end, and tells `progress` the last line of the output whenever it is another.
    pub(crate) fn run(self, progress: &mut dyn FnMut(&str)) -> Ended {
        let mut launch = Launch::new(self.name, &[]);
        launch.words = self.words;
        launch.environment = self.environment;
        launch.folder = self.folder.to_owned();
        launch.output_bytes_max = self.output_bytes_max;
        let end = Instant::now() + self.timeout;
        let server = match Server::start(&launch) {
            Ok(server) => server,
            Err(error) => return Ended::NotStarted(error),
        };
        let mut shown = String::new();
        let mut pause = PAUSES[0];
        let (is_late, is_interrupted) = loop {
            if server.has_ended() {
                break (false, false);
            }
            let flags = (Instant::now() >= end, interrupt::is_interrupted());
            if flags.0 || flags.1 {
                break flags;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES[1]);
            let output = server.output();
            if let Some(line) = output.lines().rev().find(|line| !line.trim().is_empty())
                && line != shown
            {
                progress(line.trim());
                line.clone_into(&mut shown);
            }
        };
        match server.stop(Duration::ZERO) {
            Ok(stopped) if is_interrupted => Ended::Interrupted { output: stopped.output },
            Ok(stopped) if is_late => Ended::TimedOut { output: stopped.output },
            Ok(stopped) => Ended::Exited { status: stopped.status, output: stopped.output },
            Err(error) => Ended::NotStarted(error),
        }
    }
}

/// Where the program that a command's first word names lies: the path itself, or the first
/// executable file of that name on the PATH.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| is_executable(path));
    }
    find_among(program, &std::env::var_os("PATH")?)
}

fn find_among(program: &str, folders: &OsStr) -> Option<PathBuf> {
    let paths = std::env::split_paths(folders).map(|folder| folder.join(program));
    paths.into_iter().find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The first line that says something, with an error before anything else.
pub(crate) fn first_line(output: &str) -> Option<&str> {
    let lines = || output.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.to_lowercase().contains("error")).or_else(|| lines().next())
}
