//! The workload's documents and its checksum.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The reply of `/json`.
#[derive(Serialize)]
pub struct Message {
    pub message: &'static str,
}

/// The query of the events route.
#[derive(Deserialize)]
pub struct EventQuery {
    pub tenant: String,
    #[expect(dead_code, reason = "read from the wire and typed, as the workload asks; not used")]
    pub include: Option<String>,
}

/// The body of the events route.
#[derive(Deserialize)]
pub struct Event {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub quantity: u64,
    #[serde(default)]
    #[expect(dead_code, reason = "decoded, as the workload asks; not part of the reply")]
    pub tags: Vec<String>,
    #[serde(default)]
    #[expect(dead_code, reason = "decoded, as the workload asks; not part of the reply")]
    pub metadata: HashMap<String, String>,
}

impl Event {
    pub fn is_complete(&self) -> bool {
        !self.name.is_empty() && self.quantity > 0
    }
}

/// The reply of the events route.
#[derive(Serialize)]
pub struct Recorded {
    #[serde(rename = "projectID")]
    pub project_id: String,
    pub tenant: String,
    #[serde(rename = "requestID")]
    pub request_id: String,
    pub name: String,
    pub quantity: u64,
    pub checksum: String,
}

impl Recorded {
    pub fn new(project_id: String, tenant: String, request_id: String, event: Event) -> Recorded {
        let Event { name, quantity, .. } = event;
        let text = format!("{project_id}|{tenant}|{request_id}|{name}|{quantity}");
        let checksum = format!("{:x}", Sha256::digest(text.as_bytes()));
        Recorded { project_id, tenant, request_id, name, quantity, checksum }
    }
}

/// What the before-hook leaves for the handler.
#[derive(Clone)]
pub struct HookState {
    pub after: &'static str,
}
