//! A lab of its own in a folder that vanishes: scenarios, contenders, and the program that is
//! tested.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use peregrine_lab_model::RunFile;
use peregrine_lab_model::check::{Check, Outcome};
use peregrine_lab_model::verdict::{Decision, Measure, Verdict};

use crate::server::{ENTRY, Nature};

/// How long something that must happen is waited for before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a look takes in tests.
const LOOK: [&str; 2] = ["--look", "50ms"];

/// How long a slice takes in tests that do not set it.
const SLICE: [&str; 2] = ["--duration", "20ms"];

/// What all processes of a bench find in their environment, so that they can be found.
const MARK: &str = "TRIAL_BENCH";

const JSON: &str = r#"
[request]
target = "/json"
[reply]
fields = { content-type = "application/json" }
json = '{"message":"Hello, World!"}'
[[probe]]
name = "a path that nobody knows"
request = { target = "/nothing/{random:1..1000000}" }
reply = { status = 404 }
"#;

const SLEEP: &str = r#"
[request]
target = "/sleep/{ms=choice:1|20}"
[reply]
fields = { content-type = "text/plain" }
text = "{ms}"
[[probe]]
name = "no time at all"
request = { target = "/sleep/0" }
reply = { text = "0" }
"#;

const ECHO: &str = r#"
[request]
target = "/echo/{id=counter}"
[reply]
fields = { content-type = "text/plain" }
text = "{id}"
[[probe]]
name = "a word"
request = { target = "/echo/word" }
reply = { text = "word" }
"#;

const RELAY: &str = r#"
echo = true
[request]
target = "/relay/{id=random:1000..9999}"
[reply]
fields = { content-type = "text/plain" }
text = "{id}"
[[probe]]
name = "a word"
request = { target = "/relay/word" }
reply = { text = "word" }
"#;

const MESSAGES: &str = r#"
[request]
target = "/ws"
websocket = true
body = "number {id=counter}"
[reply]
text = "number {id}"
[[probe]]
name = "a word"
request = { target = "/ws", websocket = true, body = "word" }
reply = { text = "word" }
"#;

/// Every scenario of a bench: its name, its kind, what is asked, and its load.
const SCENARIOS: [(&str, &str, &str, &str); 9] = [
    ("json", "load", JSON, "connections = [4]"),
    ("echo", "load", ECHO, "connections = [2]\npipeline = 4"),
    ("churn", "load", JSON, "connections = [2]\nrequests_per_connection = 5"),
    ("shutdown", "shutdown", SLEEP, "connections = [8]"),
    ("overload", "overload", SLEEP, "connections = [4]\nfactor = 2.0"),
    ("idle", "idle", JSON, "connections = [2]\nidle_connections = 100"),
    ("latency", "latency", JSON, "connections = [4]\nshares = [0.2, 0.4, 0.6]"),
    ("relay", "load", RELAY, "connections = [4]"),
    ("messages", "load", MESSAGES, "connections = [4]"),
];

/// A folder with a lab in it.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it said.
    pub(crate) out: String,
    /// What it complained about.
    pub(crate) complaints: String,
}

impl Bench {
    /// A lab with the scenarios above and no contender.
    pub(crate) fn new() -> Bench {
        let bench = Bench { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(bench.path("lab/contenders")).unwrap();
        fs::create_dir_all(bench.path("lab/scenarios")).unwrap();
        for (name, kind, exchange, load) in SCENARIOS {
            let text = format!(
                "name = {name:?}\ntitle = \"a trial\"\nabout = \"It shows nothing.\"\n\
                 kind = {kind:?}\n{exchange}\n[load]\n{load}\n"
            );
            fs::write(bench.path(format!("lab/scenarios/{name}.toml")), text).unwrap();
        }
        bench
    }

    /// Adds a contender of this nature.
    pub(crate) fn contender(self, name: &str, nature: &Nature) -> Bench {
        let program = std::env::current_exe().unwrap();
        let mut text = format!(
            "name = {name:?}\ntls = false\nprotocols = [\"http/1.1\", \"h2c\"]\nrun = [{:?}, {ENTRY:?}, \"--exact\", \"--ignored\", \
             \"--nocapture\"]\n[environment]\n",
            program.display().to_string()
        );
        for (variable, value) in nature.variables() {
            writeln!(text, "{variable} = {value:?}").unwrap();
        }
        self.recipe(name, &text)
    }

    /// Adds a contender with this recipe.
    pub(crate) fn recipe(self, name: &str, text: &str) -> Bench {
        let folder = self.path(format!("lab/contenders/{name}"));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("contender.toml"), text).unwrap();
        self
    }

    /// A path in the folder.
    pub(crate) fn path(&self, within: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(within)
    }

    /// The program with these arguments, separated by blanks, ready to be started in the folder. Looks
    /// are short: no test depends on whether Date moves. So are slices, unless a budget decides.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        let has_looks = ["run ", "compare ", "reproduce "].iter().any(|one| line.starts_with(one))
            && !line.contains("--look");
        let has_slices = ["run ", "compare "].iter().any(|one| line.starts_with(one))
            && !["--duration", "--budget"].iter().any(|one| line.contains(one));
        command
            .args(line.split_whitespace())
            .args(has_looks.then_some(LOOK).into_iter().flatten())
            .args(has_slices.then_some(SLICE).into_iter().flatten())
            .current_dir(self.folder.path())
            .env(MARK, self.folder.path())
            .env("CARGO_TARGET_DIR", self.path("target"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn lab(&self, line: &str) -> Ended {
        Ended::of(self.start(line))
    }

    /// Runs the program with one more argument, which may hold blanks.
    pub(crate) fn lab_with(&self, line: &str, word: &str) -> Ended {
        Ended::of(self.command(line).arg(word).spawn().unwrap())
    }

    /// Starts the program.
    pub(crate) fn start(&self, line: &str) -> Child {
        self.command(line).spawn().unwrap()
    }

    /// A run file below the folder.
    pub(crate) fn file(&self, path: &str) -> RunFile {
        RunFile::read(&fs::read_to_string(self.path(path)).unwrap()).unwrap()
    }

    /// The run files in a folder, in the order of their names.
    pub(crate) fn files(&self, folder: &str) -> Vec<RunFile> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.ends_with(".json") && name != "report.json")
            .collect();
        names.sort();
        names.iter().map(|name| self.file(&format!("{folder}/{name}"))).collect()
    }

    /// The text of a file below the folder; empty if there is none.
    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// The processes that the program started, itself included: their ids and command lines.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mark = format!("{MARK}={}\0", self.folder.path().display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // It may have ended since the folder was read; who has ended has an empty environment.
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.windows(mark.len()).any(|part| part == mark.as_bytes()) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((id, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// How many contenders have a connection, beside their listening socket.
    pub(crate) fn connected_servers(&self) -> usize {
        let sockets = |id: u32| {
            let links = fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
            let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
            targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
        };
        let processes = self.processes();
        processes.iter().filter(|(id, line)| line.contains(ENTRY) && sockets(*id) > 1).count()
    }

    /// How many contenders run.
    pub(crate) fn servers(&self) -> usize {
        self.processes().iter().filter(|(_, line)| line.contains(ENTRY)).count()
    }
}

impl Ended {
    /// Waits for the end of a started program.
    pub(crate) fn of(child: Child) -> Ended {
        let output = child.wait_with_output().unwrap();
        Ended {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            complaints: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Stops the test unless the exit code is this one.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Ended {
        assert_eq!(
            self.code,
            Some(code),
            "it said:\n{}\nand complained:\n{}",
            self.out,
            self.complaints
        );
        self
    }

    /// Stops the test unless all of this was complained about.
    #[track_caller]
    pub(crate) fn complains(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.complaints.contains(text), "no {text:?} in:\n{}", self.complaints);
        }
    }

    /// Stops the test unless all of this was said.
    #[track_caller]
    pub(crate) fn says(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.out.contains(text), "no {text:?} in:\n{}", self.out);
        }
    }
}

/// Waits until it is so, or stops the test.
#[track_caller]
pub(crate) fn await_that(description: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "it did not come about that {description}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends a signal, such as `INT`, to one process.
pub(crate) fn signal(id: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &id.to_string()]).status().unwrap();
    assert!(status.success());
}

/// The verdict on a contender.
#[track_caller]
pub(crate) fn verdict<'a>(file: &'a RunFile, contender: &str, measure: Measure) -> &'a Verdict {
    file.verdicts
        .iter()
        .find(|verdict| verdict.contender == contender && verdict.measure == measure)
        .unwrap_or_else(|| panic!("no verdict on {contender}: {:#?}", file.verdicts))
}

/// Why the verdict on a contender that goes wrong in its slices is void. On a busy machine, on which the first
/// look at it may be repeated, it goes wrong there already and is left out: why that was.
#[track_caller]
pub(crate) fn why_void(file: &RunFile, contender: &str) -> String {
    let one = file.contenders.iter().find(|one| one.name == contender);
    if let Some(reason) = one.and_then(|one| one.skipped.clone()) {
        return reason;
    }
    let found = verdict(file, contender, Measure::ServerCpu);
    assert_eq!(found.decision, Decision::Void, "{found:?}");
    found.note.clone()
}

/// The check of this name about a contender.
#[track_caller]
pub(crate) fn check<'a>(file: &'a RunFile, contender: &str, name: &str) -> &'a Check {
    file.checks
        .iter()
        .find(|check| check.contender.as_deref() == Some(contender) && check.name.contains(name))
        .unwrap_or_else(|| panic!("no check {name} on {contender}: {:#?}", file.checks))
}

/// Whether a check about a contender failed.
pub(crate) fn has_failures(file: &RunFile, contender: &str) -> bool {
    file.checks.iter().any(|check| {
        check.contender.as_deref() == Some(contender) && check.outcome == Outcome::Failed
    })
}
