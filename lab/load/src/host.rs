//! Starts contenders and lets nobody be measured who does not answer rightly.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::certificate::CertificateFiles;
use crate::client::fault::{Fault, Faults};
use crate::client::{Client, Stop, Target, tls};
use crate::contender::{Command, Places, Recipe};
use crate::process::{Process, free_ports};
use crate::slices::Runner;
use crate::workload::Workload;

/// How long a server may take from its start to its first right answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a server that answers may go on to answer wrongly, as one does that still starts.
const WRONG_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two questions to a server that is not ready.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// What all contenders of a run have in common.
#[derive(Debug, Clone)]
pub struct Host {
    /// The CPUs of the servers. None: wherever the kernel likes.
    pub server_cpus: Vec<usize>,
    /// The certificate for TLS workloads.
    pub certificate: Option<CertificateFiles>,
    /// Where built programs lie.
    pub target: String,
}

/// A started contender that has answered rightly.
#[derive(Debug)]
pub struct Started {
    /// The process and the client's connections.
    pub runner: Runner,
    /// How it was started.
    pub command: Command,
}

impl Host {
    /// Starts a contender, waits for a right answer, and declares its `connections`.
    ///
    /// # Errors
    ///
    /// The kernel's, or an error that says how the contender failed to answer.
    pub fn start(
        &self,
        client: &mut Client,
        recipe: &Recipe,
        workload: &Arc<Workload>,
        connections: usize,
    ) -> io::Result<Started> {
        let (places, target) = self.places(workload)?;
        let command = recipe.command(&places);
        let describe =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", recipe.name));
        let mut process = Process::start(&command, &self.server_cpus).map_err(describe)?;
        let group = client.group(target, workload.clone(), 1);
        let mut deadline = Instant::now() + START_TIMEOUT;
        loop {
            let tally = client.run(group, Stop::Once)?;
            if tally.replies == workload.depth as u64 && tally.faults == Faults::default() {
                break;
            }
            if process.has_ended() {
                return Err(describe(io::Error::other("the server ended before it answered")));
            }
            if tally.faults.count(Fault::Connect) == 0 {
                deadline = deadline.min(Instant::now() + WRONG_TIMEOUT);
            }
            if Instant::now() > deadline {
                let text = format!("no right answer; the last try saw: {}", tally.faults);
                return Err(describe(io::Error::new(io::ErrorKind::TimedOut, text)));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
        process.refresh();
        client.resize(group, connections);
        Ok(Started { runner: Runner { process, group }, command })
    }

    fn places(&self, workload: &Workload) -> io::Result<(Places, Target)> {
        let ports = free_ports(2)?;
        let path = |path: &std::path::Path| path.display().to_string();
        let mut places = Places {
            port: ports[0],
            tls_port: ports[1],
            workers: self.server_cpus.len().max(1),
            target: self.target.clone(),
            ..Places::default()
        };
        let mut target =
            Target { address: SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0])), tls: None };
        if workload.is_tls {
            let files = self.certificate.as_ref().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "a TLS workload needs a certificate")
            })?;
            places.tls_cert = path(&files.certificate);
            places.tls_key = path(&files.key);
            target.address.set_port(ports[1]);
            target.tls = Some(tls::config());
        }
        Ok((places, target))
    }
}
