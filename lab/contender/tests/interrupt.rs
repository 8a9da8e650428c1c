//! Ctrl-C ends a build with all it started. It has a program of its own, since a signal reaches
//! every test of one.

#![cfg(target_os = "linux")]

use std::fs;
use std::process::Command;

use peregrine_lab_contender::{BuildError, Recipe, State};
use peregrine_lab_host::interrupt;

#[test]
fn an_interrupted_build_ends_with_its_children_and_is_no_failure_of_the_contender() {
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
