//! Upgrades that fail: the server continues, and may retry.

use crate::restart::on_both_drivers;
use crate::restart::program::{Program, ask, is_running, signal_to, wait_until};
use crate::restart::{load, program::answer};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

on_both_drivers! {
    an_upgrade_whose_successor_is_killed_is_abandoned,
    an_upgrade_whose_successor_exits_is_abandoned,
    a_successor_whose_application_contradicts_itself_says_why,
    a_successor_that_is_never_ready_is_killed,
    a_program_that_cannot_be_started_is_named,
    one_upgrade_is_made_at_a_time,
    an_order_to_end_ends_the_successor_too,
    an_upgrade_whose_successor_is_terminated_is_abandoned,
    a_successor_whose_predecessor_is_killed_ends,
}

/// A server under load whose clients do not notice that an upgrade fails because of `fails`; and
/// the next upgrade succeeds.
fn goes_on_after(driver: &str, plan: &str, next: &str, fails: impl FnOnce(&mut Program)) {
    let mut program = Program::start(driver, plan);
    let first = program.process;
    let path = program.unix();
    let load = load::Load::start(&program, load::Size { kept: 4, new: 2, tls: 0 });
    program.plan(next);
    fails(&mut program);
    load.goes_on();
    assert_eq!(program.get("/process"), first.to_string());
    assert_eq!(program.get_unix("/process"), first.to_string());
    program.plan(plan);
    program.upgrade();
    load.goes_on();
    load.ends(&program);
    assert!(program.first_ends().success());
    assert!(path.exists());
}

fn an_upgrade_whose_successor_is_killed_is_abandoned(driver: &str) {
    goes_on_after(driver, "app tcp unix workers=2", "hangs tcp unix", |program| {
        program.signal(Signal::USR2);
        let next = program.next();
        program.says(" hangs");
        signal_to(next, Signal::KILL);
        let line = program.says("no upgrade");
        assert!(line.contains("ended before it served (signal: 9"), "{line}");
    });
}

fn an_upgrade_whose_successor_exits_is_abandoned(driver: &str) {
    goes_on_after(driver, "app tcp unix", "app dies", |program| {
        program.signal(Signal::USR2);
        let line = program.says("no upgrade");
        assert!(line.contains("ended before it served (exit status: 3)"), "{line}");
    });
}

fn a_successor_whose_application_contradicts_itself_says_why(driver: &str) {
    goes_on_after(driver, "app tcp unix", "broken tcp unix", |program| {
        program.signal(Signal::USR2);
        let line = program.says("no upgrade");
        assert!(line.contains("(exit status: 1): "), "{line}");
        program.says("GET /");
    });
}

fn a_successor_that_is_never_ready_is_killed(driver: &str) {
    goes_on_after(driver, "app tcp unix timeout=1500", "app never", |program| {
        program.signal(Signal::USR2);
        let next = program.next();
        let line = program.says("no upgrade");
        assert!(line.contains("did not serve within 1.5s and was killed"), "{line}");
        assert!(!is_running(next));
    });
}

fn a_program_that_cannot_be_started_is_named(driver: &str) {
    goes_on_after(driver, "app tcp unix program", "app tcp unix program", |program| {
        let path = program.folder().join("program");
        program.signal(Signal::USR2);
        let line = program.says("no upgrade");
        assert!(line.contains("cannot start the successor"), "{line}");
        assert!(line.contains(&*path.to_string_lossy()), "{line}");
        fs::write(&path, "no program").expect("a new file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .expect("the test owns the file");
        program.signal(Signal::USR2);
        let line = program.says("no upgrade");
        assert!(line.contains("successor"), "{line}");
        fs::remove_file(&path).expect("the file exists");
        symlink(std::env::current_exe().expect("the current executable has a path"), &path)
            .expect("a new name");
    });
}

fn one_upgrade_is_made_at_a_time(driver: &str) {
    goes_on_after(driver, "app tcp unix timeout=3000", "hangs tcp unix", |program| {
        program.signal(Signal::USR2);
        program.says(" hangs");
        program.signal(Signal::USR2);
        let line = program.says("no upgrade");
        assert!(line.contains("another upgrade is in progress"), "{line}");
        program.says("did not serve within");
    });
}

fn an_order_to_end_ends_the_successor_too(driver: &str) {
    let mut program = Program::start(driver, "app tcp unix");
    let path = program.unix();
    program.plan("hangs tcp unix");
    program.signal(Signal::USR2);
    let next = program.next();
    program.says(" hangs");
    program.signal(Signal::TERM);
    assert!(program.first_ends().success());
    assert!(!is_running(next), "the successor was killed before the server ended");
    assert!(!path.exists());
}

fn an_upgrade_whose_successor_is_terminated_is_abandoned(driver: &str) {
    goes_on_after(driver, "app tcp unix", "hangs tcp unix", |program| {
        program.signal(Signal::USR2);
        let next = program.next();
        program.says(" hangs");
        signal_to(next, Signal::TERM);
        let line = program.says("no upgrade");
        assert!(line.contains("ended before it served"), "{line}");
        assert!(!is_running(next));
    });
}

fn a_successor_whose_predecessor_is_killed_ends(driver: &str) {
    let mut program = Program::start(driver, "app tcp unix");
    let address = program.address();
    program.plan("slow tcp unix");
    program.signal(Signal::USR2);
    let next = program.next();
    program.says(" is slow");
    program.signal(Signal::KILL);
    program.first_ends();
    wait_until("the successor has ended", || !is_running(next));
    // The kernel tears a ring down, and with it the listener, only after its process is gone.
    wait_until("the listener is closed", || std::net::TcpStream::connect(address).is_err());
}

#[test]
fn another_program_on_the_same_standard_input_is_no_heir() {
    // The variable alone, as a successor's child inherits it, has no effect.
    let program = Program::start_with("tokio", "app tcp", Vec::new(), |command, _| {
        command.env("PEREGRINE_PREDECESSOR", "1:12345");
    });
    let mut stream = program.connects();
    ask(&mut stream, "/process");
    assert_eq!(answer(stream), program.process.to_string());
}
