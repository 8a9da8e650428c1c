//! TLS as a transformation of bytes: ciphertext in, plaintext and bytes to send out.
//!
//! This is the server side of TLS 1.2 and 1.3, on rustls with aws-lc-rs. It is not a socket, a task
//! or a stream: it does no I/O and has no wakers, so every driver and every test can use it. The
//! only clock and the only randomness are those that rustls needs for itself.
//!
//! ```
//! use peregrine::tls::{TlsReadState, TlsConfig};
//!
//! let self_signed = TlsConfig::self_signed(&["localhost"])?;
//! let mut connection = self_signed.tls.new_connection();
//! let (mut plain, mut out) = (Vec::new(), Vec::new());
//!
//! // Always send the bytes appended to `out`, even after an error.
//! let received = connection.receive(b"GET / HTTP/1.1\r\n", &mut plain, &mut out);
//! assert!(received.is_err(), "the bytes are not TLS");
//! assert!(out.starts_with(b"HTTP/1.1 400 "));
//! # Ok::<(), peregrine::tls::TlsSetupError>(())
//! ```
//!
//! Start reading in `connection/mod.rs`. The API for users is in `config.rs`, what a reload reads
//! in `spec.rs`, errors of the peer in `connection_error.rs`, and limits in `limits.rs`. Without
//! the feature `rustls`, which is enabled by default, `disabled.rs` replaces all of them.
#![forbid(unsafe_code)]

#[cfg(feature = "rustls")]
mod certificate;
#[cfg(feature = "rustls")]
mod certificate_names;
#[cfg(feature = "rustls")]
mod challenge;
#[cfg(feature = "rustls")]
mod client_auth;
#[cfg(feature = "rustls")]
mod client_not_after;
#[cfg(feature = "rustls")]
mod config;
#[cfg(feature = "rustls")]
mod connection;
#[cfg(feature = "rustls")]
mod connection_error;
#[cfg(feature = "rustls")]
mod der;
#[cfg(not(feature = "rustls"))]
mod disabled;
#[cfg(feature = "rustls")]
mod error;
#[cfg(feature = "rustls")]
mod fuzz;
mod handshake_info;
#[cfg(feature = "rustls")]
mod inspect;
mod limits;
#[cfg(feature = "rustls")]
mod ocsp;
#[cfg(feature = "rustls")]
mod peer_certificate;
#[cfg(feature = "rustls")]
mod pem;
#[cfg(feature = "rustls")]
mod protocol;
#[cfg(feature = "rustls")]
mod records;
#[cfg(feature = "rustls")]
mod resolver;
#[cfg(feature = "rustls")]
mod self_signed;
#[cfg(feature = "rustls")]
mod sha256;
#[cfg(feature = "rustls")]
mod sniff;
#[cfg(feature = "rustls")]
mod spec;
#[cfg(feature = "rustls")]
mod status;
#[cfg(feature = "rustls")]
mod tickets;
#[cfg(feature = "rustls")]
mod x509;

#[cfg(feature = "rustls")]
pub use certificate::Certificate;
#[cfg(feature = "rustls")]
pub use certificate_names::CertificateNames;
#[cfg(feature = "rustls")]
#[doc(hidden)]
pub use challenge::{ChallengeResponses, LookupFuture, RemoteChallengeLookup};
#[cfg(feature = "rustls")]
pub use client_auth::ClientAuth;
#[cfg(feature = "rustls")]
pub use config::{SelfSigned, TlsConfig};
#[cfg(feature = "rustls")]
pub use connection::TlsConnection;
#[cfg(feature = "rustls")]
pub use connection_error::{PLAIN_HTTP_REPLY, TlsConnectionError, TlsSendError};
#[cfg(not(feature = "rustls"))]
pub use disabled::{
    CertificateNames, TlsConfig, TlsConnection, TlsConnectionError, TlsSendError, TlsSetupError,
};
#[cfg(feature = "rustls")]
pub use error::{PemOrigin, TlsSetupError, TlsWarning};
#[cfg(feature = "rustls")]
#[doc(hidden)]
pub use fuzz::{fuzz_certificate, fuzz_one};
pub use handshake_info::{HandshakeInfo, PeerCertificate, TlsReadState, TlsVersion};
#[cfg(feature = "rustls")]
pub use inspect::{CertificateInfo, inspect_certificate};
pub use limits::{HANDSHAKE_BYTES_MAX, PEM_BYTES_MAX, RECORD_PLAINTEXT_BYTES_MAX};
#[cfg(feature = "rustls")]
pub use ocsp::OcspError;
#[cfg(feature = "rustls")]
pub use rustls;
#[cfg(feature = "rustls")]
pub use spec::ReloadReport;
#[cfg(feature = "rustls")]
pub use status::{CertificateStatus, TlsStatus};
#[cfg(feature = "rustls")]
pub use tickets::TicketKeys;
