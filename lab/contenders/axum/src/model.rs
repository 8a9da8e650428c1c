//! The workload's documents, its checksums and the names of the large application's routes.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The versions of the large application.
pub const VERSIONS: [&str; 5] = ["v1", "v2", "v3", "v4", "v5"];

/// The resources of each version of the large application.
pub const RESOURCES: [&str; 10] = [
    "users",
    "orders",
    "products",
    "invoices",
    "payments",
    "carts",
    "reviews",
    "shipments",
    "tickets",
    "events",
];

/// The reply of a collection of the large application.
pub fn collection_text(method: &str, version: &str, resource: &str) -> String {
    format!("{method} {version} {resource}")
}

/// The reply of one item of the large application.
pub fn item_text(method: &str, version: &str, resource: &str, id: &str) -> String {
    format!("{method} {version} {resource} {id}")
}

/// The longest sleep that may be asked for.
pub const SLEEP_MS_MAX: u64 = 1000;

/// The reply of `/json`.
#[derive(Serialize)]
pub struct Message {
    pub message: &'static str,
}

/// The reply of `/api/v1/health`.
#[derive(Serialize)]
pub struct Health {
    pub status: &'static str,
}

/// The document of the 2021 comparison: the reply of `/example`, the body of `/json-complex`.
#[derive(Serialize, Deserialize)]
pub struct Example {
    pub a: String,
    pub b: u32,
    pub c: u64,
    pub d: f32,
    pub e: f64,
    pub f: Vec<u64>,
    pub g: Vec<f64>,
    pub h: Vec<String>,
    pub j: BTreeMap<String, u64>,
}

impl Example {
    pub fn new() -> Example {
        Example {
            a: "a string of some length".to_owned(),
            b: 4_294_967_295,
            c: 9_007_199_254_740_991,
            d: 2.5,
            e: 1234.0625,
            f: (0..16).map(|index| index * 1000).collect(),
            g: (0..16).map(|index| f64::from(index) + 0.25).collect(),
            h: (0..16).map(|index| format!("item {index}")).collect(),
            j: (0..16).map(|index| (format!("key{index:02}"), index)).collect(),
        }
    }
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

/// An upload in progress: hashed as it arrives, never held whole.
#[derive(Default)]
pub struct Upload {
    bytes: u64,
    hash: Sha256,
}

impl Upload {
    pub fn receive(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.hash.update(piece);
    }

    pub fn finish(self) -> Uploaded {
        Uploaded { bytes: self.bytes, sha256: format!("{:x}", self.hash.finalize()) }
    }
}

/// The reply of `/upload`.
#[derive(Serialize)]
pub struct Uploaded {
    pub bytes: u64,
    pub sha256: String,
}

/// The reply of `/large`. Its items are made once; they are serialised for each reply.
#[derive(Serialize)]
pub struct Large {
    pub count: usize,
    pub items: Vec<Item>,
}

#[derive(Serialize)]
pub struct Item {
    pub id: u64,
    pub name: String,
    pub price_cents: u64,
    pub tags: Vec<String>,
    pub in_stock: bool,
}

impl Large {
    pub fn shared() -> &'static Large {
        static LARGE: LazyLock<Large> = LazyLock::new(|| {
            let items: Vec<Item> = (0..1000).map(Item::new).collect();
            Large { count: items.len(), items }
        });
        &LARGE
    }
}

impl Item {
    fn new(id: u64) -> Item {
        Item {
            id,
            name: format!("item {id}"),
            price_cents: (id * 37) % 10_000,
            tags: ["alpha", "beta", "gamma"].map(str::to_owned).to_vec(),
            in_stock: id % 3 != 0,
        }
    }
}

/// The reply of `/download`: 1,000,000 bytes, which are lines with their numbers. They are made once.
pub fn numbered_lines() -> Vec<u8> {
    (0..100_000).flat_map(|number| format!("{number:09}\n").into_bytes()).collect()
}
