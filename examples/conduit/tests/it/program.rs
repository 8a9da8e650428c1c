//! The program: its messages, start-up and shutdown.

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Kills the program if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in a temporary folder, without settings from the environment of the test.
fn program(folder: &tempfile::TempDir) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_conduit"));
    let ours = std::env::vars()
        .filter(|(name, _)| name.starts_with("CONDUIT_") || name.starts_with("PEREGRINE_"));
    for (name, _) in ours {
        program.env_remove(name);
    }
    program.current_dir(folder.path());
    program
}

#[test]
fn what_keeps_it_from_starting_is_told_with_the_cure() {
    let folder = tempfile::tempdir().expect("the disk is writable");
    for (arguments, variable, code, expected) in [
        (&["--help"][..], None, 0, ""),
        (&["--halp"], None, 2, "`--halp`; see `conduit --help`"),
        (&["--config"], None, 2, "needs the path"),
        (&[], None, 1, "CONDUIT_SECRET is not set"),
        (&[], Some(("CONDUIT_SECRET", "hush")), 1, "CONDUIT_SECRET has 4 bytes"),
        (
            &["--development"],
            Some(("CONDUIT_DATABASE", "none/x.db")),
            1,
            "CONDUIT_DATABASE: none/x.db cannot be opened",
        ),
        (
            &["--development"],
            Some(("CONDUIT_DATABASE_CONNECTIONS", "0")),
            1,
            "CONDUIT_DATABASE_CONNECTIONS is 0",
        ),
        (
            &["--development"],
            Some(("CONDUIT_TOKEN_LIFETIME", "7")),
            1,
            "expected a duration with its unit",
        ),
    ] {
        let output = program(&folder).args(arguments).envs(variable).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {variable:?}: {text}");
        assert!(text.contains(expected), "{arguments:?} {variable:?}: {text}");
        assert!(!text.contains("hush"), "{text}");
    }
    let document =
        program(&folder).args(["--development", "--document"]).output().expect("it starts");
    let document: serde_json::Value = serde_json::from_slice(&document.stdout).expect("valid JSON");
    assert_eq!(document["openapi"], "3.1.0");
}

#[test]
fn it_serves_until_it_is_told_to_end() {
    let folder = tempfile::tempdir().expect("the disk is writable");
    let mut program = program(&folder);
    program.arg("--development").env("PEREGRINE_LISTENERS__MAIN__ADDRESS", "127.0.0.1:0");
    let mut running = Running(program.stderr(Stdio::piped()).spawn().expect("it starts"));
    let mut lines = BufReader::new(running.0.stderr.take().expect("a pipe")).lines();
    // On a slow disk, warnings about slow statements may come between these lines.
    let mut line = |text: &str| lines.find_map(|line| line.ok().filter(|line| line.contains(text)));
    line("DEVELOPMENT").expect("the log shows the mode");
    let line = line("http://").expect("the log shows the address");
    let address =
        line.split("http://").nth(1).and_then(|rest| rest.split(';').next()).expect("an address");
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the server responds");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("well"), "{answer}");
    kill_process(Pid::from_child(&running.0), Signal::TERM).expect("the process runs");
    assert!(running.0.wait().expect("the process exits").success());
    // A database that was closed properly has no write-ahead log.
    assert!(
        folder.path().join("conduit.db").exists() && !folder.path().join("conduit.db-wal").exists()
    );
}
