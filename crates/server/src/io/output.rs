//! Holds output: a buffer that protocols write to, plus at most one chunk of application memory or
//! of a file, which is sent without a copy.

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
/// There is at most one shared chunk at a time, which may be part of a file. The order on the wire
/// is `before_shared`, then `shared` or `file`, then `plaintext`. If there is no shared chunk,
/// `before_shared` is empty.
#[derive(Debug, Default)]
pub(crate) struct OutputBuffer {
    pub(crate) plaintext: Vec<u8>,
    /// TLS records, including messages of the TLS session itself.
    pub(crate) tls_records: Vec<u8>,
    before_shared: Vec<u8>,
    shared: CatchDropPanic<Bytes>,
    /// Always `None` with TLS.
    file: Option<FileRange>,
    /// Whether the shared chunk counts as the connection's memory. Determined before the chunk is
    /// split: after that, each part has the other parts as other owners.
    is_shared_accounted: bool,
}

impl OutputBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plaintext.is_empty() && self.tls_records.is_empty() && !self.has_shared()
    }

    /// Returns whether a shared chunk, or a part of one, is waiting.
    pub(crate) fn has_shared(&self) -> bool {
        !self.shared.is_empty() || self.file.is_some()
    }

    /// Returns whether so much output is waiting that no more may be produced: `bytes_max` bytes or
    /// a shared chunk.
    pub(crate) fn is_full(&self, bytes_max: usize) -> bool {
        self.has_shared() || self.plaintext.len() >= bytes_max
    }

    /// Appends content. It is not copied if it is large and no shared chunk is waiting.
    pub(crate) fn write_shared(&mut self, content: CatchDropPanic<Bytes>) {
        if content.len() < ZERO_COPY_BYTES_MIN || self.has_shared() {
            self.plaintext.extend_from_slice(&content);
        } else {
            // `before_shared` is empty without a shared chunk, so `plaintext` becomes an empty
            // buffer.
            std::mem::swap(&mut self.before_shared, &mut self.plaintext);
            self.is_shared_accounted = accounted_bytes(&content) > 0;
            self.shared = content;
        }
    }

    /// Appends a part of a file. No shared chunk may be waiting.
    pub(crate) fn write_file(&mut self, part: FileRange) {
        debug_assert!(!self.has_shared(), "callers check `is_full` first");
        std::mem::swap(&mut self.before_shared, &mut self.plaintext);
        self.file = Some(part);
    }

    /// Passes output to the driver, unless earlier output waits for the peer to read. A large
    /// shared chunk is passed in parts, one per call, and the bytes behind it wait for a later
    /// call. With TLS, `bytes_max` limits how much of a shared chunk is encrypted per call. Returns
    /// how much was passed.
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
            let (len, accounted_bytes) = (part.len, self.before_shared.len());
            stream.send_file(&mut self.before_shared, part);
            Ok(Flushed { bytes: accounted_bytes + len, accounted_bytes })
        } else if self.shared.is_empty() {
            let flushed = Flushed::all_accounted(self.plaintext.len());
            stream.send(&mut self.plaintext);
            Ok(flushed)
        } else {
            let chunk = self.take_shared(ZERO_COPY_BYTES_MAX);
            let before_len = self.before_shared.len();
            let bytes = before_len + chunk.len();
            let accounted_bytes = if self.is_shared_accounted { bytes } else { before_len };
            let flushed = Flushed { bytes, accounted_bytes };
            stream.send_shared(&mut self.before_shared, chunk);
            Ok(flushed)
        }
    }

    /// The memory of the buffers and, if it counts, of a waiting shared chunk.
    #[inline]
    pub(crate) fn memory_bytes(&self) -> usize {
        let buffers =
            self.plaintext.capacity() + self.tls_records.capacity() + self.before_shared.capacity();
        if self.is_shared_accounted { buffers + self.shared.len() } else { buffers }
    }

    /// Encrypts output into `tls_records` with `send`, without copying the plaintext first.
    /// Encrypts at most `bytes_max` bytes of a shared chunk (or [`ZERO_COPY_BYTES_MIN`], if that is
    /// more). Does not encrypt the bytes after the chunk until all of the chunk is encrypted.
    fn encrypt(
        &mut self,
        bytes_max: usize,
        mut send: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), TlsSendError>,
    ) -> Result<(), TlsSendError> {
        if !self.shared.is_empty() {
            if !self.before_shared.is_empty() {
                send(&self.before_shared, &mut self.tls_records)?;
                self.before_shared.clear();
            }
            let chunk = CatchDropPanic::new(self.take_shared(bytes_max.max(ZERO_COPY_BYTES_MIN)));
            send(&chunk, &mut self.tls_records)?;
            if !self.shared.is_empty() {
                return Ok(());
            }
        }
        if !self.plaintext.is_empty() {
            send(&self.plaintext, &mut self.tls_records)?;
            self.plaintext.clear();
        }
        Ok(())
    }

    /// Takes the first bytes of the shared chunk, at most `bytes_max`.
    fn take_shared(&mut self, bytes_max: usize) -> Bytes {
        if self.shared.len() <= bytes_max {
            std::mem::take(&mut *self.shared)
        } else {
            self.shared.split_to(bytes_max)
        }
    }

    /// Discards all output that is not encrypted.
    pub(crate) fn discard_plaintext(&mut self) {
        self.before_shared.clear();
        self.shared = CatchDropPanic::default();
        self.file = None;
        self.plaintext.clear();
    }

    /// Frees empty buffers that are larger than `retained_bytes_max`.
    pub(crate) fn shrink(&mut self, retained_bytes_max: usize) {
        for buffer in [&mut self.plaintext, &mut self.tls_records, &mut self.before_shared] {
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
