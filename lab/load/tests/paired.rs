//! The program `paired` from the outside, with null servers for contenders.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "the helpers of tests may stop a test as well")]

use std::process::{Command, Output};

use serde_json::Value;

const NULL_SERVER: &str = env!("CARGO_BIN_EXE_null-server");

fn paired(arguments: &[&str]) -> Output {
    // Tests run on machines of any size, so nothing is pinned.
    let free = ["--server-cpus", "none", "--client-cpus", "none"];
    Command::new(env!("CARGO_BIN_EXE_paired")).args(arguments).args(free).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn two_null_servers_are_measured_in_paired_slices() {
    let folder = tempfile::tempdir().unwrap();
    for (workload, depth) in [("get-json", 1), ("pipelined", 16), ("post-project-work", 1)] {
        let file = folder.path().join(workload);
        let server = |name: &str| format!("{name}={NULL_SERVER} {workload}");
        let output = paired(&[
            "--workload",
            workload,
            "--connections",
            "4",
            "--slices",
            "5",
            "--slice-ms",
            "10",
            "--warmup",
            "1",
            "--server",
            &server("first"),
            "--server",
            &server("second"),
            "--out",
            file.to_str().unwrap(),
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let report = text(&output.stdout);
        assert!(report.contains("| second |") && report.contains("| A/A arm |"), "{report}");

        let run: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(run["workload"], workload);
        assert_eq!(run["contenders"][2]["name"], "first (again)");
        let slices = run["measured"]["slices"].as_array().unwrap();
        assert_eq!(slices.len(), 15);
        for slice in slices {
            let requests = slice["requests"].as_u64().unwrap();
            assert!(requests >= 4 * depth && requests % depth == 0, "{slice}");
            assert!(slice["server_cpu_ns"].as_u64().unwrap() > 0, "{slice}");
            assert_eq!(slice["faults"], serde_json::json!({}));
        }
    }
}

#[test]
fn a_server_that_answers_wrongly_is_not_measured() {
    let liar = format!("liar={NULL_SERVER} post-project-work");
    let output = paired(&["--workload", "pipelined", "--server", &liar]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("liar: no right answer") && error.contains("wrong status"), "{error}");
}

#[test]
fn a_server_that_does_not_start_is_named() {
    let server = format!("broken={NULL_SERVER} nothing");
    let output = paired(&["--server", &server]);
    assert!(!output.status.success());
    let error = text(&output.stderr);
    assert!(error.contains("broken: the server ended before it answered"), "{error}");
}

#[test]
fn memory_of_idle_connections_is_told() {
    let server = format!("null={NULL_SERVER} get-json");
    let output = paired(&["--memory", "--connections", "100", "--server", &server]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report = text(&output.stdout);
    assert!(report.contains("| null | 100 |"), "{report}");
}

#[test]
fn a_certificate_is_made_for_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_paired"))
        .args(["make-cert", "--out", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success());
    for (file, words) in [("cert.pem", "BEGIN CERTIFICATE"), ("key.pem", "BEGIN PRIVATE KEY")] {
        let content = std::fs::read_to_string(folder.path().join(file)).unwrap();
        assert!(content.contains(words), "{file}: {content}");
    }
}

#[test]
fn wrong_options_are_refused_with_a_reason() {
    let output = paired(&["--workload", "unknown", "--server", "a=b"]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("get-json"), "{}", text(&output.stderr));
}
