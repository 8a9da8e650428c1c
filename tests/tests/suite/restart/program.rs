//! A server in a separate process, and its successors. A plan file determines what each process
//! does, so that a successor may do something else.

use crate::restart::PATIENCE;
use peregrine::prelude::*;
use peregrine::restart::UpgradeOptions;
use peregrine::{Admin, DriverChoice, Error, Limits, Server};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};
use std::cell::RefCell;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The environment variable with the path of the child's folder.
pub(crate) const FOLDER: &str = "PEREGRINE_RESTART_FOLDER";

/// Whether the machine has io_uring.
pub(crate) fn has_uring() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let server = Server::bind("127.0.0.1:0").driver(DriverChoice::Uring);
        match server.workers(NonZeroUsize::MIN).quiet().start(App::new) {
            Err(Error::Driver { cause, .. }) => {
                say(&format!("skipped: {cause}"));
                false
            }
            running => running.is_ok(),
        }
    })
}

/// A child of this test, its successors, and the folder that they need to run.
pub(crate) struct Program {
    /// The ID of the serving process.
    pub(crate) process: u32,
    child: Child,
    errors: Box<dyn BufRead>,
    folder: TempDir,
    /// The first line of the server's output.
    pub(crate) line: String,
}

/// Sockets that a service manager passes to the child, by name.
pub(crate) type Handed = Vec<(&'static str, OwnedFd)>;

impl Program {
    pub(crate) fn start(driver: &str, plan: &str) -> Self {
        Self::start_with(driver, plan, Vec::new(), |_, _| {})
    }

    pub(crate) fn start_with(
        driver: &str,
        plan: &str,
        handed: Handed,
        change: impl FnOnce(&mut Command, &Path),
    ) -> Self {
        let mut program = Self::begin(driver, plan, handed, change);
        program.line = program.says("peregrine 0.");
        program
    }

    /// The same for a program that may not get as far as serving.
    pub(crate) fn begin(
        driver: &str,
        plan: &str,
        handed: Handed,
        change: impl FnOnce(&mut Command, &Path),
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("plan"), plan).expect("a new file");
        write_certificate(folder.path());
        let mut command = command_with(handed);
        command
            .args(["--exact", "restart::the_child_does_what_its_plan_says", "--nocapture"])
            .env(FOLDER, folder.path())
            .env("PEREGRINE_DRIVER", driver)
            .env_remove("NOTIFY_SOCKET")
            .stderr(Stdio::piped());
        change(&mut command, folder.path());
        let mut child = command.spawn().expect("a process can be started");
        let errors = Box::new(BufReader::new(child.stderr.take().expect("the stream is piped")));
        Self { process: child.id(), child, errors, folder, line: String::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sets the plan of processes that start from now on.
    pub(crate) fn plan(&self, plan: &str) {
        // Atomically: a successor may be reading it.
        let new = self.folder().join("new-plan");
        fs::write(&new, plan).expect("a file");
        fs::rename(new, self.folder().join("plan")).expect("the same folder");
    }

    /// Lets blocked handlers continue.
    pub(crate) fn release(&self) {
        fs::write(self.folder().join("released"), "").expect("a new file");
    }

    /// Reads lines up to one that contains `text`, and returns that line.
    pub(crate) fn says(&mut self, text: &str) -> String {
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

    /// Shuts it down without reading its output any more, and returns its exit status.
    pub(crate) fn ends_unheard(self) -> ExitStatus {
        let mut program = self;
        program.errors = Box::new(io::empty());
        program.signal(Signal::TERM);
        program.first_ends()
    }

    /// The ID of the next process that starts.
    pub(crate) fn next(&mut self) -> u32 {
        let line = self.says(" begins");
        line.split(' ')
            .nth(1)
            .and_then(|number| number.parse().ok())
            .expect("the line has the process ID")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(self.process, signal);
    }

    /// Upgrades the program, and waits until its successor serves.
    pub(crate) fn upgrade(&mut self) {
        self.signal(Signal::USR2);
        let next = self.next();
        self.line = self.says("peregrine 0.");
        self.process = next;
    }

    /// The address with this scheme in the first line.
    fn place(&self, scheme: &str) -> &str {
        let (_, rest) = self.line.split_once(scheme).expect("the line has the address");
        rest.split([',', ';']).next().expect("split yields at least one item").trim()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.place("http://").parse().expect("an address")
    }

    pub(crate) fn tls_address(&self) -> SocketAddr {
        self.place("https://").parse().expect("an address")
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.place("admin http://").parse().expect("an address")
    }

    pub(crate) fn unix(&self) -> PathBuf {
        PathBuf::from(self.place("http+unix:"))
    }

    pub(crate) fn connects(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).expect("the server accepts connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        stream
    }

    /// The response to a GET on its own connection.
    pub(crate) fn get(&self, target: &str) -> String {
        let mut stream = self.connects();
        ask(&mut stream, target);
        answer(stream)
    }

    pub(crate) fn get_unix(&self, target: &str) -> String {
        let mut stream = UnixStream::connect(self.unix()).expect("the server accepts connections");
        stream.set_read_timeout(Some(PATIENCE)).expect("the timeout is not zero");
        ask(&mut stream, target);
        answer(stream)
    }

    /// Waits until the first process has exited; returns its status.
    pub(crate) fn first_ends(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the process is a child of this one")
            {
                return status;
            }
            assert!(Instant::now() < end, "the process does not exit");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Shuts the serving process down, and returns all output until no process can write any more.
    pub(crate) fn ends(mut self) -> String {
        self.signal(Signal::TERM);
        let mut rest = String::new();
        self.errors.read_to_string(&mut rest).expect("text");
        self.first_ends();
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Successors exit when the folder disappears.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal_to(process: u32, signal: Signal) {
    let process =
        Pid::from_raw(process.try_into().expect("a number")).expect("the value is not zero");
    kill_process(process, signal).expect("the process is running");
}

/// Whether a process with this ID exists that has not exited.
pub(crate) fn is_running(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses; a zombie has exited.
    status.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

pub(crate) fn wait_until(description: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "timed out waiting until {description}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn ask(stream: &mut impl Write, target: &str) {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the server reads the request");
}

/// The content of a response that ends with the connection.
pub(crate) fn answer(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server responds");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    text.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// This program, with the sockets as the descriptors that a service manager uses. A shell moves
/// them there, because that needs `unsafe` in Rust.
fn command_with(handed: Handed) -> Command {
    let program = std::env::current_exe().expect("the current executable has a path");
    let names: Vec<_> = handed.iter().map(|(name, _)| *name).collect();
    let (names, count) = (names.join(":"), handed.len());
    let mut handed = handed.into_iter().map(|(_, socket)| Stdio::from(socket));
    if count == 0 {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        return command;
    }
    let script =
        "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$; export LISTEN_PID; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program);
    command.env("LISTEN_FDS", count.to_string()).env("LISTEN_FDNAMES", names);
    command.stdin(handed.next().expect("one descriptor is handed over"));
    command.stdout(handed.next().unwrap_or_else(Stdio::null));
    assert!(handed.next().is_none(), "at most two sockets can be passed");
    command
}

fn write_certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])
        .expect("a certificate can be generated");
    fs::write(folder.join("certificate.pem"), made.cert.pem()).expect("a new file");
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("a new file");
}

/// Opens as many descriptors as this process may have.
pub(crate) fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // This fails once the limit is reached.
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Prints a line in one write, because another process may print at the same time.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    eprint!("{line}");
}

/// The child's side: executes the plan, unless this is an ordinary test.
pub(crate) fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let place = folder.clone();
    thread::spawn(move || {
        while place.exists() {
            thread::sleep(Duration::from_millis(100));
        }
        exit(9);
    });
    let plan = fs::read_to_string(folder.join("plan")).expect("the file exists");
    say(&format!("process {} begins", std::process::id()));
    take_descriptors();
    let plan: Vec<_> = plan.split_whitespace().collect();
    let number = |name: &str| plan.iter().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let workers = number("workers=").and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN);
    let seconds = Duration::from_secs;
    let limits = Limits {
        shutdown_timeout: number("shutdown=").map_or(seconds(30), |time| seconds(time as u64)),
        lame_duck_period: number("lame=").map_or(Duration::ZERO, |time| seconds(time as u64)),
        ..if plan.contains(&"hurry") { hurry() } else { Limits::default() }
    };
    let mut server = Server::new().workers(workers).limits(limits);
    let mut successor = UpgradeOptions::new();
    if let Some(time) = number("timeout=") {
        successor = successor.timeout(Duration::from_millis(time as u64));
    }
    for word in &plan {
        server = match *word {
            "tcp" => server.listen("127.0.0.1:0"),
            "unix" => server.listen_unix(folder.join("s")),
            "admin" => server.admin("127.0.0.1:0"),
            "admin-activated" => server.admin(Admin::activated("admin")),
            "tls" => server.listen_tls("127.0.0.1:0", tls(&folder)),
            "tls-elsewhere" => {
                server.listen_tls_activated_or("secure", "127.0.0.1:0", tls(&folder))
            }
            "activated" => server.listen_activated("web"),
            "activated-or" => server.listen_activated_or("web", "127.0.0.1:0"),
            "dies" => exit(3),
            "never" => loop {
                thread::park();
            },
            _ => server,
        };
    }
    if plan.contains(&"program") {
        successor = successor.program(folder.join("program"));
    }
    let name = plan[0].to_owned();
    let make = move || application(&name, &folder);
    let served = if plan.contains(&"in-time") {
        server.upgrade_options(successor).serve(async move || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            make()
        })
    } else {
        server.upgrade_options(successor).serve(make)
    };
    if let Err(error) = &served {
        say(&format!("failed: {error}"));
    }
    exit(i32::from(served.is_err()));
}

/// Limits with one second for everything that a peer may delay.
fn hurry() -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        first_byte_timeout: second,
        head_timeout: second,
        transfer_rate_grace: second,
        idle_timeout: second,
        handshake_timeout: second,
        ..Limits::default()
    }
}

fn tls(folder: &Path) -> TlsConfig {
    let files = [folder.join("certificate.pem"), folder.join("key.pem")];
    TlsConfig::from_pem_files(&files[0], &files[1])
        .expect("the certificate and key are valid")
        .with_alpn(&[b"http/1.1"])
}

/// A worker's application. Started requests are recorded in a file, for clients that get no
/// response.
fn application(name: &str, folder: &Path) -> App {
    match name {
        "hangs" => {
            say(&format!("process {} hangs", std::process::id()));
            loop {
                thread::park();
            }
        }
        "slow" => {
            say(&format!("process {} is slow", std::process::id()));
            thread::sleep(Duration::from_secs(2));
        }
        "broken" => return App::new().get("/", || "one").get("/", || "two"),
        _ => {}
    }
    let begun = OpenOptions::new().append(true).create(true).open(folder.join("begun"));
    let begun = RefCell::new(begun.expect("the file can be created"));
    let released = (name == "blocker").then(|| folder.join("released"));
    let count = move |peregrine::prelude::Path(number): peregrine::prelude::Path<u64>| {
        // In one write: other workers, and the old process, write to the file as well.
        begun.borrow_mut().write_all(format!("{number}\n").as_bytes()).expect("the disk has space");
        async move {
            if number % 8 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            "counted"
        }
    };
    let app = App::new()
        .get("/process", || std::process::id().to_string())
        .get("/count/{number}", count)
        .get("/ready", async || match peregrine::Shutdown::current().is_requested() {
            true => "no",
            false => "yes",
        })
        .get("/slow", async || {
            tokio::time::sleep(Duration::from_secs(3)).await;
            std::process::id().to_string()
        })
        .get("/blocks", move || {
            if let Some(released) = &released {
                say(&format!("process {} blocks", std::process::id()));
                while !released.exists() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            std::process::id().to_string()
        });
    crate::restart::pod::routes(app)
}
