//! What the server has to say: one buffer that fills, bytes of the application that are not copied, and
//! what is with the driver.

use crate::stage::Stage;
use bytes::Bytes;
use peregrine_driver::Stream;
use peregrine_tls::SendError;

/// Fewer bytes than this are copied behind what is written already: one piece of memory is the cheapest
/// form of a small response.
pub(crate) const SHARED_BYTES_MIN: usize = 16 * 1024;

/// The most shared bytes that the driver has of one connection at a time. With more, the other
/// connections would wait, and calls into the kernel are few with this already.
pub(crate) const SHARED_BYTES_MAX: usize = 1024 * 1024;

/// The sending half of a busy connection.
///
/// Protocols write plaintext to `plain`, and large content of the application to [`Writer::share`].
/// [`Writer::flush`] hands it to the driver, as soon as the driver is done with what it was given before.
///
/// There is at most one shared piece at a time. The order is `ahead`, `shared`, `plain`; without a shared
/// piece nothing is ahead.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) plain: Vec<u8>,
    /// TLS records, and what the session says by itself.
    pub(crate) records: Vec<u8>,
    ahead: Vec<u8>,
    shared: Bytes,
}

impl Writer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.records.is_empty() && self.shared.is_empty()
    }

    /// Does a shared piece wait, or a part of one?
    pub(crate) fn is_sharing(&self) -> bool {
        !self.shared.is_empty()
    }

    /// Does so much wait that no more is to be produced? A shared piece is always enough.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.is_sharing() || self.plain.len() >= most
    }

    /// Writes content behind everything else, without a copy if it is large.
    pub(crate) fn share(&mut self, content: Bytes) {
        if content.len() < SHARED_BYTES_MIN || !self.shared.is_empty() {
            self.plain.extend_from_slice(&content);
        } else {
            // Nothing is ahead of nothing: what comes back is an empty buffer, perhaps with memory.
            std::mem::swap(&mut self.ahead, &mut self.plain);
            self.shared = content;
        }
    }

    /// Gives what is written to the driver, unless what it was given before waits for the peer. Of
    /// shared bytes it gets a part at a time, and then what is written behind them waits: call again.
    /// Returns how many bytes were given.
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
    ) -> Result<usize, SendError> {
        if self.is_empty() || !stream.has_room() {
            return Ok(0);
        }
        if let Stage::Tls(tls) = stage {
            let encrypted = self.encrypt(most, |bytes, records| tls.session.send(bytes, records));
            if encrypted.is_err() {
                self.drop_plain();
            }
            encrypted?;
            let bytes = self.records.len();
            stream.send(&mut self.records);
            Ok(bytes)
        } else if self.shared.is_empty() {
            let bytes = self.plain.len();
            stream.send(&mut self.plain);
            Ok(bytes)
        } else {
            let piece = self.take_shared(SHARED_BYTES_MAX);
            let bytes = self.ahead.len() + piece.len();
            stream.send_shared(&mut self.ahead, piece);
            Ok(bytes)
        }
    }

    /// The memory of its buffers, and a shared piece that waits.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.plain.capacity() + self.records.capacity() + self.ahead.capacity() + self.shared.len()
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
            let piece = self.take_shared(most.max(SHARED_BYTES_MIN));
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
            std::mem::take(&mut self.shared)
        } else {
            self.shared.split_to(most)
        }
    }

    /// Forgets what was not encrypted.
    pub(crate) fn drop_plain(&mut self) {
        self.ahead.clear();
        self.shared = Bytes::new();
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
