//! Where contenders run: their CPUs, their ports, their certificate, what they may ask, and their
//! counters.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use peregrine_lab_contender::{Command, Places, Recipe};
use peregrine_lab_host::cpu_sets::{self, CpuSets, Wish};
use peregrine_lab_host::root::Root;
use peregrine_lab_host::server::{Launch, NotReady, Patience, Server, Stopped, pin_this_thread};
use peregrine_lab_host::topology::Topology;
use peregrine_lab_host::tune::Tuning;
use peregrine_lab_host::usage::{Family, Holdings, Reading};
use peregrine_lab_host::{limits, ports};
use peregrine_lab_load::certificate::{self, CertificateFiles};
use peregrine_lab_load::echo::EchoServer;

use crate::error::RunError;

/// How long a server that was asked to end may take to finish what it has begun.
const GRACE: Duration = Duration::from_secs(5);

/// The most bytes of a server's output that are kept.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Where the old values of a tuned host are kept: a folder that all runs share, whatever their own
/// folder is, and that is empty after a restart of the machine, as the settings are as of old then.
const TUNING_FOLDER: &str = "/run/peregrine-lab";

/// What all contenders of a run have in common. Dropping it removes the certificate, puts back what
/// was tuned, and ends the echo server.
#[derive(Debug)]
pub struct Stage {
    /// Where the kernel's files are read.
    pub root: Root,
    /// Whose CPUs are whose.
    pub sets: CpuSets,
    /// How many workers a server is told to have.
    pub workers: usize,
    /// Where built programs lie.
    pub target: PathBuf,
    /// How many CPUs this program could use before it moved to the client's.
    pub cpus: usize,
    /// How many files each process may have open; none: any number.
    pub descriptors: Option<u64>,
    /// What is changed on the host as long as this stage stands; nothing unless [`Stage::tune`] was
    /// called.
    pub tuning: Option<Tuning>,
    /// What handlers ask over TCP, on the client's CPUs. It sleeps while nobody asks.
    pub echo: EchoServer,
    certificate: CertificateFiles,
    _folder: tempfile::TempDir,
}

/// A started contender.
#[derive(Debug)]
pub struct Up {
    /// The name of its arm.
    pub name: String,
    /// Where it serves HTTP.
    pub plain: SocketAddr,
    /// Where it serves HTTPS, if it can.
    pub secure: SocketAddr,
    /// How it was started.
    pub command: Command,
    root: Root,
    server: Server,
    family: Family,
}

impl Stage {
    /// Divides the CPUs, makes a certificate, and pins this thread to the client's CPUs. Without
    /// `workers`, a server is told to have as many as it has CPUs.
    ///
    /// # Errors
    ///
    /// [`RunError::Machine`] if the CPUs cannot be divided so, or the kernel's word.
    pub fn set(target: PathBuf, wish: &Wish, workers: Option<usize>) -> Result<Stage, RunError> {
        let root = Root::this_machine();
        let topology = Topology::read(&root);
        let sets = cpu_sets::choose(&topology, wish)
            .map_err(|error| RunError::Machine(error.to_string()))?;
        let descriptors =
            limits::raise_descriptors().map_err(RunError::io("raising the limit of open files"))?;
        pin_this_thread(&sets.client).map_err(RunError::io("moving to the client's CPUs"))?;
        let folder = tempfile::tempdir().map_err(RunError::io("a temporary folder"))?;
        let certificate =
            certificate::write(folder.path()).map_err(RunError::io("writing a certificate"))?;
        let echo = EchoServer::start(sets.client.iter().copied().collect())
            .map_err(RunError::io("starting the echo server"))?;
        let workers = workers.unwrap_or(sets.server.len()).max(1);
        let cpus = topology.allowed.len();
        Ok(Stage {
            root,
            sets,
            workers,
            target,
            cpus,
            descriptors,
            tuning: None,
            echo,
            certificate,
            _folder: folder,
        })
    }

    /// Tunes the host for as long as this stage stands, as [`Tuning::apply`] tells. What is started
    /// or captured later finds it tuned.
    ///
    /// # Errors
    ///
    /// [`RunError::Machine`] with what was refused and how to mend that; the host is then as it was.
    pub fn tune(&mut self) -> Result<&Tuning, RunError> {
        let folder = self.root.path(TUNING_FOLDER);
        let tuning = Tuning::apply(&self.root, &self.sets, &folder)
            .map_err(|error| RunError::Machine(error.to_string()))?;
        Ok(self.tuning.insert(tuning))
    }

    /// The client's CPUs.
    #[must_use]
    pub fn client_cpus(&self) -> Vec<usize> {
        self.sets.client.iter().copied().collect()
    }

    /// The servers' CPUs.
    #[must_use]
    pub fn server_cpus(&self) -> Vec<usize> {
        self.sets.server.iter().copied().collect()
    }

    /// Starts a contender and waits until it takes connections; whether it answers rightly is for
    /// [`crate::verify`]. `name` is that of its arm.
    ///
    /// # Errors
    ///
    /// [`RunError::NotReady`] with what it printed, or the kernel's word.
    pub fn start(&self, recipe: &Recipe, name: &str) -> Result<Up, RunError> {
        let ports = ports::free(2).map_err(RunError::io("looking for free ports"))?;
        let path = |path: &std::path::Path| path.display().to_string();
        let is_tls = recipe.is_tls_able;
        let places = Places {
            port: ports[0],
            tls_port: ports[1],
            tls_cert: if is_tls { path(&self.certificate.certificate) } else { String::new() },
            tls_key: if is_tls { path(&self.certificate.key) } else { String::new() },
            workers: self.workers,
            echo_port: self.echo.address().port(),
            target: self.target.clone(),
        };
        let command = recipe.command(&places);
        let launch = Launch {
            name: name.to_owned(),
            words: command.words.clone(),
            environment: command.environment.clone(),
            folder: command.folder.clone(),
            cpus: self.sets.server.clone(),
            output_bytes_max: OUTPUT_BYTES_MAX,
        };
        let server = Server::start(&launch).map_err(RunError::io(format!("starting {name}")))?;
        let [plain, secure] =
            [ports[0], ports[1]].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut addresses = vec![plain];
        if is_tls {
            addresses.push(secure);
        }
        for address in addresses {
            server.wait_ready(address, &Patience::default(), |_| Ok(())).map_err(|error| {
                match error {
                    NotReady::Interrupted => RunError::Interrupted,
                    other => RunError::NotReady(other.to_string()),
                }
            })?;
        }
        let mut up = Up {
            name: name.to_owned(),
            plain,
            secure,
            command,
            root: self.root.clone(),
            family: Family::of(&self.root, &[server.id()]),
            server,
        };
        up.refresh();
        Ok(up)
    }
}

impl Up {
    /// Where the bytes go.
    #[must_use]
    pub fn address(&self, is_tls: bool) -> SocketAddr {
        if is_tls { self.secure } else { self.plain }
    }

    /// The process that was started.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.server.id()
    }

    /// The process that was started and all it started, as of the last look.
    #[must_use]
    pub fn members(&self) -> &BTreeSet<u32> {
        self.family.members()
    }

    /// Looks again for what it started.
    pub fn refresh(&mut self) {
        self.family = Family::of(&self.root, &[self.server.id()]);
    }

    /// Its counters.
    #[must_use]
    pub fn read(&self) -> Reading {
        self.family.read(&self.root)
    }

    /// Its CPU time alone, which is cheap enough for each switch of short slices. Never compare it
    /// with a whole reading.
    #[must_use]
    pub fn read_cpu(&self) -> Reading {
        self.family.read_cpu(&self.root)
    }

    /// Its memory; `is_exact` walks the page tables.
    #[must_use]
    pub fn holdings(&self, is_exact: bool) -> Holdings {
        self.family.holdings(&self.root, is_exact)
    }

    /// Whether it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    /// The end of what it printed.
    #[must_use]
    pub fn output(&self) -> String {
        self.server.output()
    }

    /// Asks it to end, and waits.
    ///
    /// # Errors
    ///
    /// The kernel's, if it lives on.
    pub fn stop(self) -> Result<Stopped, RunError> {
        self.stop_within(GRACE)
    }

    /// Asks it to end, and waits for so long before it is killed.
    ///
    /// # Errors
    ///
    /// The kernel's, if it lives on.
    pub fn stop_within(self, grace: Duration) -> Result<Stopped, RunError> {
        let name = self.name;
        self.server.stop(grace).map_err(RunError::io(format!("stopping {name}")))
    }
}
