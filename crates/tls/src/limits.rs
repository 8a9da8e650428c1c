//! The limits of this crate.

/// The maximum number of bytes that a peer may send before its handshake is complete: 64 KiB.
///
/// The same limit applies to an incomplete handshake message after the handshake. A peer that
/// exceeds it is rejected with `TlsConnectionError::HandshakeTooLong`.
pub const HANDSHAKE_BYTES_MAX: usize = 64 * 1024;

/// The maximum number of plaintext bytes in a record: 16 KiB.
// RFC 8446 §5.1: the length MUST NOT exceed 2^14 bytes.
pub const RECORD_PLAINTEXT_BYTES_MAX: usize = 16 * 1024;

/// The maximum size of a PEM file: 1 MiB.
pub const PEM_BYTES_MAX: usize = 1024 * 1024;

/// The maximum number of bytes after the header of an encrypted record.
// RFC 5246 §6.2.3: the length MUST NOT exceed 2^14 + 2048. TLS 1.3 allows less, 2^14 + 256; rustls
// enforces the limit of the negotiated version when it decrypts the record.
#[cfg(feature = "rustls")]
pub(crate) const RECORD_CIPHERTEXT_BYTES_MAX: usize = RECORD_PLAINTEXT_BYTES_MAX + 2048;

/// An upper estimate of what encryption adds to a record: header, explicit nonce, content type and
/// tag take at most 5 + 8 + 1 + 16 bytes in the supported suites.
#[cfg(feature = "rustls")]
pub(crate) const RECORD_OVERHEAD_BYTES: usize = 32;

/// The longest HTTP method, in bytes, that is recognised if a peer does not speak TLS.
#[cfg(feature = "rustls")]
pub(crate) const SNIFFED_METHOD_BYTES_MAX: usize = 24;

/// The number of tickets sent per handshake: one, because a client with one connection uses one.
#[cfg(feature = "rustls")]
pub(crate) const TICKETS_PER_HANDSHAKE: usize = 1;

/// The maximum size of a session for which a ticket is issued. It includes the chain of the
/// client's certificate, and the client returns it in the first bytes of its next connection.
#[cfg(feature = "rustls")]
pub(crate) const TICKET_SESSION_BYTES_MAX: usize = 16 * 1024;

#[cfg(feature = "rustls")]
const _: () = assert!(HANDSHAKE_BYTES_MAX > RECORD_CIPHERTEXT_BYTES_MAX);
