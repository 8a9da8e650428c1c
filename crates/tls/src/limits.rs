//! How much of everything this crate accepts and holds.

/// The most bytes a peer may send before its handshake is complete: 64 KiB.
///
/// The same limit holds for the bytes of an unfinished handshake message after it. A peer that
/// exceeds it is refused with `Reject::HandshakeTooLong`.
pub const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;

/// The most plaintext bytes in one record: 16 KiB.
// RFC 8446 §5.1: the length MUST NOT exceed 2^14 bytes.
pub const RECORD_PLAIN_BYTES_MAX: usize = 16 * 1024;

/// The most bytes read from one PEM file: 1 MiB.
pub const PEM_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes after the header of an encrypted record.
// RFC 5246 §6.2.3: the length MUST NOT exceed 2^14 + 2048. TLS 1.3 allows less, 2^14 + 256; rustls
// holds each version to its own rule once the record is opened.
#[cfg(feature = "rustls")]
pub(crate) const RECORD_CIPHER_BYTES_MAX: usize = RECORD_PLAIN_BYTES_MAX + 2048;

/// A guess, on the safe side, of what encryption adds to a record: header, explicit nonce, content
/// type and tag take 5 + 8 + 1 + 16 bytes at most in the suites on offer.
#[cfg(feature = "rustls")]
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 32;

/// The longest method name that is looked for when a peer does not speak TLS, in bytes.
#[cfg(feature = "rustls")]
pub(crate) const METHOD_BYTES_MAX: usize = 24;

/// How many tickets a client is given in a handshake: one, as a client on one connection uses one.
#[cfg(feature = "rustls")]
pub(crate) const TICKETS_PER_HANDSHAKE: usize = 1;

/// The most bytes of a session that get a ticket: the chain of a client's certificate is among them,
/// and comes back in the first bytes of its next connection.
#[cfg(feature = "rustls")]
pub(crate) const SESSION_BYTES_MAX: usize = 16 * 1024;

#[cfg(feature = "rustls")]
const _: () = assert!(HANDSHAKE_BYTES_MAX > RECORD_CIPHER_BYTES_MAX);
