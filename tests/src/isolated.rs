//! Runs a test in its own process because it changes or measures process-wide state: resource
//! limits, the global subscriber, signal handlers, allocated bytes.

use std::any::type_name_of_val;
use std::env;
use std::process::Command;

/// Set in the environment of the child process to the name of the test it runs.
const CHILD: &str = "PEREGRINE_ISOLATED_TEST";

/// Runs `test` in a child process: this program again, with only the calling test.
///
/// Call it from the `#[test]` function itself with a closure written there: the closure's type
/// names the test.
///
/// # Panics
/// If the test fails, or no test has this name.
pub fn isolated(test: impl FnOnce()) {
    let name = test_named_by(type_name_of_val(&test));
    isolated_as(&name, test);
}

/// Like [`isolated`], but `case`, a closure written in the `#[test]` function, names the test, and
/// `run` runs it.
///
/// # Panics
/// If the test fails, or no test has this name.
pub fn isolated_case<C>(case: &C, run: impl FnOnce()) {
    isolated_as(&test_named_by(type_name_of_val(case)), run);
}

fn isolated_as(name: &str, run: impl FnOnce()) {
    if env::var(CHILD).is_ok_and(|child| child == name) {
        return run();
    }
    let child = Command::new(env::current_exe().expect("a running program has a path"))
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, name)
        .output()
        .expect("a child process can be started");
    let [stdout, stderr] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    print!("{stdout}");
    eprint!("{stderr}");
    assert!(child.status.success(), "{name} failed in its own process: {}", child.status);
    assert!(stdout.contains("1 passed"), "{name} is not a test of this program");
}

/// `program::module::test::{{closure}}` is a closure of the test `module::test`.
fn test_named_by(closure: &str) -> String {
    let test = closure.split("::{{closure}}").next().unwrap_or(closure);
    let (_program, test) = test.split_once("::").unwrap_or(("", test));
    test.to_owned()
}
