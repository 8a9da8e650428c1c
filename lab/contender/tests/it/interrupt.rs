//! Ctrl-C ends a build with all it started. The test runs in a child process, since a signal
//! reaches every test of a process.

use std::env;
use std::fs;
use std::process::Command;

use peregrine_lab_contender::{BuildError, Recipe, State};
use peregrine_lab_host::interrupt;

/// Set in the environment of the child process.
const IS_CHILD: &str = "PEREGRINE_TEST_INTERRUPT";

#[test]
fn an_interrupted_build_ends_with_its_children_and_is_no_failure_of_the_contender() {
    if env::var_os(IS_CHILD).is_some() {
        interrupt_a_build();
        return;
    }
    let name = "interrupt::\
                an_interrupted_build_ends_with_its_children_and_is_no_failure_of_the_contender";
    let child = Command::new(env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(IS_CHILD, "1")
        .output()
        .unwrap();
    let [output, errors] =
        [child.stdout, child.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(child.status.success(), "{output}{errors}");
    assert!(output.contains("1 passed"), "the child ran another test: {output}");
}

fn interrupt_a_build() {
    interrupt::watch().unwrap();
    let root = tempfile::tempdir().unwrap();
    let home = root.path().join("mine");
    fs::create_dir(&home).unwrap();
    let script = "sleep 600 & echo $! > pid; echo up; wait";
    let keys =
        format!("name = 'mine'\nbuild = ['sh', '-c', '{script}']\nrun = ['{{target}}/mine']");
    fs::write(home.join("contender.toml"), keys).unwrap();
    let recipe = Recipe::load(&home).unwrap();
    let target = root.path().join("built");
    let mut signal = |line: &str| {
        assert_eq!(line, "up");
        let own_id = std::process::id().to_string();
        assert!(Command::new("kill").args(["-INT", &own_id]).status().unwrap().success());
    };
    let error = recipe.build(&target, &mut signal).unwrap_err();
    assert!(matches!(error, BuildError::Interrupted), "{error}");
    let id = fs::read_to_string(home.join("pid")).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", id.trim())).unwrap_or_default();
    assert!(status.is_empty() || status.contains("State:\tZ"), "{status}");
    assert_eq!(
        fs::read_to_string(target.join("logs/mine.log")).unwrap().lines().last(),
        Some("up")
    );
    // A state cannot be asked while the lab ends; what counts is that no failure is on record.
    assert!(!matches!(recipe.state(&target), State::BuildFailed { .. }));
}
