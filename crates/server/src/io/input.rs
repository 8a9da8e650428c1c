//! Received bytes that no protocol has consumed yet.

use super::chunk_buffer::ChunkBuffer;
use super::transport::{TlsState, Transport};
use bytes::Bytes;
use peregrine_tls::TlsConnectionError;
use std::ops::Deref;

/// The receiving half of a busy connection: plaintext, in order.
#[derive(Debug)]
pub(crate) struct InputBuffer<C> {
    buffer: ChunkBuffer<C>,
    /// Whether the driver has reported end-of-file. An end by TLS is in the transport's state.
    is_eof: bool,
    /// Bytes received, before decryption.
    bytes_received: u64,
    /// With TLS, bytes of plaintext received, plus all that arrived before TLS was started (see
    /// [`InputBuffer::start_tls`]). Without TLS, unused.
    plaintext_bytes: u64,
    /// The bytes by which the peer's rate is measured: without TLS, all received bytes; with TLS,
    /// the maximum so far of a sum, `plaintext_bytes` plus the received bytes of an incomplete
    /// record. When a record turns out to be padding or empty, the sum falls and the maximum
    /// stays, so a series of such records does not raise it again and again.
    payload_bytes: u64,
}

impl<C: Deref<Target = [u8]>> InputBuffer<C> {
    pub(crate) fn new() -> Self {
        Self {
            buffer: ChunkBuffer::new(),
            is_eof: false,
            bytes_received: 0,
            plaintext_bytes: 0,
            payload_bytes: 0,
        }
    }

    /// Adds bytes that the driver received. Replies of the TLS session are written to `replies`.
    ///
    /// # Errors
    /// The TLS session does not accept the bytes. An alert was written to `replies`.
    pub(crate) fn push(
        &mut self,
        chunk: C,
        transport: &mut Transport,
        replies: &mut Vec<u8>,
    ) -> Result<(), TlsConnectionError> {
        self.bytes_received += chunk.len() as u64;
        match transport {
            Transport::Plain => {
                self.payload_bytes += chunk.len() as u64;
                self.buffer.push(chunk);
                Ok(())
            }
            Transport::Tls(tls) => self.decrypt(tls, &chunk, replies),
        }
    }

    /// Decrypts `ciphertext` and adds the plaintext.
    fn decrypt(
        &mut self,
        tls: &mut TlsState,
        ciphertext: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<(), TlsConnectionError> {
        let (result, decrypted_len) = self.buffer.append_with(|plaintext| {
            let len_before = plaintext.len();
            (tls.receive(ciphertext, plaintext, replies), plaintext.len() - len_before)
        });
        self.plaintext_bytes += decrypted_len as u64;
        self.payload_bytes =
            self.payload_bytes.max(self.plaintext_bytes + tls.partial_record_bytes());
        result
    }

    /// Passes unread bytes, which arrived while a PROXY header was expected, to the TLS session.
    ///
    /// # Errors
    /// As [`InputBuffer::push`].
    pub(crate) fn start_tls(
        &mut self,
        transport: &mut Transport,
        replies: &mut Vec<u8>,
    ) -> Result<(), TlsConnectionError> {
        let Transport::Tls(tls) = transport else { return Ok(()) };
        // Includes the early ciphertext. Its plaintext is added below, so these bytes count twice,
        // but only once per connection.
        self.plaintext_bytes = self.payload_bytes;
        let ciphertext = self.buffer.unread().to_vec();
        self.buffer.consume(ciphertext.len());
        self.decrypt(tls, &ciphertext, replies)
    }

    /// Continues to process the bytes that the TLS session has already received, after its
    /// handshake had to wait for the lookup of an ACME challenge.
    ///
    /// # Errors
    /// As [`InputBuffer::push`].
    pub(crate) fn resume_tls(
        &mut self,
        transport: &mut Transport,
        replies: &mut Vec<u8>,
    ) -> Result<(), TlsConnectionError> {
        let Transport::Tls(tls) = transport else { return Ok(()) };
        self.decrypt(tls, &[], replies)
    }

    /// Records that the peer has ended its sending side.
    pub(crate) fn set_eof(&mut self) {
        self.is_eof = true;
    }

    /// Returns whether the peer has ended its sending side, by TCP or by TLS.
    pub(crate) fn is_eof(&self, transport: &Transport) -> bool {
        self.is_eof || transport.is_read_closed()
    }

    /// Bytes received since the last reset, before decryption. An increase shows that the peer is
    /// alive.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.bytes_received
    }

    /// The number of bytes by which the peer's rate is measured; see the field.
    pub(crate) fn payload_bytes(&self) -> u64 {
        self.payload_bytes
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.buffer.unread()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.buffer.consume(bytes);
    }

    /// Takes all unread bytes without a copy, if `try_into_vec` returns the memory that holds them.
    pub(crate) fn take_without_copy(
        &mut self,
        try_into_vec: impl FnOnce(C) -> Result<Vec<u8>, C>,
    ) -> Option<Bytes> {
        self.buffer.take_without_copy(try_into_vec)
    }

    /// The memory of this buffer, not including the driver's buffer.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffer.memory_bytes()
    }

    /// Gives the driver's buffer back, because the connection is about to wait.
    pub(crate) fn release_chunk(&mut self) {
        self.buffer.release_chunk();
    }

    /// Frees a buffer larger than `retained_bytes_max`, if nothing is unread.
    pub(crate) fn shrink(&mut self, retained_bytes_max: usize) {
        if self.buffer.is_empty() {
            self.buffer.reset(retained_bytes_max);
        }
    }

    pub(crate) fn reset(&mut self, retained_bytes_max: usize) {
        self.buffer.reset(retained_bytes_max);
        (self.is_eof, self.bytes_received, self.plaintext_bytes, self.payload_bytes) =
            (false, 0, 0, 0);
    }
}
