//! A server that is a process of its own, and that its successors are: what it does is in a file, so that
//! a successor may do something else.

use crate::restart::PATIENCE;
use peregrine::prelude::*;
use peregrine::restart::Successor;
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

/// The environment variable that tells the child where its folder is.
pub(crate) const FOLDER: &str = "PEREGRINE_RESTART_FOLDER";

/// Does the machine have io_uring?
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

/// A child of this test, its successors, and the folder without which none of them lives.
pub(crate) struct Program {
    /// The process that serves.
    pub(crate) process: u32,
    child: Child,
    errors: Box<dyn BufRead>,
    folder: TempDir,
    /// What the server said when it began.
    pub(crate) line: String,
}

/// Sockets that a service manager hands to the child, by name.
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

    /// The same for one that may not come to serve.
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
        let errors = Box::new(BufReader::new(child.stderr.take().expect("it is piped")));
        Self { process: child.id(), child, errors, folder, line: String::new() }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What processes that begin from now on do.
    pub(crate) fn plan(&self, plan: &str) {
        // At once: a successor may be reading it.
        let new = self.folder().join("new-plan");
        fs::write(&new, plan).expect("a file");
        fs::rename(new, self.folder().join("plan")).expect("the same folder");
    }

    /// Lets handlers end that block.
    pub(crate) fn release(&self) {
        fs::write(self.folder().join("released"), "").expect("a new file");
    }

    /// Reads lines up to one that contains `text`, and gives that.
    pub(crate) fn says(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let start = all.len();
            let length = self.errors.read_line(&mut all).expect("text");
            assert!(length > 0, "never said: {text}, but:\n{all}");
            if all[start..].contains(text) {
                return all.split_off(start);
            }
        }
    }

    /// From now on nobody reads what it says. Its status at the end, which is told to it.
    pub(crate) fn ends_unheard(self) -> ExitStatus {
        let mut program = self;
        program.errors = Box::new(io::empty());
        program.signal(Signal::TERM);
        program.first_ends()
    }

    /// The number of the next process that begins.
    pub(crate) fn next(&mut self) -> u32 {
        let line = self.says(" begins");
        line.split(' ').nth(1).and_then(|number| number.parse().ok()).expect("its number")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        signal_to(self.process, signal);
    }

    /// Lets the program upgrade, and waits until its successor serves.
    pub(crate) fn upgrade(&mut self) {
        self.signal(Signal::USR2);
        let next = self.next();
        self.line = self.says("peregrine 0.");
        self.process = next;
    }

    /// Where it listens, by the beginning of the address.
    fn place(&self, scheme: &str) -> &str {
        let (_, rest) = self.line.split_once(scheme).expect("it is told");
        rest.split([',', ';']).next().expect("there is a first piece").trim()
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
        let stream = TcpStream::connect(self.address()).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be told");
        stream
    }

    /// What the server answers to a GET, on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> String {
        let mut stream = self.connects();
        ask(&mut stream, target);
        answer(stream)
    }

    pub(crate) fn get_unix(&self, target: &str) -> String {
        let mut stream = UnixStream::connect(self.unix()).expect("somebody listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("it can be told");
        ask(&mut stream, target);
        answer(stream)
    }

    /// Waits until the first process has ended; its status.
    pub(crate) fn first_ends(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is a child") {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends the process that serves, and gives what was said until nobody can say any more.
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
        // Successors end with the folder.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal_to(process: u32, signal: Signal) {
    let process = Pid::from_raw(process.try_into().expect("a number")).expect("not zero");
    kill_process(process, signal).expect("it is running");
}

/// Is there a process of this number that has not ended?
pub(crate) fn is_running(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which is in brackets: a zombie has ended.
    status.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn ask(stream: &mut impl Write, target: &str) {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it is read");
}

/// The content of an answer that ends with the connection.
pub(crate) fn answer(mut stream: impl Read) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("the server answers");
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    text.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// This program, with the sockets where a service manager puts them. A shell moves them there: there is
/// no other way without `unsafe`.
fn command_with(handed: Handed) -> Command {
    let program = std::env::current_exe().expect("this test is running");
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
    command.stdin(handed.next().expect("there is one"));
    command.stdout(handed.next().unwrap_or_else(Stdio::null));
    assert!(handed.next().is_none(), "there is no room for more than two");
    command
}

fn write_certificate(folder: &Path) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("it is made");
    fs::write(folder.join("certificate.pem"), made.cert.pem()).expect("a new file");
    fs::write(folder.join("key.pem"), made.signing_key.serialize_pem()).expect("a new file");
}

/// As many descriptors as this process may have.
pub(crate) fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // It fails where there are no more to be had.
    let _ =
        setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}

/// Says a line in one piece: another process may say something at the same time.
pub(crate) fn say(text: &str) {
    let line = format!("{text}\n");
    eprint!("{line}");
}

/// The child's side: does what the plan says, unless it is a test like any other.
pub(crate) fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let place = folder.clone();
    thread::spawn(move || {
        while place.exists() {
            thread::sleep(Duration::from_millis(100));
        }
        exit(9);
    });
    let plan = fs::read_to_string(folder.join("plan")).expect("there is a plan");
    say(&format!("process {} begins", std::process::id()));
    take_descriptors();
    let plan: Vec<_> = plan.split_whitespace().collect();
    let number = |name: &str| plan.iter().find_map(|word| word.strip_prefix(name)?.parse().ok());
    let workers = number("workers=").and_then(NonZeroUsize::new).unwrap_or(NonZeroUsize::MIN);
    let seconds = Duration::from_secs;
    let limits = Limits {
        shutdown_timeout: number("shutdown=").map_or(seconds(30), |time| seconds(time as u64)),
        lame_duck: number("lame=").map_or(Duration::ZERO, |time| seconds(time as u64)),
        ..if plan.contains(&"hurry") { hurry() } else { Limits::default() }
    };
    let mut server = Server::new().workers(workers).limits(limits);
    let mut successor = Successor::new();
    if let Some(time) = number("timeout=") {
        successor = successor.timeout(Duration::from_millis(time as u64));
    }
    for word in &plan {
        server = match *word {
            "tcp" => server.listen("127.0.0.1:0"),
            "unix" => server.unix(folder.join("s")),
            "admin" => server.admin("127.0.0.1:0"),
            "admin-activated" => server.admin(Admin::activated("admin")),
            "tls" => server.tls("127.0.0.1:0", tls(&folder)),
            "tls-elsewhere" => server.tls_activated_or("secure", "127.0.0.1:0", tls(&folder)),
            "activated" => server.activated("web"),
            "activated-or" => server.activated_or("web", "127.0.0.1:0"),
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
        server.successor(successor).serve(async move || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            make()
        })
    } else {
        server.successor(successor).serve(make)
    };
    if let Err(error) = &served {
        say(&format!("failed: {error}"));
    }
    exit(i32::from(served.is_err()));
}

/// A second for whatever a peer may take its time for.
fn hurry() -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        first_byte_timeout: second,
        head_timeout: second,
        rate_slack: second,
        idle_timeout: second,
        handshake_timeout: second,
        ..Limits::default()
    }
}

fn tls(folder: &Path) -> Tls {
    let files = [folder.join("certificate.pem"), folder.join("key.pem")];
    Tls::from_pem_files(&files[0], &files[1]).expect("they were made").with_alpn(&[b"http/1.1"])
}

/// What a worker serves. What a handler began is in a file, for those that got no answer.
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
    let begun = RefCell::new(begun.expect("it can be written"));
    let released = (name == "blocker").then(|| folder.join("released"));
    let count = move |peregrine::prelude::Path(number): peregrine::prelude::Path<u64>| {
        // In one piece: other workers, and the process before, write to it as well.
        begun.borrow_mut().write_all(format!("{number}\n").as_bytes()).expect("there is room");
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
        .get("/ready", async || match peregrine::Shutdown::current().is_ordered() {
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
