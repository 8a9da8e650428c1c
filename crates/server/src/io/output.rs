//! What the server has to say: one buffer that fills, bytes of the application or of a file that are not copied,
//! and what is with the driver.

use super::transport::Stage;
use crate::panic::Quiet;
use bytes::Bytes;
use peregrine_driver::{FilePart, Stream};
use peregrine_tls::SendError;

/// Fewer bytes than this are copied behind what is written already: one piece of memory is the cheapest
/// form of a small response.
pub(crate) const SHARED_BYTES_MIN: usize = 16 * 1024;

/// The most shared bytes that the driver has of one connection at a time. With more, the other
/// connections would wait, and calls into the kernel are few with this already.
pub(crate) const SHARED_BYTES_MAX: usize = 1024 * 1024;

/// Content at hand up to this length counts as held, whoever else holds it.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// What content at hand takes. If it is large, and others hold it as well, it would be there without this
/// connection; a small piece is mostly a part of a buffer of its producer's, and counts in any case.
pub(crate) fn held_of(content: &Bytes) -> usize {
    if content.len() <= SMALL_BYTES_MAX || content.is_unique() { content.len() } else { 0 }
}

/// What the driver was given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) bytes: usize,
    /// How many of them count as held ([`held_of`]).
    pub(crate) held_bytes: usize,
}

impl Given {
    fn of(bytes: usize) -> Self {
        Self { bytes, held_bytes: bytes }
    }
}

/// The sending half of a busy connection.
///
/// Protocols write plaintext to `plain`, and large content of the application to [`Writer::share`].
/// [`Writer::flush`] hands it to the driver, as soon as the driver is done with what it was given before.
///
/// There is at most one shared piece at a time, which may be a part of a file. The order is `ahead`, `shared` or
/// `file`, `plain`; without a shared piece nothing is ahead.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) plain: Vec<u8>,
    /// TLS records, and what the session says by itself.
    pub(crate) records: Vec<u8>,
    ahead: Vec<u8>,
    shared: Quiet<Bytes>,
    /// Never there where records are made.
    file: Option<FilePart>,
    /// Does the shared piece count as held? Asked before it is split, since parts of it share it.
    is_held: bool,
}

impl Writer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.records.is_empty() && !self.is_sharing()
    }

    /// Does a shared piece wait, or a part of one?
    pub(crate) fn is_sharing(&self) -> bool {
        !self.shared.is_empty() || self.file.is_some()
    }

    /// Does so much wait that no more is to be produced? A shared piece is always enough.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.is_sharing() || self.plain.len() >= most
    }

    /// Writes content behind everything else, without a copy if it is large.
    pub(crate) fn share(&mut self, content: Quiet<Bytes>) {
        if content.len() < SHARED_BYTES_MIN || self.is_sharing() {
            self.plain.extend_from_slice(&content);
        } else {
            // Nothing is ahead of nothing: what comes back is an empty buffer, perhaps with memory.
            std::mem::swap(&mut self.ahead, &mut self.plain);
            self.is_held = held_of(&content) > 0;
            self.shared = content;
        }
    }

    /// Writes a part of a file behind everything else, of which nothing may be a shared piece.
    pub(crate) fn share_file(&mut self, part: FilePart) {
        debug_assert!(!self.is_sharing(), "whoever is full takes no more");
        std::mem::swap(&mut self.ahead, &mut self.plain);
        self.file = Some(part);
    }

    /// Gives what is written to the driver, unless what it was given before waits for the peer. Of
    /// shared bytes it gets a part at a time, and then what is written behind them waits: call again.
    /// Returns what was given.
    ///
    /// At most `most` bytes of a shared piece are encrypted at a time.
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

    /// The memory of its buffers, and a shared piece that waits.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        let buffers = self.plain.capacity() + self.records.capacity() + self.ahead.capacity();
        if self.is_held { buffers + self.shared.len() } else { buffers }
    }

    /// Makes records of what is written, from the bytes where they are.
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

    /// The first bytes of the shared piece, at most `most`. None of it stays when it is used up.
    fn take_shared(&mut self, most: usize) -> Bytes {
        if self.shared.len() <= most {
            std::mem::take(&mut *self.shared)
        } else {
            self.shared.split_to(most)
        }
    }

    /// Forgets what was not encrypted.
    pub(crate) fn drop_plain(&mut self) {
        self.ahead.clear();
        self.shared = Quiet::default();
        self.file = None;
        self.plain.clear();
    }

    /// Gives the memory of empty buffers back.
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
