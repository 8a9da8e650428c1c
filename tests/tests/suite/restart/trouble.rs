//! External faults: the process is stopped for a while, its clock jumps, its output has no reader,
//! and operators overload the admin listener.

use crate::restart::on_both_drivers;
use crate::restart::program::{Program, answer, ask, say};
use crate::restart::{PATIENCE, load};
use rustix::process::Signal;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

on_both_drivers! {
    a_stopped_process_responds_to_waiting_clients_when_it_resumes,
    a_wall_clock_that_jumps_ends_no_connection_and_loses_no_request,
    a_program_whose_output_is_not_read_shuts_down_normally,
    probes_and_clients_get_responses_while_the_admin_listener_is_flooded,
}

/// Longer than any peer timeout of the plan `hurry`.
const STILL: Duration = Duration::from_secs(4);

/// The head and the content of a response that has `content`, on a connection that stays open.
fn reads(stream: &mut TcpStream, content: &str) -> io::Result<String> {
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.ends_with(content) {
        let count = stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::Error::other(format!("the connection ends after {text:?}")));
        }
        text.push_str(&String::from_utf8_lossy(&bytes[..count]));
    }
    Ok(text)
}

const KEPT: &[u8] = b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n";

fn a_stopped_process_responds_to_waiting_clients_when_it_resumes(driver: &str) {
    let mut program = Program::start(driver, "app tcp unix admin hurry workers=2");
    // A kept connection that sends again, a request in progress, and an incomplete upload.
    let mut kept = program.connects();
    kept.write_all(KEPT).expect("the server reads the request");
    reads(&mut kept, "yes").expect("a response");
    let mut slow = program.connects();
    ask(&mut slow, "/slow");
    let mut upload = program.connects();
    let head =
        "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n12345";
    upload.write_all(head.as_bytes()).expect("the server reads the request");
    // The requests have started.
    thread::sleep(Duration::from_millis(300));
    program.signal(Signal::STOP);
    kept.write_all(KEPT).expect("the kernel accepts the data");
    upload.write_all(b"67890").expect("the kernel accepts the data");
    // A client that connects while the process is stopped.
    let mut late = program.connects();
    ask(&mut late, "/process");
    let mut probe = TcpStream::connect(program.admin_address()).expect("the kernel listens");
    probe.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    ask(&mut probe, "/livez");
    thread::sleep(STILL);
    program.signal(Signal::CONT);
    assert_eq!(answer(late), program.process.to_string());
    assert_eq!(answer(slow), program.process.to_string());
    assert_eq!(answer(upload), "10");
    assert_eq!(answer(probe), "alive\n");
    reads(&mut kept, "yes").expect("the request was there in time");
    program.signal(Signal::TERM);
    assert!(program.first_ends().success());
}

/// A library that moves the wall clock, if there is a C compiler.
fn moved_clock(folder: &std::path::Path) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/restart/clock.c");
    let library = folder.join("clock.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]);
    let is_made = compiler.status().is_ok_and(|status| status.success());
    if !is_made {
        say("skipped: no C compiler is installed");
    }
    is_made.then_some(library)
}

/// The year of a response's `Date`.
fn year(response: &str) -> u32 {
    let date =
        response.lines().find_map(|line| line.strip_prefix("date: ")).expect("RFC 9110 §6.6.1");
    date.split(' ').nth(3).and_then(|year| year.parse().ok()).expect("a date")
}

fn a_wall_clock_that_jumps_ends_no_connection_and_loses_no_request(driver: &str) {
    let mut has_clock = false;
    let mut program =
        Program::start_with(driver, "app tcp tls workers=2", Vec::new(), |command, folder| {
            let Some(library) = moved_clock(folder) else { return };
            has_clock = true;
            command.env("LD_PRELOAD", library).env("CLOCK_FILE", folder.join("clock"));
        });
    if !has_clock {
        return;
    }
    let mut kept = program.connects();
    let mut ask_again = || {
        kept.write_all(KEPT).expect("the connection is open");
        reads(&mut kept, "yes").expect("a response")
    };
    let now = year(&ask_again());
    let mut slow = program.connects();
    ask(&mut slow, "/slow");
    let clients = load::Load::start(&program, load::Size { kept: 4, new: 2, tls: 2 });
    const YEARS: i64 = 10 * 366 * 24 * 3600;
    // Years forward, and years back.
    for (seconds, is_there) in [
        (YEARS, &(|year| year >= now + 9) as &dyn Fn(u32) -> bool),
        (-YEARS, &|year| year <= now - 9),
        (0, &|year| year <= now + 1 && year >= now),
    ] {
        let new = program.folder().join("new-clock");
        fs::write(&new, seconds.to_string()).expect("a file");
        fs::rename(new, program.folder().join("clock")).expect("the same folder");
        crate::restart::program::wait_until("the clock has jumped", || {
            is_there(year(&ask_a(&program)))
        });
        assert!(is_there(year(&ask_again())), "the open connection uses the new date");
        clients.goes_on();
    }
    clients.ends(&program);
    assert_eq!(answer(slow), program.process.to_string());
    ask_again();
    program.signal(Signal::TERM);
    assert!(program.first_ends().success());
}

/// A complete response.
fn ask_a(program: &Program) -> String {
    let mut stream = program.connects();
    ask(&mut stream, "/ready");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server responds");
    text
}

fn a_program_whose_output_is_not_read_shuts_down_normally(driver: &str) {
    let program = Program::start(driver, "app tcp");
    program.get("/process");
    assert!(program.ends_unheard().success());
}

/// The status line of a response of the admin listener.
fn probed(address: SocketAddr, target: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    ask(&mut stream, target);
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

fn probes_and_clients_get_responses_while_the_admin_listener_is_flooded(driver: &str) {
    let mut program = Program::start(driver, "app tcp admin workers=2");
    let clients = load::Load::start(&program, load::Size { kept: 64, new: 8, tls: 0 });
    let address = program.admin_address();
    let (is_over, pages) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let line = probed(address, "/metrics").expect("the server responds");
                    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
                    pages.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..20 {
            let before = pages.load(Ordering::Relaxed);
            crate::restart::program::wait_until("the flood is in progress", || {
                pages.load(Ordering::Relaxed) > before + 32
            });
            for target in ["/livez", "/readyz"] {
                let line = probed(address, target).expect("the server responds");
                assert!(line.starts_with("HTTP/1.1 200 "), "{target}: {line}");
            }
        }
        clients.goes_on();
        is_over.store(true, Ordering::Relaxed);
    });
    clients.ends(&program);
    program.signal(Signal::TERM);
    assert!(program.first_ends().success());
}
