//! Certificates by ACME (RFC 8555), for servers that run.
//!
//! [`Acme`] says for which names, from whom and where they are kept; [`Acme::tls`] makes a
//! [`Tls`](peregrine_tls::Tls) of it, and a server that is given that `Tls` does the rest, on a thread of its own:
//!
//! ```no_run
//! use peregrine::acme::Acme;
//! use peregrine::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tls = Acme::new(["example.org", "www.example.org"])
//!         .contact("admin@example.org")
//!         .folder("/var/lib/example/acme")
//!         .tls()?;
//!     Server::bind("[::]:80").tls("[::]:443", tls).serve(|| App::new().get("/", || "hello"))?;
//!     Ok(())
//! }
//! ```
//!
//! It is not a client of ACME (that is `instant-acme`), and knows nothing of HTTP servers.
//!
//! Start reading in `work.rs`: what is done and when it is done. `book.rs` decides that, without a clock;
//! `order.rs` is one order; `storage.rs` is where things are kept, `stored.rs` what is kept there; `lookup.rs` finds what
//! other instances answer for this one.
#![forbid(unsafe_code)]

mod account;
mod acme;
mod answers;
mod book;
mod caught;
mod client;
mod error;
mod failure;
mod guarded;
mod handle;
mod lookup;
mod order;
mod shared;
mod storage;
mod stored;
mod supplier;
mod when;
mod work;

pub use acme::{Acme, Challenge, LETS_ENCRYPT, LETS_ENCRYPT_STAGING};
pub use error::AcmeError;
pub use failure::FailureReason;
pub use handle::{AcmeHandle, AcmeStatus, NameStatus};
#[doc(hidden)]
pub use shared::statuses;
pub use storage::{Folder, Storage};
#[doc(hidden)]
pub use supplier::{Supplier, Working};
