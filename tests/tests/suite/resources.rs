//! The cost of a server under abuse: memory, descriptors and CPU time of a child process; and
//! how it ends.
//!
//! The child is this test binary with another environment, so that the figures are the server's
//! alone. The bounds are for a test build with the system's allocator; they distinguish a bounded
//! cost from one that grows with what a peer sends, and do not show how small the cost is.
#![cfg(target_os = "linux")]

use peregrine::bytes::Bytes;
use peregrine::prelude::*;
use peregrine::{DriverChoice, Limits};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

/// One test per driver, because only one server per driver is measured at a time: a test per case
/// would wait for the others, and keep a thread from the rest of the suite.
macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        const CASES: &[(&str, fn(&str))] = &[$((stringify!($case), $case)),*];
    };
}

#[test]
fn on_tokio() {
    run_cases("tokio");
}

#[test]
fn on_uring() {
    run_cases("uring");
}

/// Runs all cases, or those whose name contains the value of the variable `CASE`.
fn run_cases(driver: &str) {
    let filter = std::env::var("CASE").unwrap_or_default();
    let selected = CASES.iter().filter(|(name, _)| name.contains(&filter));
    let has_failed = |(name, case): &(&'static str, fn(&str))| {
        println!("-- {name}");
        catch_unwind(|| case(driver)).is_err().then_some(*name)
    };
    let failed: Vec<_> = selected.filter_map(has_failed).collect();
    assert!(failed.is_empty(), "failed on {driver}: {}", failed.join(", "));
}

on_both_drivers! {
    a_start_touches_little_memory,
    a_further_worker_touches_little_memory,
    idle_connections_cost_little_memory_and_no_time,
    readers_that_do_not_read_cost_bounded_memory,
    writers_that_nobody_reads_cost_bounded_memory,
    many_small_chunks_cost_no_more_than_their_bytes,
    descriptors_come_back_however_connections_end,
    a_server_without_descriptors_neither_spins_nor_dies,
    a_drain_without_descriptors_responds_to_all_waiting_clients,
    the_admin_listener_responds_while_no_descriptors_are_left,
    an_endless_stream_that_is_not_to_be_sent_holds_nobody_up,
    too_few_threads_are_reported_before_the_first_line,
    too_few_descriptors_are_reported_before_the_first_line,
    a_signal_under_load_ends_the_process_in_order,
    a_signal_right_after_the_first_line_is_not_lost,
    a_second_signal_ends_what_the_first_waits_for,
}

#[test]
fn too_few_descriptors_are_reported_where_the_driver_is_chosen() {
    too_few_descriptors_are_reported_before_the_first_line("auto");
}

/// The longest that anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(30);
/// Enough connections for an average.
const PEERS: usize = 40;
/// The most that one busy connection may cost, in KiB: a few buffers of 64 KiB.
const BUSY_KIB_MAX: usize = 512;
/// The most that one idle connection may cost, in bytes.
const IDLE_BYTES_MAX: usize = 4096;
/// The most that a worker with `MANY_ROUTES` may cost before it has served many requests, in KiB.
const WORKER_KIB_MAX: usize = 2048;
/// The most that the process may cost beside its workers, and beside a process without a server.
const PROCESS_KIB_MAX: usize = 1024;
/// The number of routes of a large application.
const MANY_ROUTES: &str = "400";

fn a_start_touches_little_memory(driver: &str) {
    let mut empty = spawn("none", &[]);
    let mut line = String::new();
    let mut errors = BufReader::new(empty.stderr.take().expect("the stream is piped"));
    errors.read_line(&mut line).expect("the process reports its address");
    let without = anonymous_kib(&empty);
    empty.kill().expect("the process is running");
    empty.wait().expect("the process exits");
    let Some(server) = Server::start(driver, &[("ROUTES", MANY_ROUTES)]) else { return };
    let start = server.memory_kib() - without;
    println!(
        "{driver}: {start} KiB for one worker, in addition to {without} KiB of an empty program"
    );
    assert!(start <= PROCESS_KIB_MAX + WORKER_KIB_MAX, "{start} KiB for one worker");
    server.ends_well();
}

fn a_further_worker_touches_little_memory(driver: &str) {
    const FURTHER: usize = 7;
    let [one, all] = [1, 1 + FURTHER].map(|workers| {
        let settings = [("ROUTES", MANY_ROUTES), ("WORKERS", &workers.to_string())];
        let server = Server::start(driver, &settings)?;
        let memory = server.memory_kib();
        server.ends_well();
        Some(memory)
    });
    let (Some(one), Some(all)) = (one, all) else { return };
    let each = all.saturating_sub(one) / FURTHER;
    println!("{driver}: {each} KiB for each of {FURTHER} further workers");
    assert!(each <= WORKER_KIB_MAX, "{each} KiB for each of {FURTHER} further workers");
}

fn idle_connections_cost_little_memory_and_no_time(driver: &str) {
    // Both drivers' tests may run at the same time, and beside the rest of the suite.
    let count = (descriptors_max() as usize / 4).saturating_sub(500).clamp(200, 10_000);
    let Some(server) = Server::start(driver, &[]) else { return };
    // The worker's pools fill, and keep their memory.
    drop(server.connect_many(200));
    server.wait_until("the first peers are gone", |server| server.descriptors() == server.base);
    let before = server.memory_kib();
    let start = Instant::now();
    let peers = server.connect_many(count);
    let opening = start.elapsed();
    let each = server.memory_kib().saturating_sub(before) * 1024 / count;
    println!("{driver}: {each} bytes of user memory for each of {count} idle connections");
    assert!(each <= IDLE_BYTES_MAX, "{each} bytes for each of {count} idle connections");
    let share = server.busy_share(Duration::from_secs(1));
    assert!(share < 0.1, "idle connections keep the server busy: {share}");
    // The signal and the grace period close idle connections, at a cost proportional to their
    // number.
    let start = Instant::now();
    let (status, report) = server.end(Signal::TERM);
    let closing = start.elapsed().saturating_sub(Limits::default().drain_idle_timeout);
    println!("{driver}: opened in {opening:?}, closed in {closing:?}");
    assert!(closing < opening * 2, "opened in {opening:?}, closed in {closing:?}");
    assert!(status.success(), "{status}\n{report}");
    assert!(report.contains("none was cut"), "{report}");
    for mut peer in peers {
        assert_eq!(peer.read(&mut [0; 16]).expect("the stream ends cleanly"), 0);
    }
}

fn readers_that_do_not_read_cost_bounded_memory(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    let before = server.memory_kib();
    let mut peers = Vec::new();
    for number in 0..PEERS {
        let target = if number % 2 == 0 { "/endless" } else { "/large" };
        let mut peer = server.connect();
        peer.set_nonblocking(true).expect("the socket option can be set");
        let requests = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(1_000);
        // As much as the kernel accepts.
        let _ = peer.write(requests.as_bytes());
        peers.push(peer);
    }
    server.stands_still(before);
    server.answers();
    drop(peers);
    server.wait_until("every connection is closed", |server| server.descriptors() == server.base);
    server.ends_well();
}

fn writers_that_nobody_reads_cost_bounded_memory(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    let before = server.memory_kib();
    let head = "POST /never HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n";
    let piece = vec![b'x'; 64 * 1024];
    let peers: Vec<_> = (0..PEERS).map(|_| server.write_until_held(head, &piece)).collect();
    server.stands_still(before);
    server.answers();
    drop(peers);
}

fn many_small_chunks_cost_no_more_than_their_bytes(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    let before = server.memory_kib();
    let head = "POST /never HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let piece = "1\r\nx\r\n".repeat(8 * 1024).into_bytes();
    let peers: Vec<_> = (0..PEERS).map(|_| server.write_until_held(head, &piece)).collect();
    server.stands_still(before);
    server.answers();
    drop(peers);
}

fn descriptors_come_back_however_connections_end(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    let threads = server.threads();
    let requests: [&[u8]; 8] = [
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET /large HTTP/1.1\r\nHost: a\r\n\r\nGET /large HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc",
        b"POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    ];
    for round in 0..50 {
        for request in requests {
            let mut peer = server.connect();
            peer.write_all(request).expect("the kernel accepts some data");
            match round % 3 {
                // A reset instead of a clean end.
                0 => socket2::SockRef::from(&peer)
                    .set_linger(Some(Duration::ZERO))
                    .expect("the socket option can be set"),
                1 => {
                    let _ = peer.shutdown(Shutdown::Write);
                    let _ = peer.read(&mut [0; 64]);
                }
                _ => {}
            }
        }
    }
    server.wait_until("every connection is closed", |server| server.descriptors() == server.base);
    assert_eq!(server.threads(), threads);
    server.answers();
    server.ends_well();
}

fn a_server_without_descriptors_neither_spins_nor_dies(driver: &str) {
    let Some(server) = Server::start(driver, &[("DESCRIPTORS", "64")]) else { return };
    // Connections beyond the limit wait in the backlog.
    let mut peers: Vec<_> = (0..150).map(|_| server.connect()).collect();
    // Descriptors opened before the limit was lowered may exceed it.
    server.wait_until("all descriptors are used", |server| server.descriptors() >= 64);
    let share = server.busy_share(Duration::from_secs(1));
    assert!(share < 0.2, "without descriptors the server is busy: {share}");
    peers[0]
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .expect("the server accepted the connection");
    assert!(peers[0].read(&mut [0; 64]).expect("the server accepted the connection") > 0);
    drop(peers);
    server.answers();
    server.wait_until("every connection is closed", |server| server.descriptors() == server.base);
    server.ends_well();
}

fn a_drain_without_descriptors_responds_to_all_waiting_clients(driver: &str) {
    let settings = [("DESCRIPTORS", "64"), ("SHUTDOWN_SECONDS", "25")];
    let Some(server) = Server::start(driver, &settings) else { return };
    let peers: Vec<_> = (0..150)
        .map(|_| {
            let mut peer = server.connect();
            peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                .expect("the kernel accepts the data");
            peer
        })
        .collect();
    server.wait_until("all descriptors are used", |server| server.descriptors() >= 64);
    // Answered connections are idle, and free their descriptors for waiting ones.
    let (status, report) = server.end(Signal::TERM);
    assert!(status.success() && report.contains("none was cut"), "{status}\n{report}");
    for (number, mut peer) in peers.into_iter().enumerate() {
        let mut answer = [0; 512];
        let count = peer.read(&mut answer).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(answer[..count].starts_with(b"HTTP/1.1 200 "), "{number} was not answered");
    }
}

fn the_admin_listener_responds_while_no_descriptors_are_left(driver: &str) {
    let settings = [("DESCRIPTORS", "64"), ("ADMIN", "127.0.0.1:0")];
    let Some(server) = Server::start(driver, &settings) else { return };
    let peers: Vec<_> = (0..150).map(|_| server.connect()).collect();
    server.wait_until("all descriptors are used", |server| server.descriptors() >= 64);
    let admin = server.admin.clone().expect("the server has an admin listener");
    let connect = || {
        let peer = TcpStream::connect(&admin).expect("the server accepts connections");
        peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        peer
    };
    for round in 0..10 {
        // A silent client keeps no other client out.
        let silent = connect();
        let mut peer = connect();
        peer.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("the kernel accepts the data");
        let mut answer = String::new();
        let read = peer.read_to_string(&mut answer);
        assert!(read.is_ok() && answer.starts_with("HTTP/1.1 200 "), "{round}: {read:?} {answer}");
        drop(silent);
    }
    drop(peers);
    server.wait_until("every connection is closed", |server| server.descriptors() <= server.base);
    server.ends_well();
}

fn too_few_descriptors_are_reported_before_the_first_line(driver: &str) {
    const ENOUGH: u32 = 32;
    // A server may inherit descriptors from its parent.
    for inherited in [0, 1, 4] {
        let mut refused = 0;
        for free in 0..ENOUGH {
            let settings =
                [("INHERITED", inherited.to_string()), ("FREE_DESCRIPTORS", free.to_string())];
            let settings = settings.each_ref().map(|(name, value)| (*name, value.as_str()));
            let mut process = spawn(driver, &settings);
            let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
            let mut line = String::new();
            errors.read_line(&mut line).expect("the process writes a line");
            let is_running = line.starts_with("peregrine ");
            if is_running {
                kill_process(Pid::from_child(&process), Signal::TERM)
                    .expect("the process is running");
            }
            let mut rest = String::new();
            errors.read_to_string(&mut rest).expect("text");
            let status = process.wait().expect("the process exits");
            let outcome = format!("{inherited} inherited, {free} free: {status}: {line}{rest}");
            if !is_running {
                refused += 1;
                assert!(line.contains("ulimit -n") && status.code() == Some(1), "{outcome}");
            }
            assert_eq!(status.success(), is_running, "{outcome}");
        }
        assert!((1..ENOUGH).contains(&refused), "{refused} refusals: the range covers no failure");
    }
}

fn too_few_threads_are_reported_before_the_first_line(driver: &str) {
    const ENOUGH: u64 = 16;
    if !rustix::process::geteuid().is_root() {
        // Threads are limited per user, and root has no limit.
        return println!(
            "not tested: only root may run a process as a user without other processes"
        );
    }
    let user = 1_000_000 + 2 * std::process::id() + u32::from(driver == "uring");
    let mut refused = 0;
    for most in 3..ENOUGH {
        let settings = [("PROCESSES", &*most.to_string()), ("WORKERS", "2")];
        let mut command = command(driver, &settings);
        let Ok(mut process) = command.uid(user).current_dir("/").spawn() else {
            return println!("not tested: another user may not run this test");
        };
        let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("the process writes a line");
        if line.contains("The io_uring self-test failed") {
            refused += 1;
            process.wait().expect("the process exits");
            continue;
        }
        let is_running = line.starts_with("peregrine ");
        if is_running {
            kill_process(Pid::from_child(&process), Signal::TERM).expect("the process is running");
        }
        let mut rest = String::new();
        errors.read_to_string(&mut rest).expect("text");
        let status = process.wait().expect("the process exits");
        let outcome = format!("{most} threads: {status}: {line}{rest}");
        if !is_running {
            refused += 1;
            // Another worker may panic meanwhile, and its message may split the error.
            assert!(outcome.contains("TasksMax=") && status.code() == Some(1), "{outcome}");
        }
        assert_eq!(status.success(), is_running, "{outcome}");
    }
    assert!((1..ENOUGH - 3).contains(&refused), "{refused} refusals: the range covers no failure");
}

fn an_endless_stream_that_is_not_to_be_sent_holds_nobody_up(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    for request in ["HEAD /endless", "GET /endless-204", "GET /longer-than-promised"] {
        let mut peer = server.connect();
        write!(peer, "{request} HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("the kernel accepts some data");
        peer.shutdown(Shutdown::Write).expect("connected");
        let mut answers = String::new();
        peer.read_to_string(&mut answers).expect("both requests get responses");
        assert_eq!(answers.matches("HTTP/1.1 2").count(), 2, "{request}: {answers}");
    }
    let share = server.busy_share(Duration::from_millis(500));
    assert!(share < 0.2, "the server is still busy: {share}");
    server.ends_well();
}

fn a_signal_under_load_ends_the_process_in_order(driver: &str) {
    let Some(server) = Server::start(driver, &[]) else { return };
    // Requests that never end, each in another way.
    let stuck: Vec<_> = ["GET /endless", "GET /never", "POST /never", "GET /unfinished-head"]
        .map(|request| {
            let mut peer = server.connect();
            let end = if request.contains("unfinished") { "" } else { "\r\n" };
            write!(peer, "{request} HTTP/1.1\r\nHost: a\r\n{end}").expect("connected");
            peer
        })
        .into();
    let address = server.address.clone();
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let address = address.clone();
            thread::spawn(move || {
                let mut answers = 0;
                while let Ok(mut peer) = TcpStream::connect(&address) {
                    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
                    for _ in 0..10 {
                        let asked = peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
                        match peer.read(&mut [0; 1024]) {
                            Ok(1..) if asked.is_ok() => answers += 1,
                            _ => break,
                        }
                    }
                }
                answers
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    let (status, report) = server.end(Signal::TERM);
    assert!(status.success(), "{status}\n{report}");
    for request in ["GET /endless", "GET /never", "POST /never", "(no complete request)"] {
        assert!(report.contains(request), "{request} was not reported:\n{report}");
    }
    assert!(report.contains("; 4 cut at the deadline:"), "{report}");
    for client in clients {
        assert!(client.join().expect("a client does not panic") > 0);
    }
    drop(stuck);
}

fn a_signal_right_after_the_first_line_is_not_lost(driver: &str) {
    for _ in 0..5 {
        let Some(server) = Server::start(driver, &[]) else { return };
        server.ends_well();
    }
}

fn a_second_signal_ends_what_the_first_waits_for(driver: &str) {
    let Some(server) = Server::start(driver, &[("SHUTDOWN_SECONDS", "3600")]) else { return };
    let mut peer = server.connect();
    peer.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
    server.answers();
    server.signal(Signal::TERM);
    server.wait_until("the listener is closed", |server| {
        TcpStream::connect(&server.address).is_err()
    });
    let (status, report) = server.end(Signal::INT);
    assert!(status.success(), "{status}\n{report}");
    assert!(report.contains("1 cut"), "{report}");
}

/// A server in a separate process.
struct Server {
    process: Child,
    address: String,
    /// The address of its admin listener, if it has one.
    admin: Option<String>,
    /// Its output after the first line.
    report: mpsc::Receiver<String>,
    /// The descriptors that it has open without any connection.
    base: usize,
    /// Only one server per driver at a time, because they are measured.
    _turn: MutexGuard<'static, ()>,
}

impl Server {
    /// `None` if the driver cannot run here.
    fn start(driver: &str, settings: &[(&str, &str)]) -> Option<Self> {
        static TURNS: [Mutex<()>; 2] = [const { Mutex::new(()) }; 2];
        let turn = TURNS[usize::from(driver == "uring")].lock();
        let turn = turn.unwrap_or_else(PoisonError::into_inner);
        let mut process = spawn(driver, settings);
        let mut errors = BufReader::new(process.stderr.take().expect("the stream is piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("the server reports what runs");
        if line.contains("driver cannot run here") {
            println!("not tested: {line}");
            process.wait().expect("the process exits");
            return None;
        }
        let (_, rest) = line.split_once("http://").unwrap_or_else(|| panic!("no address: {line}"));
        let address =
            rest.split([',', ';']).next().expect("split yields at least one item").to_owned();
        let admin = line.split_once("admin http://").map(|(_, admin)| admin.trim().to_owned());
        let (sender, report) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let _ = errors.read_to_string(&mut text);
            let _ = sender.send(text);
        });
        let mut server = Self { process, address, admin, report, base: 0, _turn: turn };
        // Opens the descriptors that are opened only at the first connection.
        server.answers();
        thread::sleep(Duration::from_millis(50));
        server.base = server.descriptors();
        Some(server)
    }

    fn connect(&self) -> TcpStream {
        let peer = TcpStream::connect(&self.address).expect("the server listens");
        peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        peer
    }

    /// This many connections, each of which got a response.
    fn connect_many(&self, count: usize) -> Vec<TcpStream> {
        let mut peers = Vec::with_capacity(count);
        for _ in 0..count {
            let mut peer = self.connect();
            peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("connected");
            let mut answer = [0; 512];
            let length = peer.read(&mut answer).expect("a response");
            assert!(answer[..length].starts_with(b"HTTP/1.1 200 "));
            peers.push(peer);
        }
        peers
    }

    /// Writes until the server stops reading.
    fn write_until_held(&self, head: &str, piece: &[u8]) -> TcpStream {
        let mut peer = self.connect();
        peer.write_all(head.as_bytes()).expect("the kernel accepts some data");
        peer.set_write_timeout(Some(Duration::from_millis(20))).expect("the timeout is not zero");
        for _ in 0..1_000 {
            match peer.write(piece) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return peer,
                Err(error) => panic!("the server does not read a body: {error}"),
            }
        }
        panic!("the server buffers an endless unread body");
    }

    /// Asserts that the server still serves others.
    fn answers(&self) {
        drop(self.connect_many(1));
    }

    /// Asserts that memory stays bounded for the busy connections, and that the server is idle.
    fn stands_still(&self, before_kib: usize) {
        let mut most = 0;
        let end = Instant::now() + Duration::from_millis(700);
        while Instant::now() < end {
            most = most.max(self.memory_kib().saturating_sub(before_kib));
            thread::sleep(Duration::from_millis(20));
        }
        println!("{most} KiB for {PEERS} busy connections");
        assert!(most <= PEERS * BUSY_KIB_MAX, "{most} KiB for {PEERS} connections");
        let share = self.busy_share(Duration::from_millis(500));
        assert!(share < 0.3, "the server is busy with stalled peers: {share}");
    }

    fn wait_until(&self, description: &str, condition: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition(self) {
            assert!(
                Instant::now() < end,
                "never: {description}; {} descriptors",
                self.descriptors()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the process is running");
    }

    fn ends_well(self) {
        let (status, report) = self.end(Signal::TERM);
        assert!(status.success(), "{status}\n{report}");
    }

    /// Its exit status, and its output.
    fn end(mut self, signal: Signal) -> (ExitStatus, String) {
        self.signal(signal);
        let report =
            self.report.recv_timeout(PATIENCE).expect("the process exits and closes its output");
        (self.process.wait().expect("the process exits"), report)
    }

    /// The private memory of the server, in KiB.
    fn memory_kib(&self) -> usize {
        anonymous_kib(&self.process)
    }

    /// The share of one core that it uses during `time`.
    fn busy_share(&self, time: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.time_used());
        thread::sleep(time);
        (self.time_used() - before).as_secs_f64() / start.elapsed().as_secs_f64()
    }

    fn time_used(&self) -> Duration {
        let stat = self.read("stat");
        // The name of the program may contain spaces and parentheses.
        let (_, rest) = stat.rsplit_once(')').expect("the name is in brackets");
        let fields: Vec<_> = rest.split_whitespace().collect();
        let ticks: u64 =
            fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum();
        // Linux reports hundredths of a second to user space.
        Duration::from_millis(ticks * 10)
    }

    fn descriptors(&self) -> usize {
        self.entries("fd").count()
    }

    /// The number of its threads, except those that the kernel creates and ends.
    fn threads(&self) -> usize {
        let names = self.entries("task").filter_map(|task| {
            // A thread may exit in between.
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        });
        names.filter(|name| !name.starts_with("iou-")).count()
    }

    fn entries(&self, folder: &str) -> std::fs::ReadDir {
        let path = format!("/proc/{}/{folder}", self.process.id());
        std::fs::read_dir(path).expect("the process is running")
    }

    fn read(&self, file: &str) -> String {
        let path = format!("/proc/{}/{file}", self.process.id());
        std::fs::read_to_string(path).expect("the process is running")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The private memory that a process has written to, in KiB.
fn anonymous_kib(process: &Child) -> usize {
    let path = format!("/proc/{}/status", process.id());
    let status = std::fs::read_to_string(path).expect("the process is running");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.expect("Linux tells it").trim().strip_suffix(" kB");
    number.expect("the value is in kB").parse().expect("a number")
}

/// Starts this test's child.
fn spawn(driver: &str, settings: &[(&str, &str)]) -> Child {
    command(driver, settings).spawn().expect("a process can be started")
}

fn command(driver: &str, settings: &[(&str, &str)]) -> Command {
    let mut command =
        Command::new(std::env::current_exe().expect("the current executable has a path"));
    command
        .args(["--exact", "resources::the_child_serves_until_it_is_told_to_end", "--nocapture"])
        .env(CHILD, driver)
        .envs(settings.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Raises the descriptor limit of this process as far as allowed, and returns it.
fn descriptors_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(1 << 16, |maximum| maximum.min(1 << 16));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    if raised.is_ok() { current } else { limit.current.unwrap_or(current) }
}

/// Set in the child's environment to the name of the driver.
const CHILD: &str = "PEREGRINE_RESOURCES_CHILD";

/// The child of all tests here; it does nothing unless one of them started it.
#[test]
fn the_child_serves_until_it_is_told_to_end() {
    let Ok(driver) = std::env::var(CHILD) else { return };
    if driver == "none" {
        eprintln!("a process without a server");
        loop {
            thread::park();
        }
    }
    let choice = match driver.as_str() {
        "uring" => DriverChoice::Uring,
        "tokio" => DriverChoice::Tokio,
        _ => DriverChoice::Auto,
    };
    if let Some(most) = number("DESCRIPTORS") {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::Nofile, limit).expect("a process may lower its own limit");
    } else {
        descriptors_max();
    }
    if let Some(most) = number("PROCESSES") {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(Resource::Nproc, limit).expect("a process may lower its own limit");
    }
    let any_file = || File::open("/").expect("a descriptor is free");
    let _inherited: Vec<_> = (0..number("INHERITED").unwrap_or(0)).map(|_| any_file()).collect();
    if let Some(free) = number("FREE_DESCRIPTORS") {
        let all: Vec<_> = (0..=free).map(|_| any_file()).collect();
        let next = all.iter().map(AsRawFd::as_raw_fd).max().expect("the list is not empty") as u64;
        drop(all);
        let limit = Rlimit { current: Some(next), maximum: Some(next) };
        setrlimit(Resource::Nofile, limit).expect("a process may lower its own limit");
    }
    let limits = Limits {
        shutdown_timeout: Duration::from_secs(number("SHUTDOWN_SECONDS").unwrap_or(1)),
        ..Limits::default()
    };
    let mut server = peregrine::Server::bind("127.0.0.1:0");
    if let Ok(address) = std::env::var("ADMIN") {
        server = server.admin(address);
    }
    let served = server
        .driver(choice)
        .workers(number("WORKERS").map_or(NonZeroUsize::MIN, |count| {
            NonZeroUsize::new(count as usize).expect("the count is not zero")
        }))
        .limits(limits)
        .serve(app);
    if let Err(error) = served {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

/// Endless pieces, always ready.
struct Endless;

impl futures_core::Stream for Endless {
    type Item = Result<Bytes, std::convert::Infallible>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(Some(Ok(Bytes::from_static(&[b'x'; 16 * 1024]))))
    }
}

/// The same, but with a declared length of ten bytes.
struct LongerThanPromised;

impl http_body::Body for LongerThanPromised {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"abc")))))
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(10)
    }
}

async fn never(_body: Body) -> &'static str {
    std::future::pending().await
}

async fn count(mut body: Body) -> Result<String, Problem> {
    let mut bytes = 0;
    while let Some(piece) = body.next().await {
        bytes += piece?.len();
    }
    Ok(bytes.to_string())
}

fn app() -> App {
    let more = (0..number("ROUTES").unwrap_or(0)).fold(App::new(), |app, number| {
        app.get(&format!("/more/{number}/{{id}}"), move |Path(id): Path<String>| async move {
            format!("{number} {id}")
        })
    });
    App::new()
        .merge(more)
        .get("/", || async { "here" })
        .get("/large", || async { "x".repeat(60_000) })
        .get("/endless", || async { Body::from_stream(Endless) })
        .get("/endless-204", || async {
            Response::new(StatusCode::NO_CONTENT).with_body(Body::from_stream(Endless))
        })
        .get("/longer-than-promised", || async { Body::new(LongerThanPromised) })
        .get("/never", never)
        .post("/never", never)
        .post("/count", count)
}
