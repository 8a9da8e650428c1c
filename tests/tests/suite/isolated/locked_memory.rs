//! Starts under a limit of locked memory, which applies to ordinary users: the kernel counts the
//! memory of rings for all processes of a user together.
//!
//! The server is a child process without the capability that lifts the limit. Whether a test can
//! show anything is known only at run time: the kernel may not count, or may not allow io_uring. In
//! that case the test reports that, and passes.
#![cfg(target_os = "linux")]

use peregrine::prelude::*;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use std::fs::{Permissions, copy, read_dir, read_link, set_permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// The longest that anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set in the child's environment to the limit in KiB.
const LIMIT: &str = "PEREGRINE_LOCKED_KIB";
const WORKERS: &str = "PEREGRINE_LOCKED_WORKERS";

macro_rules! tests {
    ($($test:ident,)*) => {
        mod locked {
            $(#[test] fn $test() { super::with_program(super::$test); })*
        }
    };
}

tests! {
    a_server_starts_under_every_limit,
    rings_are_smaller_before_there_are_none,
    many_workers_start_with_the_limit_that_systems_have,
    where_not_all_rings_can_be_had_all_workers_run_on_tokio,
    a_server_that_requires_io_uring_reports_the_limit_that_it_needs,
    the_smallest_rings_serve_more_connections_than_they_hold_completions,
}

fn a_server_starts_under_every_limit(program: &Program) {
    for kib in [0, 20, 24, 48, 64, 128, 170, 200, 300, 340, 400] {
        let server = program.start(kib, 2, "auto");
        server.answers();
        server.ends_well();
    }
}

fn rings_are_smaller_before_there_are_none(program: &Program) {
    let server = program.start(300, 2, "auto");
    assert!(server.line.contains("driver io_uring ("), "{}", server.line);
    assert!(server.line.contains("completions only"), "{}", server.line);
    assert!(server.line.contains("`LimitMEMLOCK=336K`"), "{}", server.line);
    assert_eq!(server.rings(), 2, "one ring per worker");
    server.answers();
    server.ends_well();
    let server = program.start(2 * 336, 2, "auto");
    assert!(!server.line.contains("completions only"), "{}", server.line);
    assert_eq!(server.rings(), 2);
    server.ends_well();
}

fn many_workers_start_with_the_limit_that_systems_have(program: &Program) {
    let server = program.start(8 * 1024, 64, "auto");
    assert!(server.line.contains("driver io_uring ("), "{}", server.line);
    assert_eq!(server.rings(), 64);
    server.answers();
    server.ends_well();
}

fn where_not_all_rings_can_be_had_all_workers_run_on_tokio(program: &Program) {
    // The limit allows one ring, or three of the smallest, but not eight.
    let server = program.start(80, 8, "auto");
    assert!(
        server.line.contains("driver tokio, because io_uring is not available"),
        "{}",
        server.line
    );
    assert!(server.line.contains("`ulimit -l 1344`"), "{}", server.line);
    assert_eq!(server.rings(), 0);
    server.answers();
    server.ends_well();
}

fn a_server_that_requires_io_uring_reports_the_limit_that_it_needs(program: &Program) {
    let (mut process, line) = program.spawn(80, 8, "uring");
    assert!(line.contains("the io_uring driver cannot run here"), "{line}");
    assert!(line.contains("`LimitMEMLOCK=1344K`"), "{line}");
    assert!(!process.wait().expect("the process exits").success());
}

fn the_smallest_rings_serve_more_connections_than_they_hold_completions(program: &Program) {
    const PEERS: usize = 700;
    const EACH: usize = 8;
    raise_descriptors();
    let server = program.start(40, 1, "auto");
    assert!(server.line.contains("rings of 512 completions only"), "{}", server.line);
    for _ in 0..3 {
        let mut peers: Vec<_> = (0..PEERS).map(|_| server.connect()).collect();
        for peer in &mut peers {
            let requests = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(EACH - 1);
            write!(peer, "{requests}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .expect("connected");
        }
        for mut peer in peers {
            let mut answers = String::new();
            peer.read_to_string(&mut answers).expect("every request gets a response");
            assert_eq!(answers.matches("HTTP/1.1 200 ").count(), EACH, "{answers}");
        }
    }
    server.ends_well();
}

/// Runs a test, unless it cannot show anything on this machine.
fn with_program(test: impl FnOnce(&Program)) {
    // Serialised: the kernel counts the locked memory of all processes of a user together.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Program::ready() {
        Ok(program) => test(&program),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
}

/// The child process of the tests above: a server under a limit.
#[test]
fn the_child_serves_under_its_limit() {
    let Some(kib) = number(LIMIT) else { return };
    let limit = Rlimit { current: Some(kib * 1024), maximum: Some(kib * 1024) };
    setrlimit(Resource::Memlock, limit).expect("a process may lower its own limit");
    let workers = number(WORKERS).and_then(|count| NonZeroUsize::new(count as usize));
    let served = peregrine::Server::bind("127.0.0.1:0")
        .workers(workers.expect("the parent says how many"))
        .serve(|| App::new().get("/", || async { "here" }));
    served.unwrap_or_else(|error| {
        eprintln!("{error}");
        panic!("the server did not start");
    });
}

fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
        .expect("a process may use what it may have");
}

/// This program, in a place where an ordinary user can start it.
struct Program {
    path: PathBuf,
    /// An ordinary user with no other process; `None` if this user is ordinary.
    user: Option<u32>,
    _folder: TempDir,
}

impl Program {
    /// The program, or why the tests would show nothing.
    fn ready() -> Result<Self, String> {
        let describe = |error: std::io::Error| format!("the program cannot be prepared: {error}");
        let folder = tempfile::tempdir().map_err(describe)?;
        set_permissions(folder.path(), Permissions::from_mode(0o755)).map_err(describe)?;
        let path = folder.path().join("server");
        copy(std::env::current_exe().map_err(describe)?, &path).map_err(describe)?;
        set_permissions(&path, Permissions::from_mode(0o755)).map_err(describe)?;
        let is_root = rustix::process::geteuid().is_root();
        let user = is_root.then(|| 400_000 + std::process::id() % 100_000);
        let program = Self { path, user, _folder: folder };
        let (process, line) = program.spawn(0, 1, "auto");
        drop(Server { process, line: String::new(), address: String::new() });
        if line.contains("driver tokio") && line.contains("locked memory") {
            return Ok(program);
        }
        Err(format!("no locked memory is allowed, and the server reports: {}", line.trim()))
    }

    fn command(&self, kib: u64, workers: usize, driver: &str) -> Command {
        let mut command = Command::new(&self.path);
        command.args(["--exact", "locked_memory::the_child_serves_under_its_limit", "--nocapture"]);
        command.env(LIMIT, kib.to_string()).env(WORKERS, workers.to_string());
        command.env("PEREGRINE_DRIVER", driver).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Starts a process, and returns it with its first line of output.
    fn spawn(&self, kib: u64, workers: usize, driver: &str) -> (Child, String) {
        let mut process = self.command(kib, workers, driver).spawn().expect("the process starts");
        let mut errors = BufReader::new(process.stderr.as_mut().expect("the stream is piped"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("the process writes a line");
        (process, line)
    }

    fn start(&self, kib: u64, workers: usize, driver: &str) -> Server {
        let (process, line) = self.spawn(kib, workers, driver);
        println!("{kib} KiB: {}", line.trim());
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once(';'));
        let (address, _) = address.unwrap_or_else(|| panic!("{kib} KiB: no address: {line}"));
        Server { process, address: address.to_owned(), line }
    }
}

struct Server {
    process: Child,
    address: String,
    line: String,
}

impl Server {
    fn connect(&self) -> TcpStream {
        let peer = TcpStream::connect(&self.address).expect("the server listens");
        peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        peer
    }

    /// Asserts that the server responds, whichever worker gets the connection.
    fn answers(&self) {
        for _ in 0..20 {
            let mut peer = self.connect();
            peer.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .expect("connected");
            let mut answer = String::new();
            peer.read_to_string(&mut answer).expect("a response");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }

    /// The number of rings of the process.
    fn rings(&self) -> usize {
        let descriptors = read_dir(format!("/proc/{}/fd", self.process.id()));
        let is_ring = |path: PathBuf| path.to_string_lossy().contains("io_uring");
        let names = descriptors.expect("the process is running").filter_map(|entry| {
            // A descriptor may be closed in between.
            read_link(entry.ok()?.path()).ok()
        });
        names.filter(|path| is_ring(path.clone())).count()
    }

    fn ends_well(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("the process is running");
        let status = self.process.wait().expect("the process exits");
        assert!(status.success(), "{status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
