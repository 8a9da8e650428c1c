//! A contender as a process: started where it belongs, waited for, and ended with all its children.
//!
//! Nothing is left behind in any of four ways to end. [`Server::stop`] asks the group to end and then
//! makes it. Dropping a [`Server`] makes it at once. Ctrl-C is a value ([`crate::interrupt`]) that ends
//! waits, so that the first two happen. And should this program be killed, a watcher beside each
//! server (a shell that reads from a pipe of ours) sees the pipe close and ends the group; a server
//! begins only when there is its watcher. A process that leaves the group and lets itself be adopted by another parent before the stop is not found.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::Access;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use crate::cpu_list::Cpus;
use crate::interrupt::{self, Enlisted};
use crate::output::Output;
use crate::processes::{self, ProcessState};
use crate::root::Root;

/// How often an ending process is looked at.
const POLL_PAUSE: Duration = Duration::from_millis(5);

/// How long a group may take to vanish after SIGKILL. The kernel needs a while only where a process
/// has much memory to give back.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the last output of an ended server is waited for.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// A shell that becomes the server when it is told to, and ends when nobody can tell it any more. It keeps
/// its process id.
const WAITS: &str = "read -r _ && exec \"$0\" \"$@\" </dev/null";

/// How many of its last lines are shown when a server fails.
const LAST_LINES: usize = 20;

/// How a contender is started: its recipe with every placeholder filled in.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The name for messages.
    pub name: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Variables added to this program's environment.
    pub environment: BTreeMap<String, String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// The CPUs it may run on. None: wherever this program may.
    pub cpus: Cpus,
    /// How much of the end of its output is kept, in bytes.
    pub output_bytes_max: usize,
}

impl Launch {
    /// Is there such a program? A path is one from the folder in which the program runs.
    fn find(&self, program: &str) -> io::Result<()> {
        let variable = self.environment.get("PATH").map(OsString::from);
        let places = variable.or_else(|| std::env::var_os("PATH")).unwrap_or_default();
        let is_program = |path: PathBuf| rustix::fs::access(path, Access::EXEC_OK).is_ok();
        let is_there = if program.contains('/') {
            is_program(self.folder.join(program))
        } else {
            std::env::split_paths(&places).any(|place| is_program(place.join(program)))
        };
        if is_there {
            Ok(())
        } else {
            Err(io::Error::new(io::ErrorKind::NotFound, "there is no such program"))
        }
    }

    /// Runs `words` in the current folder on any CPU, and keeps 64 KiB of output.
    #[must_use]
    pub fn new(name: &str, words: &[&str]) -> Launch {
        Launch {
            name: name.to_owned(),
            words: words.iter().map(|&word| word.to_owned()).collect(),
            environment: BTreeMap::new(),
            folder: PathBuf::from("."),
            cpus: Cpus::new(),
            output_bytes_max: 64 * 1024,
        }
    }
}

/// How long a server is waited for.
#[derive(Debug, Clone)]
pub struct Patience {
    /// From the call to the first right answer. The default is 20 s.
    pub ready_timeout: Duration,
    /// For one connection and for each read or write of a probe. The default is 1 s.
    pub probe_timeout: Duration,
    /// Between two probes. The default is 20 ms.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            ready_timeout: Duration::from_secs(20),
            probe_timeout: Duration::from_secs(1),
            pause: Duration::from_millis(20),
        }
    }
}

/// Why a server is not ready.
#[derive(Debug)]
pub enum NotReady {
    /// It ended by itself.
    Ended {
        /// Who.
        name: String,
        /// The last lines it printed.
        output: String,
    },
    /// It did not answer rightly in time.
    TimedOut {
        /// Who.
        name: String,
        /// How long it was waited for.
        waited: Duration,
        /// How often it was asked.
        probes: u32,
        /// What the last probe saw.
        saw: String,
        /// The last lines it printed.
        output: String,
    },
    /// The user wants the lab to end.
    Interrupted,
}

impl fmt::Display for NotReady {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let output = match self {
            NotReady::Ended { name, output } => {
                write!(formatter, "{name} ended before it answered")?;
                output
            }
            NotReady::TimedOut { name, waited, probes, saw, output } => {
                write!(
                    formatter,
                    "{name} gave no right answer in {:.1} s and {probes} probes; the last one \
                     saw: {saw}",
                    waited.as_secs_f64()
                )?;
                output
            }
            NotReady::Interrupted => return formatter.write_str("interrupted"),
        };
        if output.is_empty() {
            formatter.write_str("; it printed nothing")
        } else {
            write!(formatter, "; it printed:\n{output}")
        }
    }
}

impl std::error::Error for NotReady {}

/// How a server ended.
#[derive(Debug)]
pub struct Stopped {
    /// The exit status of the process that was started.
    pub status: ExitStatus,
    /// Whether it had to be killed.
    pub was_killed: bool,
    /// Its last output.
    pub output: String,
}

/// A running server and everything it started. It is killed when dropped.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    group: Pid,
    output: Output,
    watcher: Watcher,
    is_reaped: bool,
    /// While it is here, a second Ctrl-C ends the group.
    enlisted: Option<Enlisted>,
}

impl Server {
    /// Starts a server in a process group of its own.
    ///
    /// # Errors
    ///
    /// The kernel's, with the server's name: no such program, folder or CPU.
    pub fn start(launch: &Launch) -> io::Result<Server> {
        let describe =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", launch.name));
        let (program, arguments) = launch.words.split_first().ok_or_else(|| {
            describe(io::Error::new(io::ErrorKind::InvalidInput, "there is no program to run"))
        })?;
        launch.find(program).map_err(describe)?;
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new("sh");
        command
            .args(["-c", WAITS, program])
            .args(arguments)
            .envs(&launch.environment)
            .current_dir(&launch.folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        let mut child = spawn_on(&mut command, &launch.cpus).map_err(describe)?;
        // The command holds our ends of the pipe; with them its end would never be seen.
        drop(command);
        let group = Pid::from_child(&child);
        let enlisted = interrupt::enlist(group);
        let beside = Output::read(reader, launch.output_bytes_max).and_then(|output| {
            let watcher = Watcher::start(group)?;
            let mut gate = child.stdin.take().expect("it was asked for");
            gate.write_all(b"\n")?;
            Ok((watcher, output))
        });
        match beside {
            Ok((watcher, output)) => Ok(Server {
                name: launch.name.clone(),
                child,
                group,
                output,
                watcher,
                is_reaped: false,
                enlisted: Some(enlisted),
            }),
            Err(error) => {
                let _ = kill_process_group(group, Signal::KILL);
                let _ = child.wait();
                Err(describe(error))
            }
        }
    }

    /// The process id, which is also the id of the process group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process that was started has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        if self.is_reaped {
            return true;
        }
        // The process is left uncollected: until it is, no stranger can be given its id.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        !matches!(waitid(WaitId::Pid(self.group), options), Ok(None))
    }

    /// The end of what it printed.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.text()
    }

    /// Connects to `address` again and again until `probe` finds the answer right, and returns how
    /// long that took. The probe is given a stream with timeouts and says what it saw if it is
    /// not content.
    ///
    /// # Errors
    ///
    /// A [`NotReady`] that says what was seen.
    pub fn wait_ready(
        &self,
        address: SocketAddr,
        patience: &Patience,
        mut probe: impl FnMut(TcpStream) -> Result<(), String>,
    ) -> Result<Duration, NotReady> {
        let begin = Instant::now();
        let mut probes = 0;
        loop {
            probes += 1;
            let saw = match self.connect(address, patience) {
                Ok(stream) => probe(stream),
                Err(error) => Err(format!("connecting to {address}: {error}")),
            };
            let waited = begin.elapsed();
            let Err(saw) = saw else { return Ok(waited) };
            if interrupt::is_interrupted() {
                return Err(NotReady::Interrupted);
            }
            let name = self.name.clone();
            if self.has_ended() {
                self.output.wait_end(OUTPUT_TIMEOUT);
                return Err(NotReady::Ended { name, output: self.last_lines() });
            }
            if waited >= patience.ready_timeout {
                let output = self.last_lines();
                return Err(NotReady::TimedOut { name, waited, probes, saw, output });
            }
            std::thread::sleep(patience.pause);
        }
    }

    /// Asks the server and all it started to end, waits for `grace`, and kills what is left.
    ///
    /// # Errors
    ///
    /// `TimedOut` if something lives on in spite of SIGKILL; the kernel's, if it cannot be collected.
    pub fn stop(mut self, grace: Duration) -> io::Result<Stopped> {
        let family = self.family();
        self.signal(&family, Signal::TERM);
        let end = Instant::now() + grace;
        let mut is_alive = self.is_alive(&family);
        while is_alive && Instant::now() < end {
            std::thread::sleep(POLL_PAUSE);
            is_alive = self.is_alive(&family);
        }
        let status = self.finish(family)?;
        self.output.wait_end(OUTPUT_TIMEOUT);
        Ok(Stopped { status, was_killed: is_alive, output: self.output.text() })
    }

    fn connect(&self, address: SocketAddr, patience: &Patience) -> io::Result<TcpStream> {
        let stream = TcpStream::connect_timeout(&address, patience.probe_timeout)?;
        stream.set_read_timeout(Some(patience.probe_timeout))?;
        stream.set_write_timeout(Some(patience.probe_timeout))?;
        Ok(stream)
    }

    fn last_lines(&self) -> String {
        let text = self.output.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// All processes that belong to the server, as far as this system tells.
    fn family(&self) -> Vec<ProcessState> {
        let mut all = processes::all(&Root::this_machine());
        let family = processes::families(&all, &[self.id()]);
        all.retain(|id, _| family.contains(id));
        all.into_values().collect()
    }

    /// Sends `signal` to the group and to those of the family that left it.
    fn signal(&self, family: &[ProcessState], signal: Signal) {
        // Both calls fail only for who has ended meanwhile, which is what is wanted.
        let _ = kill_process_group(self.group, signal);
        for process in family.iter().filter(|process| process.group != self.id()) {
            if is_running(process)
                && let Some(id) = i32::try_from(process.id).ok().and_then(Pid::from_raw)
            {
                let _ = kill_process(id, signal);
            }
        }
    }

    fn is_alive(&self, family: &[ProcessState]) -> bool {
        !self.has_ended()
            || family.iter().any(is_running)
            || self.family().iter().any(|process| !is_gone(process))
    }

    /// Kills what is left, and collects the process. The group's id stays ours until then.
    fn finish(&mut self, mut family: Vec<ProcessState>) -> io::Result<ExitStatus> {
        let end = Instant::now() + KILL_TIMEOUT;
        while !self.is_reaped && self.is_alive(&family) {
            self.signal(&family, Signal::KILL);
            std::thread::sleep(POLL_PAUSE);
            // Somebody may have been born between the last look and the signal.
            family.extend(self.family());
            family.sort_by_key(|process| (process.id, process.started_ticks));
            family.dedup_by_key(|process| (process.id, process.started_ticks));
            if Instant::now() > end {
                let text = format!("{}: something lives on in spite of SIGKILL", self.name);
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
        // Where `/proc` does not tell who is in the group, this ends whoever is.
        if !self.is_reaped {
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        // Whoever could still signal the group lets go of its id before it is free for others.
        self.watcher.dismiss();
        self.enlisted = None;
        self.is_reaped = true;
        self.child.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_reaped {
            // Nobody can be told; if something lives on, the watcher tries once more later.
            let _ = self.finish(self.family());
        }
    }
}

fn is_gone(process: &ProcessState) -> bool {
    matches!(process.state, 'Z' | 'X')
}

/// Whether this very process still runs, not a later one with its id.
fn is_running(process: &ProcessState) -> bool {
    ProcessState::read(&Root::this_machine(), process.id)
        .is_some_and(|now| now.started_ticks == process.started_ticks && !is_gone(&now))
}

/// A shell that waits on a pipe of ours and kills a group when the pipe closes, which the kernel
/// does for us however we end.
#[derive(Debug)]
struct Watcher(Child);

impl Watcher {
    fn start(group: Pid) -> io::Result<Watcher> {
        let script = "trap '' HUP INT TERM; read -r _; kill -s KILL -- \"-$1\"";
        let group = group.as_raw_nonzero().to_string();
        // In a group of its own, so that the terminal's signals do not reach it.
        let child = Command::new("sh")
            .args(["-c", script, "lab-watcher", &group])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Watcher(child))
    }

    /// Ends the watcher before it sees its pipe close.
    fn dismiss(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `command` on `cpus`. A child inherits the affinity of the thread that starts it, so a
/// thread is pinned for just that; no code has to run between fork and exec.
fn spawn_on(command: &mut Command, cpus: &Cpus) -> io::Result<Child> {
    std::thread::scope(|scope| {
        let starter = scope.spawn(|| {
            pin_this_thread(cpus)?;
            command.spawn()
        });
        starter.join().expect("starting a program does not panic")
    })
}

/// Lets the calling thread, and what it starts, run on `cpus` only. An empty set changes nothing.
///
/// # Errors
///
/// The kernel's: no such CPU. `Unsupported` where threads cannot be pinned.
#[cfg(target_os = "linux")]
pub fn pin_this_thread(cpus: &Cpus) -> io::Result<()> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            let text = format!("CPU {cpu}: threads can be pinned below {} only", CpuSet::MAX_CPU);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread, and what it starts, run on `cpus` only. An empty set changes nothing.
///
/// # Errors
///
/// `Unsupported`: this system cannot pin threads.
#[cfg(not(target_os = "linux"))]
pub fn pin_this_thread(cpus: &Cpus) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system cannot pin threads to CPUs"))
}
