//! The interface to a compression library.

use std::fmt;

/// Compresses messages in both directions with raw DEFLATE. The caller creates it with the
/// parameters negotiated by [`deflate`](super::deflate).
///
/// The connection limits the decompressed size, appends and removes the four bytes that end a
/// flushed block (RFC 7692 §7.2.1, §7.2.2), and calls `end_inflate` and `end_deflate` when a
/// message ends. The implementation then keeps or resets its window, according to the parameters.
pub trait DeflateCodec {
    /// Decompresses `input` and appends at most `room` bytes (at least 1) to `out`. Returns how
    /// many bytes of `input` were used: all of them, unless `room` was filled.
    ///
    /// `input` is empty if `room` was filled before, to request the rest. A block marked as the
    /// last one does not end the input: the following blocks are decompressed as well (RFC 7692
    /// §7.2.3.4).
    ///
    /// # Errors
    ///
    /// If `input` was not written by a compressor, or refers to bytes before the window. The output
    /// before the error is appended. The connection fails, and nothing is decompressed afterwards.
    fn inflate(
        &mut self,
        input: &[u8],
        room: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, InflateError>;

    /// Called when a received message is complete. Without context takeover by the peer, the window
    /// can be dropped.
    fn end_inflate(&mut self);

    /// Compresses `input` and appends the result to `out`, up to a flush at a byte boundary, which
    /// ends with the bytes 00 00 FF FF (Z_SYNC_FLUSH). Appends nothing if there is nothing to
    /// flush.
    fn deflate(&mut self, input: &[u8], out: &mut Vec<u8>);

    /// Called when a sent message is complete. Without context takeover by this end, the next
    /// message must not refer to it.
    fn end_deflate(&mut self);
}

/// Compressed data that is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateError;

impl fmt::Display for InflateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the bytes cannot be inflated")
    }
}

impl std::error::Error for InflateError {}

/// No compression: a type without values, for connections that never use it.
#[derive(Clone, Copy, Debug)]
pub enum NoDeflate {}

impl DeflateCodec for NoDeflate {
    fn inflate(&mut self, _: &[u8], _: usize, _: &mut Vec<u8>) -> Result<usize, InflateError> {
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
