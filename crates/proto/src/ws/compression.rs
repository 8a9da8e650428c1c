//! What a connection asks of a library that compresses.

use std::fmt;

/// The compression of messages in both directions, by DEFLATE without a wrapper ("raw"). It is made by the
/// owner of the connection, for the parameters that [`deflate`](super::deflate) has agreed on.
///
/// The connection bounds what is inflated, appends and removes the four bytes that end a flushed block
/// (RFC 7692 §7.2.1, §7.2.2), and says when a message ends. Whether the window is kept then is for the
/// implementation to decide, by its parameters.
pub trait Compression {
    /// Inflates: appends to `out` what `input` stands for, at most `room` bytes, which is at least 1.
    /// Returns how many bytes of `input` were used: all, unless `room` was filled.
    ///
    /// `input` is empty when `room` was filled before, to ask for what is left. A block that says that it
    /// is the last one does not end the input: what follows is inflated as well (RFC 7692
    /// §7.2.3.4).
    ///
    /// # Errors
    ///
    /// If `input` is not what a compressor writes, or refers to bytes before the window. What is
    /// inflated of it before is appended. The connection fails, and nothing is inflated after.
    fn inflate(&mut self, input: &[u8], room: usize, out: &mut Vec<u8>)
    -> Result<usize, Malformed>;

    /// Notes that a received message is complete. Without context take-over by the peer, the window can go.
    fn end_inflate(&mut self);

    /// Compresses: appends to `out` what stands for `input`, up to a flush at a byte boundary, which ends
    /// with the bytes 00 00 FF FF (Z_SYNC_FLUSH). Appends nothing if nothing is to be flushed.
    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>);

    /// Notes that a sent message is complete. Without context take-over by this side, the next message must
    /// not refer to this one.
    fn end_deflate(&mut self);
}

/// Compressed bytes that no compressor writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the bytes cannot be inflated")
    }
}

impl std::error::Error for Malformed {}

/// No compression: a type without a value, for connections that never have one.
#[derive(Clone, Copy, Debug)]
pub enum NoCompression {}

impl Compression for NoCompression {
    fn inflate(&mut self, _: &[u8], _: usize, _: &mut Vec<u8>) -> Result<usize, Malformed> {
        match *self {}
    }

    fn end_inflate(&mut self) {
        match *self {}
    }

    fn deflate(&mut self, _: &[u8], _: &mut Vec<u8>) {
        match *self {}
    }

    fn end_deflate(&mut self) {
        match *self {}
    }
}
