//! The program serves the example that is named, and reports errors.

use peregrine_axum_examples::catalogue::EXAMPLES;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peregrine-axum-examples"));
    command.args(arguments).env("ADDRESS", "127.0.0.1:0").env("COMPANION", "127.0.0.1:0");
    command
}

/// Kills the process if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_list_has_every_example_once() {
    let output = program(&["--list"]).output().expect("the program was built");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("the list is text");
    let mut names: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"todos") && names.len() >= 28, "{text}");
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn help_tells_where_it_listens() {
    let output = program(&["--help"]).output().expect("the program was built");
    assert!(output.status.success() && output.stderr.is_empty());
    let text = String::from_utf8(output.stdout).expect("help is text");
    for part in ["Usage: ", "--list", "ADDRESS=", "PORT=", "COMPANION=", "PEREGRINE_DRIVER="] {
        assert!(text.contains(part), "no {part}: {text}");
    }
}

#[test]
fn the_table_for_readers_is_the_list() {
    let table = include_str!("../../README.md");
    for example in EXAMPLES {
        let (name, shows) = (example.name, example.shows);
        let row = format!("| [{name}](src/{}.rs) | {shows} |", name.replace('-', "_"));
        assert!(table.contains(&row), "README.md lacks: {row}");
    }
    assert_eq!(table.matches("](src/").count(), EXAMPLES.len());
}

#[test]
fn a_name_that_is_not_in_the_list_is_an_error_that_says_so() {
    for (arguments, text) in [
        (&["todo"][..], "There is no example `todo`; `--list` prints all examples."),
        (&[][..], "Name an example"),
        (&["todos", "chat"][..], "Name an example"),
    ] {
        let output = program(arguments).output().expect("the program was built");
        assert_eq!(output.status.code(), Some(2));
        let stderr = String::from_utf8(output.stderr).expect("errors are text");
        assert!(stderr.contains(text), "{stderr}");
    }
}

#[test]
fn an_example_is_served_until_a_signal() {
    for (name, target, text) in [
        ("hello-world", "/", "Hello, World!"),
        ("testing", "/peer", "127.0.0.1:"),
        ("metrics", "/birds/wren", "wren"),
    ] {
        let mut command = program(&[name]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut running = Running(command.spawn().expect("the program was built"));
        let mut errors = BufReader::new(running.0.stderr.take().expect("stderr is piped"));
        // If the example has a companion, the companion starts first.
        let mut line = String::new();
        for _ in 0..if name == "metrics" { 2 } else { 1 } {
            line.clear();
            errors.read_line(&mut line).expect("the program reports its address");
        }
        let (_, rest) = line.split_once("http://").expect("a URL");
        let address = rest.split([',', ';']).next().expect("split gives one piece");
        let mut stream = TcpStream::connect(address).expect("the server listens");
        write!(stream, "GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            .expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the server responds and closes");
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(text), "{answer}");
        kill_process(Pid::from_child(&running.0), Signal::TERM).expect("the process runs");
        let mut report = String::new();
        errors.read_to_string(&mut report).expect("stderr is UTF-8");
        assert!(running.0.wait().expect("the process exits").success(), "{report}");
        assert!(report.contains("none was cut"), "{report}");
    }
}
