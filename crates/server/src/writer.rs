//! What the server has to say: one buffer that fills, and one with the driver.

use crate::stage::Stage;
use peregrine_driver::Stream;
use peregrine_tls::SendError;

/// The sending half of a busy connection.
///
/// Protocols write plaintext to `plain`. [`Writer::flush`] hands all of it to the driver at once, as
/// soon as the driver is done with what it was given before.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) plain: Vec<u8>,
    /// TLS records, and what the session says by itself.
    pub(crate) records: Vec<u8>,
}

impl Writer {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.records.is_empty()
    }

    /// Gives everything written to the driver, unless what it was given before waits for the peer.
    /// Returns how many bytes were given.
    ///
    /// # Errors
    /// The TLS session cannot send.
    pub(crate) fn flush<S: Stream>(
        &mut self,
        stream: &S,
        stage: &mut Stage,
    ) -> Result<usize, SendError> {
        if self.is_empty() || !stream.has_room() {
            return Ok(0);
        }
        if let Stage::Tls(tls) = stage {
            if !self.plain.is_empty() {
                let encrypted = tls.session.send(&self.plain, &mut self.records);
                self.plain.clear();
                encrypted?;
            }
            let bytes = self.records.len();
            stream.send(&mut self.records);
            Ok(bytes)
        } else {
            let bytes = self.plain.len();
            stream.send(&mut self.plain);
            Ok(bytes)
        }
    }

    /// The memory of both buffers.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.plain.capacity() + self.records.capacity()
    }

    /// Gives the memory of empty buffers back.
    pub(crate) fn slim(&mut self, keep_bytes_max: usize) {
        for buffer in [&mut self.plain, &mut self.records] {
            if buffer.is_empty() && buffer.capacity() > keep_bytes_max {
                *buffer = Vec::new();
            }
        }
    }

    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.plain.clear();
        self.records.clear();
        self.slim(keep_bytes_max);
    }
}
