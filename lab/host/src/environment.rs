//! What a run file must say about where and how a run was made, so that it can be made again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cpu_sets::CpuSets;
use crate::root::Root;
use crate::topology::Topology;

/// The version of [`Environment`]'s form. It grows when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// Settings of the kernel that results depend on, below `/proc/sys`.
const SETTINGS: &[&str] = &[
    "kernel/io_uring_disabled",
    "kernel/perf_event_paranoid",
    "kernel/randomize_va_space",
    "net/core/somaxconn",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/tcp_wmem",
];

/// Programs whose versions are always asked for.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("rustc", &["rustc", "--version"]),
    ("cargo", &["cargo", "--version"]),
    ("go", &["go", "version"]),
];

/// Variables that change what compilers and servers do.
const VARIABLES: &[&str] = &[
    "RUSTFLAGS",
    "CARGO_BUILD_RUSTFLAGS",
    "GOFLAGS",
    "GOGC",
    "GOMAXPROCS",
    "CFLAGS",
    "LD_PRELOAD",
];

/// How many bytes of a file are hashed at a time.
const READ_BYTES: usize = 64 * 1024;

/// What the caller adds to what the machine tells.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// Which CPUs ran what.
    pub cpu_sets: Option<CpuSets>,
    /// Files that pin what was built; each is hashed.
    pub lock_files: Vec<PathBuf>,
    /// How each contender was built and started.
    pub commands: Vec<CommandRecord>,
    /// The allocator of each contender, as its recipe says.
    pub allocators: BTreeMap<String, String>,
    /// More programs whose version is asked for: a name, and the command that prints it.
    pub programs: Vec<(String, Vec<String>)>,
    /// The folder of the repository that the lab was built from, for its commit.
    pub repository: Option<PathBuf>,
}

/// A command as it was run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandRecord {
    /// Whose it is.
    pub contender: String,
    /// `build` or `run`.
    pub purpose: String,
    /// The program and its arguments.
    pub words: Vec<String>,
    /// The variables that were added to the environment. The rest of it is never recorded.
    pub environment: BTreeMap<String, String>,
}

/// A file and what was in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// Where it lies, as given.
    pub path: PathBuf,
    /// SHA-256 in hexadecimal digits, or nothing if it could not be read.
    pub sha256: Option<String>,
}

/// Where and how a run was made. What could not be read is "unknown" or nothing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// The version of this form.
    pub schema: u32,
    /// Seconds since 1970, UTC.
    pub captured_unix_s: u64,
    /// The operating system and the instruction set, as Rust names them.
    pub system: String,
    /// The processor's name.
    pub cpu: String,
    /// What the CPUs share.
    pub topology: Topology,
    /// Whether the processor says that it is a virtual one.
    pub is_virtual: bool,
    /// The kernel's release and build.
    pub kernel: String,
    /// The kernel's command line: mitigations, isolated CPUs.
    pub kernel_command_line: String,
    /// The frequency governor of the first usable CPU.
    pub governor: String,
    /// Known weaknesses and what is done about each.
    pub mitigations: BTreeMap<String, String>,
    /// The clock source.
    pub clock: String,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The kernel's settings by path below `/proc/sys`.
    pub settings: BTreeMap<String, String>,
    /// This program's limits: name to soft and hard, as the kernel prints them.
    pub limits: BTreeMap<String, String>,
    /// Variables that change what compilers and servers do, where set.
    pub variables: BTreeMap<String, String>,
    /// What each program says its version is; programs that are missing are left out.
    pub versions: BTreeMap<String, String>,
    /// The commit that the lab was built from; `+` behind it says that files were changed.
    pub commit: Option<String>,
    /// Which CPUs ran what.
    pub cpu_sets: Option<CpuSets>,
    /// The files that pin what was built.
    pub lock_files: Vec<FileHash>,
    /// How each contender was built and started.
    pub commands: Vec<CommandRecord>,
    /// The allocator of each contender.
    pub allocators: BTreeMap<String, String>,
}

impl Environment {
    /// Reads everything. It runs a few programs to ask for their versions.
    #[must_use]
    pub fn capture(root: &Root, extras: Extras) -> Environment {
        let topology = Topology::read(root);
        let cpuinfo = root.text("/proc/cpuinfo").unwrap_or_default();
        let first = topology.allowed.first().copied().unwrap_or(0);
        let governor = format!("/sys/devices/system/cpu/cpu{first}/cpufreq/scaling_governor");
        let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let memory = root.field("/proc/meminfo", "MemTotal");
        let memory = memory.and_then(|value| value.strip_suffix("kB")?.trim().parse::<u64>().ok());
        let kernel =
            ["osrelease", "version"].map(|name| line(root, &format!("/proc/sys/kernel/{name}")));
        let asked = PROGRAMS.iter().map(|&(name, words)| {
            (name.to_owned(), words.iter().map(|&word| word.to_owned()).collect())
        });
        let versions = asked.chain(extras.programs);
        Environment {
            schema: SCHEMA,
            captured_unix_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            cpu: root.field("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
            is_virtual: cpuinfo.split_whitespace().any(|word| word == "hypervisor"),
            topology,
            kernel: kernel.join(" "),
            kernel_command_line: line(root, "/proc/cmdline"),
            governor: line(root, &governor),
            mitigations: mitigations(root),
            clock: line(root, clock),
            memory_bytes: memory.map(|kilobytes| kilobytes * 1024),
            settings: settings(root),
            limits: limits(root),
            variables: variables(),
            versions: versions.filter_map(|(name, words)| Some((name, version(&words)?))).collect(),
            commit: extras.repository.as_deref().and_then(commit),
            cpu_sets: extras.cpu_sets,
            lock_files: extras
                .lock_files
                .into_iter()
                .map(|path| FileHash { sha256: sha256(&path).ok(), path })
                .collect(),
            commands: extras.commands,
            allocators: extras.allocators,
        }
    }
}

/// The SHA-256 of a file in hexadecimal digits.
///
/// # Errors
///
/// The file system's.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => hash.update(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn line(root: &Root, path: &str) -> String {
    root.line(path).unwrap_or_else(unknown)
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn mitigations(root: &Root) -> BTreeMap<String, String> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let names = root.names(folder).into_iter();
    names.filter_map(|name| Some((name.clone(), root.line(&format!("{folder}/{name}"))?))).collect()
}

fn settings(root: &Root) -> BTreeMap<String, String> {
    let read = |&name: &&str| Some((name.to_owned(), root.line(&format!("/proc/sys/{name}"))?));
    let mut settings: BTreeMap<String, String> = SETTINGS.iter().filter_map(read).collect();
    if let Some(chosen) = root.line("/sys/kernel/mm/transparent_hugepage/enabled") {
        settings.insert("transparent_hugepage".to_owned(), chosen);
    }
    settings
}

fn limits(root: &Root) -> BTreeMap<String, String> {
    let names = ["Max open files", "Max processes", "Max locked memory", "Max stack size"];
    let read = |name: &str| Some((name.to_owned(), root.field("/proc/self/limits", name)?));
    let words = |value: String| value.split_whitespace().collect::<Vec<_>>().join(" ");
    names.into_iter().filter_map(read).map(|(name, value)| (name, words(value))).collect()
}

fn variables() -> BTreeMap<String, String> {
    let read = |&name: &&str| Some((name.to_owned(), std::env::var(name).ok()?));
    VARIABLES.iter().filter_map(read).collect()
}

/// The first line that a program prints about its version.
fn version(words: &[String]) -> Option<String> {
    let (program, arguments) = words.split_first()?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    // nginx and some others print their version as an error.
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().chain(errors.lines()).find(|line| !line.trim().is_empty())?;
    output.status.success().then(|| line.trim().to_owned())
}

fn commit(repository: &Path) -> Option<String> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(repository).args(arguments).stdin(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain"])?;
    Some(if changes.is_empty() { commit } else { commit + "+" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_the_standard_and_a_missing_file_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Cargo.lock");
        std::fs::write(&path, "abc").unwrap();
        let missing = folder.path().join("go.sum");
        let extras =
            Extras { lock_files: vec![path.clone(), missing.clone()], ..Extras::default() };
        let environment = Environment::capture(&Root::at(folder.path()), extras);
        // The example of FIPS 180-2.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let hashes = [
            FileHash { path, sha256: Some(expected.to_owned()) },
            FileHash { path: missing, sha256: None },
        ];
        assert_eq!(environment.lock_files, hashes);
        assert_eq!(environment.cpu, "unknown");
    }

    #[test]
    fn an_environment_survives_a_run_file() {
        let programs = vec![
            ("shell".to_owned(), ["sh", "-c", "echo; echo 1.2"].map(String::from).into()),
            ("ghost".to_owned(), vec!["./no-such-program".to_owned()]),
            ("failing".to_owned(), ["sh", "-c", "echo 1; exit 1"].map(String::from).into()),
        ];
        let extras = Extras { programs, ..Extras::default() };
        let environment = Environment::capture(&Root::this_machine(), extras);
        assert_eq!(environment.versions["shell"], "1.2");
        assert!(!environment.versions.contains_key("ghost"));
        assert!(!environment.versions.contains_key("failing"));
        assert!(environment.versions["rustc"].starts_with("rustc "));
        let text = serde_json::to_string(&environment).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&text).unwrap(), environment);
    }
}
