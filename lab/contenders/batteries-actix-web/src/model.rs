//! What the batteries are tried on: documents, a form, a file.

use std::env;
use std::fs;
use std::sync::LazyLock;

use garde::Validate;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// Whose pages may ask.
pub const ORIGIN: &str = "https://app.example.com";

/// The token of who may ask.
pub const TOKEN: &str = "k3y-0f-the-crawler-of-birds";

/// What cookies are signed with.
pub const SECRET: [u8; 64] = [7; 64];

/// The reply of `/json` and `/people`.
#[derive(Serialize)]
pub struct Message {
    pub message: &'static str,
}

impl Message {
    pub fn hello() -> Message {
        Message { message: "Hello, World!" }
    }
}

/// The reply of `/items`, of some nine kilobytes. The items are made once; they are serialised for each reply.
#[derive(Serialize)]
pub struct Items {
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

impl Items {
    pub fn shared() -> &'static Items {
        static ITEMS: LazyLock<Items> = LazyLock::new(|| {
            let items: Vec<Item> = (0..100).map(Item::new).collect();
            Items { count: items.len(), items }
        });
        &ITEMS
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

/// The body of `/people`.
#[derive(Deserialize, Validate)]
#[serde(rename_all = "camelCase")]
pub struct Person {
    #[garde(length(min = 3, max = 20), alphanumeric)]
    pub user_name: String,
    #[garde(range(min = 18, max = 150))]
    pub age: u8,
    #[garde(length(min = 3, max = 100), contains("@"))]
    pub mail: String,
    #[garde(length(max = 5), inner(length(min = 1, max = 20)))]
    #[serde(default)]
    pub tags: Vec<String>,
}

/// A file in progress: counted as it arrives, never held whole, and hashed where the route asks for it.
pub struct Upload {
    bytes: u64,
    hash: Option<Sha256>,
}

impl Upload {
    pub fn counted() -> Upload {
        Upload { bytes: 0, hash: None }
    }

    pub fn hashed() -> Upload {
        Upload { bytes: 0, hash: Some(Sha256::default()) }
    }

    pub fn receive(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        if let Some(hash) = &mut self.hash {
            hash.update(piece);
        }
    }

    pub fn finish(self) -> Uploaded {
        let sha256 = self.hash.map(|hash| format!("{:x}", hash.finalize()));
        Uploaded { bytes: self.bytes, sha256 }
    }
}

/// The reply of `/form` and `/form/hashed`.
#[derive(Serialize)]
pub struct Uploaded {
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A folder with the one file `lines.txt`, which are 100 lines with their numbers: 1,000 bytes.
pub fn folder() -> TempDir {
    let folder = TempDir::new().expect("there is a folder for temporary files");
    let lines: String = (0..100).map(|number| format!("{number:09}\n")).collect();
    fs::write(folder.path().join("lines.txt"), lines).expect("a temporary file can be written");
    folder
}

pub fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}
