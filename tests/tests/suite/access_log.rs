//! The access log: one line per request on every driver, and no worker that blocks, whatever
//! happens to the log.

use peregrine::access_log::{AccessLogFormat, AccessLogOptions};
use peregrine::prelude::*;
use peregrine::{DriverChoice, Error, Limits, ListenAddr, OverloadLimits, RunningServer};
use peregrine_tests::logged;
use peregrine_tests::server::client::Way;
use peregrine_tests::server::{KernelBenches, SimulatedBenches, SocketWire};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::Path as FilePath;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

logged!(sim, SimulatedBenches::seeds(0..8));
logged!(tokio, KernelBenches::tcp(DriverChoice::Tokio));
logged!(uring, KernelBenches::tcp(DriverChoice::Uring));
#[cfg(unix)]
logged!(tokio_unix, KernelBenches::unix(DriverChoice::Tokio));

macro_rules! on_both_drivers {
    ($($case:ident,)*) => {
        mod on_tokio {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Tokio); })*
        }
        #[cfg(target_os = "linux")]
        mod on_uring {
            $(#[test] fn $case() { super::$case(super::DriverChoice::Uring); })*
        }
    };
}

on_both_drivers! {
    a_file_that_is_moved_away_under_load_loses_no_line,
    a_log_that_cannot_be_opened_again_goes_on,
    a_blocked_log_writer_delays_no_request,
    the_end_waits_for_what_is_not_written,
    all_workers_write_whole_lines,
    a_request_shed_by_overload_has_a_line_with_its_target,
}

/// Only a hang takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

fn app() -> App {
    App::new().get("/{number}", |Path(number): Path<u64>| number.to_string())
}

/// A server with this log, an admin listener, and two workers; `None` if the kernel refuses the
/// driver.
fn start(choice: DriverChoice, log: AccessLogOptions) -> Option<RunningServer> {
    let workers = NonZeroUsize::new(2).expect("the value is not zero");
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(workers).quiet();
    match server.access_log(log).admin("127.0.0.1:0").start(app) {
        Err(error @ Error::Driver { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        running => Some(running.expect("the server starts")),
    }
}

fn address(running: &RunningServer) -> SocketAddr {
    running.http_address().expect("the server has an HTTP listener")
}

/// Sends the requests with these numbers, one after the other on one connection.
fn ask(address: SocketAddr, numbers: impl IntoIterator<Item = u64>) {
    let mut peer = TcpStream::connect(address).expect("the server accepts connections");
    peer.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
    for number in numbers {
        // In one write: with two, Nagle's algorithm would delay the second until the first is
        // acknowledged.
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        peer.write_all(request.as_bytes()).expect("connected");
        let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
        let end = format!("\r\n\r\n{number}");
        while !answer.ends_with(end.as_bytes()) {
            let count = peer.read(&mut bytes).expect("a response arrives in time");
            assert!(count > 0, "{:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&bytes[..count]);
        }
    }
}

/// The value of a metric; `name` includes its labels.
fn metric(running: &RunningServer, name: &str) -> f64 {
    let Some(peregrine::ListenAddr::Tcp(admin)) = running.admin_address() else {
        panic!("no address")
    };
    let mut peer = TcpStream::connect(admin).expect("the server accepts connections");
    write!(peer, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("connected");
    let mut page = String::new();
    peer.read_to_string(&mut page).expect("text");
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().expect("a number")
}

fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The numbers of the requests in a file, whose lines must all be complete.
fn numbers(path: &FilePath) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("the file exists");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is incomplete");
    text.lines().map(number).collect()
}

fn number(line: &str) -> u64 {
    let (_, rest) = line.split_once("\"GET /").unwrap_or_else(|| panic!("no line: {line}"));
    let (number, rest) = rest.split_once(' ').expect("a version follows");
    assert!(rest.starts_with("HTTP/1.1\" 200 "), "{line}");
    number.parse().expect("a number")
}

const LINES: &str = "peregrine_access_log_lines_total";
const FULL: &str = "peregrine_access_log_dropped_lines_total{reason=\"queue_full\"}";
const FAILED: &str = "peregrine_access_log_dropped_lines_total{reason=\"write_failed\"}";

fn a_file_that_is_moved_away_under_load_loses_no_line(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("access.log");
    let Some(running) = start(choice, AccessLogOptions::file(&path)) else { return };
    let (address, handle) = (address(&running), running.handle());
    let is_over = AtomicBool::new(false);
    let moved = thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|client| scope.spawn(move || ask(address, client * 1000..client * 1000 + 500)))
            .collect();
        let mover = scope.spawn(|| {
            let mut moved = 0;
            while !is_over.load(Ordering::SeqCst) {
                fs::rename(&path, folder.path().join(format!("access.log.{moved}")))
                    .expect("the file exists");
                moved += 1;
                handle.reopen_logs();
                wait_until("the file exists again", || path.exists());
            }
            moved
        });
        let joined: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::SeqCst);
        joined.into_iter().for_each(|joined| joined.expect("the client does not panic"));
        mover.join().expect("the task does not panic")
    });
    running.graceful_shutdown().expect("the shutdown succeeds");
    assert!(moved > 0);
    let mut found = numbers(&path);
    for number in 0..moved {
        found.extend(numbers(&folder.path().join(format!("access.log.{number}"))));
    }
    found.sort_unstable();
    let expected: Vec<_> = (0..4).flat_map(|client| client * 1000..client * 1000 + 500).collect();
    assert!(found == expected, "{} of {} lines", found.len(), expected.len());
}

fn a_log_that_cannot_be_opened_again_goes_on(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let (place, elsewhere) = (folder.path().join("logs"), folder.path().join("old"));
    fs::create_dir(&place).expect("the folder does not exist yet");
    let path = place.join("access.log");
    let Some(running) = start(choice, AccessLogOptions::file(&path)) else { return };
    ask(address(&running), 0..10);
    fs::rename(&place, &elsewhere).expect("the file exists");
    running.handle().reopen_logs();
    ask(address(&running), 10..20);
    running.graceful_shutdown().expect("the shutdown succeeds");
    let mut found = numbers(&elsewhere.join("access.log"));
    // Two workers may have written them.
    found.sort_unstable();
    assert_eq!(found, (0..20).collect::<Vec<_>>());
    assert!(!path.exists());
}

/// Blocks writes until it is opened.
#[derive(Clone, Default)]
struct Valve {
    open: Arc<(Mutex<bool>, Condvar)>,
    lines: Arc<Mutex<Vec<u8>>>,
    waits: Arc<AtomicUsize>,
}

impl Valve {
    fn open(&self) {
        *self.open.0.lock().expect("the mutex is not poisoned") = true;
        self.open.1.notify_all();
    }

    fn numbers(&self) -> Vec<u64> {
        let text = String::from_utf8(self.lines.lock().expect("the mutex is not poisoned").clone())
            .expect("text");
        text.lines().map(number).collect()
    }
}

impl Write for Valve {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.0.lock().expect("the mutex is not poisoned");
        while !*open {
            open = self.open.1.wait(open).expect("the mutex is not poisoned");
        }
        self.lines.lock().expect("the mutex is not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn a_blocked_log_writer_delays_no_request(choice: DriverChoice) {
    let valve = Valve::default();
    let log = AccessLogOptions::writer(valve.clone())
        .format(AccessLogFormat::Common)
        .queue_bytes_max(2000);
    let Some(running) = start(choice, log.flush_timeout(Duration::from_millis(50))) else { return };
    ask(address(&running), 0..1);
    wait_until("the writer blocks", || valve.waits.load(Ordering::SeqCst) == 1);
    // Far more than the buffers hold; every request still gets a response.
    ask(address(&running), 1..500);
    let dropped = metric(&running, FULL);
    assert!(dropped >= 400.0, "{dropped}");
    let waiting = metric(&running, "peregrine_access_log_queued_lines");
    assert_eq!(dropped + waiting, 500.0);
    running.graceful_shutdown().expect("the server shuts down within the deadline");
    valve.open();
}

fn the_end_waits_for_what_is_not_written(choice: DriverChoice) {
    let valve = Valve::default();
    let Some(running) =
        start(choice, AccessLogOptions::writer(valve.clone()).flush_timeout(PATIENCE))
    else {
        return;
    };
    ask(address(&running), 0..300);
    assert_eq!(metric(&running, LINES), 0.0);
    let opener = valve.clone();
    let opens = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        opener.open();
    });
    running.graceful_shutdown().expect("the shutdown succeeds");
    opens.join().expect("the task does not panic");
    assert_eq!(valve.numbers(), (0..300).collect::<Vec<_>>());
}

fn all_workers_write_whole_lines(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("access.log");
    let Some(running) = start(choice, AccessLogOptions::file(&path)) else { return };
    let address = address(&running);
    thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || ask(address, client * 1000..client * 1000 + 200));
        }
    });
    wait_until("every line is written", || metric(&running, LINES) == 1600.0);
    assert_eq!((metric(&running, FULL), metric(&running, FAILED)), (0.0, 0.0));
    // A line appears soon after its response, without waiting for the end.
    assert_eq!(numbers(&path).len(), 1600);
    running.graceful_shutdown().expect("the shutdown succeeds");
    let mut found = numbers(&path);
    found.sort_unstable();
    let expected: Vec<_> = (0..8).flat_map(|client| client * 1000..client * 1000 + 200).collect();
    assert_eq!(found, expected);
}

/// Runs a future that blocks instead of returning `Pending`.
fn block_on<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future is pending"),
    }
}

fn a_request_shed_by_overload_has_a_line_with_its_target(choice: DriverChoice) {
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let path = folder.path().join("access.log");
    let overload = OverloadLimits { requests_max: Some(1), ..OverloadLimits::default() };
    let time = Duration::from_millis(200);
    let limits = Limits { overload, shutdown_timeout: time, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0").driver(choice).workers(NonZeroUsize::MIN).quiet();
    let make = || app().get("/hangs", async || std::future::pending::<()>().await);
    let running = match server.limits(limits).access_log(AccessLogOptions::file(&path)).start(make)
    {
        Err(error @ Error::Driver { .. }) => return eprintln!("skipped: {error}"),
        running => running.expect("the server starts"),
    };
    let place = ListenAddr::Tcp(address(&running));
    let speak = |way: Way| block_on(way.speak(SocketWire::connect(&place)));
    let mut busy = speak(Way::HTTP1);
    busy.get("/hangs");
    for (number, way) in [(7, Way::HTTP1), (8, Way::HTTP2)] {
        let (begin, mut status) = (Instant::now(), 200);
        // The handler that hangs may not have started yet.
        while status == 200 {
            assert!(begin.elapsed() < PATIENCE, "no request is refused");
            let mut client = speak(way);
            let id = client.get(&format!("/{number}"));
            status = block_on(client.answer(id)).status();
        }
        assert_eq!(status, 503);
    }
    running.graceful_shutdown().expect("the shutdown succeeds");
    let log = fs::read_to_string(&path).expect("the file exists");
    for number in [7, 8] {
        let target = format!("/{number} HTTP/");
        let refused = log.lines().filter(|line| line.contains(&target) && line.contains("\" 503 "));
        assert_eq!(refused.count(), 1, "{log}");
    }
}

#[cfg(target_os = "linux")]
mod on_linux {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    on_both_drivers! {
        a_full_disk_loses_lines_and_counts_them,
        a_disk_that_is_full_for_a_while_gets_only_complete_lines,
        an_unread_pipe_delays_no_request,
        a_closed_pipe_delays_no_request,
        a_signal_opens_the_file_again,
    }

    fn a_full_disk_loses_lines_and_counts_them(choice: DriverChoice) {
        let Some(running) = start(choice, AccessLogOptions::file("/dev/full")) else { return };
        ask(address(&running), 0..100);
        wait_until("every line is lost", || metric(&running, FAILED) == 100.0);
        assert_eq!((metric(&running, LINES), metric(&running, FULL)), (0.0, 0.0));
        running.graceful_shutdown().expect("the shutdown succeeds");
    }

    /// A small file system, which exists as long as this value.
    struct Small(tempfile::TempDir);

    impl Small {
        fn mount() -> Option<Self> {
            let folder = tempfile::tempdir().expect("a temporary folder can be created");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(folder.path());
            let is_mounted =
                mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
            if !is_mounted {
                eprintln!("skipped: this user may not mount a tmpfs");
            }
            is_mounted.then_some(Self(folder))
        }
    }

    impl Drop for Small {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
        }
    }

    fn a_disk_that_is_full_for_a_while_gets_only_complete_lines(choice: DriverChoice) {
        let Some(small) = Small::mount() else { return };
        let (path, ballast) = (small.0.path().join("access.log"), small.0.path().join("ballast"));
        fs::write(&ballast, [0; 8192]).expect("the pipe has room");
        let Some(running) = start(choice, AccessLogOptions::file(&path)) else { return };
        ask(address(&running), 0..500);
        wait_until("the disk is full", || metric(&running, FAILED) > 0.0);
        wait_until("every line is written or lost", || {
            metric(&running, LINES) + metric(&running, FAILED) == 500.0
        });
        let written = metric(&running, LINES);
        assert_eq!(numbers(&path).len() as f64, written, "every written line is complete");
        fs::remove_file(&ballast).expect("the file exists");
        ask(address(&running), 500..510);
        wait_until("lines are written again", || metric(&running, LINES) >= written + 10.0);
        running.graceful_shutdown().expect("the shutdown succeeds");
        assert_eq!(numbers(&path)[written as usize..], (500..510).collect::<Vec<_>>());
    }

    /// The driver's name, set in the environment of a child that logs to its standard output.
    const CHILD: &str = "PEREGRINE_ACCESS_LOG_CHILD";

    /// The path of the log, set in addition if the log is a file.
    const FILE: &str = "PEREGRINE_ACCESS_LOG_FILE";

    /// A server in a separate process, with `stdout` as the destination of its log.
    struct Child {
        process: std::process::Child,
        address: SocketAddr,
        admin: SocketAddr,
    }

    impl Child {
        fn start(choice: DriverChoice, stdout: Stdio, log: Option<&FilePath>) -> Option<Self> {
            let driver = if choice == DriverChoice::Tokio { "tokio" } else { "uring" };
            let mut command =
                Command::new(std::env::current_exe().expect("the current executable has a path"));
            command.args([
                "--exact",
                "access_log::on_linux::the_child_serves_until_it_is_told_to_end",
                "--nocapture",
            ]);
            command.env(CHILD, driver).env("PEREGRINE_DRIVER", driver).process_group(0);
            if let Some(log) = log {
                command.env(FILE, log);
            }
            let mut process = command
                .stdout(stdout)
                .stderr(Stdio::piped())
                .spawn()
                .expect("a process can be started");
            let mut errors =
                io::BufReader::new(process.stderr.take().expect("the stream is piped"));
            let mut first = String::new();
            io::BufRead::read_line(&mut errors, &mut first)
                .expect("the process reports that it runs");
            thread::spawn(move || io::copy(&mut errors, &mut io::stderr()));
            let at = |name: &str| {
                let (_, rest) = first.split_once(name)?;
                rest.split([';', ' ', '\n']).next()?.parse().ok()
            };
            let (Some(address), Some(admin)) = (at(": http://"), at("admin http://")) else {
                assert!(
                    first.contains("driver cannot run here"),
                    "the child does not start: {first}"
                );
                eprintln!("skipped: {first}");
                let _ = process.wait();
                return None;
            };
            Some(Self { process, address, admin })
        }

        fn metric(&self, name: &str) -> f64 {
            let mut peer = TcpStream::connect(self.admin).expect("the server accepts connections");
            write!(peer, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .expect("connected");
            let mut page = String::new();
            peer.read_to_string(&mut page).expect("text");
            let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().expect("a number")
        }

        fn end(mut self) {
            let id = rustix::process::Pid::from_child(&self.process);
            rustix::process::kill_process(id, rustix::process::Signal::TERM)
                .expect("the process is running");
            assert!(self.process.wait().expect("the process exits").success());
        }
    }

    fn an_unread_pipe_delays_no_request(choice: DriverChoice) {
        let Some(mut child) = Child::start(choice, Stdio::piped(), None) else { return };
        let unread = child.process.stdout.take();
        // A pipe holds 64 KiB, and the queues here 4 KiB.
        ask(child.address, 0..3000);
        assert!(child.metric(FULL) > 1000.0);
        let id = rustix::process::Pid::from_child(&child.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)
            .expect("the process is running");
        // The shutdown waits for the log, but not for long: the admin listener is the last to end.
        wait_until("the server has ended", || TcpStream::connect(child.admin).is_err());
        // Whatever the process prints when it exits needs a reader, or a closed pipe.
        drop(unread);
        child.process.wait().expect("the process exits");
    }

    fn a_closed_pipe_delays_no_request(choice: DriverChoice) {
        let (reader, writer) = io::pipe().expect("a descriptor is free");
        let stdout = Stdio::from(writer.try_clone().expect("a descriptor is free"));
        let Some(child) = Child::start(choice, stdout, None) else { return };
        drop(reader);
        // Other tests fork children, which hold the reader too until they exec.
        wait_until("the pipe has no reader", || (&writer).write(b"\n").is_err());
        ask(child.address, 0..100);
        // A blocked writer may leave no room for some lines.
        wait_until("every line is lost", || child.metric(FAILED) + child.metric(FULL) == 100.0);
        assert!(child.metric(FAILED) > 0.0);
        child.end();
    }

    fn a_signal_opens_the_file_again(choice: DriverChoice) {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let (path, old) = (folder.path().join("access.log"), folder.path().join("old.log"));
        let Some(child) = Child::start(choice, Stdio::null(), Some(&path)) else { return };
        ask(child.address, 0..5);
        wait_until("the lines are written", || numbers(&path).len() == 5);
        fs::rename(&path, &old).expect("the file exists");
        let id = rustix::process::Pid::from_child(&child.process);
        rustix::process::kill_process(id, rustix::process::Signal::USR1)
            .expect("the process is running");
        wait_until("the log is reopened", || path.exists());
        ask(child.address, 5..9);
        child.end();
        assert_eq!((numbers(&old), numbers(&path)), ((0..5).collect(), (5..9).collect()));
    }

    /// The child of tests here; it does nothing unless one of them started it.
    #[test]
    fn the_child_serves_until_it_is_told_to_end() {
        if std::env::var(CHILD).is_err() {
            return;
        }
        let log =
            std::env::var_os(FILE).map_or_else(AccessLogOptions::stdout, AccessLogOptions::file);
        let log = log.queue_bytes_max(4096).flush_timeout(Duration::from_millis(200));
        let server = Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).admin("127.0.0.1:0");
        if let Err(error) = server.access_log(log).serve(app) {
            eprintln!("{error}");
        }
        // The test's own output may have no reader.
        std::process::exit(0);
    }
}

#[test]
fn a_log_that_cannot_be_opened_is_an_error_that_names_it_and_the_remedy() {
    let server = || Server::bind("127.0.0.1:0").workers(NonZeroUsize::MIN).quiet();
    let folder = tempfile::tempdir().expect("a temporary folder can be created");
    let missing = folder.path().join("missing").join("access.log");
    for (path, remedy) in [(&*missing, "create it"), (folder.path(), "name a file in it")] {
        let error = server()
            .access_log(AccessLogOptions::file(path))
            .start(app)
            .expect_err("the server does not start");
        let error = error.to_string();
        assert!(error.contains(&path.display().to_string()) && error.contains(remedy), "{error}");
    }
}
