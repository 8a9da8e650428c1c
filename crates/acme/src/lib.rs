//! Obtains and renews certificates by ACME (RFC 8555) while the server runs.
//!
//! [`Acme`] is the configuration; [`Acme::build`] creates a [`TlsConfig`](peregrine_tls::TlsConfig)
//! from it. A server with that `TlsConfig` does the rest on a separate thread:
//!
//! ```no_run
//! use peregrine::acme::Acme;
//! use peregrine::prelude::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let tls = Acme::new(["example.org", "www.example.org"])
//!         .contact("admin@example.org")
//!         .state_dir("/var/lib/example/acme")
//!         .build()?;
//!     let app = || App::new().get("/", || "hello");
//!     Server::bind("[::]:80").listen_tls("[::]:443", tls).serve(app)?;
//!     Ok(())
//! }
//! ```
//!
//! The protocol itself is implemented by `instant-acme`, and this crate does not depend on the HTTP
//! server.
//!
//! Start reading in `renewal_loop.rs`, which does the work. `schedule.rs` schedules it, without a
//! clock; `order.rs` processes one order; `storage.rs` has the storage, and `scoped_storage.rs` the
//! data in it; `challenge_lookup.rs` finds challenge responses of other instances.
#![forbid(unsafe_code)]

mod account;
mod acme;
mod acme_client;
mod catch_unwind;
mod challenge_lookup;
mod challenge_responses;
mod error;
mod failure;
mod handle;
mod http_client;
mod order;
mod panic_safe_storage;
mod renewal_loop;
mod schedule;
mod scoped_storage;
mod shared;
mod storage;
mod timing;

pub use acme::{Acme, Challenge, LETS_ENCRYPT_PRODUCTION, LETS_ENCRYPT_STAGING};
#[doc(hidden)]
pub use acme_client::{AcmeClient, AcmeClientThread};
pub use error::AcmeSetupError;
pub use failure::FailureReason;
pub use handle::{AcmeHandle, AcmeStatus, DomainStatus};
#[doc(hidden)]
pub use shared::statuses;
pub use storage::{DirStorage, Storage};
