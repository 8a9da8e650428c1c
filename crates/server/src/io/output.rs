//! Holds output: a buffer that protocols write to, plus at most one zero-copy chunk: shared bytes
//! (memory of the application) or a part of a file.

use super::transport::Transport;
use crate::panic::CatchDropPanic;
use bytes::Bytes;
use peregrine_driver::{FileRange, Stream};
use peregrine_tls::TlsSendError;

/// Shorter content is copied to the buffer, because one contiguous buffer is cheapest for a small
/// response.
pub(crate) const ZERO_COPY_BYTES_MIN: usize = 16 * 1024;

/// The maximum number of shared bytes that one flush passes to the driver. More would delay other
/// connections, and would hardly save system calls.
pub(crate) const ZERO_COPY_BYTES_MAX: usize = 1024 * 1024;

/// Content up to this length counts as the connection's memory, even if it has other owners.
const ALWAYS_COUNTED_BYTES_MAX: usize = 64 * 1024;

/// How much of the memory of `content` counts as the connection's memory. Large content with other
/// owners does not count, because it would exist without this connection as well. A small chunk
/// always counts, because its other owner is usually the buffer of its producer.
pub(crate) fn accounted_bytes(content: &Bytes) -> usize {
    if content.len() <= ALWAYS_COUNTED_BYTES_MAX || content.is_unique() { content.len() } else { 0 }
}

/// Bytes that were passed to the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flushed {
    pub(crate) bytes: usize,
    /// How many of them count as the connection's memory ([`accounted_bytes`]).
    pub(crate) accounted_bytes: usize,
}

impl Flushed {
    fn all_accounted(bytes: usize) -> Self {
        Self { bytes, accounted_bytes: bytes }
    }
}

/// The sending half of a busy connection.
///
/// Protocols write plaintext to `plaintext`, and pass large content of the application to
/// [`OutputBuffer::write_shared`]. [`OutputBuffer::flush`] passes the output to the driver.
///
/// There is at most one zero-copy chunk at a time: `shared` or `file`. The order on the wire is
/// `before_chunk`, then the zero-copy chunk, then `plaintext`. If there is no zero-copy chunk,
/// `before_chunk` is empty.
#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    pub(crate) plaintext: Vec<u8>,
    /// TLS records, including messages of the TLS session itself.
    pub(crate) tls_records: Vec<u8>,
    before_chunk: Vec<u8>,
    shared: CatchDropPanic<Bytes>,
    /// Always `None` with TLS.
    file: Option<FileRange>,
    /// Whether `shared` counts as the connection's memory. Determined before `shared` is split:
    /// after that, each part has the other parts as other owners.
    is_shared_accounted: bool,
}

impl OutputBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plaintext.is_empty() && self.tls_records.is_empty() && !self.has_chunk()
    }

    /// Returns whether a zero-copy chunk, or a part of one, is waiting.
    pub(crate) fn has_chunk(&self) -> bool {
        !self.shared.is_empty() || self.file.is_some()
    }

    /// Returns whether so much output is waiting that no more may be produced: `bytes_max` bytes or
    /// a zero-copy chunk.
    pub(crate) fn is_full(&self, bytes_max: usize) -> bool {
        self.has_chunk() || self.plaintext.len() >= bytes_max
    }

    /// Appends content. It is not copied if it is large and no zero-copy chunk is waiting.
    pub(crate) fn write_shared(&mut self, content: CatchDropPanic<Bytes>) {
        if content.len() < ZERO_COPY_BYTES_MIN || self.has_chunk() {
            self.plaintext.extend_from_slice(&content);
        } else {
            // `before_chunk` is empty without a zero-copy chunk, so `plaintext` becomes an empty
            // buffer.
            std::mem::swap(&mut self.before_chunk, &mut self.plaintext);
            self.is_shared_accounted = accounted_bytes(&content) > 0;
            self.shared = content;
        }
    }

    /// Appends a part of a file. No zero-copy chunk may be waiting.
    pub(crate) fn write_file(&mut self, part: FileRange) {
        debug_assert!(!self.has_chunk(), "callers check `is_full` first");
        std::mem::swap(&mut self.before_chunk, &mut self.plaintext);
        self.file = Some(part);
    }

    /// Passes output to the driver, unless earlier output waits for the peer to read. Large shared
    /// bytes are passed in parts, one per call; a part of a file is passed at once. Without TLS,
    /// the bytes behind the zero-copy chunk wait for a later call. With TLS, `bytes_max` limits how
    /// many shared bytes are encrypted per call. Returns how much was passed.
    ///
    /// # Errors
    /// The TLS session cannot send.
    pub(crate) fn flush<S: Stream>(
        &mut self,
        stream: &S,
        transport: &mut Transport,
        bytes_max: usize,
    ) -> Result<Flushed, TlsSendError> {
        if self.is_empty() || !stream.is_writable() {
            return Ok(Flushed::default());
        }
        if let Transport::Tls(tls) = transport {
            let result = self.encrypt(bytes_max, |bytes, records| tls.session.send(bytes, records));
            if result.is_err() {
                self.discard_plaintext();
            }
            result?;
            let flushed = Flushed::all_accounted(self.tls_records.len());
            stream.send(&mut self.tls_records);
            Ok(flushed)
        } else if let Some(part) = self.file.take() {
            let (len, accounted_bytes) = (part.len, self.before_chunk.len());
            stream.send_file(&mut self.before_chunk, part);
            Ok(Flushed { bytes: accounted_bytes + len, accounted_bytes })
        } else if self.shared.is_empty() {
            let flushed = Flushed::all_accounted(self.plaintext.len());
            stream.send(&mut self.plaintext);
            Ok(flushed)
        } else {
            let chunk = self.take_shared(ZERO_COPY_BYTES_MAX);
            let before_len = self.before_chunk.len();
            let bytes = before_len + chunk.len();
            let accounted_bytes = if self.is_shared_accounted { bytes } else { before_len };
            let flushed = Flushed { bytes, accounted_bytes };
            stream.send_shared(&mut self.before_chunk, chunk);
            Ok(flushed)
        }
    }

    /// The memory of the buffers and, if they count, of waiting shared bytes.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        let buffers =
            self.plaintext.capacity() + self.tls_records.capacity() + self.before_chunk.capacity();
        if self.is_shared_accounted { buffers + self.shared.len() } else { buffers }
    }

    /// Encrypts output into `tls_records` with `encrypt_into`, without copying the plaintext first.
    /// Encrypts at most `bytes_max` shared bytes (or [`ZERO_COPY_BYTES_MIN`], if that is more).
    /// Does not encrypt `plaintext` until all shared bytes are encrypted.
    fn encrypt(
        &mut self,
        bytes_max: usize,
        mut encrypt_into: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), TlsSendError>,
    ) -> Result<(), TlsSendError> {
        if !self.shared.is_empty() {
            if !self.before_chunk.is_empty() {
                encrypt_into(&self.before_chunk, &mut self.tls_records)?;
                self.before_chunk.clear();
            }
            let chunk = CatchDropPanic::new(self.take_shared(bytes_max.max(ZERO_COPY_BYTES_MIN)));
            encrypt_into(&chunk, &mut self.tls_records)?;
            if !self.shared.is_empty() {
                return Ok(());
            }
        }
        if !self.plaintext.is_empty() {
            encrypt_into(&self.plaintext, &mut self.tls_records)?;
            self.plaintext.clear();
        }
        Ok(())
    }

    /// Takes the first of the shared bytes, at most `bytes_max`.
    fn take_shared(&mut self, bytes_max: usize) -> Bytes {
        if self.shared.len() <= bytes_max {
            std::mem::take(&mut *self.shared)
        } else {
            self.shared.split_to(bytes_max)
        }
    }

    /// Discards all output that is not encrypted.
    pub(crate) fn discard_plaintext(&mut self) {
        self.before_chunk.clear();
        self.shared = CatchDropPanic::default();
        self.file = None;
        self.plaintext.clear();
    }

    /// Frees empty buffers that are larger than `retained_bytes_max`.
    pub(crate) fn shrink(&mut self, retained_bytes_max: usize) {
        for buffer in [&mut self.plaintext, &mut self.tls_records, &mut self.before_chunk] {
            if buffer.is_empty() && buffer.capacity() > retained_bytes_max {
                *buffer = Vec::new();
            }
        }
    }

    pub(crate) fn reset(&mut self, retained_bytes_max: usize) {
        self.discard_plaintext();
        self.tls_records.clear();
        self.shrink(retained_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_content_with_other_owners_is_not_accounted() {
        let large = Bytes::from(vec![0; 2 * ALWAYS_COUNTED_BYTES_MAX]);
        assert_eq!(accounted_bytes(&large), 2 * ALWAYS_COUNTED_BYTES_MAX);
        let shared = large.clone();
        assert_eq!((accounted_bytes(&large), accounted_bytes(&shared.slice(..1000))), (0, 1000));
    }
}
