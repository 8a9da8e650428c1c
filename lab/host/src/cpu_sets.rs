//! Where servers run and where clients run: disjoint sets of CPUs that share as little as they can.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu_list::{self, Cpus, ListError};
use crate::topology::Topology;

/// CPUs for the servers and for the clients, disjoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuSets {
    /// Where the servers run.
    pub server: Cpus,
    /// Where the clients run.
    pub client: Cpus,
    /// What the reader of a result must know about this division, in sentences.
    pub remarks: Vec<String>,
}

/// What the user said about the division. A side that is not given is chosen.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The servers' CPUs as a list, as in `0,2-5`.
    pub server: Option<String>,
    /// The clients' CPUs as a list.
    pub client: Option<String>,
    /// How many cores the servers get at most. The default is half of them.
    pub server_cores_max: Option<usize>,
}

/// Why CPUs cannot be divided so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetsError {
    /// A list is not a list.
    List(Side, ListError),
    /// CPUs that this process may not use, or that do not exist.
    NotAllowed(Side, Cpus, Cpus),
    /// CPUs that stand in both lists.
    Overlap(Cpus),
    /// Two CPUs of one core, one on each side.
    SiblingsApart(usize, usize),
    /// The other side's list leaves no core for this one.
    NothingLeft(Side),
    /// Only one core may be used, so that server and client would take turns on it.
    OneCore(Cpus),
    /// The servers were to get no core.
    NoServerCores,
}

/// Who a set of CPUs is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The servers under measurement.
    Server,
    /// The load generator.
    Client,
}

impl fmt::Display for Side {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Side::Server => "server",
            Side::Client => "client",
        })
    }
}

impl fmt::Display for SetsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = cpu_list::format;
        match self {
            SetsError::List(side, error) => write!(formatter, "the {side}'s CPUs: {error}"),
            SetsError::NotAllowed(side, cpus, allowed) => write!(
                formatter,
                "the {side}'s CPUs {} are not among those that this process may use ({})",
                list(cpus),
                list(allowed)
            ),
            SetsError::Overlap(cpus) => {
                write!(formatter, "CPUs {} are given to server and client at once", list(cpus))
            }
            SetsError::SiblingsApart(server, client) => write!(
                formatter,
                "CPU {server} (server) and CPU {client} (client) are one core: each would slow the \
                 other; give both to one side"
            ),
            SetsError::NothingLeft(side) => {
                write!(formatter, "no whole core is left for the {side}; shorten the other list")
            }
            SetsError::OneCore(cpus) => write!(
                formatter,
                "this process may use one core only (CPUs {}): server and client need one each",
                list(cpus)
            ),
            SetsError::NoServerCores => write!(formatter, "the server needs at least one core"),
        }
    }
}

impl std::error::Error for SetsError {}

/// Divides the CPUs. Siblings stay together, and a last-level cache is shared by both sides only
/// when there is but one.
///
/// # Errors
///
/// A [`SetsError`] that says what is wrong with the wish or the machine.
pub fn choose(topology: &Topology, wish: &Wish) -> Result<CpuSets, SetsError> {
    let server = wished(topology, Side::Server, wish.server.as_deref())?;
    let client = wished(topology, Side::Client, wish.client.as_deref())?;
    let (server, client) = match (server, client) {
        (Some(server), Some(client)) => (server, client),
        (Some(server), None) => {
            let client = remainder(topology, &server, Side::Client)?;
            (server, client)
        }
        (None, Some(client)) => {
            let mut left = remainder(topology, &client, Side::Server)?;
            if let Some(max) = wish.server_cores_max {
                left = first_cores(topology, &left, max)?;
            }
            (left, client)
        }
        (None, None) => divide(topology, wish.server_cores_max)?,
    };
    let both: Cpus = server.intersection(&client).copied().collect();
    if !both.is_empty() {
        return Err(SetsError::Overlap(both));
    }
    for core in &topology.cores {
        let first = |side: &Cpus| core.intersection(side).next().copied();
        if let (Some(server), Some(client)) = (first(&server), first(&client)) {
            return Err(SetsError::SiblingsApart(server, client));
        }
    }
    let remarks = remarks(topology, &server, &client);
    Ok(CpuSets { server, client, remarks })
}

fn wished(topology: &Topology, side: Side, list: Option<&str>) -> Result<Option<Cpus>, SetsError> {
    let Some(list) = list else { return Ok(None) };
    let cpus = cpu_list::parse(list).map_err(|error| SetsError::List(side, error))?;
    let strange: Cpus = cpus.difference(&topology.allowed).copied().collect();
    if !strange.is_empty() {
        return Err(SetsError::NotAllowed(side, strange, topology.allowed.clone()));
    }
    Ok(Some(cpus))
}

/// Every core that `taken` does not touch.
fn remainder(topology: &Topology, taken: &Cpus, side: Side) -> Result<Cpus, SetsError> {
    let free = topology.cores.iter().filter(|core| core.is_disjoint(taken));
    let cpus: Cpus = free.flatten().copied().collect();
    if cpus.is_empty() { Err(SetsError::NothingLeft(side)) } else { Ok(cpus) }
}

fn first_cores(topology: &Topology, among: &Cpus, max: usize) -> Result<Cpus, SetsError> {
    if max == 0 {
        return Err(SetsError::NoServerCores);
    }
    let cores = topology.cores.iter().filter(|core| core.is_subset(among));
    Ok(cores.take(max).flatten().copied().collect())
}

/// Gives the first caches to the servers and the last to the clients, and divides a cache by its
/// cores only where it must.
fn divide(topology: &Topology, server_cores_max: Option<usize>) -> Result<(Cpus, Cpus), SetsError> {
    if topology.cores.len() < 2 {
        return Err(SetsError::OneCore(topology.allowed.clone()));
    }
    let half = topology.cores.len() / 2;
    let wanted = server_cores_max.map_or(half, |max| max.min(topology.cores.len() - 1));
    if wanted == 0 {
        return Err(SetsError::NoServerCores);
    }
    // Sockets first, then caches, then cores: neighbours in this order share the most.
    let mut order: Vec<&Cpus> = topology.cores.iter().collect();
    let position = |groups: &[Cpus], core: &Cpus| groups.iter().position(|g| !g.is_disjoint(core));
    order.sort_by_key(|core| (position(&topology.sockets, core), position(&topology.caches, core)));
    let cache = |core: &Cpus| position(&topology.caches, core);
    let mut boundary = wanted;
    if server_cores_max.is_none() {
        // A boundary between caches is better than one in the exact middle, unless it leaves one
        // side with less than a quarter.
        let quarter = order.len().div_ceil(4);
        let between = |at: &usize| {
            (quarter..=order.len() - quarter).contains(at)
                && cache(order[*at - 1]) != cache(order[*at])
        };
        let nearest = (1..order.len()).filter(between).min_by_key(|at| at.abs_diff(wanted));
        boundary = nearest.unwrap_or(wanted);
    }
    let server: Cpus = order[..boundary].iter().copied().flatten().copied().collect();
    let last_of_server = cache(order[boundary - 1]);
    let apart = |core: &&&Cpus| cache(core) != last_of_server;
    let rest = &order[boundary..];
    let has_other_cache = rest.iter().any(|core| apart(&core));
    let client = rest.iter().filter(|core| !has_other_cache || apart(core));
    Ok((server, client.copied().flatten().copied().collect()))
}

fn remarks(topology: &Topology, server: &Cpus, client: &Cpus) -> Vec<String> {
    let mut remarks = Vec::new();
    if !topology.is_known {
        remarks.push(
            "The kernel does not say which CPUs share a core: siblings may stand on both sides."
                .to_owned(),
        );
    }
    let shared = topology
        .caches
        .iter()
        .filter(|cache| !cache.is_disjoint(server) && !cache.is_disjoint(client))
        .count();
    if shared > 0 {
        remarks.push(
            "Server and client share a last-level cache: each can push out the other's data."
                .to_owned(),
        );
    }
    let spans = |side: &Cpus| {
        topology.sockets.iter().filter(|socket| !socket.is_disjoint(side)).count() > 1
    };
    for (side, cpus) in [(Side::Server, server), (Side::Client, client)] {
        if spans(cpus) {
            remarks.push(format!("The {side} runs on more than one socket."));
        }
    }
    remarks
}
