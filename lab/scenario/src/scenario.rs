//! A scenario file as a value, and where the files are found.

use std::fs;
use std::path::{Path, PathBuf};

use peregrine_lab_load::workload::Workload;
use serde::{Deserialize, Serialize};

use crate::body::{Fixtures, sha256};
use crate::error::{ScenarioError, WorkloadError, Wrong};
use crate::exchange::Exchange;
use crate::keys::{self, FileKeys};
use crate::limits;

/// What is asked, which answer is right, and under which load: one file of `lab/scenarios`.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// The name: the file's, with what was changed by [`over_http2`](Scenario::over_http2),
    /// [`over_tls`](Scenario::over_tls) and [`opened`](Scenario::opened) behind it.
    pub name: String,
    /// The file's name, by which contenders say what they lack.
    pub base: String,
    /// One line for the head of a table.
    pub title: String,
    /// What it shows and what it does not, in sentences.
    pub about: String,
    /// The published figures that it belongs to: a claim file's id, a slash, and the id of a
    /// scenario or table in it, as in `alos-https/A1`.
    pub published: Vec<String>,
    /// How it is measured.
    pub kind: Kind,
    /// Whether each reply's body must have passed through the lab's echo server.
    pub is_relayed: bool,
    /// What is asked; none for a micro benchmark, which asks no server.
    pub exchange: Option<Exchange>,
    /// Exchanges that must be right before anything is timed.
    pub probes: Vec<Exchange>,
    /// Connections, and what goes over them. A micro benchmark has none of them.
    pub load: Load,
    /// SHA-256 of the file, in hexadecimal digits.
    pub sha256: String,
    /// The other files that it is made of, in the order of their first use.
    pub fixtures: Vec<Fixture>,
}

/// A file that a scenario takes a body from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fixture {
    /// Its path, relative to the scenario's folder.
    pub path: PathBuf,
    /// SHA-256 of its bytes, in hexadecimal digits.
    pub sha256: String,
}

/// How a scenario is measured.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A closed loop at each number of connections.
    Load,
    /// Open loops at rates that are the same for all contenders.
    Latency {
        /// The rates, one after the other; the default is 50, 80 and 95 % of the capacity.
        rates: Vec<OpenRate>,
    },
    /// Connections that are held open after one request each, and a few active ones: memory, and
    /// the latency of the active ones.
    Idle,
    /// An open loop above the capacity: how many right replies still come.
    Overload {
        /// How many times the measured capacity is offered; above 1, the default is 2.
        factor: f64,
    },
    /// SIGTERM in the middle of a closed loop: which requests are lost.
    Shutdown,
    /// A benchmark inside a process, which writes its result to a file.
    Micro(Micro),
}

/// How often an open loop asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OpenRate {
    /// A share of the capacity that all contenders have in common, above 0 and at most 1.
    Share(f64),
    /// So many requests a second.
    PerSecond(f64),
}

/// How an in-process benchmark is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Micro {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// The environment variable that names the file which the benchmark is to write, by its absolute
    /// path, because cargo runs a benchmark in its package's folder. The content of the file is for
    /// [`micro::read`](crate::micro::read).
    pub result_variable: String,
}

/// The connections of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    /// How many connections ask, at each level. A run is made for each.
    pub connections: Vec<usize>,
    /// TLS 1.3, and how sessions begin; none: plain HTTP.
    pub tls: Option<TlsMode>,
    /// How many requests a connection has under way; the default is 1.
    pub pipeline: usize,
    /// Whether each of them has a stream of HTTP/2; the default is HTTP/1.1.
    pub is_http2: bool,
    /// After how many requests a connection is closed and made anew; none: never.
    pub requests_per_connection: Option<u64>,
    /// How many further connections are held open without asking; the default is none.
    pub idle_connections: usize,
    /// How many segments TCP may send again, per segment sent, before a guard voids a block; none:
    /// the guard's own limit. Loopback sends some again where much flows, whoever serves.
    pub sent_again_share_max: Option<f64>,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            connections: Vec::new(),
            tls: None,
            pipeline: 1,
            is_http2: false,
            requests_per_connection: None,
            idle_connections: 0,
            sent_again_share_max: None,
        }
    }
}

/// How TLS sessions begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsMode {
    /// Every handshake is a full one.
    Full,
    /// Later connections of a run resume sessions of earlier ones.
    Resumed,
}

impl Scenario {
    /// Reads a file and checks all of it.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with it.
    pub fn read(path: &Path) -> Result<Scenario, ScenarioError> {
        let read = || {
            let text = fs::read_to_string(path)
                .map_err(|error| Wrong::new("", error.to_string(), "name a readable file"))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let keys = keys::read(&text)?;
            limits::check_names(&keys, &name)?;
            Scenario::build(keys, path, sha256(text.as_bytes()))
        };
        read().map_err(|wrong| ScenarioError::new(path, wrong))
    }

    fn build(mut keys: FileKeys, path: &Path, sha256: String) -> Result<Scenario, Wrong> {
        let mut fixtures = Fixtures::beside(path);
        let exchange = match (keys.request.take(), keys.reply.take()) {
            (Some(request), Some(reply)) => {
                Some(Exchange::read("asked", request, reply, &mut fixtures)?)
            }
            _ => None,
        };
        let mut probes = Vec::new();
        for (index, probe) in std::mem::take(&mut keys.probes).into_iter().enumerate() {
            let table = format!("probe {}", index + 1);
            let read = Exchange::read(&probe.name, probe.request, probe.reply, &mut fixtures);
            probes.push(read.map_err(|wrong| wrong.within(&table))?);
        }
        let (kind, load) = limits::kind_and_load(&mut keys, path)?;
        limits::check_exchanges(&kind, exchange.as_ref(), &probes)?;
        let is_websocket = exchange.as_ref().is_some_and(|exchange| exchange.wording.is_websocket);
        if is_websocket && load.requests_per_connection.is_some() {
            let fix = "remove it";
            let key = "load.requests_per_connection";
            return Err(Wrong::new(key, "a WebSocket is opened once and stays", fix));
        }
        Ok(Scenario {
            base: keys.name.clone(),
            name: keys.name,
            title: keys.title,
            about: keys.about,
            published: keys.published,
            kind,
            is_relayed: keys.echo,
            exchange,
            probes,
            load,
            sha256,
            fixtures: fixtures.used,
        })
    }

    /// Reads the scenario of this name in `folder`, or the file at this path: what ends in `.toml`
    /// or has a slash is a path.
    ///
    /// # Errors
    ///
    /// As [`Scenario::read`]; an unknown name is answered with the known ones.
    pub fn find(folder: &Path, name_or_path: &str) -> Result<Scenario, ScenarioError> {
        if name_or_path.contains('/') || name_or_path.ends_with(".toml") {
            return Scenario::read(Path::new(name_or_path));
        }
        let path = folder.join(format!("{name_or_path}.toml"));
        if path.is_file() {
            return Scenario::read(&path);
        }
        let known: Vec<String> = files(folder)?
            .iter()
            .filter_map(|file| Some(file.file_stem()?.to_string_lossy().into_owned()))
            .collect();
        let cause = format!("there is no scenario {name_or_path:?}");
        let fix = format!("known are {}", known.join(", "));
        Err(ScenarioError::new(folder, Wrong::new("", cause, fix)))
    }

    /// Reads every scenario of a folder, in the order of their names.
    ///
    /// # Errors
    ///
    /// As [`Scenario::read`], for the first file that is wrong.
    pub fn all(folder: &Path) -> Result<Vec<Scenario>, ScenarioError> {
        files(folder)?.iter().map(|file| Scenario::read(file)).collect()
    }

    /// The scenario as paired time slices ask it, at any number of connections.
    ///
    /// # Errors
    ///
    /// As [`Exchange::workload`], or [`WorkloadError::Unpaired`] where the kind of load or its
    /// connections have no paired form.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let exchange = match (&self.kind, &self.exchange) {
            (Kind::Load, Some(exchange)) => exchange,
            _ => return Err(WorkloadError::Unpaired("only closed loops are measured in pairs")),
        };
        if self.load.requests_per_connection.is_some() {
            let why = "the connections of paired slices are never made anew";
            return Err(WorkloadError::Unpaired(why));
        }
        let workload =
            exchange.workload(&self.name, self.load.pipeline, self.load.tls.is_some())?;
        Ok(Workload { is_http2: self.load.is_http2, ..workload })
    }
}

/// The scenario files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>, ScenarioError> {
    let wrong = |error: std::io::Error| {
        let fix = "name the folder of the scenario files";
        ScenarioError::new(folder, Wrong::new("", error.to_string(), fix))
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
