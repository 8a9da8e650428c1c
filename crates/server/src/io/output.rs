//! Holds output: a buffer that protocols write to, plus at most one piece of application memory or
//! of a file, which is sent without a copy.

use super::transport::Stage;
use crate::panic::Quiet;
use bytes::Bytes;
use peregrine_driver::{FilePart, Stream};
use peregrine_tls::SendError;

/// Shorter content is copied to the buffer, because one contiguous buffer is cheapest for a small
/// response.
pub(crate) const SHARED_BYTES_MIN: usize = 16 * 1024;

/// The maximum of shared bytes that one flush passes to the driver. More would make other
/// connections wait longer, and would hardly save system calls.
pub(crate) const SHARED_BYTES_MAX: usize = 1024 * 1024;

/// Content up to this length counts as memory of the connection, even if it has other owners.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// How much of the memory of `content` counts as memory of the connection. Large content with other
/// owners does not count, because it would exist without this connection as well. A small piece
/// always counts, because the other owner is usually the buffer of its own producer.
pub(crate) fn held_of(content: &Bytes) -> usize {
    if content.len() <= SMALL_BYTES_MAX || content.is_unique() { content.len() } else { 0 }
}

/// Bytes that were passed to the driver.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) bytes: usize,
    /// How many of them count as memory of the connection ([`held_of`]).
    pub(crate) held_bytes: usize,
}

impl Given {
    fn of(bytes: usize) -> Self {
        Self { bytes, held_bytes: bytes }
    }
}

/// The sending half of a busy connection.
///
/// Protocols write plaintext to `plain`, and pass large content of the application to
/// [`Writer::share`]. When the driver has sent the previous output, [`Writer::flush`] passes the
/// next output to it.
///
/// There is at most one shared piece at a time, which may be part of a file. The order on the wire
/// is `ahead`, then `shared` or `file`, then `plain`. If there is no shared piece, `ahead` is
/// empty.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) plain: Vec<u8>,
    /// TLS records, including messages of the TLS session itself.
    pub(crate) records: Vec<u8>,
    ahead: Vec<u8>,
    shared: Quiet<Bytes>,
    /// Always `None` with TLS.
    file: Option<FilePart>,
    /// Whether the shared piece counts as memory of the connection. Determined before the piece is
    /// split, because its parts are owners of the same memory.
    is_held: bool,
}

impl Writer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.records.is_empty() && !self.is_sharing()
    }

    /// Returns whether a shared piece, or a part of one, is waiting.
    pub(crate) fn is_sharing(&self) -> bool {
        !self.shared.is_empty() || self.file.is_some()
    }

    /// Returns whether so much output is waiting that no more may be produced: `most` bytes or a
    /// shared piece.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.is_sharing() || self.plain.len() >= most
    }

    /// Appends content, without a copy if it is large.
    pub(crate) fn share(&mut self, content: Quiet<Bytes>) {
        if content.len() < SHARED_BYTES_MIN || self.is_sharing() {
            self.plain.extend_from_slice(&content);
        } else {
            // `ahead` is empty without a shared piece, so `plain` becomes an empty buffer.
            std::mem::swap(&mut self.ahead, &mut self.plain);
            self.is_held = held_of(&content) > 0;
            self.shared = content;
        }
    }

    /// Appends a part of a file. No shared piece may be waiting.
    pub(crate) fn share_file(&mut self, part: FilePart) {
        debug_assert!(!self.is_sharing(), "a writer that is full takes no more");
        std::mem::swap(&mut self.ahead, &mut self.plain);
        self.file = Some(part);
    }

    /// Passes output to the driver, unless the driver still has earlier output to send. A large
    /// shared piece is passed in parts, one per call, and the bytes behind it wait for a later
    /// call. With TLS, at most `most` bytes of a shared piece are encrypted per call. Returns how
    /// much was passed.
    ///
    /// # Errors
    /// The TLS session cannot send.
    pub(crate) fn flush<S: Stream>(
        &mut self,
        stream: &S,
        stage: &mut Stage,
        most: usize,
    ) -> Result<Given, SendError> {
        if self.is_empty() || !stream.has_room() {
            return Ok(Given::default());
        }
        if let Stage::Tls(tls) = stage {
            let encrypted = self.encrypt(most, |bytes, records| tls.session.send(bytes, records));
            if encrypted.is_err() {
                self.drop_plain();
            }
            encrypted?;
            let given = Given::of(self.records.len());
            stream.send(&mut self.records);
            Ok(given)
        } else if let Some(part) = self.file.take() {
            let (length, held_bytes) = (part.length, self.ahead.len());
            stream.send_file(&mut self.ahead, part);
            Ok(Given { bytes: held_bytes + length, held_bytes })
        } else if self.shared.is_empty() {
            let given = Given::of(self.plain.len());
            stream.send(&mut self.plain);
            Ok(given)
        } else {
            let piece = self.take_shared(SHARED_BYTES_MAX);
            let (bytes, ahead) = (self.ahead.len() + piece.len(), self.ahead.len());
            let held_bytes = if self.is_held { bytes } else { ahead };
            let given = Given { bytes, held_bytes };
            stream.send_shared(&mut self.ahead, piece);
            Ok(given)
        }
    }

    /// The memory of the buffers, and of a waiting shared piece.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        let buffers = self.plain.capacity() + self.records.capacity() + self.ahead.capacity();
        if self.is_held { buffers + self.shared.len() } else { buffers }
    }

    /// Encrypts output into `records`, without copying the plaintext first.
    fn encrypt(
        &mut self,
        most: usize,
        mut send: impl FnMut(&[u8], &mut Vec<u8>) -> Result<(), SendError>,
    ) -> Result<(), SendError> {
        if !self.shared.is_empty() {
            if !self.ahead.is_empty() {
                send(&self.ahead, &mut self.records)?;
                self.ahead.clear();
            }
            let piece = Quiet::new(self.take_shared(most.max(SHARED_BYTES_MIN)));
            send(&piece, &mut self.records)?;
            if !self.shared.is_empty() {
                return Ok(());
            }
        }
        if !self.plain.is_empty() {
            send(&self.plain, &mut self.records)?;
            self.plain.clear();
        }
        Ok(())
    }

    /// Takes the first bytes of the shared piece, at most `most`, or all of it if that is less.
    fn take_shared(&mut self, most: usize) -> Bytes {
        if self.shared.len() <= most {
            std::mem::take(&mut *self.shared)
        } else {
            self.shared.split_to(most)
        }
    }

    /// Discards bytes that were not encrypted.
    pub(crate) fn drop_plain(&mut self) {
        self.ahead.clear();
        self.shared = Quiet::default();
        self.file = None;
        self.plain.clear();
    }

    /// Frees the memory of empty buffers.
    pub(crate) fn slim(&mut self, keep_bytes_max: usize) {
        for buffer in [&mut self.plain, &mut self.records, &mut self.ahead] {
            if buffer.is_empty() && buffer.capacity() > keep_bytes_max {
                *buffer = Vec::new();
            }
        }
    }

    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.drop_plain();
        self.records.clear();
        self.slim(keep_bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_content_that_others_hold_as_well_does_not_count() {
        let large = Bytes::from(vec![0; 2 * SMALL_BYTES_MAX]);
        assert_eq!(held_of(&large), 2 * SMALL_BYTES_MAX);
        let other = large.clone();
        assert_eq!((held_of(&large), held_of(&other.slice(..1000))), (0, 1000));
    }
}
