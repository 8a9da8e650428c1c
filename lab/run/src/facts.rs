//! What a run file says about the machine and about the lab itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use peregrine_lab_host::environment::{Environment, Extras};
use peregrine_lab_host::root::Root;
use peregrine_lab_model::Tool;
use peregrine_lab_model::machine::Machine;

use crate::stage::Stage;

/// The machine as a run file describes it, and the lab's own version. Captured once per session;
/// it runs a few programs to ask for their versions.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The machine.
    pub machine: Machine,
    /// The lab.
    pub tool: Tool,
}

impl Facts {
    /// Captures both. `repository` is the folder that the lab was built from, for its commit.
    #[must_use]
    pub fn capture(stage: &Stage, repository: Option<&Path>) -> Facts {
        let extras = Extras {
            cpu_sets: Some(stage.sets.clone()),
            repository: repository.map(Path::to_owned),
            ..Extras::default()
        };
        let environment = Environment::capture(&stage.root, extras);
        let commit = environment.commit.clone().unwrap_or_default();
        let tool = Tool {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            is_modified: commit.ends_with('+'),
            commit: commit.trim_end_matches('+').to_owned(),
            command: command(std::env::args()),
        };
        Facts { machine: machine(&stage.root, environment, stage), tool }
    }
}

fn machine(root: &Root, environment: Environment, stage: &Stage) -> Machine {
    let numbers = |cpus: &std::collections::BTreeSet<usize>| -> Vec<u32> {
        cpus.iter().map(|&cpu| cpu as u32).collect()
    };
    let mut limits: BTreeMap<String, String> = environment.settings.clone();
    for (name, value) in &environment.limits {
        limits.insert(name.to_lowercase(), value.clone());
    }
    for (name, version) in &environment.versions {
        limits.insert(format!("version of {name}"), version.clone());
    }
    let mtu = root.line("/sys/class/net/lo/mtu").unwrap_or_else(|| "unknown".to_owned());
    Machine {
        cpu: environment.cpu,
        cpus: stage.cpus as u32,
        memory_bytes: environment.memory_bytes.unwrap_or(0),
        system: system(root, &environment.system),
        kernel: environment.kernel,
        governor: governor(root, environment.governor),
        turbo: turbo(root),
        smt: root
            .line("/sys/devices/system/cpu/smt/control")
            .unwrap_or_else(|| "unknown".to_owned()),
        mitigations: environment
            .mitigations
            .iter()
            .filter(|(_, state)| *state != "Not affected")
            .map(|(name, state)| format!("{name}: {state}"))
            .collect(),
        clock_source: environment.clock,
        is_virtual: environment.is_virtual,
        limits,
        tuned: stage.tuning.as_ref().map_or_else(Vec::new, |tuning| tuning.changes().to_vec()),
        network: format!("loopback, MTU {mtu}"),
        server_cpus: numbers(&stage.sets.server),
        client_cpus: numbers(&stage.sets.client),
        load_before: load(root),
        ..Machine::default()
    }
}

/// A kernel without frequencies to steer has no governor, which is another thing than one that
/// could not be read.
fn governor(root: &Root, found: String) -> String {
    let is_steered = root.exists("/sys/devices/system/cpu/cpu0/cpufreq");
    if is_steered { found } else { "none".to_owned() }
}

fn system(root: &Root, fallback: &str) -> String {
    let text = root.text("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| fallback.to_owned(), |name| name.trim_matches('"').to_owned())
}

fn turbo(root: &Root) -> String {
    let boost = root.line("/sys/devices/system/cpu/cpufreq/boost");
    let no_turbo = root.line("/sys/devices/system/cpu/intel_pstate/no_turbo");
    match (boost.as_deref(), no_turbo.as_deref()) {
        (Some("1"), _) | (_, Some("0")) => "on",
        (Some("0"), _) | (_, Some("1")) => "off",
        _ => "unknown",
    }
    .to_owned()
}

/// The mean load over 1, 5 and 15 minutes.
#[must_use]
pub fn load(root: &Root) -> Option<[f64; 3]> {
    let text = root.line("/proc/loadavg")?;
    let mut words = text.split_whitespace().map(|word| word.parse().ok());
    Some([words.next()??, words.next()??, words.next()??])
}

/// The command line, with the program's name alone instead of where it lies.
fn command(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut words: Vec<String> = arguments.collect();
    if let Some(program) = words.first_mut()
        && let Some(name) = Path::new(program.as_str()).file_name()
    {
        *program = name.to_string_lossy().into_owned();
    }
    words
}

/// Seconds since 1970.
#[must_use]
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
