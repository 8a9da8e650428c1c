//! Received bytes that no protocol has consumed yet.

use super::chunk_buffer::Inbox;
use super::transport::{Encrypted, Stage};
use bytes::Bytes;
use peregrine_tls::Reject;
use std::ops::Deref;

/// The receiving half of a busy connection: plaintext, in order.
#[derive(Debug)]
pub(crate) struct Reader<C> {
    inbox: Inbox<C>,
    /// Whether the peer has ended its sending side.
    is_ended: bool,
    /// Bytes received, before decryption.
    received: u64,
    /// Bytes of plaintext received.
    plain: u64,
    /// The maximum, so far, of `plain` plus the received bytes of an incomplete TLS record. Rates
    /// are measured by it. Padding and empty records contain no plaintext, so a peer cannot keep up
    /// its rate with them.
    brought: u64,
}

impl<C: Deref<Target = [u8]>> Reader<C> {
    pub(crate) fn new() -> Self {
        Self { inbox: Inbox::new(), is_ended: false, received: 0, plain: 0, brought: 0 }
    }

    /// Adds bytes that the driver received. Replies of the TLS session are written to `replies`.
    ///
    /// # Errors
    /// The TLS session does not accept the bytes. An alert was written to `replies`.
    pub(crate) fn take(
        &mut self,
        chunk: C,
        stage: &mut Stage,
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        self.received += chunk.len() as u64;
        match stage {
            Stage::Plain => {
                self.brought += chunk.len() as u64;
                self.inbox.push(chunk);
                Ok(())
            }
            Stage::Tls(tls) => self.open(tls, &chunk, replies),
        }
    }

    /// Decrypts `sealed` and adds the plaintext.
    fn open(
        &mut self,
        tls: &mut Encrypted,
        sealed: &[u8],
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        let (taken, opened) = self.inbox.extend_by(|plain| {
            let before = plain.len();
            (tls.receive(sealed, plain, replies), plain.len() - before)
        });
        self.plain += opened as u64;
        self.brought = self.brought.max(self.plain + tls.incomplete_bytes());
        taken
    }

    /// Passes unread bytes, which arrived before the TLS session began, to the session.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub(crate) fn begin_stage(
        &mut self,
        stage: &mut Stage,
        replies: &mut Vec<u8>,
    ) -> Result<(), Reject> {
        let Stage::Tls(tls) = stage else { return Ok(()) };
        // From now on, only decrypted bytes count.
        self.plain = self.brought;
        let sealed = self.inbox.unread().to_vec();
        self.inbox.consume(sealed.len());
        self.open(tls, &sealed, replies)
    }

    /// Lets the TLS session process the bytes that it already has.
    ///
    /// # Errors
    /// As [`Reader::take`].
    pub(crate) fn go_on(&mut self, stage: &mut Stage, replies: &mut Vec<u8>) -> Result<(), Reject> {
        let Stage::Tls(tls) = stage else { return Ok(()) };
        self.open(tls, &[], replies)
    }

    /// Records that the peer has ended its sending side.
    pub(crate) fn end(&mut self) {
        self.is_ended = true;
    }

    /// Returns whether the peer has ended its sending side, by TCP or by TLS.
    pub(crate) fn is_ended(&self, stage: &Stage) -> bool {
        self.is_ended || stage.is_closed()
    }

    /// Bytes received in this session, before decryption. An increase shows that the peer is alive.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// The number of bytes by which the peer's rate is measured: plaintext, plus the received bytes
    /// of an incomplete TLS record.
    pub(crate) fn brought(&self) -> u64 {
        self.brought
    }

    pub(crate) fn unread(&self) -> &[u8] {
        self.inbox.unread()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty()
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.inbox.consume(bytes);
    }

    /// Takes all unread bytes without a copy, if their memory may be kept.
    pub(crate) fn take_kept(
        &mut self,
        keep: impl FnOnce(C) -> Result<Vec<u8>, C>,
    ) -> Option<Bytes> {
        self.inbox.take_kept(keep)
    }

    /// The memory of this buffer, not including the driver's buffer.
    #[inline]
    pub(crate) fn held_bytes(&self) -> usize {
        self.inbox.held_bytes()
    }

    /// Returns the driver's buffer to the driver, because the connection is about to wait.
    pub(crate) fn settle(&mut self) {
        self.inbox.settle();
    }

    /// Frees a large buffer, if nothing is unread.
    pub(crate) fn slim(&mut self, keep_bytes_max: usize) {
        if self.inbox.is_empty() {
            self.inbox.reset(keep_bytes_max);
        }
    }

    pub(crate) fn reset(&mut self, keep_bytes_max: usize) {
        self.inbox.reset(keep_bytes_max);
        (self.is_ended, self.received, self.plain, self.brought) = (false, 0, 0, 0);
    }
}
