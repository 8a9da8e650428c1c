//! The program `load` from the outside, with null servers for targets.

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use peregrine_lab_load::calibration::calibrate;
use peregrine_lab_load::certificate;
use peregrine_lab_load::generator::{Plan, Secured, Watch, run};
use peregrine_lab_load::null::{self, NullServer, RequestEnd, Script};
use peregrine_lab_load::question::{BodyWording, Question, Wording};
use rustls::pki_types::ServerName;
use serde_json::Value;

const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

fn null_server() -> NullServer {
    let (end, reply) = (RequestEnd::EmptyLine, REPLY.to_vec());
    NullServer::start(Script { end, reply, last: None, tls: None }, Vec::new()).unwrap()
}

fn command(server: &NullServer, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.arg(format!("http://{}/", server.address())).args(arguments.split_whitespace());
    command
}

fn load(server: &NullServer, arguments: &str) -> Output {
    command(server, arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_closed_loop_is_called_so_in_words_and_in_the_run_file() {
    let server = null_server();
    let arguments = "--closed 4 --duration 200ms --no-calibration --expect-body hello";
    let output = load(&server, arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let words = text(&output.stdout);
    assert!(words.contains("closed loop over 4 connections"), "{words}");
    assert!(words.contains("not what users would see"), "{words}");
    // Progress is for terminals.
    assert!(output.stderr.is_empty());

    let output = load(&server, &format!("{arguments} --json -"));
    let file: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &file["run"];
    assert_eq!(run["is_closed_loop"], true);
    assert_eq!(run["is_valid"], true);
    assert_eq!(run["sent"], run["summary"]["replies"]);
    assert!(run["latency_v2"].as_str().unwrap().starts_with("1c849313"));
}

#[test]
fn an_open_loop_sends_what_its_schedule_says() {
    let server = null_server();
    // Also one that has no turn when the last requests are due.
    for burn in ["0ms", "7ms"] {
        let arguments = format!("--rate 500 --duration 1s --no-calibration --json - --burn {burn}");
        let output = load(&server, &arguments);
        let file: Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = &file["run"];
        let (sent, dropped) = (run["sent"].as_u64().unwrap(), run["dropped"].as_u64().unwrap());
        assert_eq!(sent + dropped, 500, "{sent} sent");
        assert_eq!(run["is_closed_loop"], false);
        assert_eq!(run["summary"]["schedule"], "open loop, constant 500/s");
    }
}

#[test]
fn what_is_beyond_the_number_of_requests_was_not_dropped() {
    let server = null_server();
    let arguments = "--rate 1k --requests 200 --connections 2 --no-calibration --json -";
    let output = load(&server, arguments);
    let file: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&file["run"]["sent"], &file["run"]["dropped"]), (&200.into(), &0.into()));
}

#[test]
fn a_slow_client_is_called_client_bound_and_a_quick_one_is_not() {
    let server = null_server();
    let slow = load(&server, "--closed 2 --duration 600ms --burn 20ms");
    assert!(text(&slow.stdout).contains("CLIENT-BOUND"), "{}", text(&slow.stdout));
    assert_eq!(slow.status.code(), Some(5));
    let quick = load(&server, "--rate 20 --duration 500ms --connections 2");
    assert!(!text(&quick.stdout).contains("CLIENT-BOUND"), "{}", text(&quick.stdout));
    assert_eq!(quick.status.code(), Some(0));
}

#[test]
fn wrong_answers_void_the_run() {
    let server = null_server();
    let output = load(&server, "--duration 100ms --no-calibration --expect-body hallo");
    assert_eq!(output.status.code(), Some(4));
    let words = text(&output.stdout);
    assert!(words.contains("VOID") && words.contains("wrong body"), "{words}");
}

#[test]
fn another_machine_is_refused_with_the_way_to_allow_it() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    let output = command.args(["http://192.0.2.1/", "--duration", "1s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("--i-own-this-target"));
}

#[test]
fn an_interrupt_leaves_a_readable_partial_result() {
    let server = null_server();
    let mut command = command(&server, "--rate 200 --duration 60s --no-calibration");
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = text(&output.stdout);
    assert!(words.contains("PARTIAL") && words.contains("p50"), "{words}");
}

#[test]
fn full_and_resumed_handshakes_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let tls = Some(null::tls(&certificate::write(folder.path()).unwrap()).unwrap());
    let question = Arc::new(Question::new(&Wording::default()).unwrap());
    let (mut usual, mut last) = (Vec::new(), Vec::new());
    question.render(0, false, &mut Vec::new(), &mut usual);
    question.render(0, true, &mut Vec::new(), &mut last);
    let closing = text(REPLY).replace("content", "connection: close\r\ncontent").into_bytes();
    let script = Script {
        end: RequestEnd::Bytes(usual.len()),
        reply: REPLY.to_vec(),
        last: Some((2, last.len(), closing)),
        tls,
    };
    let server = NullServer::start(script, Vec::new()).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    for is_resuming in [false, true] {
        let plan = Plan {
            tls: Some(Secured { server_name: name.clone(), is_resuming }),
            connections: 10,
            requests_per_connection: Some(2),
            requests_max: 40,
            ..Plan::new(server.address(), question.clone())
        };
        let outcome = run(&plan, &Watch::default()).unwrap();
        assert_eq!(outcome.faults.total(), 0, "{}", outcome.faults);
        assert_eq!(outcome.replies, 40);
        assert_eq!(outcome.alpn_missing, 0);
        let (full, resumed) = (outcome.handshakes_full, outcome.handshakes_resumed);
        assert!(full + resumed >= 20);
        if is_resuming {
            // The first have nothing to resume; of the ten that are made before the first request,
            // the last may have.
            assert!((1..=10).contains(&full), "{full} full handshakes");
            assert!(resumed >= 10, "{resumed} resumed handshakes");
        } else {
            assert_eq!(resumed, 0);
        }
    }
}

#[test]
fn the_client_is_calibrated_in_the_manner_of_the_run() {
    let wording = Wording {
        method: "POST".into(),
        target: "/{counter}?n={random:1..1000}".into(),
        body: Some(br#"{"n":{random:1..1000}}"#.to_vec()),
        expected_body: BodyWording::Json(r#"{"id":{counter},"n":{random:1..1000}}"#.into()),
        ..Wording::default()
    };
    let question = Arc::new(Question::new(&wording).unwrap());
    let server_name = ServerName::try_from("localhost").unwrap();
    let base = Plan {
        connections: 2,
        duration: Duration::from_millis(100),
        ..Plan::new("127.0.0.1:1".parse().unwrap(), question)
    };
    let plans = [
        base.clone(),
        Plan { depth: 4, ..base.clone() },
        Plan { requests_per_connection: Some(3), ..base.clone() },
        Plan { tls: Some(Secured { server_name, is_resuming: true }), ..base },
    ];
    for plan in plans {
        let ceiling = calibrate(&plan, &[], &Watch::default()).unwrap().unwrap();
        assert!(ceiling.rate > 0.0);
        assert!(ceiling.is_client_bound(ceiling.rate * 0.6));
        assert!(!ceiling.is_client_bound(ceiling.rate * 0.4));
    }
}

#[test]
fn silence_is_neither_right_nor_wrong() {
    // Connections are made by the kernel, and nobody takes them.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.arg(format!("http://{}/", listener.local_addr().unwrap()));
    let arguments = "--closed 2 --duration 50ms --timeout 30s --no-calibration";
    let output = command.args(arguments.split_whitespace()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
    let words = text(&output.stdout);
    assert!(words.contains("SILENT: nothing came in time") && !words.contains("VOID"), "{words}");
}
