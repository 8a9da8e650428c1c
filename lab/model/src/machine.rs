//! The machine, and what state it was in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The facts about a machine that a figure means nothing without. Texts that could not be read
/// are "unknown" or empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The CPU's name, as the kernel prints it.
    pub cpu: String,
    /// How many CPUs the lab may use.
    pub cpus: u32,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// The operating system's name and version.
    pub system: String,
    /// The kernel's release and version.
    pub kernel: String,
    /// The frequency governor, or "none" where the kernel does not steer it.
    pub governor: String,
    /// Whether frequencies above the nominal one are allowed: "on", "off" or "unknown".
    pub turbo: String,
    /// Whether CPUs share cores: the kernel's word (`on`, `off`, `notsupported`).
    pub smt: String,
    /// The mitigations in force, one per known weakness.
    pub mitigations: Vec<String>,
    /// The clock source.
    pub clock_source: String,
    /// Whether the processor says that it is a virtual one.
    pub is_virtual: bool,
    /// Limits by name, such as "open files" or "net.core.somaxconn".
    pub limits: BTreeMap<String, String>,
    /// What `--tune` changed for the length of the run, a sentence each; the other fields say how
    /// the machine was during it. Empty where nothing was changed, and then not written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuned: Vec<String>,
    /// How client and server are joined, such as "loopback, MTU 65536".
    pub network: String,
    /// The CPUs of the servers.
    pub server_cpus: Vec<u32>,
    /// The CPUs of the client.
    pub client_cpus: Vec<u32>,
    /// The mean load over 1, 5 and 15 minutes before the run.
    pub load_before: Option<[f64; 3]>,
    /// The mean load over 1, 5 and 15 minutes after the run.
    pub load_after: Option<[f64; 3]>,
    /// The share of the servers' CPU time that the host kept for itself, 0 to 1.
    pub stolen_share: Option<f64>,
    /// The share of the servers' CPU time that programs outside the run used, 0 to 1.
    pub foreign_share: Option<f64>,
}
