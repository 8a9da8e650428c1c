//! Servers as processes: started on chosen CPUs, read through `/proc`, ended when dropped.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::process::{Child, Command as Program, Stdio};

use rustix::process::{Resource, Rlimit};
use rustix::thread::CpuSet;
use serde::Serialize;

use crate::contender::Command;

/// A started server.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The process and its descendants, as of the last [`Process::refresh`].
    members: Vec<u32>,
}

/// CPU time of a process by thread. Threads are told apart so that one that ends between two
/// readings does not make the sum go backwards.
#[derive(Debug, Clone, Default)]
pub struct CpuReading {
    threads: HashMap<u32, CpuTime>,
}

/// How long threads ran, and how long they could have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// On a CPU, in nanoseconds.
    pub used_ns: u64,
    /// Ready, while something else ran on the CPU, in nanoseconds.
    pub waited_ns: u64,
}

/// CPU time by side of the kernel boundary, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Ticks {
    /// In the program.
    pub user: u64,
    /// In the kernel on its behalf.
    pub system: u64,
}

impl Process {
    /// Starts `command` on `cpus`. Its output goes to this program's standard error.
    ///
    /// # Errors
    ///
    /// The kernel's: no such program, or no such CPU.
    pub fn start(command: &Command, cpus: &[usize]) -> io::Result<Process> {
        let (program, arguments) =
            command.words.split_first().expect("a command has a program to run");
        let mut program = Program::new(program);
        program
            .args(arguments)
            .envs(&command.environment)
            .current_dir(&command.folder)
            .stdin(Stdio::null())
            .stdout(io::stderr());
        // A child inherits the affinity of the thread that starts it, so a thread is pinned for
        // just that; no code has to run between fork and exec.
        let child = std::thread::scope(|scope| {
            let starter = scope.spawn(|| {
                pin_this_thread(cpus)?;
                program.spawn()
            });
            starter.join().expect("starting a program does not panic")
        })?;
        let members = vec![child.id()];
        Ok(Process { child, members })
    }

    /// The process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Looks for descendants, so that servers of several processes are counted whole.
    pub fn refresh(&mut self) {
        let mut members = vec![self.child.id()];
        let mut index = 0;
        while index < members.len() {
            for thread in thread_ids(members[index]) {
                let path = format!("/proc/{}/task/{thread}/children", members[index]);
                let children = fs::read_to_string(path).unwrap_or_default();
                members.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            }
            index += 1;
        }
        self.members = members;
    }

    /// The CPU time so far: the first two fields of every thread's `schedstat`.
    #[must_use]
    pub fn cpu(&self) -> CpuReading {
        let mut reading = CpuReading::default();
        for &member in &self.members {
            for thread in thread_ids(member) {
                let path = format!("/proc/{member}/task/{thread}/schedstat");
                let text = fs::read_to_string(path).unwrap_or_default();
                if let Some(time) = parse_schedstat(&text) {
                    reading.threads.insert(thread, time);
                }
            }
        }
        reading
    }

    /// The user and system time used so far.
    #[must_use]
    pub fn ticks(&self) -> Ticks {
        let mut sum = Ticks::default();
        for member in &self.members {
            let text = fs::read_to_string(format!("/proc/{member}/stat")).unwrap_or_default();
            let ticks = parse_ticks(&text).unwrap_or_default();
            sum.user += ticks.user;
            sum.system += ticks.system;
        }
        sum
    }

    /// The anonymous memory in use, in bytes: what the programs themselves allocated, without
    /// files and without the kernel's share.
    ///
    /// # Errors
    ///
    /// The file system's, if the process has ended.
    pub fn anonymous_bytes(&self) -> io::Result<u64> {
        let mut sum = 0;
        for member in &self.members {
            // The roll-up walks the page tables; the counter in `status` lags behind.
            let text = fs::read_to_string(format!("/proc/{member}/smaps_rollup"))?;
            let kilobytes = parse_kilobytes(&text, "Anonymous:")
                .ok_or_else(|| io::Error::other("smaps_rollup lacks the line Anonymous"))?;
            sum += kilobytes * 1024;
        }
        Ok(sum)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl CpuReading {
    /// The CPU time between `earlier` and this reading.
    #[must_use]
    pub fn since(&self, earlier: &CpuReading) -> CpuTime {
        let mut sum = CpuTime::default();
        for (thread, now) in &self.threads {
            let then = earlier.threads.get(thread).copied().unwrap_or_default();
            sum.used_ns += now.used_ns.saturating_sub(then.used_ns);
            sum.waited_ns += now.waited_ns.saturating_sub(then.waited_ns);
        }
        sum
    }
}

/// Lets the calling thread run on these CPUs only. No CPUs: no change.
///
/// # Errors
///
/// The kernel's, if none of them exists or may be used.
pub fn pin_this_thread(cpus: &[usize]) -> io::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Lets this process, and those it starts, hold as many descriptors as the hard limit allows.
///
/// # Errors
///
/// The kernel's.
pub fn raise_descriptor_limit() -> io::Result<()> {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    Ok(rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Loopback ports that were free a moment ago, all different.
///
/// # Errors
///
/// The kernel's, if it has none left.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

fn thread_ids(process: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn parse_schedstat(text: &str) -> Option<CpuTime> {
    let mut fields = text.split_whitespace();
    let (used_ns, waited_ns) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(CpuTime { used_ns, waited_ns })
}

fn parse_ticks(stat: &str) -> Option<Ticks> {
    // The name in parentheses may hold anything; fields are counted from its end. `utime` is the
    // fourteenth field of the line, the twelfth after the name.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some(Ticks { user: fields.next()?.parse().ok()?, system: fields.next()?.parse().ok()? })
}

fn parse_kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn command(words: &[&str]) -> Command {
        Command {
            words: words.iter().map(|&word| word.to_owned()).collect(),
            environment: [("PORT".to_owned(), "1".to_owned())].into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn ticks_are_found_behind_a_name_with_parentheses() {
        let stat = "7 (a ) (b) S 1 7 7 0 -1 4194560 99 0 0 0 12 34 0 0 20 0 1 0 5";
        assert_eq!(parse_ticks(stat), Some(Ticks { user: 12, system: 34 }));
        assert_eq!(parse_ticks("7 (x) S 1"), None);
    }

    #[test]
    fn kilobytes_are_read_from_their_own_line() {
        let text = "Rss:   10 kB\nAnonymous:            1234 kB\nAnonHugePages: 5 kB\n";
        assert_eq!(parse_kilobytes(text, "Anonymous:"), Some(1234));
        assert_eq!(parse_kilobytes(text, "Missing:"), None);
    }

    #[test]
    fn a_started_process_runs_where_it_was_put_and_ends_when_dropped() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu)).unwrap();
        let mut process = Process::start(&command(&["sleep", "600"]), &[cpu]).unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let list = format!("Cpus_allowed_list:\t{cpu}\n");
        assert!(status.contains(&list), "{status} lacks {list}");
        assert!(!process.has_ended());
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), allowed);
        let id = process.id();
        drop(process);
        assert!(!fs::exists(format!("/proc/{id}")).unwrap());
    }

    #[test]
    fn cpu_time_of_children_is_counted() {
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 600";
        let nested = format!("sh -c '{script}'; true");
        let mut process = Process::start(&command(&["sh", "-c", &nested]), &[]).unwrap();
        let before = process.cpu();
        let mut used = Duration::ZERO;
        for _ in 0..1000 {
            process.refresh();
            used = Duration::from_nanos(process.cpu().since(&before).used_ns);
            if used > Duration::from_millis(5) && process.members.len() > 1 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(used > Duration::from_millis(5), "only {used:?} were seen");
        for &member in process.members.iter().skip(1) {
            let id = rustix::process::Pid::from_raw(member as i32).unwrap();
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    }

    #[test]
    fn a_thread_that_ended_does_not_make_the_sum_go_back() {
        let reading = |times: &[(u32, u64)]| CpuReading {
            threads: times
                .iter()
                .map(|&(thread, used_ns)| (thread, CpuTime { used_ns, waited_ns: used_ns / 50 }))
                .collect(),
        };
        let earlier = reading(&[(1, 100), (2, 5000)]);
        let later = reading(&[(1, 150), (3, 7)]);
        assert_eq!(later.since(&earlier), CpuTime { used_ns: 57, waited_ns: 1 });
    }

    #[test]
    fn running_and_waiting_are_told_apart() {
        let time = parse_schedstat("8200364 4321 17\n");
        assert_eq!(time, Some(CpuTime { used_ns: 8_200_364, waited_ns: 4321 }));
        assert_eq!(parse_schedstat(""), None);
    }

    #[test]
    fn free_ports_differ() {
        let ports = free_ports(20).unwrap();
        let different: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 20);
    }
}
