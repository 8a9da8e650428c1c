//! How a server ends apart from its connections: signals at any time, workers that fail, and a
//! surrounding runtime. And how rarely its threads wake up until then.
#![cfg(target_os = "linux")]

use peregrine::prelude::*;
use peregrine::testing::TestServer;
use peregrine::{DriverChoice, Error, Limits, Server};
use peregrine_tests::server::secure::server_tls;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// The duration of work that must be interrupted.
const LONG: Duration = Duration::from_secs(60);

fn two() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("the value is not zero")
}

/// A child of this test: this program again.
struct Program {
    process: Child,
    errors: BufReader<std::process::ChildStderr>,
}

impl Program {
    fn start(case: &str) -> Self {
        let mut process =
            Command::new(std::env::current_exe().expect("the current executable has a path"))
                .args(["--exact", "ending::the_child_does_what_its_case_says", "--nocapture"])
                .env(CASE, case)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .expect("a process can be started");
        let errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        Self { process, errors }
    }

    /// Reads lines up to one that contains `text`, and returns that line.
    fn says(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let start = all.len();
            let length = self.errors.read_line(&mut all).expect("text");
            assert!(length > 0, "never printed {text:?}, but:\n{all}");
            if all[start..].contains(text) {
                return all.split_off(start);
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the process is running");
    }

    /// Its exit status, and its last output.
    fn ends(mut self) -> (ExitStatus, String) {
        let end = Instant::now() + PATIENCE;
        while self.process.try_wait().expect("the process is a child of this one").is_none() {
            assert!(Instant::now() < end, "the process does not exit");
            thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).expect("text");
        (self.process.wait().expect("the process exits"), rest)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The signals that end a child process by default. A shell without job control starts programs in
/// the background with SIGINT ignored, and children inherit that.
fn ending_signals() -> impl Iterator<Item = Signal> {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux provides it");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.expect("a mask").trim(), 16).expect("a number");
    let is_ignored = move |signal: &Signal| ignored >> (signal.as_raw() - 1) & 1 == 1;
    [Signal::TERM, Signal::INT].into_iter().filter(move |signal| !is_ignored(signal))
}

const CASE: &str = "PEREGRINE_ENDING_CASE";

/// The child of tests here; it does nothing unless one of them started it.
#[test]
fn the_child_does_what_its_case_says() {
    let server = || Server::bind("127.0.0.1:0").workers(two());
    match std::env::var(CASE).as_deref() {
        Ok("slow-start") => {
            let made = Arc::new(AtomicUsize::new(0));
            let served = server().serve(move || {
                if made.fetch_add(1, Ordering::SeqCst) > 0 {
                    eprintln!("the server begins");
                    thread::sleep(LONG);
                }
                App::new()
            });
            eprintln!("served: {served:?}");
            std::process::exit(i32::from(served.is_err()));
        }
        Ok("goes-on") => {
            server().serve(App::new).expect("the server shuts down cleanly");
            eprintln!("the program continues");
            thread::sleep(LONG);
        }
        Ok("has-a-handler-of-its-own") => in_runtime(async {
            let kind = tokio::signal::unix::SignalKind::terminate();
            let mut own =
                tokio::signal::unix::signal(kind).expect("a signal handler can be installed");
            server().serve(App::new).expect("the server shuts down cleanly");
            own.recv().await;
            eprintln!("the program continues");
            own.recv().await;
            eprintln!("a second signal arrived");
        }),
        Ok(case) if case.starts_with("tower") => in_runtime(async {
            let router = axum::Router::new().route("/", axum::routing::get("hello"));
            let mut serving = if case.contains("tls") {
                peregrine::tower::serve_tls("127.0.0.1:0", server_tls(), router)
            } else {
                peregrine::tower::serve("127.0.0.1:0", router)
            };
            if case.contains("tokio") {
                serving = serving.configure(|server| server.driver(DriverChoice::Tokio));
            }
            if case.contains("asks") {
                serving = serving.shut_down_on_signals();
            }
            serving.await.expect("the server shuts down cleanly");
            eprintln!("the program continues");
            thread::sleep(LONG);
        }),
        Ok("idle") => server()
            .serve(|| App::new().get("/", || "hello"))
            .expect("the server shuts down cleanly"),
        _ => {}
    }
}

fn in_runtime<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime starts").block_on(future)
}

#[test]
fn a_signal_during_the_start_ends_the_program_in_order() {
    for signal in ending_signals() {
        let mut program = Program::start("slow-start");
        program.says("the server begins");
        program.signal(signal);
        let (status, rest) = program.ends();
        assert!(status.success(), "{status}: {rest}");
        assert!(rest.contains("served: Ok"), "{rest}");
    }
}

#[test]
fn a_signal_ends_a_program_whose_server_has_ended() {
    for signal in ending_signals() {
        let mut program = Program::start("goes-on");
        program.says("peregrine ");
        program.signal(Signal::TERM);
        program.says("the program continues");
        program.signal(signal);
        assert_eq!(program.ends().0.signal(), Some(signal.as_raw()));
    }
}

/// As under `axum::serve`: a program that does more than serving does not continue without its
/// server.
#[test]
fn a_tower_service_is_served_without_handlers_of_signals_unless_they_are_asked_for() {
    for case in ["tower", "tower tokio", "tower tls"] {
        for signal in ending_signals() {
            let mut program = Program::start(case);
            program.says("peregrine ");
            program.signal(signal);
            assert_eq!(program.ends().0.signal(), Some(signal.as_raw()), "{case}");
            // With signal handlers, the first signal ends the server, and the next one ends the
            // process.
            let mut program = Program::start(&format!("{case} asks"));
            program.says("peregrine ");
            program.signal(signal);
            program.says("the program continues");
            program.signal(signal);
            assert_eq!(program.ends().0.signal(), Some(signal.as_raw()), "{case}");
        }
    }
}

#[test]
fn handlers_that_the_program_had_before_go_on_when_its_server_has_ended() {
    let mut program = Program::start("has-a-handler-of-its-own");
    program.says("peregrine ");
    program.signal(Signal::TERM);
    program.says("the program continues");
    program.signal(Signal::TERM);
    program.says("a second signal arrived");
    let (status, rest) = program.ends();
    assert!(status.success(), "{status}: {rest}");
}

/// How often each thread of a process has gone to sleep, by name, without the drivers' own threads.
fn sleeps(process: &Child) -> BTreeMap<String, u64> {
    let tasks =
        std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("the process is running");
    let mut sleeps = BTreeMap::new();
    for task in tasks {
        let path = task.expect("the process is running").path();
        let name = std::fs::read_to_string(path.join("comm")).expect("the process is running");
        let status = std::fs::read_to_string(path.join("status")).expect("the process is running");
        let count = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        let count = count.expect("Linux tells it").trim().parse().expect("a number");
        let is_worker =
            name.trim().strip_prefix("peregrine-").is_some_and(|n| n.parse::<u8>().is_ok());
        if !is_worker {
            sleeps.insert(name.trim().to_owned(), count);
        }
    }
    sleeps
}

#[test]
fn nobody_beside_the_workers_is_woken_while_nothing_happens() {
    let mut program = Program::start("idle");
    let line = program.says("peregrine ");
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(';').next());
    let mut peer = TcpStream::connect(address.expect("the address is known").trim())
        .expect("the server accepts connections");
    for _ in 0..2 {
        peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the stream is still open");
        assert!(peer.read(&mut [0; 1024]).expect("a response") > 0);
        // Deferred work is done by now, although it runs only a few times per second.
        thread::sleep(Duration::from_secs(1));
        let before = sleeps(&program.process);
        assert!(before.keys().any(|name| name == "peregrine-watch"), "{before:?}");
        thread::sleep(Duration::from_secs(3));
        assert_eq!(sleeps(&program.process), before);
    }
    drop(peer);
    program.signal(Signal::TERM);
    assert!(program.ends().0.success());
}

#[test]
fn inside_a_runtime_what_keeps_a_server_from_starting_is_an_error() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = taken.local_addr().expect("the socket is bound").to_string();
    in_runtime(async {
        let error = peregrine::serve(address.clone(), App::new).expect_err("the port is taken");
        assert!(matches!(error, Error::Bind { .. }), "{error}");
        let router = axum::Router::new();
        let error = peregrine::tower::serve(address, router).await.expect_err("the port is taken");
        assert!(matches!(error, Error::Bind { .. }), "{error}");
    });
}

#[test]
fn inside_a_runtime_a_server_may_wait_for_signals() {
    in_runtime(async {
        let server = TestServer::start(App::new).expect("the server starts");
        let handle = server.server().handle();
        let orders = thread::spawn(move || handle.graceful_shutdown());
        server.into_server().wait_for_signal().expect("the shutdown succeeds");
        orders.join().expect("the task does not panic");
    });
}

/// Panics when it is dropped, on one worker.
struct Fragile(bool);

impl Drop for Fragile {
    fn drop(&mut self) {
        assert!(!self.0, "a state on purpose");
    }
}

#[test]
fn a_worker_that_panics_is_named_with_what_it_said_and_the_others_end_in_order() {
    let (made, answered) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let ended = Arc::clone(&answered);
    let make = move || {
        let state = Rc::new(Fragile(made.fetch_add(1, Ordering::SeqCst) == 0));
        let ended = Arc::clone(&ended);
        App::new().get("/", move || {
            let (state, ended) = (Rc::clone(&state), Arc::clone(&ended));
            async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                ended.fetch_add(1, Ordering::SeqCst);
                drop(state);
            }
        })
    };
    let limits = Limits { shutdown_timeout: LONG, ..Limits::default() };
    let server = TestServer::start_with(|server| server.workers(two()).limits(limits), make);
    let server = server.expect("the server starts");
    let mut peers: Vec<_> = (0..20)
        .map(|_| TcpStream::connect(server.address()).expect("the server accepts connections"))
        .collect();
    for peer in &mut peers {
        peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("the stream is still open");
    }
    thread::sleep(Duration::from_millis(100));
    let error = server.into_server().graceful_shutdown().expect_err("a worker panicked");
    let text = error.to_string();
    assert!(text.contains("panicked: a state on purpose"), "{text}");
    assert!(text.contains("worker 0") || text.contains("worker 1"), "{text}");
    assert_eq!(answered.load(Ordering::SeqCst), peers.len(), "every request was answered before");
}

#[test]
fn an_application_that_panics_while_it_is_built_is_reported_with_its_message() {
    let make = || -> App { panic!("no configuration on purpose") };
    let error = TestServer::start_with(|server| server.workers(two()), make).map(drop);
    let text = error.expect_err("the server does not start").to_string();
    assert!(text.contains("no configuration on purpose"), "{text}");
}
