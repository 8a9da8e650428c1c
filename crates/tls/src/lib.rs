//! TLS as a byte transformation: ciphertext in, plaintext and bytes to send out.
//!
//! This is the server side of TLS 1.2 and 1.3, on rustls with aws-lc-rs. It is not a socket, a task
//! or a stream: it does no I/O and has no wakers, so every driver and every test can use it. The
//! only clock and the only randomness are those that rustls needs for itself.
//!
//! ```
//! use peregrine::tls::{Received, Tls};
//!
//! let made = Tls::self_signed(&["localhost"])?;
//! let mut session = made.tls.session(); // one for each connection
//! let (mut plain, mut out) = (Vec::new(), Vec::new());
//!
//! // Always send the bytes appended to `out`, even after an error.
//! let received = session.receive(b"GET / HTTP/1.1\r\n", &mut plain, &mut out);
//! assert!(received.is_err(), "the bytes are not TLS");
//! assert!(out.starts_with(b"HTTP/1.1 400 "));
//! # Ok::<(), peregrine::tls::TlsError>(())
//! ```
//!
//! Start reading in `session.rs`. The API for users is in `config.rs`, what a reload reads in
//! `plan.rs`, errors of the peer in `reject.rs`, and limits in `limits.rs`. Without the feature
//! `rustls`, which is enabled by default, `absent.rs` replaces all of them.
#![forbid(unsafe_code)]

#[cfg(not(feature = "rustls"))]
mod absent;
#[cfg(feature = "rustls")]
mod certificate;
#[cfg(feature = "rustls")]
mod challenge;
#[cfg(feature = "rustls")]
mod choice;
#[cfg(feature = "rustls")]
mod client;
#[cfg(feature = "rustls")]
mod config;
#[cfg(feature = "rustls")]
mod der;
#[cfg(feature = "rustls")]
mod digest;
#[cfg(feature = "rustls")]
mod error;
mod facts;
#[cfg(feature = "rustls")]
mod fuzz;
#[cfg(feature = "rustls")]
mod hosts;
#[cfg(feature = "rustls")]
mod identity;
#[cfg(feature = "rustls")]
mod inspect;
mod limits;
#[cfg(feature = "rustls")]
mod made;
#[cfg(feature = "rustls")]
mod opening;
#[cfg(feature = "rustls")]
mod plan;
#[cfg(feature = "rustls")]
mod protocol;
#[cfg(feature = "rustls")]
mod records;
#[cfg(feature = "rustls")]
mod reject;
#[cfg(feature = "rustls")]
mod session;
#[cfg(feature = "rustls")]
mod source;
#[cfg(feature = "rustls")]
mod staple;
#[cfg(feature = "rustls")]
mod status;
#[cfg(feature = "rustls")]
mod tickets;
#[cfg(feature = "rustls")]
mod until;
#[cfg(feature = "rustls")]
mod validity;

#[cfg(not(feature = "rustls"))]
pub use absent::{Hosts, Reject, SendError, Session, Tls, TlsError};
#[cfg(feature = "rustls")]
pub use certificate::Certificate;
#[cfg(feature = "rustls")]
#[doc(hidden)]
pub use challenge::{Challenges, Looking, LooksElsewhere};
#[cfg(feature = "rustls")]
pub use client::ClientAuth;
#[cfg(feature = "rustls")]
pub use config::{SelfSigned, Tls};
#[cfg(feature = "rustls")]
pub use error::{Origin, TlsError, Warning};
pub use facts::{Facts, Identity, Received, Version};
#[cfg(feature = "rustls")]
#[doc(hidden)]
pub use fuzz::{fuzz_certificate, fuzz_one};
#[cfg(feature = "rustls")]
pub use hosts::Hosts;
#[cfg(feature = "rustls")]
pub use inspect::{Inspected, inspect};
pub use limits::{HANDSHAKE_BYTES_MAX, PEM_BYTES_MAX, RECORD_PLAIN_BYTES_MAX};
#[cfg(feature = "rustls")]
pub use plan::Reloaded;
#[cfg(feature = "rustls")]
pub use reject::{PLAIN_HTTP_REPLY, Reject, SendError};
#[cfg(feature = "rustls")]
pub use rustls;
#[cfg(feature = "rustls")]
pub use session::Session;
#[cfg(feature = "rustls")]
pub use staple::StapleFault;
#[cfg(feature = "rustls")]
pub use status::{CertificateStatus, TlsStatus};
#[cfg(feature = "rustls")]
pub use tickets::TicketKeys;
