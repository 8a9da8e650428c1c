//! Runs a test that reads or changes process-wide state in a separate process.

use std::env;
use std::process::Command;

/// Set in the child process; its value is the name of the test.
const ENV_VAR: &str = "PEREGRINE_TEST_IN_OWN_PROCESS";

/// Runs the calling test again, in a child process that runs no other test, and returns `true`;
/// returns `false` in that child. `name` is the full name of the test.
pub(crate) fn delegate(name: &str) -> bool {
    if env::var_os(ENV_VAR).is_some() {
        return false;
    }
    let program = env::current_exe().expect("the test program is a file");
    let mut child = Command::new(program);
    child.args([name, "--exact", "--nocapture"]).env(ENV_VAR, name);
    let output = child.output().expect("the test program can be started again");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stdout}{stderr}", output.status);
    assert!(stdout.contains("\nrunning 1 test\n"), "no test has the name {name}:\n{stdout}");
    print!("{stdout}");
    true
}
